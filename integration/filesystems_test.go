package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// loopFS is a new file system of its own on a loop device: kind is ext4, xfs or btrfs. The image file is sparse. The
// device goes with the last mount.
func loopFS(t *testing.T, kind string, sizeMiB int64, mkfsArgs ...string) string {
	t.Helper()
	requireRoot(t)
	mkfs := "mkfs." + kind
	requireTool(t, mkfs, "mount")
	dir := newDir(t)
	image, point := filepath.Join(dir, "device"), filepath.Join(dir, "fs")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, sizeMiB<<20); err != nil {
		t.Fatal(err)
	}
	command(t, mkfs, slices.Concat([]string{"-q"}, mkfsArgs, []string{image})...)
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "-o", "loop", "-t", kind, image, point)
	return point
}

// tmpFS is a new tmpfs with mount options, such as "size=20m".
func tmpFS(t *testing.T, options string) string {
	t.Helper()
	requireRoot(t)
	point := filepath.Join(newDir(t), "fs")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bcip", point, "tmpfs", 0, "mode=0755,"+options); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	return point
}

// remount changes the options of the whole file system mounted at point.
func remount(t testing.TB, point string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount("", point, "", unix.MS_REMOUNT|flags, options); err != nil {
		t.Fatalf("remount %s %q: %v", point, options, err)
	}
}

// fillSpace writes one file in dir until the file system has no block left, and returns its path.
func fillSpace(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "fills-the-disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Smaller and smaller writes: a full disk refuses the big one while there is room for a block.
	for chunk := 1 << 20; chunk >= 512; {
		if _, err := f.Write(make([]byte, chunk)); err == nil {
			continue
		} else if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		chunk /= 2
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

// fillInodes makes empty files in a directory of their own below dir until the file system refuses one more, and returns that
// directory.
func fillInodes(t testing.TB, dir string) string {
	t.Helper()
	many := filepath.Join(dir, "uses-the-inodes")
	if err := os.Mkdir(many, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(many, fmt.Sprint(i)))
		if errors.Is(err, unix.ENOSPC) {
			return many
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// statfs describes the file system that holds path.
func statfs(t testing.TB, path string) unix.Statfs_t {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatalf("statfs %s: %v", path, err)
	}
	return st
}

// command runs a program that has to succeed, and returns what it printed.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
