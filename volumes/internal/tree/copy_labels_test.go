package tree

import (
	"errors"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// ramfs has no extended attributes at all.
func TestCopyWhereAttributesCannotBeKept(t *testing.T) {
	inspect.NeedRoot(t)
	for _, c := range []struct {
		name    string
		value   []byte
		leftOut bool
	}{
		{"security.selinux", []byte("system_u:object_r:bin_t:s0"), true},
		{"security.SMACK64", []byte("_"), true},
		{"security.capability", inspect.Capability(2, 0), false},
		{"user.x", []byte("x"), false},
		{"trusted.x", []byte("x"), false},
		{"system.posix_acl_access", inspect.ACL(1, 2), false},
		{"system.posix_acl_default", inspect.ACL(1, 2), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, dst := newDir(t), newFS(t, "ramfs", "")
			path := src + "/file"
			write(t, path, "")
			if c.name == "system.posix_acl_default" {
				mkdir(t, src+"/dir")
				path = src + "/dir"
			}
			inspect.SetXattr(t, path, c.name, c.value)
			warnings := 0
			err := Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{Warn: func(err error) {
				if !errors.Is(err, unix.EOPNOTSUPP) {
					t.Errorf("warning: %v", err)
				}
				warnings++
			}})
			if c.leftOut {
				if err != nil || warnings != 1 {
					t.Errorf("error %v, %d warnings, want one warning", err, warnings)
				}
				return
			}
			if !errors.Is(err, unix.EOPNOTSUPP) || warnings != 0 {
				t.Errorf("error %v, %d warnings, want an error", err, warnings)
			}
		})
	}
}

func TestIsLabel(t *testing.T) {
	for name, want := range map[string]bool{
		"security.selinux": true, "security.SMACK64": true, "security.apparmor": true, "security.ima": true, "security.evm": true,
		"security.capability": false, "security.other": false, "user.selinux": false, "system.posix_acl_access": false, "": false,
	} {
		if isLabel(name) != want {
			t.Errorf("isLabel(%q) = %v", name, !want)
		}
	}
}
