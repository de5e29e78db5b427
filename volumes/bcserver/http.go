package bcserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// This is the part of HTTP/1.1 (RFC 9112) that BaggageClaim needs: one request on a connection of its own, and its whole answer. net/http is not used since
// it is linked into a program whose other commands never talk to a server, and only to be linked in costs each of them, with crypto/tls and the rest that
// comes with it, 0.2 ms before main: a quarter of an empty program's run.

// maxHeader bounds the lines before an answer's body.
const maxHeader = 64 << 10

// roundTrip sends a request to host ("name:port") and reads the whole answer, at most limit bytes and one more of its body. It ends with ctx. A body is JSON.
func roundTrip(ctx context.Context, host, method, at string, body []byte, limit int64) (status int, answer []byte, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	// What waits for the connection is woken when ctx is done.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bc-image-plugin\r\nConnection: close\r\n", method, at, host)
	b.WriteString("Accept-Encoding: gzip\r\n") // the server asks for it where it sends files; JSON is never compressed
	if body != nil {
		b.WriteString("Content-Type: application/json\r\n")
	}
	if body != nil || method != "GET" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	// A server that answers before it has read all is heard all the same: what it said is worth more than that it did not listen.
	_, sent := conn.Write(append([]byte(b.String()), body...))
	status, answer, err = readAnswer(bufio.NewReader(conn), limit)
	if ctx.Err() != nil && err != nil {
		return 0, nil, context.Cause(ctx)
	}
	if err != nil {
		return 0, nil, errors.Join(err, sent)
	}
	return status, answer, nil
}

// readAnswer reads the status and the body of an answer.
func readAnswer(r *bufio.Reader, limit int64) (status int, body []byte, err error) {
	left := maxHeader
	for status < 200 { // 1xx comes before the answer
		if status, err = readStatus(r, &left); err != nil {
			return 0, nil, err
		}
		length, chunked := int64(-1), false
		for {
			line, err := readLine(r, &left)
			if err != nil {
				return 0, nil, unexpected(err)
			}
			if line == "" {
				break
			}
			name, value, ok := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch {
			case !ok || name == "" || strings.ContainsAny(name, " \t"):
				return 0, nil, fmt.Errorf("malformed header %q", excerpt([]byte(line)))
			case strings.EqualFold(name, "Content-Length"):
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil || n < 0 || (length >= 0 && n != length) {
					return 0, nil, fmt.Errorf("malformed Content-Length %q", excerpt([]byte(value)))
				}
				length = n
			case strings.EqualFold(name, "Transfer-Encoding"):
				if !strings.EqualFold(value, "chunked") || chunked {
					return 0, nil, fmt.Errorf("unknown Transfer-Encoding %q", excerpt([]byte(value)))
				}
				chunked = true
			}
		}
		switch {
		case status < 200:
		case status == 204, status == 304: // these have no body
		case chunked:
			body, err = readChunks(r, limit)
		case length >= 0:
			if body, err = io.ReadAll(io.LimitReader(r, min(length, limit+1))); err == nil && int64(len(body)) < min(length, limit+1) {
				err = io.ErrUnexpectedEOF
			}
		default: // as long as the connection
			body, err = io.ReadAll(io.LimitReader(r, limit+1))
		}
	}
	return status, body, err
}

// readStatus reads "HTTP/1.1 200 OK".
func readStatus(r *bufio.Reader, left *int) (int, error) {
	line, err := readLine(r, left)
	if err != nil {
		return 0, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if !strings.HasPrefix(version, "HTTP/1.") || err != nil || len(code) != 3 || status < 100 {
		return 0, fmt.Errorf("malformed HTTP response %q", excerpt([]byte(line)))
	}
	return status, nil
}

// readLine reads a line without its end, and takes its length off left. io.EOF: nothing came any more.
func readLine(r *bufio.Reader, left *int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if *left -= len(part); *left < 0 {
			return "", fmt.Errorf("more than %d bytes before the body", maxHeader)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return "", io.ErrUnexpectedEOF
		case err != nil:
			return "", err
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"), nil
	}
}

// readChunks reads a body in chunks: "SIZE in hex", the bytes, an empty line, again until a size of 0.
func readChunks(r *bufio.Reader, limit int64) (body []byte, err error) {
	for int64(len(body)) <= limit {
		left := maxHeader
		line, err := readLine(r, &left)
		if err != nil {
			return nil, unexpected(err)
		}
		size, _, _ := strings.Cut(line, ";") // an extension
		n, err := strconv.ParseInt(strings.TrimSpace(size), 16, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("malformed chunk %q", excerpt([]byte(line)))
		}
		if n == 0 {
			return body, nil // what follows it is of no use to us, and the connection is closed
		}
		most := min(n, limit+1-int64(len(body)))
		part, err := io.ReadAll(io.LimitReader(r, most))
		if err != nil {
			return nil, err
		}
		body = append(body, part...)
		if int64(len(part)) < most {
			return nil, io.ErrUnexpectedEOF
		}
		if most < n {
			break // more than limit
		}
		if line, err := readLine(r, &left); err != nil || line != "" {
			return nil, errors.Join(errors.New("malformed end of a chunk"), unexpected(err))
		}
	}
	return body, nil
}

// unexpected is for an end where more has to come.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
