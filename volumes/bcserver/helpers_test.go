package bcserver

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a real server of the driver until the end of the test, which must have left nothing on it but copies of images.
func start(t testing.TB, o bctest.Options) *bctest.Server {
	t.Helper()
	inspect.NeedRoot(t)
	o.Dir = inspect.NewDir(t)
	s, err := bctest.Start(o)
	check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log: %s", s.Log())
		}
		check(t, s.Close())
	})
	return s
}

// wantClean fails the test if the server has anything of ours.
func wantClean(t testing.TB, s *bctest.Server) {
	t.Helper()
	left, err := s.Left()
	if err != nil || len(left) > 0 {
		t.Errorf("left on the server's disk: %q, %v", left, err)
	}
	if m := inspect.Mounts(t, s.Volumes); len(m) > 0 && m[0] != s.Volumes {
		t.Errorf("mounts left: %q", m)
	}
}

// newCaches is a new store on the server at url, with its caches.
func newCaches(t testing.TB, url string) *cachecopy.Caches {
	t.Helper()
	c, _ := storeAt(t, url)
	return c
}

// storeAt is a new store on the server at url, and its directory. At the end of the test it must be in order.
func storeAt(t testing.TB, url string) (*cachecopy.Caches, string) {
	t.Helper()
	dir := inspect.NewDir(t) + "/store"
	c := cachesIn(dir, url)
	t.Cleanup(func() {
		if m := inspect.Mounts(t, dir); len(m) > 0 {
			t.Errorf("mounts left: %q", m)
		}
		if problems, err := c.Store().Check(context.Background()); err != nil || len(problems) > 0 {
			t.Errorf("the store at the end of the test: %q, %v", problems, err)
		}
	})
	return c, dir
}

func cachesIn(dir, url string) *cachecopy.Caches {
	return cachecopy.New(volumes.Options{Dir: dir, Driver: New(Options{URL: url})}, cachecopy.Options{})
}

func handle(t testing.TB, s string) volumes.Handle {
	t.Helper()
	h, err := volumes.ParseHandle(s)
	check(t, err)
	return h
}

// image is a small image.
func image(t testing.TB) *volumes.Image {
	t.Helper()
	dir := inspect.NewDir(t)
	check(t, os.WriteFile(dir+"/file", []byte("lower"), 0o644))
	img, err := volumes.OpenImage(dir)
	check(t, err)
	t.Cleanup(func() { img.Close() })
	return img
}

// create makes an unprivileged container with one cache.
func create(t testing.TB, c *cachecopy.Caches, h string) *volumes.Volume {
	t.Helper()
	v, err := c.Create(t.Context(), handle(t, h), volumes.Request{Image: image(t)}, cachecopy.Cache{Key: "k", Path: "/c", Promote: cachecopy.Always})
	check(t, err)
	if b, err := os.ReadFile(v.Root + "/file"); err != nil || string(b) != "lower" {
		t.Fatalf("the root file system of %q has %q, %v", h, b, err)
	}
	return v
}

func remove(t testing.TB, c *cachecopy.Caches, h string) volumes.Deleted {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	d, _, err := c.Delete(ctx, handle(t, h))
	check(t, err)
	return d
}
