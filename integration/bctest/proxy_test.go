package bctest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// What a client sees of each fault, and whether the server saw the request.
func TestFaults(t *testing.T) {
	const body = `{"handle":"x","path":"/volumes/live/x/volume","properties":{}}`
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, body)
	}))
	defer server.Close()
	p := newProxy(t, server.URL)

	isReset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
	none := func(err error) bool { return err == nil }
	for _, c := range []struct {
		fault  Fault
		served int32
		status int
		body   func(string) bool
		err    func(error) bool // of the request, or of reading its body
	}{
		{Pass, 1, 201, func(s string) bool { return s == body }, none},
		{Reset, 0, 0, nil, isReset},
		{Drop, 1, 0, nil, isReset},
		{Fail, 0, 500, func(s string) bool { return json.Valid([]byte(s)) }, none},
		{Absent, 0, 404, func(s string) bool { return json.Valid([]byte(s)) }, none},
		{NoPage, 0, 404, func(s string) bool { return strings.HasPrefix(s, "<!doctype") }, none},
		{Later, 0, 503, func(s string) bool { return !json.Valid([]byte(s)) }, none},
		{Empty, 0, 200, func(s string) bool { return s == "" }, none},
		{Odd, 0, 200, func(s string) bool { return s[0] == '[' && json.Valid([]byte(s)) }, none},
		{Moved, 0, 302, nil, none},
		{Cut, 1, 201, func(s string) bool { return s == body[:len(body)/2] }, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		{Garbage, 1, 201, func(s string) bool { return !json.Valid([]byte(s)) && s[0] == '{' }, none},
		{Huge, 1, 201, func(s string) bool { return len(s) == 10<<20 }, none},
		{Slow, 1, 201, func(s string) bool { return s == body }, none},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			served.Store(0)
			p.Set(Rule{Method: "POST", Path: "/volumes", Count: 1, Fault: c.fault})
			status, got, err := post(t.Context(), p.URL+"/volumes")
			if status != c.status || served.Load() != c.served || !c.err(err) || (c.body != nil && !c.body(got)) {
				t.Errorf("%d %.80q (%d bytes), %v; the server saw %d requests", status, got, len(got), err, served.Load())
			}
			if status, got, err := post(t.Context(), p.URL+"/volumes"); status != 201 || got != body || err != nil {
				t.Errorf("a request after it: %d %q, %v", status, got, err)
			}
		})
	}
	for _, fault := range []Fault{Silent, Hang} {
		t.Run(string(fault), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			p.Set(Rule{Fault: fault, Before: cancel})
			if _, _, err := post(ctx, p.URL+"/volumes"); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Rules choose by method, path and number, and the proxy tells what came.
func TestRules(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	p := newProxy(t, server.URL)
	called := 0
	p.Set(Rule{Method: "DELETE", Path: "/volumes/*", Skip: 1, Count: 2, Fault: Later, Before: func() { called++ }}, Rule{Path: "/other", Fault: Fail})
	var got []int
	for _, r := range [][2]string{
		{"DELETE", "/volumes/a"}, {"GET", "/volumes/a"}, {"DELETE", "/volumes"}, {"DELETE", "/volumes/b"}, {"DELETE", "/volumes/c?x=y"}, {"DELETE", "/volumes/d"},
		{"PUT", "/other"}, {"GET", "/other"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), r[0], p.URL+r[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got = append(got, resp.StatusCode)
	}
	if want := []int{404, 404, 404, 503, 503, 404, 500, 500}; !slices.Equal(got, want) || called != 2 {
		t.Errorf("%v, want %v; Before was called %d times", got, want, called)
	}
	if seen := p.Requests(); len(seen) != 8 || seen[4] != "DELETE /volumes/c?x=y" || len(p.Requests()) != 0 {
		t.Errorf("the proxy saw %q", seen)
	}
}

func TestRefuse(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	p := newProxy(t, server.URL)
	if err := p.Refuse(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := post(t.Context(), p.URL); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused: %v", err)
	}
	if err := p.Accept(); err != nil {
		t.Fatal(err)
	}
	if status, _, err := post(t.Context(), p.URL); status != 404 || err != nil {
		t.Errorf("accepted again: %d, %v", status, err)
	}
	server.Close()
	if _, _, err := post(t.Context(), p.URL); err == nil || errors.As(err, new(*net.DNSError)) {
		t.Errorf("without a server: %v", err)
	}
}

func newProxy(t *testing.T, url string) *Proxy {
	t.Helper()
	p, err := NewProxy(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// post reads at most 10 MiB of the answer, and follows no redirects.
func post(ctx context.Context, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 10<<20))
	return resp.StatusCode, string(b), err
}
