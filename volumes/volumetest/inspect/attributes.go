package inspect

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// Tags of ACL entries that name an id (include/uapi/linux/posix_acl.h).
const (
	aclUser  = 0x02
	aclGroup = 0x08
)

// ACL is a POSIX ACL, in the form of include/uapi/linux/posix_acl_xattr.h, that gives the user and the group rights beside the file's own.
func ACL(user, group uint32) []byte {
	const none = 0xffffffff
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, none}, {aclUser, 6, user}, {0x04, 5, none}, {aclGroup, 4, group}, {0x10, 7, none}, {0x20, 1, none}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// Capability is a file capability (include/uapi/linux/capability.h): of revision 2, or of revision 3 with the root id of a namespace.
func Capability(revision byte, root uint32) []byte {
	b := []byte{1, 0, 0, revision}                                // effective
	b = append(b, 0, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0) // CAP_NET_BIND_SERVICE, and one above 31
	if revision == 3 {
		b = binary.LittleEndian.AppendUint32(b, root)
	}
	return b
}

// SetXattr sets an extended attribute; a symlink is not followed.
func SetXattr(t testing.TB, path, name string, value []byte) {
	t.Helper()
	if err := unix.Lsetxattr(path, name, value, 0); err != nil {
		t.Fatalf("set %q of %q: %v", name, path, err)
	}
}

// Xattr returns an extended attribute.
func Xattr(t testing.TB, path, name string) []byte {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Lgetxattr(path, name, buf)
	if err != nil {
		t.Fatalf("get %q of %q: %v", name, path, err)
	}
	return buf[:n]
}

// swapACL exchanges 0 and MaxID in an ACL.
func swapACL(acl []byte) []byte {
	for e := acl[4:]; len(e) >= 8; e = e[8:] {
		if tag := binary.LittleEndian.Uint16(e); tag == aclUser || tag == aclGroup {
			binary.LittleEndian.PutUint32(e[4:], Swap(binary.LittleEndian.Uint32(e[4:])))
		}
	}
	return acl
}
