package mnt

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// requireRoot skips a test that mounts, or fails where skipping would hide it.
func requireRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("BC_TEST_REQUIRE_ROOT") == "1":
		t.Fatal("needs root, and BC_TEST_REQUIRE_ROOT=1 forbids skipping")
	default:
		t.Skip("needs root")
	}
}

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
			left := mounts(t, dir)
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

// mounts are the mount points at dir and below in the order of mountinfo, found without the code under test. dir needs no escapes.
func mounts(t testing.TB, dir string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	var all []string
	for line := range strings.Lines(string(b)) {
		p := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(strings.Fields(line)[4])
		if p == dir || strings.HasPrefix(p, dir+"/") {
			all = append(all, p)
		}
	}
	return all
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
