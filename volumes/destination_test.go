package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestMakeDestination(t *testing.T) {
	inspect.NeedRoot(t)
	tests := []struct {
		name  string
		image func(t *testing.T, root, host string)
		at    string
		where string // below the root; "": it is refused
		err   error
		made  []string // names that are new
	}{
		{name: "new", at: "/a/b/c", where: "a/b/c", made: []string{"a", "a/b", "a/b/c"}},
		{name: "one level", at: "/cache", where: "cache", made: []string{"cache"}},
		{name: "name with a blank and no UTF-8", at: "/a b/\xff", where: "a b/\xff", made: []string{"a b", "a b/\xff"}},
		{name: "exists", image: func(t *testing.T, root, _ string) { check(t, os.MkdirAll(root+"/a/b", 0o700)) }, at: "/a/b", where: "a/b"},
		{name: "partly exists", image: func(t *testing.T, root, _ string) { check(t, os.MkdirAll(root+"/a", 0o700)) }, at: "/a/b", where: "a/b", made: []string{"a/b"}},
		{name: "symlink beside", image: func(t *testing.T, root, _ string) {
			check(t, os.Mkdir(root+"/real", 0o755))
			check(t, os.Symlink("real", root+"/a"))
		}, at: "/a/b", where: "real/b", made: []string{"real/b"}},
		{name: "symlink at the end", image: func(t *testing.T, root, _ string) {
			check(t, os.Mkdir(root+"/real", 0o755))
			check(t, os.Symlink("/real", root+"/a"))
		}, at: "/a", where: "real"},
		{name: "absolute symlink to a path that the host has too", image: func(t *testing.T, root, host string) {
			check(t, os.MkdirAll(root+host, 0o755))
			check(t, os.Symlink(host, root+"/a"))
		}, at: "/a/b", where: "HOST/b", made: []string{"HOST/b"}},
		{name: "absolute symlink to a path that only the host has", image: func(t *testing.T, root, host string) {
			check(t, os.Symlink(host, root+"/a"))
		}, at: "/a/b", err: ErrInvalid},
		{name: "symlink with dots", image: func(t *testing.T, root, host string) {
			check(t, os.MkdirAll(root+host, 0o755))
			check(t, os.Mkdir(root+"/d", 0o755))
			check(t, os.Symlink(strings.Repeat("../", 40)+host, root+"/d/up"))
		}, at: "/d/up/b", where: "HOST/b", made: []string{"HOST/b"}},
		{name: "symlink above the root", image: func(t *testing.T, root, _ string) {
			check(t, os.Symlink("../../../..", root+"/a"))
		}, at: "/a/b", where: "b", made: []string{"b"}},
		{name: "dangling symlink", image: func(t *testing.T, root, _ string) { check(t, os.Symlink("nowhere", root+"/a")) }, at: "/a/b", err: ErrInvalid},
		{name: "dangling symlink at the end", image: func(t *testing.T, root, _ string) {
			check(t, os.Mkdir(root+"/a", 0o755))
			check(t, os.Symlink("/nowhere", root+"/a/b"))
		}, at: "/a/b", err: ErrInvalid},
		{name: "file in the way", image: func(t *testing.T, root, _ string) { check(t, os.WriteFile(root+"/a", nil, 0o644)) }, at: "/a/b", err: unix.ENOTDIR},
		{name: "file at the end", image: func(t *testing.T, root, _ string) { check(t, os.WriteFile(root+"/a", nil, 0o644)) }, at: "/a", err: unix.ENOTDIR},
		{name: "symlink to a file", image: func(t *testing.T, root, _ string) {
			check(t, os.WriteFile(root+"/f", nil, 0o644))
			check(t, os.Symlink("f", root+"/a"))
		}, at: "/a/b", err: unix.ENOTDIR},
		{name: "FIFO", image: func(t *testing.T, root, _ string) { check(t, unix.Mkfifo(root+"/a", 0o644)) }, at: "/a/b", err: unix.ENOTDIR},
		{name: "loop", image: func(t *testing.T, root, _ string) {
			check(t, os.Symlink("b", root+"/a"))
			check(t, os.Symlink("a", root+"/b"))
		}, at: "/a/c", err: unix.ELOOP},
		{name: "magic link", image: func(t *testing.T, root, _ string) {
			check(t, os.Symlink("/proc/self/root/etc", root+"/a"))
		}, at: "/a/b", err: ErrInvalid},
		{name: "name too long", at: "/" + strings.Repeat("x", 256), err: unix.ENAMETOOLONG},
		{name: "dots cannot leave", at: "/../../a", where: "a", made: []string{"a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			root, host := dir+"/root", dir+"/host"
			check(t, errors.Join(os.Mkdir(root, 0o755), os.Mkdir(host, 0o755), os.WriteFile(host+"/file", []byte("untouched"), 0o600)))
			if test.image != nil {
				test.image(t, root, host)
			}
			before := inspect.Tree(t, dir, inspect.Keep)
			defer unix.Umask(unix.Umask(0o077))

			const owner = 12345
			_, err := makeDestination(root, test.at, owner)
			if !errors.Is(err, test.err) {
				t.Fatalf("makeDestination = %v, want %v", err, test.err)
			}
			after := inspect.Tree(t, dir, inspect.Keep)
			made := map[string]bool{}
			for _, name := range test.made {
				made["root/"+strings.ReplaceAll(name, "HOST", host[1:])] = true
			}
			for name, line := range after {
				switch old, was := before[name]; {
				case made[name]:
					delete(made, name)
					if !strings.HasPrefix(line, "mode 40755 owner 12345:12345 ") {
						t.Errorf("%q is %s", name, line)
					}
				case !was:
					t.Errorf("%q was made", name)
				// The time of a directory changes with what is made in it.
				case old != line && (len(test.made) == 0 || !strings.HasPrefix(line, "mode 4")):
					t.Errorf("%q is %s\nwas %s", name, line, old)
				}
			}
			for name := range made {
				t.Errorf("%q was not made", name)
			}
			if test.where != "" {
				var st unix.Stat_t
				check(t, unix.Lstat(filepath.Join(root, strings.ReplaceAll(test.where, "HOST", host[1:])), &st))
				if st.Mode&unix.S_IFMT != unix.S_IFDIR {
					t.Errorf("mode %o", st.Mode)
				}
			}
		})
	}
}
