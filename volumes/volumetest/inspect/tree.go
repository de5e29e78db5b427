// Package inspect looks at trees and mounts for tests: by paths, with the standard library and plain system calls, so that it does not
// share mistakes with what it judges.
package inspect

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// MaxID is root of an unprivileged container in the initial user namespace.
const MaxID = 4294967294

// Swap exchanges 0 and MaxID: ids as a container of the other kind sees them.
func Swap(id uint32) uint32 {
	switch id {
	case 0:
		return MaxID
	case MaxID:
		return 0
	}
	return id
}

// Keep leaves ids as they are.
func Keep(id uint32) uint32 { return id }

// Tree tells what a copy or a view of the directory dir has to keep, one line for each name below it ("." for itself): type, mode, owners, time
// of the last change, contents, which names are links to one file, extended attributes, ACLs and capabilities. All ids go through mapID.
func Tree(t testing.TB, dir string, mapID func(uint32) uint32) map[string]string {
	t.Helper()
	all := map[string]string{}
	firstName := map[[2]uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		file, err := fileLine(path, st)
		if err != nil {
			return err
		}
		links := ""
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			inode := [2]uint64{st.Dev, st.Ino}
			if _, ok := firstName[inode]; !ok {
				firstName[inode] = rel
			}
			links = fmt.Sprintf(" links %d first %q", st.Nlink, firstName[inode])
		}
		xattrs, err := xattrLine(path, mapID)
		all[rel] = fmt.Sprintf("mode %o owner %d:%d changed %d%s%s %s", st.Mode, mapID(st.Uid), mapID(st.Gid), st.Mtim.Nano(), file, links, xattrs)
		return err
	})
	if err != nil {
		t.Fatalf("look at %q: %v", dir, err)
	}
	return all
}

// fileLine tells what is in a file, or what it stands for.
func fileLine(path string, st unix.Stat_t) (string, error) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		content, err := os.ReadFile(path)
		return fmt.Sprintf(" size %d sha %.8x", st.Size, sha256.Sum256(content)), err
	case unix.S_IFLNK:
		to, err := os.Readlink(path)
		return fmt.Sprintf(" to %q", to), err
	case unix.S_IFCHR, unix.S_IFBLK:
		return fmt.Sprintf(" device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
	}
	return "", nil
}

// xattrLine tells all extended attributes but overlayfs's own.
func xattrLine(path string, mapID func(uint32) uint32) (string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return "", &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var all []string
	for _, name := range names {
		// Overlayfs's own, and ACLs as xfs keeps them on disk, which follow from the others.
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "trusted.SGI_ACL_") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", &os.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		all = append(all, name+"="+xattrValue(name, value[:n], mapID))
	}
	return strings.Join(all, ", "), nil
}

func xattrValue(name string, value []byte, mapID func(uint32) uint32) string {
	switch {
	case strings.HasPrefix(name, "system.posix_acl") && len(value) >= 4:
		var all []string
		for e := value[4:]; len(e) >= 8; e = e[8:] {
			tag, perm, id := binary.LittleEndian.Uint16(e), binary.LittleEndian.Uint16(e[2:]), binary.LittleEndian.Uint32(e[4:])
			if tag == aclUser || tag == aclGroup {
				id = mapID(id)
			}
			all = append(all, fmt.Sprintf("%d:%d:%d", tag, id, perm))
		}
		return strings.Join(all, " ")
	case name == "security.capability" && len(value) >= 20:
		root := uint32(0)
		if len(value) == 24 {
			root = binary.LittleEndian.Uint32(value[20:])
		}
		return fmt.Sprintf("%x of %d", value[4:20], mapID(root))
	}
	if len(value) > 64 {
		return fmt.Sprintf("%d bytes, sha %.8x", len(value), sha256.Sum256(value))
	}
	return fmt.Sprintf("%x", value)
}

// Same compares two trees, and reports each name in which got is not as want.
func Same(t testing.TB, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%q:\n got %s\nwant %s", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there: %s", name, got[name])
		}
	}
}
