package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// cloudfoundry/garden-runc-release#66: delete of handles that were never created hid the first failure.
func TestCase1DeleteOfTheUnknown(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	deletes := func() {
		for range 5 {
			for _, slot := range [][]string{g.unprivileged, g.privileged} {
				if res := g.call(slot, "delete", "never-existed"); res.err != nil {
					t.Errorf("delete: %v: %s", res.err, res.stdout)
				}
			}
		}
	}
	deletes()
	if _, err := os.Lstat(g.store); !os.IsNotExist(err) {
		t.Errorf("delete made the store: %v", err)
	}
	before := warm(t, g, volumes.url("busybox"))
	deletes()
	same(t, "the store after deletes of the unknown", before, storeTree(t, g.store))
}

// cloudfoundry/guardian#65, cloudfoundry/diego-release#280: each destroy deletes twice, once per slot.
func TestCase2DeleteOncePerSlot(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	for _, privileged := range []bool{false, true} {
		const handle = "deleted-four-times"
		if _, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged}); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			for _, slot := range [][]string{g.unprivileged, g.privileged} {
				if res := g.call(slot, "delete", handle); res.err != nil {
					t.Errorf("round %d: %v: %s", i, res.err, res.stdout)
				}
				clean(t, g, handle)
				same(t, "the store after a delete", before, storeTree(t, g.store))
			}
		}
	}
}

// cloudfoundry/guardian#108: containers with a raw:// root file system reach delete and never create.
func TestCase4DeleteOfRawRootfs(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	warm(t, g, volumes.url("busybox"))
	outside := filepath.Join(filepath.Dir(g.store), "outside")
	if err := os.MkdirAll(filepath.Join(outside, "raw-rootfs", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := imageTree(t, outside)
	for _, handle := range []string{"raw-rootfs", "../outside/raw-rootfs", outside, "../../outside"} {
		if err := g.destroy(handle); err != nil {
			t.Errorf("delete %q: %v", handle, err)
		}
	}
	same(t, "the tree beside the store", before, imageTree(t, outside))
}

// guardian commits d94a807bd and 0044ae7d4: anything but one JSON document on stdout breaks create. The double checks stdout and
// stderr of every call in this package; here at every log level, on a cold and a warm store, and when the command fails.
func TestCase5OneDocument(t *testing.T) {
	volumes := busybox(t)
	for _, level := range []string{"debug", "info", "error"} {
		for _, privileged := range []bool{false, true} {
			g := newGdn(t, newStore(t), string(volumes), "--log-level", level)
			for i := range 2 {
				handle := "document-" + strconv.Itoa(i)
				if _, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged}); err != nil {
					t.Errorf("level %s: %v", level, err)
				}
				if _, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged}); err == nil {
					t.Errorf("level %s: the second create of a handle succeeds", level)
				}
				if _, err := g.stats(handle); err != nil {
					t.Errorf("level %s: %v", level, err)
				}
			}
			if _, err := g.capacity(); err != nil {
				t.Errorf("level %s: %v", level, err)
			}
			for i := range 2 {
				if err := g.destroy("document-" + strconv.Itoa(i)); err != nil {
					t.Errorf("level %s: %v", level, err)
				}
			}
		}
	}
}

// guardian gardener/…/not_implemented_command_creator.go: capacity is asked of the unprivileged slot, at any time.
func TestCase6Capacity(t *testing.T) {
	volumes := busybox(t)
	t.Run("no store yet", func(t *testing.T) {
		g := newGdn(t, filepath.Join(newStore(t), "nor", "its", "parents"), string(volumes))
		wantCapacity(t, g, filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(g.store)))))
	})
	t.Run("warm store", func(t *testing.T) {
		g := newGdn(t, newStore(t), string(volumes))
		warm(t, g, volumes.url("busybox"))
		wantCapacity(t, g, g.store)
	})
	t.Run("full store", func(t *testing.T) {
		g := newGdn(t, filepath.Join(tmpFS(t, "size=4m"), "store"), string(volumes))
		warm(t, g, volumes.url("busybox"))
		fillSpace(t, filepath.Dir(g.store))
		wantCapacity(t, g, g.store)
	})
}

func wantCapacity(t *testing.T, g *gdn, on string) {
	t.Helper()
	got, err := g.capacity()
	if err != nil {
		t.Fatal(err)
	}
	st := statfs(t, on)
	if size := st.Blocks * uint64(st.Bsize); got == 0 || got > size {
		t.Errorf("capacity is %d, want more than 0 and no more than the file system's %d", got, size)
	}
}

// guardian imageplugin/default_command_creator.go: the rootfs URL is percent-encoded, and its first # becomes a colon.
func TestCase8RewrittenURL(t *testing.T) {
	requireRoot(t)
	volumes := newVolumes(t)
	names := []string{
		"a", "a blank", "sharp#sharp#", "per%20cent", "plus+amp&", "quest?ion", "col:on", "Zähler", `back\slash`, "semi;colon,comma",
		"[brackets]",
	}
	if err := volumes.addImage("image", false, func(root string) error { return fillNamed(root, names) }); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		g := newGdn(t, newStore(t), string(volumes))
		for _, base := range []string{"file://" + volumes.content("image"), "baggageclaim://image", volumes.content("image")} {
			clientURL := base + "/rootfs/" + encoded(name)
			spec, err := g.create("rewritten", rootfs{url: clientURL, privileged: true})
			if err != nil {
				t.Errorf("%s: %v", clientURL, err)
				continue
			}
			got, err := os.ReadFile(filepath.Join(spec.Root.Path, "name"))
			if err != nil || string(got) != name {
				t.Errorf("%s for %q shows the tree of %q (%v)", clientURL, name, got, err)
			}
			if err := g.destroy("rewritten"); err != nil {
				t.Error(err)
			}
		}
	}

	// A client that does not encode a # asks for another name than it means, and must not get what stands before it.
	g := newGdn(t, newStore(t), string(volumes))
	for _, clientURL := range []string{"baggageclaim://image/rootfs/a#b", "file://" + volumes.content("image") + "/rootfs/a#b"} {
		if spec, err := g.create("half-right", rootfs{url: clientURL, privileged: true}); err == nil {
			t.Errorf("%s is taken, as %s", clientURL, spec.Root.Path)
		}
	}
}

// encoded percent-encodes everything that a URL could give a meaning to, as a careful client does.
func encoded(name string) string {
	var s strings.Builder
	for _, b := range []byte(name) {
		fmt.Fprintf(&s, "%%%02X", b)
	}
	return s.String()
}

// fillNamed makes directories that hold a file with their own name.
func fillNamed(root string, names []string) error {
	for _, name := range names {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, name, "name"), []byte(name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// concourse/baggageclaim#23: the first plugin took the parent volume from a fixed number of path parts.
func TestCase9RootfsInSubFolder(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	for _, test := range []struct{ url, has, hasNot string }{
		{"baggageclaim://busybox/rootfs", "bin/sh", "metadata.json"},
		{volumes.content("busybox") + "/rootfs", "bin/sh", "metadata.json"},
		{"file://" + volumes.content("busybox") + "/rootfs", "bin/sh", "metadata.json"},
		{"baggageclaim://busybox", "metadata.json", "bin"},
		{"baggageclaim://busybox/rootfs/usr", "share", "bin"},
	} {
		spec, err := g.create("in-a-sub-folder", rootfs{url: test.url})
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := os.Lstat(filepath.Join(spec.Root.Path, test.has)); err != nil {
			t.Errorf("%s: %v", test.url, err)
		}
		if _, err := os.Lstat(filepath.Join(spec.Root.Path, test.hasNot)); !os.IsNotExist(err) {
			t.Errorf("%s: %s is there (%v)", test.url, test.hasNot, err)
		}
		isImage := strings.HasSuffix(test.url, "rootfs")
		if hasEnv := spec.Process != nil && strings.Contains(strings.Join(spec.Process.Env, "\n"), "IMAGE=busybox"); hasEnv != isImage {
			t.Errorf("%s: the image's env is in the answer: %t, want %t", test.url, hasEnv, isImage)
		}
		if err := g.destroy("in-a-sub-folder"); err != nil {
			t.Error(err)
		}
	}
}

// guardian rundmc/peas: process ids as handles, deleted twice at once when Garden restarts.
func TestCase10Peas(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	handles := []string{"1", "42", "0", strings.Repeat("9", 255)}
	for i := range 50 {
		handle := handles[i%len(handles)]
		if _, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: i%2 == 0}); err != nil {
			t.Fatal(err)
		}
		if err := together(2, func(int) error { return g.destroy(handle) }); err != nil {
			t.Errorf("round %d, %q: %v", i, handle, err)
		}
		clean(t, g, handle)
	}
	same(t, "the store after 50 peas", before, storeTree(t, g.store))
}
