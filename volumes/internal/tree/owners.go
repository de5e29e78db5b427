package tree

import (
	"encoding/binary"
	"errors"
)

// mapXattr maps the owner ids that are kept inside an extended attribute: in POSIX ACLs and file capabilities.
func mapXattr(name string, value []byte, mapID func(uint32) uint32) ([]byte, error) {
	switch name {
	case "system.posix_acl_access", "system.posix_acl_default":
		return mapACL(value, mapID)
	case "security.capability":
		return mapCapability(value, mapID)
	}
	return value, nil
}

// mapACL maps the ids of an ACL in the form of include/uapi/linux/posix_acl_xattr.h: a version (2), then entries of tag u16,
// permissions u16, id u32, all little endian. Only the tags USER (0x02) and GROUP (0x08) name an id.
func mapACL(value []byte, mapID func(uint32) uint32) ([]byte, error) {
	if len(value) < 4 || (len(value)-4)%8 != 0 || binary.LittleEndian.Uint32(value) != 2 {
		return nil, errors.New("not a POSIX ACL of version 2")
	}
	out := append([]byte(nil), value...)
	for e := out[4:]; len(e) > 0; e = e[8:] {
		if tag := binary.LittleEndian.Uint16(e); tag == 0x02 || tag == 0x08 {
			binary.LittleEndian.PutUint32(e[4:], mapID(binary.LittleEndian.Uint32(e[4:])))
		}
	}
	return out, nil
}

// mapCapability maps whose capabilities they are (include/uapi/linux/capability.h). Revision 2, 20 bytes, belongs to id 0; revision 3
// has the root id of a user namespace in 4 bytes more. An id mapped to 0 gives revision 2, any other revision 3. Revision 1 and
// unknown ones stay as they are.
func mapCapability(value []byte, mapID func(uint32) uint32) ([]byte, error) {
	const (
		revisionMask = 0xFF000000
		revision2    = 0x02000000
		revision3    = 0x03000000
	)
	if len(value) < 4 {
		return nil, errors.New("not a file capability")
	}
	magic := binary.LittleEndian.Uint32(value)
	var root uint32
	switch {
	case magic&revisionMask == revision2 && len(value) == 20:
	case magic&revisionMask == revision3 && len(value) == 24:
		root = binary.LittleEndian.Uint32(value[20:])
	default:
		return value, nil
	}
	root = mapID(root)
	out := append([]byte(nil), value[:20]...)
	if root == 0 {
		binary.LittleEndian.PutUint32(out, magic&^uint32(revisionMask)|revision2)
		return out, nil
	}
	binary.LittleEndian.PutUint32(out, magic&^uint32(revisionMask)|revision3)
	return binary.LittleEndian.AppendUint32(out, root), nil
}
