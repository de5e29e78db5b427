package tree

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// record is one linux_dirent64 with padding, as getdents64(2) returns it.
func record(ino uint64, next int64, kind byte, name string) []byte {
	size := (19 + len(name) + 1 + 7) / 8 * 8
	b := make([]byte, size)
	binary.NativeEndian.PutUint64(b, ino)
	binary.NativeEndian.PutUint64(b[8:], uint64(next))
	binary.NativeEndian.PutUint16(b[16:], uint16(size))
	b[18] = kind
	copy(b[19:], name)
	return b
}

func TestParseEntries(t *testing.T) {
	a, b := record(1, 11, unix.DT_DIR, "a"), record(2, -1, unix.DT_REG, "not\xffutf8\n")
	long := strings.Repeat("l", 255)
	for name, c := range map[string]struct {
		in   []byte
		want []dirent
	}{
		"nothing":         {nil, nil},
		"two":             {slices.Concat(a, b), []dirent{{"a", unix.DT_DIR, 11}, {"not\xffutf8\n", unix.DT_REG, -1}}},
		"dots":            {slices.Concat(record(1, 1, 4, "."), record(1, 2, 4, ".."), record(1, 3, 4, "...")), []dirent{{"...", 4, 3}}},
		"longest name":    {record(1, 1, 8, long), []dirent{{long, 8, 1}}},
		"cut in a header": {slices.Concat(a, b[:18]), []dirent{{"a", unix.DT_DIR, 11}}},
		"cut in a name":   {slices.Concat(a, b[:21]), []dirent{{"a", unix.DT_DIR, 11}}},
		"length of 0":     {slices.Concat(make([]byte, 24), a), nil},
	} {
		if got := parseEntries(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func FuzzParseEntries(f *testing.F) {
	f.Add([]byte{})
	f.Add(slices.Concat(record(1, 11, unix.DT_DIR, "a"), record(2, 12, unix.DT_REG, "b")))
	f.Add(record(1, 1, unix.DT_DIR, ".."))
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, e := range parseEntries(in) {
			if e.name == "." || e.name == ".." || strings.Contains(e.name, "\x00") {
				t.Errorf("name %q", e.name)
			}
		}
	})
}

// acl is a POSIX ACL of the given entries.
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

func TestMapACL(t *testing.T) {
	got, err := mapACL(inspect.ACL(0, inspect.MaxID), inspect.Swap)
	if err != nil || !bytes.Equal(got, inspect.ACL(inspect.MaxID, 0)) {
		t.Errorf("got %x, %v", got, err)
	}
	// The owner's, the group's, the mask's and others' entries have no id that could be mapped.
	plain := acl(aclEntry{0x01, 7, 0}, aclEntry{0x04, 5, 0}, aclEntry{0x10, 7, 0}, aclEntry{0x20, 1, 0})
	if got, err := mapACL(plain, inspect.Swap); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("without names: %x, %v", got, err)
	}
	for name, bad := range map[string][]byte{
		"empty": nil, "short": {2, 0, 0}, "version 1": {1, 0, 0, 0}, "half an entry": append(acl(), 1, 0, 7, 0),
	} {
		if got, err := mapACL(bad, inspect.Swap); err == nil {
			t.Errorf("%s: %x", name, got)
		}
	}
}

func FuzzMapACL(f *testing.F) {
	f.Add(inspect.ACL(0, 1000))
	f.Add(acl())
	f.Add([]byte{2, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		out, err := mapACL(in, inspect.Swap)
		if !bytes.Equal(in, before) {
			t.Error("the input was changed")
		}
		if err != nil {
			return
		}
		if len(out) != len(in) {
			t.Errorf("%d bytes became %d", len(in), len(out))
		}
		if back, err := mapACL(out, inspect.Swap); err != nil || !bytes.Equal(back, in) {
			t.Errorf("%x mapped twice is %x, %v", in, back, err)
		}
	})
}

func TestMapCapability(t *testing.T) {
	revision1 := append([]byte{0, 0, 0, 1}, make([]byte, 8)...)
	for name, c := range map[string]struct{ in, want []byte }{
		"2 of root":                    {inspect.Capability(2, 0), inspect.Capability(3, inspect.MaxID)},
		"3 of the shifted root":        {inspect.Capability(3, inspect.MaxID), inspect.Capability(2, 0)},
		"3 of another":                 {inspect.Capability(3, 1000), inspect.Capability(3, 1000)},
		"3 of root, though 2 would do": {inspect.Capability(3, 0), inspect.Capability(3, inspect.MaxID)},
		"revision 1":                   {revision1, revision1},
		"revision 9":                   {inspect.Capability(9, 0), inspect.Capability(9, 0)},
		"2 of a wrong length":          {inspect.Capability(2, 0)[:19], inspect.Capability(2, 0)[:19]},
	} {
		if got, err := mapCapability(c.in, inspect.Swap); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %x, %v, want %x", name, got, err, c.want)
		}
	}
	if got, err := mapCapability(inspect.Capability(3, 5), func(uint32) uint32 { return 0 }); err != nil || !bytes.Equal(got, inspect.Capability(2, 0)) {
		t.Errorf("mapped to 0: %x, %v", got, err)
	}
	if _, err := mapCapability([]byte{1, 2}, inspect.Swap); err == nil {
		t.Error("2 bytes are taken for a capability")
	}
}

func FuzzMapCapability(f *testing.F) {
	f.Add(inspect.Capability(2, 0))
	f.Add(inspect.Capability(3, inspect.MaxID))
	f.Add(inspect.Capability(3, 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		out, err := mapCapability(in, inspect.Swap)
		if !bytes.Equal(in, before) {
			t.Error("the input was changed")
		}
		if err != nil {
			return
		}
		back, err := mapCapability(out, inspect.Swap)
		// Revision 3 of root 0 means revision 2, and becomes it.
		if err != nil || !bytes.Equal(back, normalCapability(in)) {
			t.Errorf("%x mapped twice is %x, %v", in, back, err)
		}
		if len(in) >= 20 && !bytes.Equal(out[4:20], in[4:20]) {
			t.Error("the capabilities themselves were changed")
		}
	})
}

// normalCapability is revision 2 for a capability of revision 3 that belongs to 0.
func normalCapability(b []byte) []byte {
	if len(b) == 24 && b[3] == 3 && binary.LittleEndian.Uint32(b[20:]) == 0 {
		b = bytes.Clone(b[:20])
		b[3] = 2
	}
	return b
}

func TestMapXattrLeavesOthersAlone(t *testing.T) {
	for _, name := range []string{"user.x", "security.selinux", "trusted.system.posix_acl_access", "system.posix_acl"} {
		if got, err := mapXattr(name, inspect.ACL(0, 0), inspect.Swap); err != nil || !bytes.Equal(got, inspect.ACL(0, 0)) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
}
