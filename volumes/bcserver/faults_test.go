package bcserver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func newProxy(t *testing.T, s *bctest.Server) *bctest.Proxy {
	t.Helper()
	p, err := bctest.NewProxy(s.URL)
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

// sent is a request that create or delete makes.
type sent struct{ method, path string }

var (
	begin   = sent{"POST", "/volumes-async"}
	poll    = sent{"GET", "/volumes-async/*"}
	forget  = sent{"DELETE", "/volumes-async/*"}
	destroy = sent{"DELETE", "/volumes/*"}
)

// prepare returns what sends r: a create, or the delete of what was created before. It is called with a working server.
func (r sent) prepare(t *testing.T, c *cachecopy.Caches) func(context.Context) error {
	if r == destroy {
		create(t, c, "h")
		return func(ctx context.Context) error {
			_, _, err := c.Delete(ctx, handle(t, "h"))
			return err
		}
	}
	img := image(t)
	return func(ctx context.Context) error {
		_, err := c.Create(ctx, handle(t, "h"), volumes.Request{Image: img}, cachecopy.Cache{Key: "k", Path: "/c"})
		return err
	}
}

// Field case 71: every way in which the server can fail ends in time, with an error that tells it from the others, and once the server is well again a delete
// leaves nothing.
func TestFaultsOfTheServer(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	p := newProxy(t, s)
	for _, k := range []struct {
		fault bctest.Fault
		is    error
		says  string
		body  bool // only an answer with a body can be spoilt so
	}{
		{bctest.Silent, context.DeadlineExceeded, "no answer yet", false},
		{bctest.Hang, context.DeadlineExceeded, "no answer yet", false},
		{bctest.Reset, ErrBadAnswer, "broke off", false},
		{bctest.Drop, ErrBadAnswer, "broke off", false},
		{bctest.Fail, ErrServer, `answered 500`, false},
		{bctest.Later, ErrServer, `answered 503 "upstream connect error"`, false},
		{bctest.NoPage, ErrBadAnswer, "is it a BaggageClaim server?", false},
		{bctest.Moved, ErrBadAnswer, "302", false},
		{bctest.Empty, ErrBadAnswer, "200", false},
		{bctest.Odd, ErrBadAnswer, "bad answer", false},
		{bctest.Cut, ErrBadAnswer, "broke off", true},
		{bctest.Garbage, ErrBadAnswer, "bad answer", true},
		{bctest.Huge, ErrBadAnswer, "more than", true},
	} {
		for _, r := range []sent{begin, poll, forget, destroy} {
			if k.body && r.method == "DELETE" {
				continue
			}
			t.Run(string(k.fault)+" at "+r.method+" "+r.path, func(t *testing.T) {
				p.Set()
				caches := newCaches(t, p.URL)
				run := r.prepare(t, caches)
				p.Requests()
				p.Set(bctest.Rule{Method: r.method, Path: r.path, Fault: k.fault})
				limit := 300 * time.Millisecond
				if k.is != context.DeadlineExceeded {
					limit = 10 * time.Second
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began := time.Now()
				err := run(ctx)
				if !slices.ContainsFunc(p.Requests(), func(s string) bool { return strings.HasPrefix(s, r.method+" "+strings.TrimSuffix(r.path, "*")) }) {
					t.Fatal("the fault was not met")
				}
				inspect.WantError(t, err, k.is, k.says, "BaggageClaim server "+p.URL, `"h"`)
				if errors.Is(err, volumes.ErrNotFound) || errors.Is(err, ErrNoVolume) {
					t.Errorf("error %v says that something does not exist", err)
				}
				if took := time.Since(began); took > limit+5*time.Second {
					t.Errorf("it took %s", took)
				}
				p.Set()
				remove(t, caches, "h")
				if r == poll {
					// What cannot be asked for is not waited for. The server makes it and destroys it, when it likes.
					for left, err := s.Left(); err == nil && len(left) > 0 && time.Since(began) < time.Minute; left, err = s.Left() {
						time.Sleep(time.Millisecond)
					}
				}
				wantClean(t, s)
				create(t, caches, "h")
				remove(t, caches, "h")
				wantClean(t, s)
			})
		}
	}
}

// A server that says "no such volume" of one that it has is not believed.
func TestNotFoundIsNotBelieved(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	p := newProxy(t, s)
	caches := newCaches(t, p.URL)
	create(t, caches, "h")
	p.Set(bctest.Rule{Method: "DELETE", Path: "/volumes/*", Fault: bctest.Absent})
	_, _, err := caches.Delete(t.Context(), handle(t, "h"))
	if err == nil || !strings.Contains(err.Error(), "says that it has none, and") {
		t.Errorf("error %v", err)
	}
	p.Set()
	remove(t, caches, "h")
	wantClean(t, s)
}

// A server that is not there is named, and nothing is waited for. What was not destroyed is destroyed when it is back.
func TestServerIsDown(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches := newCaches(t, s.URL)
	create(t, caches, "h")
	check(t, s.Stop())
	_, err := caches.Create(t.Context(), handle(t, "k"), volumes.Request{Image: image(t)})
	inspect.WantError(t, err, ErrRefused, "is it running?", s.URL, `"k"`)
	_, _, err = caches.Delete(t.Context(), handle(t, "h"))
	inspect.WantError(t, err, ErrRefused, "is it running?", s.URL, `delete "h"`)
	if _, _, err := caches.Delete(t.Context(), handle(t, "never")); err != nil {
		t.Errorf("an unknown handle needs no server: %v", err)
	}
	check(t, s.Restart())
	remove(t, caches, "k")
	remove(t, caches, "h")
	wantClean(t, s)
}

// A server that takes connections and answers nothing is left in time, and what is undone then does not wait as long again.
func TestServerHangs(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches := newCaches(t, s.URL)
	create(t, caches, "h")
	check(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := caches.Create(ctx, handle(t, "k"), volumes.Request{Image: image(t)})
	inspect.WantError(t, err, context.DeadlineExceeded, "no answer yet", s.URL)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("create took %s", took)
	}
	check(t, s.Continue())
	remove(t, caches, "k")
	remove(t, caches, "h")
	wantClean(t, s)
}

// Field case 73 for the other side: the server is killed at any request of a create or delete, before or after it did what it was asked for. Everything goes on when
// it is back, on its mounts or without them.
func TestServerIsKilled(t *testing.T) {
	for _, driver := range []string{"overlay", "naive"} {
		t.Run(driver, func(t *testing.T) {
			s := start(t, bctest.Options{Driver: driver})
			p := newProxy(t, s)
			caches := newCaches(t, p.URL)
			create(t, caches, "h")
			remove(t, caches, "h")
			for _, r := range []sent{begin, poll, forget, destroy} {
				for _, done := range []bool{false, true} {
					run := r.prepare(t, caches)
					kill := func() { check(t, s.Kill()) }
					rules := []bctest.Rule{{Method: r.method, Path: r.path, Count: 1, Fault: bctest.Reset, Before: kill}}
					if done { // the next request finds it dead
						rules = []bctest.Rule{{Method: r.method, Path: r.path, Count: 1, Fault: bctest.Drop}, {Count: 1, Fault: bctest.Reset, Before: kill}}
					}
					p.Set(rules...)
					err := run(t.Context())
					if err == nil || !strings.Contains(err.Error(), p.URL) {
						t.Errorf("%v, done %v: error %v", r, done, err)
					}
					p.Set()
					check(t, s.Kill())
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
	p := newProxy(t, s)
	caches := newCaches(t, p.URL)
	for range 2 {
		p.Set(bctest.Rule{Method: "POST", Count: 1, Fault: bctest.Drop},
			bctest.Rule{Method: "DELETE", Count: 1, Fault: bctest.Reset, Before: func() { check(t, s.Kill()) }})
		_, err := caches.Create(t.Context(), handle(t, "h"), volumes.Request{Image: image(t)})
		inspect.WantError(t, err, ErrBadAnswer, "broke off")
		p.Set()
		check(t, s.Restart())
		remove(t, caches, "h")
	}
	create(t, caches, "h")
	remove(t, caches, "h")
	wantClean(t, s)
}
