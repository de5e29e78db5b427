package mnt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestPathOptions(t *testing.T) {
	o := Overlay{
		Lowers: []*os.File{named(t, `/a:b`), named(t, `/c,d`), named(t, `/e\f`)},
		Upper:  named(t, `/up per`), Work: named(t, `/w:o,r\k`),
	}
	const options = `index=off,metacopy=off,redirect_dir=nofollow,xino=auto,nfs_export=off,` +
		`lowerdir=/a\:b:/c\,d:/e\\f,upperdir=/up per,workdir=/w\:o\,r\\k`
	if got := o.pathOptions(); got != options {
		t.Errorf("got  %s\nwant %s", got, options)
	}
	o.Volatile, o.UserXattr = true, true
	if got := o.pathOptions(); got != "volatile,userxattr,"+options {
		t.Errorf("got %s", got)
	}
}

// unescapeAsKernel splits and unescapes as fs/overlayfs/params.c does: ovl_next_opt at commas, ovl_parse_param_split_lowerdirs at colons, each
// stepping over what follows a backslash; then ovl_unescape.
func unescapeAsKernel(s string, sep byte) []string {
	var parts []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"/plain", `/a:b`, `/a,b=c`, `/\`, `\\:,,`, "/ \n\xff"} {
		f.Add(s, "/x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		options := "lowerdir=" + escape(a) + ":" + escape(b) + ",upperdir=" + escape(a)
		parts := unescapeAsKernel(options, ',')
		if len(parts) != 2 {
			t.Fatalf("%q is %d options", options, len(parts))
		}
		lowers := unescapeAsKernel(strings.TrimPrefix(parts[0], "lowerdir="), ':')
		if len(lowers) != 2 || unescape(lowers[0]) != a || unescape(lowers[1]) != b {
			t.Errorf("%q and %q became %q", a, b, lowers)
		}
		if got := unescape(strings.TrimPrefix(parts[1], "upperdir=")); got != a {
			t.Errorf("%q became %q", a, got)
		}
	})
}

// mount(2) silently cuts what is longer than a page.
func TestMountPathsRefusesMoreThanAPage(t *testing.T) {
	o := Overlay{Upper: named(t, "/u"), Work: named(t, "/w")}
	for len(o.pathOptions()) <= os.Getpagesize() {
		o.Lowers = append(o.Lowers, named(t, "/some/lower/layer"))
	}
	target := t.TempDir()
	err := o.MountPaths(target)
	want := fmt.Sprintf("overlay options need %d bytes, mount(2) takes %d: use fewer layers or shorter paths", len(o.pathOptions()), os.Getpagesize()-1)
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// scratch makes the layers of an overlay of n lowers, each with a file of its own and one called "same".
func scratch(t *testing.T, dir string, n int) (o Overlay, target string) {
	t.Helper()
	tmpfs(t, dir)
	mkdirs(t, dir, "upper", "work", "target")
	for i := range n {
		l := fmt.Sprintf("%s/lower-%d", dir, i)
		check(t, os.Mkdir(l, 0o755))
		check(t, os.WriteFile(fmt.Sprintf("%s/file-%d", l, i), nil, 0o600))
		check(t, os.WriteFile(l+"/same", fmt.Appendf(nil, "%d", i), 0o600))
		o.Lowers = append(o.Lowers, opath(t, l))
	}
	o.Upper, o.Work = opath(t, dir+"/upper"), opath(t, dir+"/work")
	return o, dir + "/target"
}

func TestMountOverlay(t *testing.T) {
	inspect.NeedRoot(t)
	for name, mount := range map[string]func(Overlay, string) error{"FDs": Overlay.MountFDs, "Paths": Overlay.MountPaths} {
		for _, dirName := range []string{"plain", `a:b`, `c,d`, `e\f`, "g h", "i\nj", `k\:,l=m,lowerdir=n`, "\xff"} {
			t.Run(fmt.Sprintf("%s/%q", name, dirName), func(t *testing.T) {
				t.Parallel()
				o, target := scratch(t, filepath.Join(newDir(t), dirName), 3)
				o.Volatile = true
				check(t, mount(o, target))
				if b, err := os.ReadFile(target + "/same"); err != nil || string(b) != "0" {
					t.Errorf("the top layer is not on top: %q, %v", b, err)
				}
				for i := range 3 {
					if _, err := os.Stat(fmt.Sprintf("%s/file-%d", target, i)); err != nil {
						t.Error(err)
					}
				}
				check(t, os.WriteFile(target+"/new", nil, 0o600))
				if _, err := os.Stat(o.Upper.Name() + "/new"); err != nil {
					t.Errorf("a new file is not in the upper: %v", err)
				}
				options := optionsOf(t, target)
				for _, want := range []string{"index=off", "metacopy=off", "redirect_dir=nofollow", "volatile"} {
					// What a kernel's build has as its default it does not list.
					key, _, _ := strings.Cut(want, "=")
					if strings.Contains(options, key) && !strings.Contains(options, want) {
						t.Errorf("options %q, want %q", options, want)
					}
				}
				if !strings.Contains(options, "volatile") {
					t.Errorf("options %q, want volatile", options)
				}
			})
		}
	}
}

// optionsOf are the file system's own options of the mount at target.
func optionsOf(t *testing.T, target string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); unescapeOctal(fields[4]) == target {
			return fields[len(fields)-1]
		}
	}
	t.Fatalf("%q is not mounted", target)
	return ""
}

func TestMountFDsTakesManyLayers(t *testing.T) {
	inspect.NeedRoot(t)
	o, target := scratch(t, newDir(t)+"/fs", 200)
	check(t, o.MountFDs(target))
	names, err := os.ReadDir(target)
	if err != nil || len(names) != 201 {
		t.Errorf("%d names, %v, want 201", len(names), err)
	}
}

// The kernel's EINVAL says nothing; what it writes to the context's log does.
func TestMountFDsSaysWhatTheKernelSays(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	o, target := scratch(t, dir+"/fs", 1)
	check(t, o.MountFDs(target))
	mkdirs(t, target, "upper", "work")
	again, second := scratch(t, dir+"/again", 1)
	again.Upper, again.Work = opath(t, target+"/upper"), opath(t, target+"/work")
	err := again.MountFDs(second)
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "(kernel: ") || !strings.Contains(err.Error(), "not supported as upperdir") {
		t.Fatalf("error %v", err)
	}
	if strings.Contains(err.Error(), `"e `) {
		t.Errorf("the level's letter is in it: %v", err)
	}
}

func TestIsUnsupported(t *testing.T) {
	for _, e := range []unix.Errno{unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM, unix.EBADF, unix.ENOPKG} {
		if !IsUnsupported(fmt.Errorf("x: %w", &os.PathError{Err: e})) {
			t.Errorf("%v is not", e)
		}
	}
	for _, e := range []error{unix.ENOSPC, unix.EMFILE, unix.ENOENT, nil, errors.New("x")} {
		if IsUnsupported(e) {
			t.Errorf("%v is", e)
		}
	}
}

func TestOptionsAreExplicit(t *testing.T) {
	var keys []string
	for _, kv := range (Overlay{}).options() {
		keys = append(keys, kv[0])
	}
	for _, key := range []string{"index", "metacopy", "redirect_dir", "xino", "nfs_export"} {
		if !slices.Contains(keys, key) {
			t.Errorf("%s is left to the kernel's default", key)
		}
	}
}
