package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestCopyKeepsEverything(t *testing.T) {
	inspect.NeedRoot(t)
	src := newDir(t)
	inspect.Zoo(t, src)
	check(t, unix.Mknod(src+"/whiteout", unix.S_IFCHR, 0))
	check(t, os.Symlink(strings.Repeat("x", 4000), src+"/long")) // symlinks of more than a block are another kind on some file systems
	want := inspect.Tree(t, src, inspect.Keep)
	for name, c := range map[string]struct {
		mapID func(uint32) uint32
		on    string
	}{
		"as it is":                {nil, ""},
		"ids swapped":             {inspect.Swap, ""},
		"to another file system":  {nil, "tmpfs"},
		"swapped to another kind": {inspect.Swap, "tmpfs"},
	} {
		t.Run(name, func(t *testing.T) {
			dst := newDir(t)
			if c.on != "" {
				dst = newFS(t, c.on, "")
			}
			check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{
				MapID: c.mapID,
				Warn:  func(err error) { t.Errorf("warning: %v", err) },
			}))
			inverse := inspect.Keep
			if c.mapID != nil {
				inverse = c.mapID // a swap is its own inverse
			}
			inspect.Same(t, inspect.Tree(t, dst+"/copy", inverse), want)
			if exists(dst + "/copy.links") {
				t.Error("the directory of links is left")
			}
		})
	}
	inspect.Same(t, inspect.Tree(t, src, inspect.Keep), want) // the source is only read
}

// Reading a file changes when it was last read, so this looks before anybody reads the copy.
func TestCopyKeepsAccessTimes(t *testing.T) {
	src, dst := newDir(t), newDir(t)
	write(t, src+"/d/file", "content")
	check(t, os.Symlink("d", src+"/link"))
	names := []string{"link", "d/file", "d", "."}
	want := map[string]unix.Stat_t{}
	for i, n := range names {
		setTimes(t, src+"/"+n, time.Unix(1_500_000_000+int64(i), 1+int64(i)))
		var st unix.Stat_t
		check(t, unix.Lstat(src+"/"+n, &st))
		want[n] = st
	}
	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
	for _, n := range names {
		var st unix.Stat_t
		check(t, unix.Lstat(dst+"/copy/"+n, &st))
		if st.Atim != want[n].Atim || st.Mtim != want[n].Mtim {
			t.Errorf("%q: times %v and %v, want %v and %v", n, st.Atim, st.Mtim, want[n].Atim, want[n].Mtim)
		}
	}
}

func TestCopyMapsCapabilities(t *testing.T) {
	inspect.NeedRoot(t)
	src, dst := newDir(t), newDir(t)
	write(t, src+"/f", "")
	inspect.SetXattr(t, src+"/f", "security.capability", inspect.Capability(2, 0))
	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "shifted", CopyOptions{MapID: inspect.Swap}))
	if got := inspect.Xattr(t, dst+"/shifted/f", "security.capability"); !bytes.Equal(got, inspect.Capability(3, inspect.MaxID)) {
		t.Errorf("shifted: %x, want %x", got, inspect.Capability(3, inspect.MaxID))
	}
	check(t, Copy(t.Context(), open(t, dst+"/shifted"), fd(t, dst), "back", CopyOptions{MapID: inspect.Swap}))
	if got := inspect.Xattr(t, dst+"/back/f", "security.capability"); !bytes.Equal(got, inspect.Capability(2, 0)) {
		t.Errorf("shifted back: %x, want %x", got, inspect.Capability(2, 0))
	}
}

func TestCopyLeavesOverlayAttributesBehind(t *testing.T) {
	inspect.NeedRoot(t)
	src, dst := newDir(t), newDir(t)
	mkdir(t, src+"/d")
	for _, p := range []string{src, src + "/d"} {
		inspect.SetXattr(t, p, "trusted.overlay.opaque", []byte("y"))
		inspect.SetXattr(t, p, "user.overlay.opaque", []byte("y"))
		inspect.SetXattr(t, p, "user.kept", []byte("y"))
	}
	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
	for _, p := range []string{dst + "/copy", dst + "/copy/d"} {
		names, err := listXattrs(p)
		if err != nil || len(names) != 1 || names[0] != "user.kept" {
			t.Errorf("%q has %q, %v", p, names, err)
		}
	}
}

// A store below a directory with a default ACL gave its root file systems an ACL that their image does not have.
func TestCopyDoesNotInheritACLs(t *testing.T) {
	inspect.NeedRoot(t)
	src, dst := newDir(t), newDir(t)
	write(t, src+"/d/file", "")
	inspect.SetXattr(t, dst, "system.posix_acl_default", inspect.ACL(1000, 1000))
	want := inspect.Tree(t, src, inspect.Keep)

	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
	inspect.Same(t, inspect.Tree(t, dst+"/copy", inspect.Keep), want)

	check(t, os.Mkdir(dst+"/top", 0o755))
	check(t, CopyTop(open(t, src), open(t, dst+"/top"), nil))
	setTimes(t, dst+"/top", time.Unix(0, 0))
	setTimes(t, src, time.Unix(0, 0))
	inspect.Same(t, inspect.Tree(t, dst+"/top", inspect.Keep), map[string]string{".": inspect.Tree(t, src, inspect.Keep)["."]})
}

func TestCopyTop(t *testing.T) {
	inspect.NeedRoot(t)
	src, dst := newDir(t), newDir(t)
	check(t, os.Chown(src, 7, inspect.MaxID))
	inspect.SetXattr(t, src, "user.x", []byte("x"))
	inspect.SetXattr(t, src, "trusted.x", []byte("t"))
	inspect.SetXattr(t, src, "trusted.overlay.opaque", []byte("y"))
	inspect.SetXattr(t, src, "system.posix_acl_access", inspect.ACL(1, 2))
	inspect.SetXattr(t, src, "system.posix_acl_default", inspect.ACL(3, 4))
	check(t, unix.Chmod(src, 0o3751))
	check(t, CopyTop(open(t, src), open(t, dst), nil))
	for _, d := range []string{src, dst} {
		setTimes(t, d, time.Unix(1, 0))
	}
	inspect.Same(t, inspect.Tree(t, dst, inspect.Keep), inspect.Tree(t, src, inspect.Keep))
	if names, _ := listXattrs(dst); strings.Contains(strings.Join(names, " "), "overlay") {
		t.Errorf("it has %q", names)
	}
}

// xfs lists each ACL a second time as it is on disk: copied as well, it put the unmapped ids back.
func TestCopyMapsACLsOnXFS(t *testing.T) {
	fs := newLoopFS(t, "xfs")
	mkdir(t, fs+"/src")
	inspect.Zoo(t, fs+"/src")
	check(t, Copy(t.Context(), open(t, fs+"/src"), fd(t, fs), "copy", CopyOptions{MapID: inspect.Swap}))
	inspect.Same(t, inspect.Tree(t, fs+"/copy", inspect.Swap), inspect.Tree(t, fs+"/src", inspect.Keep))
}

// newLoopFS is a new file system of a kind that needs a device.
func newLoopFS(t testing.TB, kind string) string {
	t.Helper()
	inspect.NeedRoot(t)
	inspect.NeedTool(t, "mkfs."+kind, "mount")
	dir := newDir(t)
	check(t, os.WriteFile(dir+"/image", nil, 0o600))
	check(t, os.Truncate(dir+"/image", 300<<20))
	fs := dir + "/fs"
	mkdir(t, fs)
	inspect.Command(t, "mkfs."+kind, "-q", dir+"/image")
	inspect.Command(t, "mount", "-o", "loop", dir+"/image", fs)
	t.Cleanup(func() { inspect.Command(t, "umount", "-l", fs) })
	return fs
}

// btrfs subvolumes in one tree number their inodes each for itself: two files of one number and several links became one.
func TestCopyTellsInodesOfTwoDevicesApart(t *testing.T) {
	inspect.NeedTool(t, "btrfs")
	src := newLoopFS(t, "btrfs")
	for _, sub := range []string{"a", "b"} {
		inspect.Command(t, "btrfs", "-q", "subvolume", "create", src+"/"+sub)
		write(t, src+"/"+sub+"/file", "of "+sub)
		check(t, os.Link(src+"/"+sub+"/file", src+"/"+sub+"/link"))
	}
	var st [2]unix.Stat_t
	check(t, errors.Join(unix.Stat(src+"/a/file", &st[0]), unix.Stat(src+"/b/file", &st[1])))
	if st[0].Ino != st[1].Ino || st[0].Dev == st[1].Dev {
		t.Fatal("the inode numbers differ, so nothing would be tested")
	}
	dst := newDir(t)
	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
	for _, sub := range []string{"a", "b"} {
		got, err := os.ReadFile(dst + "/copy/" + sub + "/link")
		if err != nil || string(got) != "of "+sub {
			t.Errorf("file in %q holds %q, %v", sub, got, err)
		}
	}
}

func TestCopyOfADeepTree(t *testing.T) {
	src, dst := newDir(t), newDir(t)
	makeDeep(t, src, 5_100)
	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
	if a, b := measure(t, src, 0), measure(t, dst+"/copy", 0); a.Entries != b.Entries || a.Entries != 5_101 {
		t.Errorf("%d entries became %d", a.Entries, b.Entries)
	}
}

// ext4 takes 65,000 links to one file, tmpfs any number.
func TestCopyStartsANewFileWhereNoMoreLinksFit(t *testing.T) {
	inspect.NeedRoot(t)
	const links = 65_010
	src, dst := newFS(t, "tmpfs", ""), newDir(t)
	if kind := fsType(t, dst); kind != unix.EXT4_SUPER_MAGIC {
		t.Skipf("needs ext4 for temporary files, has %x", kind)
	}
	write(t, src+"/0", "content")
	at := fd(t, src)
	for i := 1; i < links; i++ {
		check(t, unix.Linkat(at, "0", at, fmt.Sprint(i), 0))
	}
	check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
	inodes := map[uint64]int{}
	check(t, Walk(t.Context(), fd(t, dst), "copy", Visitor{Visit: func(e Entry) error {
		if !e.IsDir() {
			inodes[e.Stat.Ino]++
		}
		return nil
	}}))
	total := 0
	for _, n := range inodes {
		total += n
	}
	if len(inodes) != 2 || total != links {
		t.Errorf("%d names of %d files, want %d of 2", total, len(inodes), links)
	}
}

func fsType(t testing.TB, dir string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	check(t, unix.Statfs(dir, &fs))
	return int64(fs.Type)
}

func TestCopyFails(t *testing.T) {
	t.Run("where the name exists", func(t *testing.T) {
		src, dst := newDir(t), newDir(t)
		write(t, dst+"/copy/mine", "")
		err := Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{})
		if !errors.Is(err, unix.EEXIST) || !exists(dst+"/copy/mine") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("when cancelled", func(t *testing.T) {
		src, dst := newDir(t), newDir(t)
		makeWide(t, src, 1_000)
		err := Copy(onLook(func(n int) error {
			if n == 3 {
				return context.Canceled
			}
			return nil
		}), open(t, src), fd(t, dst), "copy", CopyOptions{})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		check(t, Remove(t.Context(), fd(t, dst), "copy"))
	})
	t.Run("on a full disk, and the rest can be removed", func(t *testing.T) {
		src, dst := newDir(t), newFS(t, "tmpfs", "size=1m")
		for i := range 10 {
			write(t, fmt.Sprintf("%s/f%d", src, i), strings.Repeat("x", 200<<10))
			check(t, os.Link(fmt.Sprintf("%s/f%d", src, i), fmt.Sprintf("%s/l%d", src, i)))
		}
		err := Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{})
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), src) {
			t.Errorf("error %v", err)
		}
		check(t, Remove(t.Context(), fd(t, dst), "copy"))
		check(t, Remove(t.Context(), fd(t, dst), "copy.links"))
		if names, err := os.ReadDir(dst); err != nil || len(names) > 0 {
			t.Errorf("left: %v, %v", names, err)
		}
	})
	// An image that contains the store was copied into its own copy until the disk was full.
	t.Run("into itself", func(t *testing.T) {
		src := newDir(t)
		write(t, src+"/a/b/file", "")
		err := Copy(t.Context(), open(t, src), fd(t, src+"/a/b"), "copy", CopyOptions{})
		if err == nil || !strings.Contains(err.Error(), "the copy is inside its source") {
			t.Errorf("error %v", err)
		}
		check(t, Remove(t.Context(), fd(t, src+"/a/b"), "copy"))
	})
	t.Run("at a mount", func(t *testing.T) {
		inspect.NeedRoot(t)
		src, dst := newDir(t), newDir(t)
		mkdir(t, src+"/m")
		check(t, unix.Mount(newDir(t), src+"/m", "", unix.MS_BIND, ""))
		defer unix.Unmount(src+"/m", unix.MNT_DETACH)
		if err := Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}); !errors.Is(err, unix.EXDEV) {
			t.Errorf("error %v", err)
		}
	})
}

// What was replaced by something else since it was looked at is copied as what it is now; it must not be opened to the end of days.
func TestCopyReadsRegularFilesOnly(t *testing.T) {
	inspect.NeedRoot(t)
	src, dst := newDir(t), newDir(t)
	check(t, unix.Mkfifo(src+"/pipe", 0o600))
	check(t, os.Symlink("/etc/passwd", src+"/link"))
	mkdir(t, src+"/dir")
	root, err := openRoot(fd(t, dst), ".")
	check(t, err)
	c := &copier{dst: root, links: -1}
	defer c.close()
	for name, want := range map[string]uint32{"pipe": unix.S_IFIFO, "link": unix.S_IFLNK, "dir": 0} {
		err := c.file(t.Context(), Entry{Dir: fd(t, src), Name: name, Stat: unix.Stat_t{Mode: unix.S_IFREG, Nlink: 1}})
		var st unix.Stat_t
		if want == 0 {
			if err == nil || exists(dst+"/"+name) {
				t.Errorf("%s was copied as a file", name)
			}
		} else if err = errors.Join(err, unix.Lstat(dst+"/"+name, &st)); err != nil || st.Mode&unix.S_IFMT != want {
			t.Errorf("%s: mode %o, %v", name, st.Mode, err)
		}
	}
}
