package cachecopy_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// rootID is the host id of an unprivileged container's root in the initial user namespace.
const rootID = 4294967294

// swapID translates between a container's ids and the host's.
func swapID(id uint32) uint32 {
	switch id {
	case 0:
		return rootID
	case rootID:
		return 0
	}
	return id
}

func sameID(id uint32) uint32 { return id }

// describe returns all there is to see of a tree, a line for each name: type, mode, owner, time, contents, attributes, and for a file
// with several names the first of them. The time of the top directory is left out.
func describe(t testing.TB, root string, id func(uint32) uint32) map[string]string {
	t.Helper()
	type inode struct{ dev, ino uint64 }
	first := map[inode]string{}
	seen := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "%o %d:%d", st.Mode, id(st.Uid), id(st.Gid))
		if rel != "." {
			fmt.Fprintf(&b, " @%d", st.Mtim.Nano())
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFREG:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d bytes %x", st.Size, sha256.Sum256(content))
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %q", target)
		default:
			fmt.Fprintf(&b, " device %x", st.Rdev)
		}
		if !d.IsDir() {
			i := inode{st.Dev, st.Ino}
			if _, ok := first[i]; !ok {
				first[i] = rel
			}
			fmt.Fprintf(&b, " is %q", first[i])
		}
		xattrs, err := xattrsOf(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, " %q", xattrs)
		seen[rel] = b.String()
		return nil
	})
	check(t, err)
	return seen
}

func xattrsOf(path string) ([]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return nil, fmt.Errorf("listxattr %q: %w", path, err)
	}
	var all []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, fmt.Errorf("getxattr %q %q: %w", path, name, err)
		}
		all = append(all, fmt.Sprintf("%s=%x", name, value[:n]))
	}
	slices.Sort(all)
	return all, nil
}

// sameTree reports how two described trees differ.
func sameTree(t testing.TB, got, want map[string]string) bool {
	t.Helper()
	same := true
	for name, w := range want {
		if g, ok := got[name]; !ok {
			t.Errorf("%q is missing: %s", name, w)
			same = false
		} else if g != w {
			t.Errorf("%q is  %s\nwant %s", name, g, w)
			same = false
		}
	}
	for name, g := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there: %s", name, g)
			same = false
		}
	}
	return same
}
