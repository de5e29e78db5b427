package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// concourse/concourse#813, #1751, #2694, #544: a full disk on which nothing can be deleted, as deleting needs space.
func TestCase20DeleteOnFullDisk(t *testing.T) {
	volumes := busybox(t)
	for name, full := range map[string]struct {
		mkfs []string
		fill func(t testing.TB, dir string) string
	}{
		"no blocks": {nil, fillSpace},
		"no inodes": {[]string{"-N", "300"}, fillInodes},
	} {
		t.Run(name, func(t *testing.T) {
			fs := loopFS(t, "ext4", 64, full.mkfs...)
			g := newGdn(t, filepath.Join(fs, "store"), string(volumes))
			before := warm(t, g, volumes.url("busybox"))
			var root string
			for _, handle := range []string{"full-disk-h", "full-disk-k"} {
				spec, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: handle == "full-disk-h"})
				if err != nil {
					t.Fatal(err)
				}
				root = spec.Root.Path
			}
			full.fill(t, root)
			free := statfs(t, fs)
			for _, handle := range []string{"full-disk-h", "full-disk-k"} { // the other one first
				if err := g.destroy(handle); err != nil {
					t.Error(err)
				}
				clean(t, g, handle)
			}
			same(t, "the store", before, storeTree(t, g.store))
			if now := statfs(t, fs); now.Bfree <= free.Bfree || now.Ffree <= free.Ffree {
				t.Errorf("delete freed nothing: %d blocks, were %d; %d inodes, were %d", now.Bfree, free.Bfree, now.Ffree, free.Ffree)
			}
		})
	}
}

// concourse/concourse#813, #561: the kernel turned the store read-only.
func TestCase21ReadOnlyStore(t *testing.T) {
	volumes := busybox(t)
	fs := loopFS(t, "ext4", 64)
	g := newGdn(t, filepath.Join(fs, "store"), string(volumes))
	if _, err := g.create("before-read-only", rootfs{url: volumes.url("busybox")}); err != nil {
		t.Fatal(err)
	}
	remount(t, fs, unix.MS_RDONLY, "")
	before := storeTree(t, g.store)
	for _, args := range [][]string{
		{"create", volumes.url("busybox"), "while-read-only"},
		{"delete", "before-read-only"},
	} {
		for _, slot := range [][]string{g.unprivileged, g.privileged} {
			res := g.call(slot, args...)
			if res.err == nil || !strings.Contains(string(res.stdout), "read-only") {
				t.Errorf("%q: %v, want a failure that says read-only: %s", args, res.err, res.stdout)
			}
		}
	}
	if _, err := g.stats("before-read-only"); err != nil {
		t.Errorf("read-only: %v", err)
	}
	if _, err := g.capacity(); err != nil {
		t.Errorf("read-only: %v", err)
	}
	same(t, "the read-only store", before, storeTree(t, g.store))

	remount(t, fs, 0, "")
	for _, handle := range []string{"before-read-only", "while-read-only"} {
		if err := g.destroy(handle); err != nil {
			t.Errorf("writable again: %v", err)
		}
		clean(t, g, handle)
	}
	if _, err := g.create("while-read-only", rootfs{url: volumes.url("busybox")}); err != nil {
		t.Errorf("writable again: %v", err)
	}
}

// moby/moby#31038, #10613, #10915: out of inodes with gigabytes free, and the text blames the space.
func TestCase41OutOfInodes(t *testing.T) {
	volumes := newVolumes(t)
	requireRoot(t)
	fill := func(root string) error {
		for i := range 3000 {
			if err := os.WriteFile(filepath.Join(root, fmt.Sprint(i)), nil, 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	if err := volumes.addImage("many-files", false, fill); err != nil {
		t.Fatal(err)
	}
	if err := volumes.addImage("one-file", false, func(root string) error { return fillNamed(root, []string{"one"}) }); err != nil {
		t.Fatal(err)
	}

	t.Run("for the copy of an image", func(t *testing.T) {
		g := newGdn(t, filepath.Join(loopFS(t, "ext4", 64, "-N", "2000"), "store"), string(volumes), "--idmap", "copy")
		before := warm(t, g, volumes.url("one-file"))
		wantInodeFailure(t, g, volumes.url("many-files"))
		same(t, "the store", before, storeTree(t, g.store))
	})
	t.Run("for a container", func(t *testing.T) {
		fs := loopFS(t, "ext4", 64, "-N", "300")
		g := newGdn(t, filepath.Join(fs, "store"), string(volumes))
		before := warm(t, g, volumes.url("many-files"))
		fillInodes(t, fs)
		wantInodeFailure(t, g, volumes.url("many-files"))
		same(t, "the store", before, storeTree(t, g.store))
	})
}

func wantInodeFailure(t *testing.T, g *gdn, image string) {
	t.Helper()
	_, err := g.create("no-inodes", rootfs{url: image})
	if err == nil || !strings.Contains(err.Error(), "inode") {
		t.Errorf("create without inodes: %v, want a failure that names them", err)
	}
	clean(t, g, "no-inodes")
	if bytes, err := g.capacity(); err != nil || bytes < 32<<20 {
		t.Errorf("capacity without inodes: %d, %v; the file system has 64 MiB", bytes, err)
	}
}

// k3s-io/k3s#66, #3266, #10512, #19, containerd/containerd#5464, concourse/concourse#8517: a file system that cannot hold the
// upper layer gives "invalid argument" at the first container.
func TestCase42StoreOnOverlay(t *testing.T) {
	volumes := busybox(t)
	dir := newDir(t)
	for _, name := range []string{"lower", "upper", "work", "fs"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := unix.Mount("bcip", filepath.Join(dir, "fs"), "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	g := newGdn(t, filepath.Join(dir, "fs", "store"), string(volumes))
	for _, privileged := range []bool{false, true} {
		_, err := g.create("on-overlay", rootfs{url: volumes.url("busybox"), privileged: privileged})
		if err == nil || !strings.Contains(err.Error(), "overlay") || !strings.Contains(err.Error(), "put it on") {
			t.Errorf("create in a store on overlay: %v, want a failure that names overlay and says what to do", err)
		}
		clean(t, g, "on-overlay")
	}
	// Before the first container: what an operator runs after installing.
	if out, err := g.command(t.Context(), g.unprivileged, "doctor").Output(); err == nil || !strings.Contains(string(out), "overlay") {
		t.Errorf("doctor for a store on overlay: %v, want a failure that names overlay: %s", err, out)
	}
}

// The other half of case 42: a tmpfs can hold a store. Real containers on one are in TestContainersOnFileSystems.
func TestCase42StoreOnTmpfs(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, filepath.Join(tmpFS(t, "size=16m"), "store"), string(volumes))
	if out, err := g.command(t.Context(), g.unprivileged, "doctor").Output(); err != nil {
		t.Errorf("doctor for a store on tmpfs: %v: %s", err, out)
	}
	for _, privileged := range []bool{false, true} {
		spec, err := g.create("on-tmpfs", rootfs{url: volumes.url("busybox"), privileged: privileged})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(spec.Root.Path, "written"), []byte("x"), 0o644); err != nil {
			t.Error(err)
		}
		if err := g.destroy("on-tmpfs"); err != nil {
			t.Error(err)
		}
		clean(t, g, "on-tmpfs")
	}
}
