package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// newStore is a store in dir; where a test looks at what it does with a shifted copy, idMap is Copy.
func newStore(t testing.TB, dir string, idMap IDMap) *volumes.Store {
	return volumes.New(volumes.Options{Dir: dir, Driver: New(Options{IDMap: idMap}), Warn: func(err error) { t.Errorf("warning: %v", err) }})
}

// newImage is an image of files empty files and one more, outside of the file system under test.
func newImage(t testing.TB, files int) *volumes.Image {
	t.Helper()
	dir := inspect.NewDir(t)
	for i := range files {
		must(t, unix.Mknod(fmt.Sprintf("%s/%d", dir, i), unix.S_IFREG|0o644, 0))
	}
	must(t, os.WriteFile(dir+"/file", []byte("lower"), 0o644))
	return openImage(t, dir)
}

func openImage(t testing.TB, dir string) *volumes.Image {
	t.Helper()
	img, err := volumes.OpenImage(dir)
	must(t, err)
	t.Cleanup(func() { img.Close() })
	return img
}

func create(t testing.TB, s *volumes.Store, handle string, img *volumes.Image, privileged bool) (*volumes.Volume, error) {
	t.Helper()
	h, err := volumes.ParseHandle(handle)
	must(t, err)
	return s.Create(t.Context(), h, volumes.Request{Image: img, Privileged: privileged})
}

func remove(t testing.TB, s *volumes.Store, handle string) error {
	t.Helper()
	h, err := volumes.ParseHandle(handle)
	must(t, err)
	_, err = s.Delete(t.Context(), h)
	return err
}

// files are the paths of all that is in a store, mounts and what is kept of images not counted.
func files(t testing.TB, store string) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"layers", "volumes", "mnt", "caches"} {
		must(t, filepath.WalkDir(store+"/"+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !(d.IsDir() && strings.Count(path[len(store):], "/") < 3 && !strings.HasPrefix(path, store+"/layers/") &&
				!strings.HasPrefix(path, store+"/mnt/")) {
				all = append(all, path)
			}
			return err
		}))
	}
	return all
}

// fill writes a file in dir until not one block is free, root's reserve included.
func fill(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Create(dir + "/fills-the-disk")
	must(t, err)
	defer f.Close()
	for chunk := 1 << 20; chunk >= 512; { // a full disk refuses a large write while there is room for a small one
		_, err := f.Write(make([]byte, chunk))
		if errors.Is(err, unix.ENOSPC) {
			chunk /= 2
		} else {
			must(t, err)
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// Field case 20: deleting works when not even a directory entry can be written any more.
func TestDeleteOnAFullDisk(t *testing.T) {
	for kind, sizeMiB := range map[string]int64{"ext4": 64, "xfs": 300, "btrfs": 130, "tmpfs": 32} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := newFS(t, kind, sizeMiB)
			s, img := newStore(t, dir+"/store", Auto), newImage(t, 0)
			var roots []string
			for _, h := range []string{"h", "k"} {
				v, err := create(t, s, h, img, h == "h")
				must(t, err)
				roots = append(roots, v.Root)
				for i := range 300 {
					must(t, os.WriteFile(fmt.Sprintf("%s/%d", v.Root, i), make([]byte, 10<<10), 0o600))
				}
			}
			fill(t, dir)
			_, err := create(t, s, "new", img, true)
			if err == nil { // small files can find room in what is reserved for them
				must(t, remove(t, s, "new"))
			} else {
				inspect.WantError(t, err, unix.ENOSPC, `"new"`, "is full", "MiB free", dir)
				if strings.Contains(err.Error(), "mount-max") {
					t.Errorf("error %q speaks of mounts", err)
				}
			}
			must(t, remove(t, s, "h"))
			if b, err := os.ReadFile(roots[1] + "/file"); err != nil || string(b) != "lower" {
				t.Errorf("the other container: %q, %v", b, err)
			}
			must(t, remove(t, s, "k"))
			if left := files(t, dir+"/store"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			must(t, os.Remove(dir+"/fills-the-disk"))
			_, err = create(t, s, "h", img, true)
			must(t, err)
			must(t, remove(t, s, "h"))
		})
	}
}

// A create that fails for lack of room leaves nothing, and never says that the mount table is full, however far it came.
func TestCreateOnAnAlmostFullDisk(t *testing.T) {
	for _, idMap := range []IDMap{Auto, Mount, Copy} {
		for lack, text := range map[string]string{"bytes": "is full (0 MiB of 8 MiB free)", "inodes": "is out of inodes"} {
			t.Run(string(idMap)+"/"+lack, func(t *testing.T) {
				t.Parallel()
				dir := newFS(t, "tmpfs", 8, "nr_inodes=500")
				s, img := newStore(t, dir+"/store", idMap), newImage(t, 0)
				for _, privileged := range []bool{true, false} {
					_, err := create(t, s, "h", img, privileged)
					must(t, err)
					must(t, remove(t, s, "h"))
				}
				before := files(t, dir+"/store")
				leave := takeInodes(t, dir)
				if lack == "bytes" {
					leave(400)
					leave = takeBytes(t, dir)
				}
				failed := 0
				for room := range 16 {
					leave(room)
					for _, privileged := range []bool{true, false} {
						_, err := create(t, s, "h", img, privileged)
						if err == nil {
							must(t, remove(t, s, "h"))
							continue
						}
						failed++
						inspect.WantError(t, err, unix.ENOSPC, `"h"`, text)
						if strings.Contains(err.Error(), "mount-max") || strings.Contains(err.Error(), "read-only") {
							t.Errorf("error %q speaks of something else", err)
						}
						if left := files(t, dir+"/store"); len(left) != len(before) {
							t.Errorf("left: %q, want %q", left, before)
						}
					}
				}
				if failed == 0 || failed == 32 {
					t.Errorf("%d of 32 creates failed, so little was tested", failed)
				}
			})
		}
	}
}

// takeBytes takes all blocks of the file system at dir, and returns what leaves so many free.
func takeBytes(t *testing.T, dir string) (leave func(pages int)) {
	fill(t, dir)
	info, err := os.Stat(dir + "/fills-the-disk")
	must(t, err)
	return func(pages int) {
		must(t, os.Truncate(dir+"/fills-the-disk", info.Size()-int64(pages*os.Getpagesize())))
	}
}

// takeInodes takes all inodes of the file system at dir, and returns what leaves so many free, more each time.
func takeInodes(t *testing.T, dir string) (leave func(inodes int)) {
	var taken []string
	for {
		path := fmt.Sprintf("%s/takes-an-inode-%d", dir, len(taken))
		if err := os.WriteFile(path, nil, 0o600); errors.Is(err, unix.ENOSPC) {
			break
		} else {
			must(t, err)
		}
		taken = append(taken, path)
	}
	left := 0
	return func(inodes int) {
		for ; left < inodes; left++ {
			must(t, os.Remove(taken[left]))
		}
	}
}

// Field case 41: a lack of inodes is called so.
func TestOutOfInodes(t *testing.T) {
	for _, idMap := range []IDMap{Auto, Copy} {
		t.Run(string(idMap), func(t *testing.T) {
			t.Parallel()
			dir := newFS(t, "ext4", 100, "-N", "2000")
			s := newStore(t, dir+"/store", idMap)
			img := newImage(t, 3_000) // which only a copy has no room for
			var err error
			made := 0
			for ; err == nil && made < 1_000; made++ {
				_, err = create(t, s, fmt.Sprint(made), img, idMap != Copy)
			}
			inspect.WantError(t, err, unix.ENOSPC, "is out of inodes", "not of bytes", dir)
			if n, err := s.Capacity(); err != nil || n < 50<<20 {
				t.Errorf("capacity: %d, %v", n, err)
			}
			for i := range made {
				must(t, remove(t, s, fmt.Sprint(i)))
			}
			if left := files(t, dir+"/store"); len(left) > 0 {
				t.Errorf("%d files are left: %.200q", len(left), left)
			}
		})
	}
}

// Field case 21: a file system that the kernel turned read-only.
func TestReadOnlyStore(t *testing.T) {
	dir := newFS(t, "tmpfs", 32)
	s, img := newStore(t, dir+"/store", Auto), newImage(t, 0)
	v, err := create(t, s, "h", img, true)
	must(t, err)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")) // files are open for writing in the upper's mount
	defer func() { _ = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, "") }()

	_, err = create(t, s, "k", img, true)
	inspect.WantError(t, err, unix.EROFS, `"k"`, "read-only", dir, "remount it read-write")
	inspect.WantError(t, remove(t, s, "h"), unix.EROFS, `"h"`, "read-only", dir, "remount it read-write")
	must(t, remove(t, s, "unknown"))
	h, err := volumes.ParseHandle("h")
	must(t, err)
	if u, err := s.Stats(t.Context(), h); err != nil || u.Partial {
		t.Errorf("stats: %+v, %v", u, err)
	}
	if n, err := s.Capacity(); err != nil || n != 32<<20 {
		t.Errorf("capacity: %d, %v", n, err)
	}
	if _, err := os.Stat(v.Root + "/file"); err != nil {
		t.Errorf("the container: %v", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	must(t, remove(t, s, "h"))
	if left := files(t, dir+"/store"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	// A store that is read-only from the start, and one that was made in another boot.
	for _, boot := range []string{"same", "another"} {
		if boot == "another" {
			must(t, os.Remove(dir+"/store/store.json"))
		}
		must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		_, err := create(t, s, "k", img, true)
		inspect.WantError(t, err, unix.EROFS, "read-only", dir)
		must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	}
}

// Field case 42: a store that overlayfs cannot use is refused at once, with the name of what it is on.
func TestStoreOnAnOverlay(t *testing.T) {
	dir := newFS(t, "tmpfs", 32)
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		must(t, os.Mkdir(dir+"/"+d, 0o755))
	}
	merged := dir + "/merged"
	must(t, unix.Mount("overlay", merged, "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)))
	t.Cleanup(func() { inspect.Unmount(t, merged) })
	for _, idMap := range []IDMap{Auto, Mount, Copy} {
		s := newStore(t, merged+"/store", idMap)
		_, err := create(t, s, "h", newImage(t, 0), true)
		inspect.WantError(t, err, volumes.ErrUnsupported, merged+"/store", "overlay", "ext4, xfs, btrfs or tmpfs")
		findings := s.Doctor(t.Context())
		last := findings[len(findings)-1]
		if last.Level != volumes.Fail || !strings.Contains(last.Text, "overlay") {
			t.Errorf("doctor: %+v", findings)
		}
	}
}
