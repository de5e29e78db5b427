package bcserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/concourse/baggageclaim"
)

func TestAnswersAreReadAsNetHTTPDoes(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for name, answer := range map[string]string{
		"length":            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"more than length":  "HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\n{}more",
		"none":              "HTTP/1.1 200 OK\r\n\r\nto the end",
		"old":               "HTTP/1.0 500 \r\nContent-Length: 0\r\n\r\n",
		"no reason":         "HTTP/1.1 404\r\nContent-Length: 1\r\n\r\nx",
		"no body":           "HTTP/1.1 204 No Content\r\n\r\n",
		"only newlines":     "HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
		"chunks":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nBB8\r\n" + long + "\r\n0\r\n\r\n",
		"chunk extension":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1;a=b\r\nx\r\n0\r\nTrailer: t\r\n\r\n",
		"after continue":    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx",
		"long header":       "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 9000) + "\r\nContent-Length: 1\r\n\r\nx",
		"short body":        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nx",
		"short chunk":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
		"no last chunk":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"broken chunk":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
		"unterminated":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
		"nothing":           "",
		"half a status":     "HTTP/1.1 20",
		"half a header":     "HTTP/1.1 200 OK\r\nContent-Len",
		"no header":         "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"another protocol":  "SSH-2.0-OpenSSH_9.6\r\n",
		"bad status":        "HTTP/1.1 2x0 OK\r\n\r\n",
		"bad length":        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"two lengths":       "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
		"unknown encoding":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
		"only continuation": "HTTP/1.1 100 Continue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			status, body, err := readAnswer(bufio.NewReader(strings.NewReader(answer)), maxAnswer)
			var want []byte
			theirs, wantErr := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
			if wantErr == nil && theirs.StatusCode == 100 { // the caller's business there
				r := bufio.NewReader(strings.NewReader(answer[strings.Index(answer, "\r\n\r\n")+4:]))
				theirs, wantErr = http.ReadResponse(r, nil)
			}
			if wantErr == nil {
				want, wantErr = io.ReadAll(theirs.Body)
			}
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("error %v, net/http: %v", err, wantErr)
			}
			if err == nil && (status != theirs.StatusCode || string(body) != string(want)) {
				t.Errorf("%d %q, net/http: %d %q", status, excerpt(body), theirs.StatusCode, excerpt(want))
			}
		})
	}
}

func TestLimitOfAnAnswer(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345", "HTTP/1.1 200 OK\r\n\r\n12345",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n3\r\n345\r\n0\r\n\r\n",
	} {
		for limit, want := range map[int64]string{3: "1234", 5: "12345"} {
			if _, body, err := readAnswer(bufio.NewReader(strings.NewReader(answer)), limit); err != nil || string(body) != want {
				t.Errorf("%q with limit %d: %q, %v", answer, limit, body, err)
			}
		}
	}
	endless := io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\n"), neverEnds{})
	if _, _, err := readAnswer(bufio.NewReader(endless), 1); err == nil || !strings.Contains(err.Error(), "before the body") {
		t.Errorf("an endless header: %v", err)
	}
}

type neverEnds struct{}

func (neverEnds) Read(b []byte) (int, error) {
	return copy(b, "A: b\r\n"), nil
}

func TestRequestsAreWhatNetHTTPServes(t *testing.T) {
	type seen struct{ method, uri, body, contentType, accept string }
	var got seen
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		check(t, err)
		got = seen{r.Method, r.RequestURI, string(b), r.Header.Get("Content-Type"), r.Header.Get("Accept-Encoding")}
		_, err = w.Write([]byte(strings.Repeat("y", 5000))) // in chunks
		check(t, err)
	}))
	defer server.Close()
	for _, want := range []seen{
		{"GET", "/volumes?a=b%20c", "", "", "gzip"}, {"PUT", "/x", "", "", "gzip"}, {"POST", "/volumes-async", `{"a":1}`, "application/json", "gzip"}, {"DELETE", "/v", "", "", "gzip"},
	} {
		var body []byte
		if want.body != "" {
			body = []byte(want.body)
		}
		status, answer, err := roundTrip(t.Context(), hostOf(server.URL), want.method, want.uri, body, maxAnswer)
		if err != nil || status != 200 || len(answer) != 5000 || got != want {
			t.Errorf("%d, %d bytes, %v; the server saw %+v, want %+v", status, len(answer), err, got, want)
		}
	}
}

func TestSilentServerEndsWithTheContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if errors.Is(cause, context.Canceled) {
			time.AfterFunc(5*time.Millisecond, cancel)
		}
		if _, _, err := roundTrip(ctx, l.Addr().String(), "GET", "/", nil, 1); !errors.Is(err, cause) {
			t.Errorf("%v, want %v", err, cause)
		}
		cancel()
	}
}

func TestHostOf(t *testing.T) {
	for url, want := range map[string]string{
		"http://127.0.0.1:7788": "127.0.0.1:7788", "http://localhost": "localhost:80", "http://[::1]:7788": "[::1]:7788", "http://[::1]": "[::1]:80",
	} {
		if got := hostOf(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

// Our types of the API are BaggageClaim's.
func TestAPIIsBaggageClaims(t *testing.T) {
	properties := baggageclaim.VolumeProperties{"a": "b"}
	theirs := []any{
		baggageclaim.VolumeRequest{Handle: "h", Strategy: baggageclaim.EmptyStrategy{}.Encode(), Properties: properties, Privileged: true},
		baggageclaim.VolumeResponse{Handle: "h", Path: "/p", Properties: properties}, baggageclaim.VolumeFutureResponse{Handle: "h"},
		baggageclaim.PropertyRequest{Value: "v"},
	}
	ours := []any{
		VolumeRequest{Handle: "h", Strategy: &emptyStrategy, Properties: properties, Privileged: true},
		VolumeResponse{Handle: "h", Path: "/p", Properties: properties}, volumeFutureResponse{Handle: "h"}, propertyRequest{Value: "v"},
	}
	for i := range ours {
		want, err := json.Marshal(theirs[i])
		check(t, err)
		got, err := json.Marshal(ours[i])
		check(t, err)
		if string(got) != string(want) || reflect.TypeOf(ours[i]).NumField() != reflect.TypeOf(theirs[i]).NumField() {
			t.Errorf("%s, BaggageClaim's is %s", got, want)
		}
	}
}
