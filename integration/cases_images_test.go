package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// concourse/concourse#1780, moby/moby#13261: the image is destroyed under a living container.
func TestCase43ImageRemovedByHand(t *testing.T) {
	requireRoot(t)
	requireTool(t, "busybox")
	for name, remove := range map[string]func(live string) error{
		"renamed": func(live string) error {
			return os.Rename(live, filepath.Join(filepath.Dir(filepath.Dir(live)), "dead", "image-43"))
		},
		"removed":  os.RemoveAll,
		"no root":  func(live string) error { return os.RemoveAll(filepath.Join(live, "volume", "rootfs")) },
		"no files": func(live string) error { return os.RemoveAll(filepath.Join(live, "volume")) },
	} {
		t.Run(name, func(t *testing.T) {
			volumes := newVolumes(t)
			if err := volumes.addImage("image-43", false, fillBusybox); err != nil {
				t.Fatal(err)
			}
			g := newGdn(t, newStore(t), string(volumes))
			before := warm(t, g, volumes.url("image-43"))
			imageBefore := imageTree(t, string(volumes))
			for _, privileged := range []bool{false, true} {
				if _, err := g.create("first-"+slotName(privileged), rootfs{url: volumes.url("image-43"), privileged: privileged}); err != nil {
					t.Fatal(err)
				}
			}

			// None of our commands removes an image; delete is the one that could be asked to, by the volume's handle.
			if err := g.destroy("image-43"); err != nil {
				t.Error(err)
			}
			same(t, "the image", imageBefore, imageTree(t, string(volumes)))

			if err := remove(filepath.Dir(volumes.content("image-43"))); err != nil {
				t.Fatal(err)
			}
			for _, privileged := range []bool{false, true} {
				_, err := g.create("second-"+slotName(privileged), rootfs{url: volumes.url("image-43"), privileged: privileged})
				if err == nil || !strings.Contains(err.Error(), "image-43") {
					t.Errorf("create from an image that is gone: %v, want a failure that names it", err)
				}
				clean(t, g, "second-"+slotName(privileged))
				if err := g.destroy("first-" + slotName(privileged)); err != nil {
					t.Error(err)
				}
				clean(t, g, "first-"+slotName(privileged))
			}
			same(t, "the store", before, storeTree(t, g.store))
		})
	}
}

// otiai10/copy#47, osscontainertools/kaniko#948, lgse/strata#641, moby/moby#53716, #43584: opening a FIFO waits for ever, and a
// /dev/zero node is copied for ever.
func TestCase48PipesAndDevices(t *testing.T) {
	requireRoot(t)
	volumes := newVolumes(t)
	fill := func(root string) error {
		if err := unix.Mkfifo(filepath.Join(root, "pipe"), 0o640); err != nil {
			return err
		}
		if err := unix.Mknod(filepath.Join(root, "zero"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(root, "socket")})
	}
	if err := volumes.addImage("special", false, fill); err != nil {
		t.Fatal(err)
	}
	if err := volumes.addImage("special-shifted", true, fill); err != nil {
		t.Fatal(err)
	}
	for _, idmap := range []string{"auto", "mount", "copy"} {
		g := newGdn(t, newStore(t), string(volumes), "--idmap", idmap)
		for _, image := range []string{"special", "special-shifted"} {
			for _, privileged := range []bool{false, true} {
				start := time.Now()
				spec, err := g.create("special", rootfs{url: volumes.url(image), privileged: privileged})
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("create took %s", took)
				}
				wantKind(t, filepath.Join(spec.Root.Path, "pipe"), unix.S_IFIFO|0o640, 0)
				wantKind(t, filepath.Join(spec.Root.Path, "zero"), unix.S_IFCHR|0o644, unix.Mkdev(1, 5))
				wantKind(t, filepath.Join(spec.Root.Path, "socket"), unix.S_IFSOCK, 0)
				if err := g.destroy("special"); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// wantKind wants a special file kept as what it is; of a socket's mode only the type.
func wantKind(t *testing.T, path string, mode uint32, device uint64) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Errorf("lstat %s: %v", path, err)
		return
	}
	if mode == unix.S_IFSOCK {
		st.Mode &= unix.S_IFMT
	}
	if st.Mode != mode || (device != 0 && st.Rdev != device) {
		t.Errorf("%s has mode %o and device %#x, want %o and %#x", path, st.Mode, st.Rdev, mode, device)
	}
}

// docker/for-linux#342, moby/moby#13451, lxc/lxc#4031, canonical/lxd#1781: a container makes a tree too deep for paths.
func TestCase53DeepTree(t *testing.T) {
	volumes := debian(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("debian"))
	for _, privileged := range []bool{false, true} {
		const handle = "goes-deep"
		spec, err := g.create(handle, rootfs{url: volumes.url("debian"), privileged: privileged})
		if err != nil {
			t.Fatal(err)
		}
		mustRun(t, spec, privileged, `perl -e 'for (1 .. 5000) { mkdir "d" or die $!; chdir "d" or die $! } open F, ">bottom" or die $!'`)
		start := time.Now()
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("delete took %s, want under 10s", took)
		}
		clean(t, g, handle)
		same(t, "the store", before, storeTree(t, g.store))
	}
}

// concourse/concourse#2199, #2892, #1753, #1581: "preparing rootfs caused permission denied".
func TestCase59ParentsThatCannotBeCrossed(t *testing.T) {
	volumes := busybox(t)
	requireTool(t, "setpriv")
	asContainerRoot := []string{"--reuid", "4294967294", "--regid", "4294967294", "--clear-groups", "ls"}

	t.Run("open", func(t *testing.T) {
		g := newGdn(t, newStore(t), string(volumes))
		for _, image := range []string{"busybox", "busybox-shifted"} {
			spec, err := g.create("crossed", rootfs{url: volumes.url(image)})
			if err != nil {
				t.Fatal(err)
			}
			if out := command(t, "setpriv", append(asContainerRoot, spec.Root.Path)...); !strings.Contains(out, "bin") {
				t.Errorf("ls of the root as the container's root: %q", out)
			}
			if err := g.destroy("crossed"); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("closed", func(t *testing.T) {
		closed := filepath.Join(newDir(t), "closed")
		if err := os.Mkdir(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		g := newGdn(t, filepath.Join(closed, "store"), string(volumes))
		image := volumes.url("busybox")
		res := g.call(g.unprivileged, "create", image, "not-crossed")
		said := strings.ReplaceAll(string(res.stdout)+string(res.stderr), g.store, "") // which has closed in its own path
		if !strings.Contains(said, closed) {
			t.Errorf("create does not name %s, which the container's root cannot cross (exit %d): %s", closed, res.code(), said)
		}
		if err := g.destroy("not-crossed"); err != nil {
			t.Error(err)
		}
	})
}
