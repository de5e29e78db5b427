package mnt

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newDir is an empty directory; whatever is mounted on it or below in the end is taken off.
func newDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		for {
			left := inspect.Mounts(t, dir)
			if len(left) == 0 {
				return
			}
			if err := unix.Unmount(left[len(left)-1], unix.MNT_DETACH); err != nil {
				t.Errorf("umount: %v", err)
				return
			}
		}
	})
	return dir
}

func mkdirs(t testing.TB, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		check(t, os.MkdirAll(filepath.Join(dir, n), 0o755))
	}
}

func tmpfs(t testing.TB, dir string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	check(t, unix.Mount("test", dir, "tmpfs", 0, "mode=0755"))
}

// opath opens a directory as layers are opened.
func opath(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// named is a file that says it is name, for code that only looks at names.
func named(t testing.TB, name string) *os.File {
	t.Helper()
	fd, err := unix.Dup(0)
	check(t, err)
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

// over is a context that is over as soon as somebody waits for it.
func over(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
