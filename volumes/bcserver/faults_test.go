package bcserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes"
)

// proxy stands before a real server, and lets a fault have the requests that it is for.
type proxy struct {
	URL   string
	fault atomic.Pointer[fault]
	hits  atomic.Int32
}

type fault struct {
	method, path string // of the requests, path by its beginning; "": all
	do           func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

func newProxy(t *testing.T, to string) *proxy {
	u, err := url.Parse(to)
	check(t, err)
	p := &proxy{}
	next := httputil.NewSingleHostReverseProxy(u)
	next.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := p.fault.Load()
		if f == nil || (f.method != "" && f.method != r.Method) || !strings.HasPrefix(r.URL.Path, f.path) {
			next.ServeHTTP(w, r)
			return
		}
		p.hits.Add(1)
		f.do(w, r, next)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { p.fault.Store(nil) })
	p.URL = s.URL
	return p
}

func answer(status int, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func hang(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body) // else net/http does not see that the client is gone
	<-r.Context().Done()
}

func cut(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Content-Length", "100")
	w.WriteHeader(http.StatusOK)
	io.WriteString(w, `{"handle":`)
	panic(http.ErrAbortHandler)
}

// drop lets the server do it, and the answer gets lost.
func drop(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// Field case 71: every way in which the server can fail ends in time, with an error that tells it from the others, and once the server is well again a delete
// leaves nothing.
func TestFaultsOfTheServer(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	p := newProxy(t, s.URL)
	kinds := map[string]struct {
		do   func(http.ResponseWriter, *http.Request, http.Handler)
		is   error
		says string
	}{
		"hangs":              {hang, context.DeadlineExceeded, "no answer yet"},
		"fails":              {answer(500, `{"error":"failed to do it"}`), ErrServer, `answered 500 "{\"error\":\"failed to do it\"}"`},
		"is cut short":       {cut, ErrBadAnswer, "broke off"},
		"talks garbage":      {answer(200, `{"handle":`), ErrBadAnswer, "bad answer"},
		"is another server":  {answer(404, `<html>not here</html>`), ErrBadAnswer, "is it a BaggageClaim server?"},
		"redirects":          {answer(302, ``), ErrBadAnswer, "302"},
		"loses the answer":   {drop, ErrBadAnswer, "broke off"},
		"says too much":      {func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { flood(w) }, ErrBadAnswer, "bytes"},
		"names another":      {answer(201, `{"handle":"other"}`), ErrBadAnswer, "other"},
		"answers with null":  {answer(200, `null`), ErrBadAnswer, "bad answer"},
		"is of another kind": {answer(418, `I am a teapot`), ErrBadAnswer, "418"},
	}
	for kind, k := range kinds {
		for _, where := range []struct{ method, path string }{{"POST", "/volumes-async"}, {"GET", "/volumes-async/"}, {"DELETE", "/volumes-async/"}, {"DELETE", "/volumes/"}} {
			if kind == "is another server" && where.method == "DELETE" && where.path == "/volumes-async/" {
				continue // its own 404 has no body, so any is taken for it there; what is on disk decides
			}
			t.Run(kind+" at "+where.method+" "+where.path, func(t *testing.T) {
				p.fault.Store(nil)
				caches := newCaches(t, p.URL, s)
				if where.path == "/volumes/" {
					create(t, caches, "h")
				}
				p.hits.Store(0)
				p.fault.Store(&fault{where.method, where.path, k.do})
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				began := time.Now()
				var err error
				if where.path == "/volumes/" {
					_, _, err = caches.Delete(ctx, handle(t, "h"))
				} else {
					_, err = caches.Create(ctx, handle(t, "h"), volumes.Request{Image: image(t)}, cachecopy.Cache{Key: "k", Path: "/c"})
				}
				took := time.Since(began)
				switch {
				case p.hits.Load() == 0:
					t.Fatal("the fault was not met")
				case where.path == "/volumes/" && kind == "fails":
					// The proxy answers and the server has done nothing: the volume is still there, and that is what counts.
				}
				if !errors.Is(err, k.is) || !strings.Contains(err.Error(), k.says) || !strings.Contains(err.Error(), "BaggageClaim server "+p.URL) {
					t.Errorf("error %v, want %v and %q", err, k.is, k.says)
				}
				if took > 8*time.Second {
					t.Errorf("it took %s", took)
				}
				if errors.Is(err, volumes.ErrNotFound) || errors.Is(err, ErrNoVolume) {
					t.Errorf("error %v says that something does not exist", err)
				}
				p.fault.Store(nil)
				_, _, err = caches.Delete(t.Context(), handle(t, "h"))
				check(t, err)
				wantClean(t, s)
				create(t, caches, "h")
				remove(t, caches, "h")
				wantClean(t, s)
			})
		}
	}
}

func flood(w http.ResponseWriter) {
	b := make([]byte, 1<<20)
	for range maxAnswer>>20 + 1 {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// A server that is not there is named, and nothing is waited for. What was not destroyed is destroyed when it is back.
func TestServerIsDown(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches := newCaches(t, s.URL, s)
	create(t, caches, "h")
	check(t, s.Stop())
	_, err := caches.Create(t.Context(), handle(t, "k"), volumes.Request{Image: image(t)})
	wantText(t, err, ErrRefused, "is it running?", s.URL, `"k"`)
	_, _, err = caches.Delete(t.Context(), handle(t, "h"))
	wantText(t, err, ErrRefused, "is it running?", s.URL, `delete "h"`)
	if _, _, err := caches.Delete(t.Context(), handle(t, "never")); err != nil {
		t.Errorf("an unknown handle needs no server: %v", err)
	}
	check(t, s.Restart())
	remove(t, caches, "k")
	remove(t, caches, "h")
	wantClean(t, s)
}

// A server that takes connections and answers nothing is left in time, and what is undone meanwhile does not wait as long again.
func TestServerHangs(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches := newCaches(t, s.URL, s)
	create(t, caches, "h")
	check(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := caches.Create(ctx, handle(t, "k"), volumes.Request{Image: image(t)})
	wantText(t, err, context.DeadlineExceeded, "no answer yet", s.URL)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("create took %s", took)
	}
	check(t, s.Continue())
	remove(t, caches, "k")
	remove(t, caches, "h")
	wantClean(t, s)
}

// The server is killed and comes back: at any moment of a create or delete, by whatever it was doing.
func TestServerIsKilled(t *testing.T) {
	for _, driver := range []string{"overlay", "naive"} {
		t.Run(driver, func(t *testing.T) {
			s := start(t, bctest.Options{Driver: driver})
			p := newProxy(t, s.URL)
			caches := newCaches(t, p.URL, s)
			create(t, caches, "h")
			remove(t, caches, "h")
			for _, where := range []struct{ method, path string }{{"POST", "/volumes-async"}, {"GET", "/volumes-async/"}, {"DELETE", "/volumes-async/"}, {"DELETE", "/volumes/"}} {
				for _, done := range []bool{false, true} { // killed before it gets the request, or when it has done it
					if where.path == "/volumes/" {
						create(t, caches, "h")
					}
					p.fault.Store(&fault{where.method, where.path, func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
						if done {
							next.ServeHTTP(httptest.NewRecorder(), r)
						}
						check(t, s.Kill())
						panic(http.ErrAbortHandler)
					}})
					var err error
					if where.path == "/volumes/" {
						_, _, err = caches.Delete(t.Context(), handle(t, "h"))
					} else {
						_, err = caches.Create(t.Context(), handle(t, "h"), volumes.Request{Image: image(t)})
					}
					if err == nil || !strings.Contains(err.Error(), p.URL) {
						t.Errorf("%v %v: error %v", where, done, err)
					}
					p.fault.Store(nil)
					check(t, s.Restart())
					remove(t, caches, "h")
					wantClean(t, s)
				}
			}
		})
	}
}

// The server is killed over the very first volume, when nobody knows yet where its volumes are: the next look at it finds what that left.
func TestServerIsKilledOverTheFirstVolume(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	p := newProxy(t, s.URL)
	caches := newCaches(t, p.URL, s)
	for range 2 {
		p.fault.Store(&fault{"POST", "/volumes-async", func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			time.Sleep(50 * time.Millisecond) // long enough to be made, not to be certain
			check(t, s.Kill())
			panic(http.ErrAbortHandler)
		}})
		_, err := caches.Create(t.Context(), handle(t, "h"), volumes.Request{Image: image(t)})
		wantText(t, err, ErrBadAnswer, "broke off")
		p.fault.Store(nil)
		check(t, s.Restart())
		remove(t, caches, "h")
	}
	create(t, caches, "h")
	remove(t, caches, "h")
	wantClean(t, s)
}
