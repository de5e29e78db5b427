package tree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// newDir is an empty directory. In the end rm(1) removes it, which can cope with any depth, not what is tested here.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tree")
	check(t, err)
	t.Cleanup(func() {
		if out, err := exec.Command("rm", "-rf", dir).CombinedOutput(); err != nil {
			t.Errorf("rm: %v: %.500s", err, out)
		}
	})
	return dir
}

// newFS is a new file system of a kind that lives in memory.
func newFS(t testing.TB, kind, options string) string {
	t.Helper()
	inspect.NeedRoot(t)
	dir := newDir(t)
	if err := unix.Mount("test", dir, kind, 0, options); err != nil {
		t.Fatalf("mount %s: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("umount %q: %v", dir, err)
		}
	})
	return dir
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func fd(t testing.TB, dir string) int { return int(open(t, dir).Fd()) }

func write(t testing.TB, path, content string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, []byte(content), 0o644))
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	check(t, os.MkdirAll(path, 0o755))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// makeDeep makes a chain of n directories named "d" below dir with a file at its end, deeper than any path can name.
func makeDeep(t testing.TB, dir string, n int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	for range n {
		check(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
		unix.Close(at)
		at = next
	}
	check(t, unix.Mknodat(at, "file", unix.S_IFREG|0o600, 0))
	unix.Close(at)
}

// makeWide makes n files in dir.
func makeWide(t testing.TB, dir string, n int) {
	t.Helper()
	at := fd(t, dir)
	for i := range n {
		check(t, unix.Mknodat(at, fmt.Sprintf("file-%d", i), unix.S_IFREG|0o600, 0))
	}
}

// hooked is a context that calls look each time somebody asks whether it is over, with how often that was. The code under test asks before
// it handles an entry, so a test can do there what another process might do at that moment.
type hooked struct {
	context.Context
	n    int
	look func(n int) error
}

func (h *hooked) Err() error {
	h.n++
	return h.look(h.n)
}

func onLook(look func(n int) error) *hooked {
	return &hooked{Context: context.Background(), look: look}
}

// once calls f at the first look at the context.
func once(f func()) *hooked {
	return onLook(func(n int) error {
		if n == 1 {
			f()
		}
		return nil
	})
}

func setTimes(t testing.TB, path string, at time.Time) {
	t.Helper()
	ts := []unix.Timespec{unix.NsecToTimespec(at.UnixNano() - 5), unix.NsecToTimespec(at.UnixNano())}
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW))
}
