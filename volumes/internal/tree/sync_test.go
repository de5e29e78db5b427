package tree

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// What Sync promises shows only at a power cut. Here: that it gets through everything, waits for nothing that is not a file, changes nothing, and
// tells of errors.
func TestSync(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	check(t, os.Rename(richLayer(t), dir+"/fs"))
	makeDeep(t, dir+"/fs/d", 200)
	makeWide(t, dir+"/fs/d/d/d", 500)
	if err := os.Symlink("/dev/full", dir+"/fs/to a device"); err != nil {
		t.Fatal(err)
	}
	want := shows(t, dir)
	check(t, Sync(t.Context(), fd(t, dir), "fs"))
	inspect.Same(t, shows(t, dir), want)
}

func TestSyncFails(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/fs/a", "")
	if err := Sync(t.Context(), fd(t, dir), "unknown"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("of nothing: %v, want ENOENT", err)
	}
	if err := Sync(t.Context(), fd(t, dir+"/fs"), "a"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("of a file: %v, want ENOTDIR", err)
	}
	check(t, os.Symlink("fs", dir+"/link"))
	if err := Sync(t.Context(), fd(t, dir), "link"); err == nil {
		t.Error("a symlink was followed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Sync(ctx, fd(t, dir), "fs"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// What vanishes while it is flushed is no error: nobody needs it durable.
func TestSyncPassesOverWhatVanishes(t *testing.T) {
	dir := newDir(t)
	mkdir(t, dir+"/fs")
	makeWide(t, dir+"/fs", 100)
	ctx := once(func() {
		names, err := os.ReadDir(dir + "/fs")
		check(t, err)
		for _, n := range names {
			check(t, os.Remove(dir+"/fs/"+n.Name()))
		}
	})
	check(t, Sync(ctx, fd(t, dir), "fs"))
}
