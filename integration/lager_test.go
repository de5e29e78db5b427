package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// maxLogLine is PIPE_BUF: a longer write to a pipe is not atomic, and parallel writers' lines mix.
const maxLogLine = 4096

// record is one line of the plugin's stderr, of which the server takes only this shape.
type record struct {
	Timestamp string                     `json:"timestamp"`
	Level     string                     `json:"level"`
	Source    string                     `json:"source"`
	Message   string                     `json:"message"`
	Data      map[string]json.RawMessage `json:"data"`
}

// parseRecord decodes one write to stderr. A line that the server would log as an error, or that would bring it down (a null or
// missing data), is an error.
func parseRecord(write []byte) (record, error) {
	line, ok := bytes.CutSuffix(write, []byte("\n"))
	switch {
	case !ok || bytes.Contains(line, []byte("\n")):
		return record{}, errors.New("one write is not exactly one line")
	case len(write) >= maxLogLine:
		return record{}, fmt.Errorf("%d bytes, want under %d", len(write), maxLogLine)
	}
	var r record
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return record{}, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return record{}, errors.New("something follows the JSON object")
	}
	if _, err := time.Parse(time.RFC3339, r.Timestamp); err != nil {
		return record{}, err
	}
	switch {
	case !slices.Contains([]string{"debug", "info", "error", "fatal"}, r.Level):
		return record{}, fmt.Errorf("level %q", r.Level)
	case r.Source != "bc-image-plugin":
		return record{}, fmt.Errorf("source %q", r.Source)
	case r.Message == "":
		return record{}, errors.New("no message")
	case r.Data == nil:
		return record{}, errors.New("data is missing or null, which panics the server")
	}
	return r, nil
}

// stderrWrites gives cmd a stderr that keeps each write(2) apart: a pipe in packet mode (O_DIRECT, pipe(2)), where one read
// returns what one write of up to PIPE_BUF bytes wrote. The caller closes the returned file once cmd has it; wait returns when
// nobody can write any more.
func stderrWrites(cmd *exec.Cmd) (ours io.Closer, wait func(testing.TB, []string) ([]byte, []record), err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		return nil, nil, err
	}
	r, w := os.NewFile(uintptr(fds[0]), "stderr"), os.NewFile(uintptr(fds[1]), "stderr")
	cmd.Stderr = w

	var writes [][]byte
	done := make(chan error, 1)
	go func() {
		defer r.Close()
		buffer := make([]byte, 2*maxLogLine)
		for {
			n, err := r.Read(buffer)
			if err != nil {
				done <- err
				return
			}
			writes = append(writes, bytes.Clone(buffer[:n]))
		}
	}()

	wait = func(t testing.TB, args []string) ([]byte, []record) {
		if err := <-done; err != io.EOF {
			t.Errorf("%q: reading its stderr: %v", args, err)
		}
		var records []record
		for _, write := range writes {
			rec, err := parseRecord(write)
			if err != nil {
				t.Errorf("%q wrote to stderr what gdn cannot take (%v): %q", args, err, write)
				continue
			}
			records = append(records, rec)
		}
		return bytes.Join(writes, nil), records
	}
	return w, wait, nil
}

// TestParseRecord shows that the double's check of stderr can fail, and on what.
func TestParseRecord(t *testing.T) {
	const good = `{"timestamp":"2026-08-01T10:00:00.123456789Z","level":"info","source":"bc-image-plugin","message":"m","data":{}}` + "\n"
	if _, err := parseRecord([]byte(good)); err != nil {
		t.Fatalf("the contract's own line is refused: %v", err)
	}
	for name, line := range map[string]string{
		"plain text":        "overlay mounted\n",
		"two lines at once": good + good,
		"half a line":       strings.TrimSuffix(good, "\n"),
		"null data":         strings.Replace(good, "{}", "null", 1),
		"no data":           strings.Replace(good, `,"data":{}`, "", 1),
		"data of a string":  strings.Replace(good, "{}", `"x"`, 1),
		"epoch time":        strings.Replace(good, `"2026-08-01T10:00:00.123456789Z"`, "1754042400.1", 1),
		"epoch time text":   strings.Replace(good, "2026-08-01T10:00:00.123456789Z", "1754042400.1", 1),
		"level of logrus":   strings.Replace(good, "info", "warning", 1),
		"source of another": strings.Replace(good, "bc-image-plugin", "runc", 1),
		"no message":        strings.Replace(good, `"message":"m"`, `"message":""`, 1),
		"two documents":     strings.Replace(good, "\n", "{}\n", 1),
		"4 KiB":             strings.Replace(good, `"m"`, `"`+strings.Repeat("m", maxLogLine)+`"`, 1),
	} {
		if _, err := parseRecord([]byte(line)); err == nil {
			t.Errorf("%s is accepted: %s", name, line)
		}
	}
}
