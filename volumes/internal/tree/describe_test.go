package tree

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

// describe tells everything about a tree that a copy has to keep, one line for each name. Owners go through mapID first. It is written with paths
// and the standard library, so that it does not share mistakes with what it judges.
func describe(t testing.TB, dir string, mapID func(uint32) uint32) map[string]string {
	t.Helper()
	all := map[string]string{}
	firstName := map[uint64]string{}
	check(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		check(t, err)
		rel, err := filepath.Rel(dir, p)
		check(t, err)
		var st unix.Stat_t
		check(t, unix.Lstat(p, &st))
		line := fmt.Sprintf("mode %o owner %d:%d mtime %d", st.Mode, mapID(st.Uid), mapID(st.Gid), st.Mtim.Nano())
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			check(t, err)
			line += fmt.Sprintf(" size %d sha %.8x", st.Size, sha256.Sum256(content))
		case unix.S_IFLNK:
			to, err := os.Readlink(p)
			check(t, err)
			line += " to " + to
		case unix.S_IFCHR, unix.S_IFBLK:
			line += fmt.Sprintf(" device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if _, ok := firstName[st.Ino]; !ok {
				firstName[st.Ino] = rel
			}
			line += fmt.Sprintf(" links %d first %q", st.Nlink, firstName[st.Ino])
		}
		all[rel] = line + " " + describeXattrs(t, p, mapID)
		return nil
	}))
	return all
}

func describeXattrs(t testing.TB, path string, mapID func(uint32) uint32) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	check(t, err)
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var out []string
	for _, name := range names {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		check(t, err)
		value = value[:n]
		switch {
		case strings.HasPrefix(name, "system.posix_acl"):
			for e := value[4:]; len(e) > 0; e = e[8:] {
				tag, perm, id := binary.LittleEndian.Uint16(e), binary.LittleEndian.Uint16(e[2:]), binary.LittleEndian.Uint32(e[4:])
				if tag == 2 || tag == 8 {
					id = mapID(id)
				}
				out = append(out, fmt.Sprintf("%s %d:%d:%d", name, tag, id, perm))
			}
		case name == "security.capability":
			root := uint32(0)
			if len(value) == 24 {
				root = binary.LittleEndian.Uint32(value[20:])
			}
			out = append(out, fmt.Sprintf("capability of %d: %x", mapID(root), value[4:20]))
		default:
			out = append(out, fmt.Sprintf("%s=%x", name, value))
		}
	}
	return strings.Join(out, ", ")
}

// same compares two descriptions and reports each difference.
func same(t testing.TB, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%q:\n got %s\nwant %s", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is too much: %s", name, got[name])
		}
	}
}

func keep(id uint32) uint32 { return id }

// acl is a POSIX ACL as the kernel takes it.
func acl(entries ...aclEntry) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

type aclEntry struct {
	tag, perm uint16
	id        uint32
}

const noID = 0xffffffff

// aclFor gives user and group rights, beside the mode's own.
func aclFor(user, group uint32) []byte {
	return acl(aclEntry{0x01, 7, noID}, aclEntry{0x02, 6, user}, aclEntry{0x04, 5, noID}, aclEntry{0x08, 4, group},
		aclEntry{0x10, 7, noID}, aclEntry{0x20, 1, noID})
}

// capability is a file capability: of revision 2, or 3 with the root id of a namespace.
func capability(rev byte, root uint32) []byte {
	b := []byte{1, 0, 0, rev}                         // effective
	b = append(b, 0, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0) // CAP_NET_BIND_SERVICE permitted, and one above 32
	b = append(b, 0, 0, 0, 0)                         //
	if rev == 3 {
		b = binary.LittleEndian.AppendUint32(b, root)
	}
	return b
}

func setXattr(t testing.TB, path, name string, value []byte) {
	t.Helper()
	if err := unix.Lsetxattr(path, name, value, 0); err != nil {
		t.Fatalf("set %q of %q: %v", name, path, err)
	}
}

func getTestXattr(t testing.TB, path, name string) []byte {
	t.Helper()
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(path, name, buf)
	if err != nil {
		t.Fatalf("get %q of %q: %v", name, path, err)
	}
	return buf[:n]
}
