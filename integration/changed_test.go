package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/integration/generation"
	"golang.org/x/sys/unix"
)

// What an operator or a reboot changes between two commands of one store: its path, its flags, the namespaces, its disk.

// begun makes a container with a cache that has grown to the next generation and is committed.
func (g *gdn) begun(handle, image string, privileged bool, next int) {
	g.t.Helper()
	c := g.mustCreate(handle, image, privileged)
	if n, err := generation.Read(c.cache); err != nil || n != next-1 {
		g.t.Errorf("%s finds generation %d of its cache, want %d: %v", handle, n, next-1, err)
	}
	if err := generation.Write(c.cache, next, 0); err != nil {
		g.t.Fatal(err)
	}
}

// The store is moved to another path with a live container in it, and is reached through a symlink. concourse/concourse-chart#361
func TestCase25MovedStore(t *testing.T) {
	images := busybox(t)
	image := withCache(images.url("busybox"), "key", cacheAt)
	dir := newDir(t)
	at := func(path string) *gdn { return newGdn(t, filepath.Join(dir, path), string(images)) }
	for i, privileged := range []bool{false, true} {
		from, to, link := at(fmt.Sprint("from-", i)), at(fmt.Sprint("to-", i)), at(fmt.Sprint("link-", i))
		from.begun("first", image, privileged, 1)
		from.wantEnd("first", "promoted")
		from.begun("living", image, privileged, 2)
		if err := os.Rename(from.store, to.store); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to.store, link.store); err != nil {
			t.Fatal(err)
		}
		if serverFlags == nil { // a server knows containers of the old path, and takes a delete there for one whose store was lost
			if err := from.destroy("living"); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(from.store); !os.IsNotExist(err) {
				t.Errorf("a delete made the store anew: %v", err)
			}
		}
		if _, err := to.stats("living"); err != nil {
			t.Errorf("where the store was moved to: %v", err)
		}
		link.begun("by-the-link", withCache(images.url("busybox"), "other", cacheAt), privileged, 1)
		to.wantEnd("living", "promoted: generation 2")
		to.begun("third", image, privileged, 3)
		link.wantEnd("third", "promoted: generation 3")
		to.wantEnd("by-the-link", "promoted: generation 1")
		if lines := link.gc(); len(lines) > 0 {
			t.Errorf("gc in the moved store: %q", lines)
		}
		for _, handle := range []string{"living", "third", "by-the-link"} {
			clean(t, to, handle)
		}
		to.dropAll()
		noLayers(t, to)
	}
}

// The flags name another driver, or another way to map ids, than those that made what is there.
func TestCase35OtherFlags(t *testing.T) {
	images := busybox(t)
	image := withCache(images.url("busybox"), "key", cacheAt)
	store := newStore(t)
	with := func(flags ...string) *gdn { return newGdn(t, store, string(images), flags...) }
	auto, mapped, copied := with(), with("--idmap", "mount"), with("--idmap", "copy")
	for _, privileged := range []bool{false, true} {
		auto.begun("auto", image, privileged, 1)
		// Where no layer is mapped, what unprivileged containers leave has other owners on disk: their caches are others. So a cache is never shown with wrong owners.
		next := 1
		if privileged {
			next = 2
		}
		auto.wantEnd("auto", "promoted: generation 1")
		auto.begun("auto", image, privileged, 2)
		copied.begun("copied", image, privileged, next)
		copied.wantEnd("auto", "promoted: generation 2") // each is ended under the other's flags
		if privileged {
			mapped.wantEnd("copied", "overtaken")
		} else {
			mapped.wantEnd("copied", "promoted: generation 1")
		}
		mapped.begun("mapped", image, privileged, 3)
		copied.wantEnd("mapped", "promoted: generation 3")
		for _, handle := range []string{"auto", "copied", "mapped"} {
			clean(t, auto, handle)
		}
		auto.dropAll()
	}

	// The record of the host says that it cannot map: a passing error of the first look, or the disk of another host in the same boot.
	record, err := os.ReadFile(store + "/store.json")
	if err != nil {
		t.Fatal(err)
	}
	lacking := strings.Replace(string(record), `"id_map":true`, `"id_map":false`, 1)
	if lacking == string(record) {
		t.Skipf("this host maps no ids: %s", record)
	}
	writeFile(t, store+"/store.json", lacking)
	if _, err := mapped.create("refused", rootfs{url: image}); err == nil || !strings.Contains(err.Error(), "--idmap auto and copy") {
		t.Errorf("create without id maps: %v, want a failure that says what helps", err)
	}
	clean(t, mapped, "refused")
	auto.begun("copied", image, false, 1)
	writeFile(t, store+"/store.json", string(record))
	auto.wantEnd("copied", "promoted: generation 1")
	auto.dropAll()
}

// The flag for a server comes and goes, with live containers. What the one driver made, only that makes more of, and what only the server can remove is not forgotten without it.
func TestCase35OtherDriver(t *testing.T) {
	s := startServer(t, bctest.Options{Driver: "overlay"})
	images := busybox(t)
	image := withCache(images.url("busybox"), "key", cacheAt)
	for _, first := range []string{"embedded", "server"} {
		store := newStore(t)
		made, other := newGdn(t, store, string(images)), newGdn(t, store, string(images), "--baggageclaim-url", s.URL)
		if first == "server" {
			made, other = other, made
		}
		made.begun("living", image, false, 1)
		made.wantEnd("living", "promoted")
		made.begun("living", image, false, 2)
		if _, err := other.create("new", rootfs{url: image}); err == nil || !strings.Contains(err.Error(), "was made by driver") {
			t.Errorf("%s: create by the other driver: %v", first, err)
		}
		clean(t, made, "new")
		if first == "embedded" { // its files are in the store: anybody can remove them
			other.wantEnd("living", "dropped: another driver made it")
			clean(t, made, "living")
			made.begun("living", image, false, 2)
			made.wantEnd("living", "promoted: generation 2")
		} else {
			if err := other.destroy("living"); err == nil || !strings.Contains(err.Error(), "--baggageclaim-url") {
				t.Errorf("delete without the server: %v, want a failure that names the flag", err)
			}
			made.wantEnd("living", "promoted: generation 2")
		}
		clean(t, made, "living")
		made.begun("next", image, false, 3)
		made.wantEnd("next", "promoted: generation 3")
		made.dropAll()
		noLayers(t, made)
	}
}

// One store in two user namespaces: of a worker, of one with other ids, and of the host. Files of the first would belong to others in the second, so it is refused there, and
// can be cleaned up. A worker that is restarted with the same ids goes on.
func TestCase35OtherUserNamespace(t *testing.T) {
	requireRoot(t)
	requireTool(t, "busybox")
	enter := startWorker(t, workerMap)
	images := newVolumes(t)
	if err := images.addImage("image", false, fillBusybox); err != nil {
		t.Fatal(err)
	}
	if err := giveTo(images.content("image"), workerRoot); err != nil {
		t.Fatal(err)
	}
	home := newDir(t)
	if err := os.Chown(home, workerRoot, workerRoot); err != nil {
		t.Fatal(err)
	}
	host := newGdn(t, filepath.Join(home, "store"), string(images))
	image := withCache(images.url("image"), "key", cacheAt)
	worker := host.under(enter...)
	inside := func(enter []string, script string, args ...string) {
		t.Helper()
		command(t, enter[0], append(append(enter[1:len(enter):len(enter)], "/bin/sh", "-euc", script), args...)...)
	}
	// A directory that was replaced is marked by an attribute of another name there.
	c := worker.mustCreate("worker-1", image, false)
	inside(enter, `cd "$0"; mkdir dir; touch dir/old .bc-cache-commit`, c.cache)
	worker.wantEnd("worker-1", "promoted: generation 1")
	c = worker.mustCreate("worker-2", image, false)
	inside(enter, `cd "$0"; rm -r dir; mkdir dir; touch dir/new .bc-cache-commit`, c.cache)
	worker.wantEnd("worker-2", "promoted: generation 2")
	c = worker.mustCreate("worker-3", image, false)
	inside(enter, `cd "$0"; touch later .bc-cache-commit`, c.cache)

	shifted := []syscall.SysProcIDMap{{ContainerID: 0, HostID: workerRoot, Size: 60000}}
	for name, other := range map[string]*gdn{"the host": host, "a worker with other ids": host.under(startWorker(t, shifted)...)} {
		for _, privileged := range []bool{false, true} {
			_, err := other.create("other", rootfs{url: image, privileged: privileged})
			if err == nil || !strings.Contains(err.Error(), `with the ids "0 100000 32768 32768 200000 32768"`) {
				t.Errorf("create by %s: %v, want a failure that names the ids", name, err)
			}
		}
		if err := other.destroy("other"); err != nil {
			t.Error(err)
		}
	}
	host.wantEnd("worker-3", "dropped: it was made in a user namespace with other ids")

	enter = startWorker(t, workerMap)
	again := host.under(enter...)
	c = again.mustCreate("worker-4", image, false)
	inside(enter, `test "$(ls "$0" "$0/dir")" = "$0:
dir

$0/dir:
new"`, c.cache)
	inside(enter, `touch "$0/.bc-cache-commit" "$0/later"`, c.cache)
	again.wantEnd("worker-4", "promoted: generation 3")
	for _, handle := range []string{"worker-1", "worker-2", "worker-3", "worker-4"} {
		clean(t, host, handle)
	}
	host.dropAll()
	// In a user namespace a disk of the host's cannot be mapped: the image was copied.
	if left, copies := layers(t, host.store), namesMatching(t, host.store+"/images", ".copy"); len(left) != len(copies) {
		t.Errorf("layers left: %q, and these copies of images: %q", left, copies)
	}
}

// The kernel makes the disk read-only under live containers with caches, and an operator makes it writable again: nothing is lost, and all goes on. concourse/concourse#561
func TestCase21ReadOnlyWithCaches(t *testing.T) {
	images := busybox(t)
	image := withCache(images.url("busybox"), "key", cacheAt)
	for _, backend := range []string{"embedded", "server"} {
		t.Run(backend, func(t *testing.T) {
			var disk string
			var flags []string
			if backend == "embedded" {
				disk = loopFS(t, "ext4", 64)
			} else {
				s := startServer(t, bctest.Options{Driver: "overlay", SizeMiB: 64})
				disk, flags = filepath.Dir(s.Volumes), []string{"--baggageclaim-url", s.URL}
			}
			for _, where := range []string{"store", "elsewhere"} { // the server's disk need not be the store's
				store := filepath.Join(disk, where)
				if where == "elsewhere" {
					if backend == "embedded" {
						continue
					}
					store = newStore(t)
				}
				g := newGdn(t, store, string(images), flags...)
				g.begun("first", image, false, 1)
				g.wantEnd("first", "promoted")
				g.begun("living", image, false, 2)

				remount(t, disk, unix.MS_RDONLY, "")
				for _, args := range [][]string{{"create", image, "new"}, {"delete", "living"}} {
					for range 2 {
						res := g.call(g.unprivileged, args...)
						if res.code() != 1 || !strings.Contains(string(res.stdout), "read-only") {
							t.Errorf("%q: exit %d, want 1 and a sentence that says read-only: %s", args, res.code(), res.stdout)
						}
					}
				}
				if where == "store" {
					if _, err := g.stats("living"); err != nil {
						t.Error(err)
					}
				}
				remount(t, disk, 0, "")

				if err := g.destroy("new"); err != nil {
					t.Error(err)
				}
				g.wantEnd("living", "promoted: generation 2")
				for _, handle := range []string{"new", "living"} {
					clean(t, g, handle)
				}
				g.begun("next", image, false, 3)
				g.wantEnd("next", "promoted: generation 3")
				if lines := g.gc(); len(lines) > 0 {
					t.Errorf("gc finds: %q", lines)
				}
				g.dropAll()
				noLayers(t, g)
			}
		})
	}
}
