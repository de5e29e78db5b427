package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/bcserver"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// counts are what is on a store's disk and in the mount table at one moment.
type counts struct {
	entries, mounts, layers int
	inodes, fileBytes       int64 // of all but containers' mount points; bytes as du counts those of regular files
}

// depot is the directory in which gdn notes its containers.
func (s *snow) depot() string { return filepath.Join(s.work, "depot") }

// know notes a container as gdn does, after its create; unknow takes it out again, as after its destroy.
func (s *snow) know(handle string) error {
	return os.Mkdir(filepath.Join(s.depot(), handle), 0o755)
}

func (s *snow) unknow(handle string) error {
	return os.Remove(filepath.Join(s.depot(), handle))
}

// look counts from the disk. It asks the plugin nothing.
func (s *snow) look() (c counts, err error) {
	for _, dir := range []string{"volumes/init", "volumes/live", "volumes/dead"} {
		n, nerr := names(filepath.Join(s.dir, dir))
		err = errors.Join(err, nerr)
		c.entries += n
	}
	layers, lerr := names(s.dir + "/layers")
	mounts, merr := mountsBelow(s.dir)
	c.layers, c.mounts = layers, len(mounts)
	inodes, fileBytes, _, uerr := usage(s.dir)
	c.inodes, c.fileBytes = inodes, fileBytes
	return c, errors.Join(err, lerr, merr, uerr)
}

func names(dir string) (int, error) {
	list, err := os.ReadDir(dir)
	return len(list), err
}

// mountsBelow returns the mount points below dir, in the order in which they were mounted. Their paths have no spaces here.
func mountsBelow(dir string) (points []string, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	return points, err
}

func unmountAll(dir string) error {
	points, err := mountsBelow(dir)
	for _, p := range slices.Backward(points) {
		if uerr := syscall.Unmount(p, syscall.MNT_DETACH); uerr != nil {
			err = errors.Join(err, &os.PathError{Op: "umount", Path: p, Err: uerr})
		}
	}
	return err
}

// usage counts inodes, and the bytes of regular files and of directories as du does, on the file system of dir. What goes while it counts is not counted.
func usage(dir string) (inodes, fileBytes, dirBytes int64, err error) {
	var top syscall.Stat_t
	if err := syscall.Lstat(dir, &top); err != nil {
		return 0, 0, 0, err
	}
	seen := map[uint64]bool{} // merging makes hard links
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil {
			err = syscall.Lstat(path, &st)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // a directory became a whiteout
			return nil
		case err != nil:
			return err
		case st.Dev != top.Dev && e.IsDir():
			return fs.SkipDir
		case st.Dev != top.Dev || seen[st.Ino]:
			return nil
		}
		seen[st.Ino] = true
		inodes++
		switch {
		case e.IsDir():
			dirBytes += st.Blocks * 512
		case e.Type().IsRegular():
			fileBytes += st.Blocks * 512
		}
		return nil
	})
	return inodes, fileBytes, dirBytes, err
}

// gc is what an operator's timer runs: it removes what was killed, and by gdn's depot what gdn does not know, if that is older than minAge. It runs beside
// the checks. A check whose container it was is not forgotten any more.
func (s *snow) gc(minAge time.Duration) error {
	s.mu.Lock()
	forgotten := maps.Clone(s.forgotten)
	s.mu.Unlock()
	// In the 30 s of all commands it does not get through a hundred containers on a busy machine, and says so; the next one would go on.
	out, err := s.call(false, how{timeout: hangs / 2}, "gc", "--depot", s.depot(), "--min-age", minAge.String())
	if err != nil {
		return broken{fmt.Errorf("gc: %w: %s", err, out)}
	}
	for line := range strings.Lines(string(out)) {
		if found, ok := strings.CutPrefix(line, `removed  "`); ok {
			path, _, _ := strings.Cut(found, `"`)
			dir := filepath.Dir(path)
			if strings.HasPrefix(dir, "caches/") {
				dir = "caches"
			}
			s.count("found by gc in " + dir)
		}
	}
	maps.DeleteFunc(forgotten, func(n int, _ bool) bool { return s.nothingOf(n) != nil })
	for _, r := range s.resources {
		r.mu.Lock()
		r.gone(forgotten)
		r.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range forgotten {
		delete(s.forgotten, n)
	}
	return nil
}

// maxLayers is how many layers a cache may have (volumes.Options.MaxLayers, and one that was not flushed when they were merged).
const maxLayers = 9

// bound fails if there is more than what lives and what was forgotten explains. containers is the most of them that there could be.
func (s *snow) bound(c counts, containers int) error {
	// A container has two mounts, and while it ends its layer, a sealed and a merged one; and it keeps the generation that it began with.
	for what, n := range map[string][2]int{
		"entries": {c.entries, containers},
		"mounts":  {c.mounts, 2 * containers},
		"layers":  {c.layers, (3+maxLayers)*containers + maxLayers*len(s.resources)},
	} {
		if n[0] > n[1] {
			return broken{fmt.Errorf("%d %s, and %d would be explained", n[0], what, n[1])}
		}
	}
	return nil
}

// caches is what the plugin says of them.
func (s *snow) caches() (map[string]volumes.StackInfo, error) {
	list, err := s.open().List(context.Background())
	all := map[string]volumes.StackInfo{}
	for _, i := range list {
		all[i.Name] = i
	}
	return all, err
}

// open returns the store as the library sees it.
func (s *snow) open() *cachecopy.Caches {
	var driver volumes.Driver = overlay.New(overlay.Options{})
	if s.url != "" {
		driver = bcserver.New(bcserver.Options{URL: s.url})
	}
	return cachecopy.New(volumes.Options{Dir: s.dir, Driver: driver}, cachecopy.Options{})
}
