package integration

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// node is one name in a tree as it is on disk.
type node struct {
	mode     uint32 // with the type's bits
	uid, gid uint32
	links    uint64
	device   uint64 // of a device node
	bytes    int64  // of a regular file
	text     string // a symlink's target, or a regular file's hash
	changed  int64  // ctime; only in an image's tree, where nothing may ever be written
	mount    bool   // something is mounted here; what is behind it is not looked at
}

// tree is everything below a directory, and the directory itself as ".", by path.
type tree map[string]node

// storeTree is the whole of a store with every byte in it. A directory's own size and links are left out: directories do not
// shrink again, and file systems count their links differently.
func storeTree(t testing.TB, dir string) tree {
	t.Helper()
	return readTree(t, dir, func(path string, n *node) error {
		if n.mode&syscall.S_IFMT != syscall.S_IFREG {
			return nil
		}
		content, err := os.ReadFile(path)
		n.text = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	})
}

// imageTree is an image with the times of change, which tell of any write, chown or link at a fraction of the cost of reading.
func imageTree(t testing.TB, dir string) tree {
	t.Helper()
	return readTree(t, dir, func(path string, n *node) error {
		var st syscall.Stat_t
		err := syscall.Lstat(path, &st)
		n.changed = st.Ctim.Nano()
		return err
	})
}

// readTree walks dir without crossing a mount or following a link. more adds to a node what its caller cares for.
func readTree(t testing.TB, dir string, more func(path string, n *node) error) tree {
	t.Helper()
	all := tree{}
	var device uint64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if name == "." {
			device = st.Dev
		}
		n := node{mode: st.Mode, uid: st.Uid, gid: st.Gid}
		if st.Dev != device {
			n.mount = true
			all[name] = n
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
		case syscall.S_IFREG:
			n.links, n.bytes = st.Nlink, st.Size
		case syscall.S_IFLNK:
			if n.text, err = os.Readlink(path); err != nil {
				return err
			}
		default:
			n.links, n.device = st.Nlink, st.Rdev
		}
		if err := more(path, &n); err != nil {
			return err
		}
		all[name] = n
		return nil
	})
	if err != nil {
		t.Fatalf("reading the tree %s: %v", dir, err)
	}
	return all
}

// same fails the test when two trees differ, and lists how.
func same(t testing.TB, what string, before, after tree) {
	t.Helper()
	if diff := differences(before, after); diff != "" {
		t.Errorf("%s:\n%s", what, diff)
	}
}

// differences lists what an after has lost, got and changed, a few lines of it.
func differences(before, after tree) string {
	var lines []string
	for name, n := range before {
		switch now, ok := after[name]; {
		case !ok:
			lines = append(lines, fmt.Sprintf("  lost    %q %+v", name, n))
		case now != n:
			lines = append(lines, fmt.Sprintf("  changed %q %+v, was %+v", name, now, n))
		}
	}
	for name, n := range after {
		if _, ok := before[name]; !ok {
			lines = append(lines, fmt.Sprintf("  got     %q %+v", name, n))
		}
	}
	slices.SortFunc(lines, cmp.Compare)
	const most = 10
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("  and %d more", len(lines)-most))
	}
	return strings.Join(lines, "\n")
}

// diskBytes is what a tree takes up: allocated blocks, every inode once, without what is mounted in it.
func diskBytes(t testing.TB, dir string) int64 {
	t.Helper()
	seen := map[uint64]bool{}
	var total int64
	readTree(t, dir, func(path string, _ *node) error {
		var st syscall.Stat_t
		err := syscall.Lstat(path, &st)
		if err == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
		return err
	})
	return total
}
