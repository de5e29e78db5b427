package integration

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newDir is an empty directory that a container's root may pass through (t.TempDir's parent is 0700), and that goes away with
// everything the test mounted in it.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bcip-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmountAll(dir); err != nil {
			t.Errorf("cleaning up: %v", err)
			return // what cannot be unmounted must not be walked into
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newStore is the path of a store that does not exist yet.
func newStore(t testing.TB) string {
	t.Helper()
	return filepath.Join(newDir(t), "store")
}

// warm has g's store made, with everything that is made only once (the store's own files, the pinned user namespace, what is
// kept per image): what is there now is what has to be there again when no container is left.
func warm(t testing.TB, g *gdn, images ...string) tree {
	t.Helper()
	for _, image := range images {
		for _, privileged := range []bool{false, true} {
			if _, err := g.create("warming-up", rootfs{url: image, privileged: privileged}); err != nil {
				t.Fatal(err)
			}
			if _, err := g.stats("warming-up"); err != nil {
				t.Fatal(err)
			}
			if err := g.destroy("warming-up"); err != nil {
				t.Fatal(err)
			}
		}
	}
	return storeTree(t, g.store)
}

// clean is CLEAN(handle) of the field cases: nothing on disk, nothing mounted, and stats fails.
func clean(t testing.TB, g *gdn, handle string) {
	t.Helper()
	err := filepath.WalkDir(g.store, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) { // another handle's, deleted while we looked
				return nil
			}
			return err
		}
		if names(d.Name(), handle) {
			t.Errorf("left of %q: %s", handle, path)
		}
		if d.IsDir() && filepath.Base(filepath.Dir(filepath.Dir(path))) == "mnt" {
			return fs.SkipDir // a container's own files
		}
		return nil
	})
	if err != nil {
		t.Errorf("looking for %q in the store: %v", handle, err)
	}
	for _, line := range mountTable(t) {
		if names(line, handle) {
			t.Errorf("left of %q in the mount table: %s", handle, line)
		}
	}
	if _, err := g.stats(handle); err == nil {
		t.Errorf("stats of %q succeeds", handle)
	}
}

// names says whether text holds the handle. A short one, such as a pea's, is in random names by chance: it has to be all of it.
func names(text, handle string) bool {
	if len(handle) < 8 {
		return text == handle
	}
	return strings.Contains(text, handle)
}

// live lists the handles that the store holds, from its disk.
func live(t testing.TB, store string) []string {
	t.Helper()
	return namesIn(t, filepath.Join(store, "volumes", "live"))
}

// layers lists the IDs of the layers on the store's disk.
func layers(t testing.TB, store string) []string {
	t.Helper()
	return namesIn(t, filepath.Join(store, "layers"))
}

func namesIn(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]string, len(entries))
	for i, e := range entries {
		list[i] = e.Name()
	}
	return list
}

// mountTable is /proc/self/mountinfo, line by line.
func mountTable(t testing.TB) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

// mountsBelow lists the mount points at and below dir, in the order they were mounted.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		point := unescape.Replace(strings.Fields(lines.Text())[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points, lines.Err()
}

// mountCount is the number of mounts at and below dir.
func mountCount(t testing.TB, dir string) int {
	t.Helper()
	points, err := mountsBelow(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(points)
}

// unmountAll takes away every mount at and below dir, busy or not.
func unmountAll(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "umount", Path: point, Err: err}
		}
	}
	return nil
}
