package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestContainers runs real containers through their whole life in every combination of slot, owner of the image on disk and way
// to make ownership.
func TestContainers(t *testing.T) {
	for _, system := range []struct {
		image   string
		volumes func(*testing.T) volumesDir
	}{
		{"busybox", busybox},
		{"debian", debian},
	} {
		for _, idmap := range []string{"auto", "mount", "copy"} {
			for _, privileged := range []bool{false, true} {
				for _, image := range []string{system.image, system.image + "-shifted"} {
					t.Run(fmt.Sprintf("%s/%s/%s", image, idmap, slotName(privileged)), func(t *testing.T) {
						volumes := system.volumes(t)
						g := newGdn(t, newStore(t), string(volumes), "--idmap", idmap)
						containerLife(t, g, volumes, image, privileged, idmap != "copy")
					})
				}
			}
		}
	}
}

// TestContainersOnFileSystems does the same on each file system that a store may stand on.
func TestContainersOnFileSystems(t *testing.T) {
	for name, newFS := range map[string]func(*testing.T) string{
		"xfs":   func(t *testing.T) string { return loopFS(t, "xfs", 512) },
		"btrfs": func(t *testing.T) string { return loopFS(t, "btrfs", 512) },
		"tmpfs": func(t *testing.T) string { return tmpFS(t, "size=512m") },
	} {
		for _, privileged := range []bool{false, true} {
			t.Run(name+"/"+slotName(privileged), func(t *testing.T) {
				volumes := busybox(t)
				g := newGdn(t, filepath.Join(newFS(t), "store"), string(volumes))
				containerLife(t, g, volumes, "busybox", privileged, true)
			})
		}
	}
}

func slotName(privileged bool) string {
	if privileged {
		return "privileged"
	}
	return "unprivileged"
}

// containerLife creates a root file system, runs its image's script in a container on it, looks at the result from the host
// and on the disk, and deletes it. canonical says that the store keeps root's files as root's, whatever the container sees.
func containerLife(t *testing.T, g *gdn, volumes volumesDir, image string, privileged, canonical bool) {
	const handle = "0fe1c2a6-container"
	imageBefore := imageTree(t, volumes.content(image))
	storeBefore := warm(t, g, volumes.url(image))

	spec, err := g.create(handle, rootfs{url: volumes.url(image), privileged: privileged})
	if err != nil {
		t.Fatal(err)
	}
	script, mounts := scriptFor(t, image)
	mustRun(t, spec, privileged, script, mounts...)

	root := uint32(guardianRoot)
	if privileged {
		root = 0
	}
	wantOwner(t, filepath.Join(spec.Root.Path, "written"), root)
	wantOwner(t, spec.Root.Path, root)
	onDisk := root
	if canonical {
		onDisk = 0
	}
	wantOwner(t, onLayer(t, g.store, "written"), onDisk)

	if used, err := g.stats(handle); err != nil {
		t.Error(err)
	} else if used.exclusiveBytes == 0 || used.totalBytes <= used.exclusiveBytes {
		t.Errorf("stats of a written-to container: %+v", used)
	}
	if err := g.destroy(handle); err != nil {
		t.Fatal(err)
	}
	clean(t, g, handle)
	same(t, "the store after the container", storeBefore, storeTree(t, g.store))
	same(t, "the image after the container", imageBefore, imageTree(t, volumes.content(image)))
}

// scriptFor is the script of an image's system, with the mounts it needs.
func scriptFor(t *testing.T, image string) (script string, mounts []specs.Mount) {
	t.Helper()
	name := "testdata/busybox-container.sh"
	if image == "debian" || image == "debian-shifted" {
		name = "testdata/debian-container.sh"
		deb, err := sudoPackage()
		if err != nil {
			t.Fatal(err)
		}
		mounts = []specs.Mount{{Destination: "/package.deb", Type: "bind", Source: deb, Options: []string{"bind", "ro"}}}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), mounts
}

// onLayer is the path in the store's layers of a file that a container made.
func onLayer(t *testing.T, store, name string) string {
	t.Helper()
	for _, id := range layers(t, store) {
		for _, tree := range []string{"fs", "volume/fs"} { // the store's own, and a BaggageClaim volume
			path := filepath.Join(store, "layers", id, tree, name)
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				return path
			}
		}
	}
	t.Fatalf("no layer of %s holds %s", store, name)
	return ""
}

func wantOwner(t *testing.T, path string, owner uint32) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Errorf("lstat %s: %v", path, err)
	} else if st.Uid != owner || st.Gid != owner {
		t.Errorf("%s belongs to %d:%d, want %d", path, st.Uid, st.Gid, owner)
	}
}
