package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// remove calls Remove of the name "x" below dir.
func remove(ctx context.Context, t testing.TB, dir string) error {
	t.Helper()
	return Remove(ctx, fd(t, dir), "x")
}

func TestRemoveTakesAnything(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, x string){
		"absent":          func(t *testing.T, x string) {},
		"file":            func(t *testing.T, x string) { write(t, x, "a") },
		"empty directory": func(t *testing.T, x string) { mkdir(t, x) },
		"symlink to a directory outside": func(t *testing.T, x string) {
			check(t, os.Symlink("../outside", x))
		},
		"symlinks in a tree": func(t *testing.T, x string) {
			mkdir(t, x+"/d")
			outside := filepath.Join(filepath.Dir(filepath.Dir(x)), "outside")
			for i, to := range []string{outside, "../../outside", "../../../outside", "/", ".", "..", "absent", x + "/d"} {
				check(t, os.Symlink(to, fmt.Sprintf("%s/d/link-%d", x, i)))
			}
		},
		"names of any bytes": func(t *testing.T, x string) {
			mkdir(t, x)
			for b := 1; b < 256; b++ {
				if b != '/' && b != '.' {
					write(t, x+"/"+string([]byte{byte(b)}), "")
					write(t, x+"/dir\xff"+string([]byte{byte(b)})+"/file", "")
				}
			}
			for _, n := range []string{"...", "-rf", "  ", "a\nb", strings.Repeat("\xff", 255), `..\x`, "**"} {
				mkdir(t, x+"/"+n)
			}
		},
		"no rights": func(t *testing.T, x string) {
			inspect.NeedRoot(t)
			write(t, x+"/d/file", "")
			for _, f := range []string{"/d/file", "/d", ""} {
				check(t, os.Chmod(x+f, 0))
			}
		},
		"pipes, sockets and devices": func(t *testing.T, x string) {
			inspect.NeedRoot(t)
			mkdir(t, x)
			for i, mode := range []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK} {
				check(t, unix.Mknod(fmt.Sprintf("%s/%d", x, i), mode|0o600, int(unix.Mkdev(1, 5))))
			}
			check(t, unix.Mknod(x+"/whiteout", unix.S_IFCHR, 0))
		},
		"many directories with something in each": func(t *testing.T, x string) {
			for i := range 500 { // more than one read of the directory takes
				write(t, fmt.Sprintf("%s/%0100d/a", x, i), "")
				write(t, fmt.Sprintf("%s/%0100d/b/c", x, i), "")
			}
		},
		"20,000 files in one directory": func(t *testing.T, x string) {
			mkdir(t, x)
			makeWide(t, x, 20_000)
		},
		"deeper than a path can say": func(t *testing.T, x string) {
			mkdir(t, x)
			makeDeep(t, x, 5_100)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := newDir(t)
			inside, outside := filepath.Join(top, "inside"), filepath.Join(top, "outside")
			write(t, outside+"/sub/file", "precious")
			mkdir(t, inside)
			write(t, inside+"/xx", "beside")
			make(t, inside+"/x")

			check(t, remove(t.Context(), t, inside))
			if exists(inside + "/x") {
				t.Error("it is still there")
			}
			check(t, remove(t.Context(), t, inside)) // absent is success
			for _, f := range []string{outside + "/sub/file", inside + "/xx"} {
				if !exists(f) {
					t.Errorf("%q is gone", f)
				}
			}
		})
	}
}

// setFlag is chattr(1); the flag is taken off in the end if the file is still there, so that the test's own directory can go.
func setFlag(t *testing.T, path string, flag uint32) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0)
		unix.Close(fd)
	})
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	check(t, err)
	if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|flag)); err != nil {
		t.Fatalf("set a flag on %q: %v", path, err)
	}
}

func TestRemoveTakesOffFlags(t *testing.T) {
	inspect.NeedRoot(t)
	for flagName, flag := range map[string]uint32{"immutable": unix.STATX_ATTR_IMMUTABLE, "append-only": unix.STATX_ATTR_APPEND} {
		for name, flagged := range map[string][]string{ // in the order in which flags can be set: the inner first
			"file":                {"a/file"},
			"empty directory":     {"a/empty"},
			"directory":           {"a"},
			"the top":             {"."},
			"all":                 {"a/b/file", "a/b", "a/empty", "a/file", "a", "file", "."},
			"directory and below": {"a/b", "a"},
		} {
			t.Run(flagName+"/"+name, func(t *testing.T) {
				t.Parallel()
				dir := newDir(t)
				x := filepath.Join(dir, "x")
				for _, f := range []string{"a/b/file", "a/file", "file"} {
					write(t, filepath.Join(x, f), "")
				}
				mkdir(t, x+"/a/empty")
				for _, f := range flagged {
					setFlag(t, filepath.Join(x, f), flag)
				}
				if err := os.RemoveAll(x); err == nil {
					t.Fatal("the flags do not work on this file system, so nothing would be tested")
				}
				check(t, remove(t.Context(), t, dir))
				if exists(x) {
					t.Error("it is still there")
				}
			})
		}
	}
	t.Run("the directory it is in", func(t *testing.T) {
		dir := newDir(t)
		write(t, dir+"/x/file", "")
		setFlag(t, dir, unix.STATX_ATTR_APPEND)
		check(t, remove(t.Context(), t, dir))
	})
	t.Run("a file by itself", func(t *testing.T) {
		dir := newDir(t)
		write(t, dir+"/x", "")
		setFlag(t, dir+"/x", unix.STATX_ATTR_IMMUTABLE)
		check(t, remove(t.Context(), t, dir))
	})
}

func TestRemoveNeverCrossesAMount(t *testing.T) {
	inspect.NeedRoot(t)
	for name, c := range map[string]struct {
		at   string // is mounted on
		file bool
		fs   func(t *testing.T, dir string) string // what is mounted there
	}{
		"another file system":                   {at: "x/a/m", fs: func(t *testing.T, dir string) string { return newFS(t, "tmpfs", "") }},
		"a directory of the same file system":   {at: "x/a/m", fs: func(t *testing.T, dir string) string { return dir + "/outside" }},
		"on a directory that is not empty":      {at: "x/a", fs: func(t *testing.T, dir string) string { return dir + "/outside" }},
		"on the top":                            {at: "x", fs: func(t *testing.T, dir string) string { return dir + "/outside" }},
		"the tree itself inside itself":         {at: "x/a/m", fs: func(t *testing.T, dir string) string { return dir + "/x" }},
		"a file on a file":                      {at: "x/a/f", fs: func(t *testing.T, dir string) string { return dir + "/outside/precious" }},
		"a directory of more than one page":     {at: "x/wide/file-7", fs: func(t *testing.T, dir string) string { return dir + "/outside/precious" }},
		"on a directory deeper than kept open":  {at: "x/" + strings.Repeat("d/", 50) + "m", fs: func(t *testing.T, dir string) string { return dir + "/outside" }},
		"a pipe, which opening would wait upon": {at: "x/a/f", fs: func(t *testing.T, dir string) string { return dir + "/outside/pipe" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			for _, f := range []string{"x/a/f", "x/a/m/under", "outside/precious", "x/wide/other"} {
				write(t, filepath.Join(dir, f), "")
			}
			makeWide(t, dir+"/x/wide", 10)
			mkdir(t, dir+"/x/"+strings.Repeat("d/", 50)+"m")
			check(t, unix.Mkfifo(dir+"/outside/pipe", 0o600))
			source, point := c.fs(t, dir), filepath.Join(dir, c.at)
			info, err := os.Stat(source)
			check(t, err)
			isDir := info.IsDir()
			if isDir {
				write(t, source+"/mine", "")
			}
			check(t, unix.Mount(source, point, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })

			err = remove(t.Context(), t, dir)
			if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EXDEV) {
				t.Errorf("error %v, want one that wraps EBUSY or EXDEV", err)
			}
			if inside := source == dir+"/x"; !exists(source) || (isDir && !inside && !exists(source+"/mine")) || !exists(dir+"/outside/precious") {
				t.Error("it was deleted through the mount")
			}
			check(t, unix.Unmount(point, 0))
			check(t, remove(t.Context(), t, dir))
			if exists(dir+"/x") || !exists(dir+"/outside/precious") {
				t.Error("after unmounting: x must be gone, outside must not")
			}
		})
	}
}

func TestRemoveGoesOnAfterACancel(t *testing.T) {
	dir := newDir(t)
	mkdir(t, dir+"/x/sub")
	makeWide(t, dir+"/x/sub", 3_000)
	makeDeep(t, dir+"/x", 300)

	for cuts := 0; ; cuts++ {
		before := exists(dir + "/x")
		err := remove(onLook(func(n int) error {
			if n > 2 {
				return context.Canceled
			}
			return nil
		}), t, dir)
		if err == nil {
			if cuts < 3 {
				t.Errorf("it was cut %d times, so the test shows little", cuts)
			}
			break
		}
		if !errors.Is(err, context.Canceled) || !before || cuts > 100 {
			t.Fatalf("after %d cuts: %v", cuts, err)
		}
	}
	if exists(dir + "/x") {
		t.Error("it is still there")
	}
}

func TestRemoveOfACancelledContextRemovesNothingOfATree(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/x/file", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := remove(ctx, t, dir); !errors.Is(err, context.Canceled) || !exists(dir+"/x/file") {
		t.Errorf("error %v, file there: %v", err, exists(dir+"/x/file"))
	}
}
