package cachecopy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// canary is a directory outside of the store that nobody may touch.
func canary(t *testing.T) (dir string, look func()) {
	t.Helper()
	dir = newDir(t)
	write(t, dir+"/secret", "untouched")
	write(t, dir+"/d/deep", "untouched")
	check(t, os.Chmod(dir+"/secret", 0o600))
	want := inspect.Tree(t, dir, inspect.Keep)
	return dir, func() {
		t.Helper()
		inspect.Same(t, inspect.Tree(t, dir, inspect.Keep), want)
	}
}

// hostile fills a cache with what could lead a careless program astray.
func hostile(t *testing.T, dir, outside string) {
	t.Helper()
	for name, to := range map[string]string{
		"absolute": outside + "/secret", "dir": outside + "/d", "dots": strings.Repeat("../", 30) + outside + "/secret", "loop": "loop", "root": "/",
		"proc": "/proc/self/root" + outside, "work": outside, "fs": outside, "users": outside, "merged-cache-0": outside,
	} {
		check(t, os.Symlink(to, dir+"/"+name))
	}
	for name, mode := range map[string]uint32{
		"setuid": unix.S_IFREG | 0o4755, "setgid": unix.S_IFREG | 0o2755, "zero": unix.S_IFCHR | 0o666, "disk": unix.S_IFBLK | 0o666,
		"null block": unix.S_IFBLK, "pipe": unix.S_IFIFO | 0o666, "sock": unix.S_IFSOCK | 0o666, "sealed": unix.S_IFREG,
	} {
		dev := 0
		if name == "zero" || name == "disk" {
			dev = int(unix.Mkdev(1, 5))
		}
		check(t, unix.Mknod(dir+"/"+name, mode, dev))
		check(t, unix.Chmod(dir+"/"+name, mode&0o7777))
	}
	write(t, dir+"/.wh.file", "")
	write(t, dir+"/d/.wh..wh..opq", "")
	check(t, os.Link(dir+"/setuid", dir+"/d/linked"))
	// Inside an overlay these are a container's own attributes, whatever their names.
	for _, name := range []string{"trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.whiteout"} {
		check(t, unix.Lsetxattr(dir+"/d", name, []byte("y"), 0))
		check(t, unix.Lsetxattr(dir+"/setuid", name, []byte("/etc/passwd"), 0))
	}
}

func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	for range levels {
		check(t, unix.Mkdirat(at, "deep", 0o755))
		next, err := unix.Openat(at, "deep", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
}

func levels(t *testing.T, dir string) (n int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	for {
		next, err := unix.Openat(at, "deep", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		unix.Close(at)
		if err != nil {
			return n
		}
		at, n = next, n+1
	}
}

func TestHostileCache(t *testing.T) {
	for _, maxLayers := range []int{1, 2, 8} {
		for _, req := range []volumes.Request{{Privileged: true}, {}} {
			t.Run(fmt.Sprintf("%d layers, privileged %v", maxLayers, req.Privileged), func(t *testing.T) {
				outside, look := canary(t)
				f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = maxLayers })
				var want map[string]string
				next := func(change func(dir string)) {
					t.Helper()
					dir := f.open("h", "k", req, cachecopy.Always)
					if want != nil {
						inspect.Same(t, describe(t, dir, id(req.Privileged)), want)
					}
					change(dir)
					want = describe(t, dir, id(req.Privileged))
					f.promote("h")
					look()
				}
				next(func(dir string) { hostile(t, dir, outside) })
				next(func(dir string) { // a directory where a symlink was, and the other way round
					for _, name := range []string{"dir", "work", "fs", "loop"} {
						check(t, os.Remove(dir+"/"+name))
						write(t, dir+"/"+name+"/file", name)
					}
					check(t, os.RemoveAll(dir+"/d"))
					check(t, os.Symlink(outside+"/d", dir+"/d"))
				})
				next(func(dir string) {
					for _, name := range []string{"dir", "work", "fs"} {
						check(t, os.RemoveAll(dir+"/"+name))
						check(t, os.Symlink(outside, dir+"/"+name))
					}
					check(t, os.Remove(dir+"/d"))
					write(t, dir+"/d/deep", "mine")
				})
				next(func(dir string) { write(t, dir+"/last", "") })
				next(func(dir string) { check(t, os.Remove(dir+"/last")) })
				check(t, f.Drop(t.Context(), cachecopy.ID("k")))
				f.verify()
				look()
			})
		}
	}
}

func TestDeepCache(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 2 })
	const depth = 5000
	f.generation("k", func(dir string) { deep(t, dir, depth) })
	for i := range 3 {
		f.generation("k", func(dir string) { write(t, dir+"/deep/deep/"+fmt.Sprint(i), "") })
	}
	if got := levels(t, f.open("h", "k", privileged, cachecopy.Always)); got != depth {
		t.Errorf("%d levels, want %d", got, depth)
	}
	f.end("h")
	check(t, f.Drop(t.Context(), cachecopy.ID("k")))
	f.verify()
}

// What root of the host put into an upper by hand, overlayfs believes; it must not lead out of the cache all the same.
func TestForgedOverlayAttributes(t *testing.T) {
	outside, look := canary(t)
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 2 })
	f.generation("k", func(dir string) { write(t, dir+"/d/file", "old"); write(t, dir+"/e/file", "old") })
	dir := f.open("h", "k", privileged, cachecopy.Always)
	write(t, dir+"/d/new", "new")
	write(t, dir+"/e/new", "new")
	container, err := os.Readlink(f.dir + "/volumes/live/h")
	check(t, err)
	upper := f.dir + "/layers/" + container + "/cache-0/fs"
	check(t, unix.Lsetxattr(upper+"/d", "trusted.overlay.redirect", []byte(outside), 0))
	check(t, unix.Lsetxattr(upper+"/e", "trusted.overlay.redirect", []byte("../../../.."+outside), 0))
	check(t, unix.Lsetxattr(upper+"/e/new", "trusted.overlay.metacopy", nil, 0))
	f.promote("h")
	for range 3 { // until it is merged
		dir := f.open("h", "k", privileged, cachecopy.Always)
		write(t, dir+"/more", "")
		for _, name := range []string{"d/secret", "e/secret", "d/deep"} {
			if b, err := os.ReadFile(dir + "/" + name); err == nil {
				t.Errorf("%q shows %q", name, b)
			}
		}
		f.end("h")
	}
	look()
}
