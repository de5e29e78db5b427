package inspect

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Zoo fills the directory dir with everything that a copy or a view has to keep, and gives dir itself such attributes.
func Zoo(t testing.TB, dir string) {
	t.Helper()
	zooFiles(t, dir)
	zooAttributes(t, dir)
	// Times last, inner ones first.
	day := time.Date(2020, 2, 3, 4, 5, 6, 123456789, time.UTC)
	for i, name := range []string{"symlink-0", "plain", "special-0", "sticky/empty", "sticky", "sub/sub", "closed", "."} {
		at := day.Add(time.Duration(i)*time.Hour + time.Duration(i))
		ts := []unix.Timespec{unix.NsecToTimespec(at.UnixNano() - 5), unix.NsecToTimespec(at.UnixNano())}
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, name), ts, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func zooFiles(t testing.TB, dir string) {
	t.Helper()
	for name, content := range map[string]string{
		"plain": "content", "setuid": "#!", "closed/file": "", "cap2": "", "cap3": "", "not\xffutf8\n/\xfe": "", strings.Repeat("n", 255): "",
		"sub/lower": "l", "sub/sub/deep/lower": "ll",
	} {
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	check(t, os.MkdirAll(dir+"/sticky/empty", 0o755))
	for i, to := range []string{"plain", "/etc/passwd", "absent", "../outside", strings.Repeat("x", 1000)} {
		check(t, os.Symlink(to, fmt.Sprintf("%s/symlink-%d", dir, i)))
	}
	for i, mode := range []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK} {
		check(t, unix.Mknod(fmt.Sprintf("%s/special-%d", dir, i), mode|0o640, int(unix.Mkdev(1, 5))))
	}
	for i, id := range []uint32{0, 1, 1000, MaxID - 1, MaxID} {
		path := fmt.Sprintf("%s/owner-%d", dir, i)
		check(t, os.WriteFile(path, nil, 0o600))
		check(t, os.Lchown(path, int(id), int(Swap(id))))
	}
	for _, name := range []string{"plain", "symlink-1", "special-0", "setuid"} { // hard links, also across directories
		check(t, os.Link(dir+"/"+name, dir+"/sub/sub/link-"+name))
		check(t, os.Link(dir+"/"+name, dir+"/another-"+name))
	}
}

func zooAttributes(t testing.TB, dir string) {
	t.Helper()
	check(t, os.Lchown(dir+"/setuid", 1000, 0))
	check(t, os.Lchown(dir+"/symlink-2", 0, 5))
	check(t, os.Lchown(dir, 0, 5))
	for name, mode := range map[string]uint32{"setuid": 0o6755, "closed/file": 0, "closed": 0, "sticky": 0o3777, ".": 0o2775} {
		check(t, unix.Chmod(filepath.Join(dir, name), mode))
	}
	SetXattr(t, dir+"/symlink-0", "trusted.on-link", []byte("1"))
	SetXattr(t, dir+"/plain", "user.x", []byte("\x00\xff"))
	SetXattr(t, dir+"/plain", "user.large", bytes.Repeat([]byte("v"), 2000))
	SetXattr(t, dir+"/plain", "trusted.x", nil)
	SetXattr(t, dir+"/plain", "system.posix_acl_access", ACL(0, 1000))
	SetXattr(t, dir+"/sticky", "system.posix_acl_default", ACL(MaxID, 0))
	SetXattr(t, dir+"/sticky", "user.dir", []byte("d"))
	SetXattr(t, dir+"/cap2", "security.capability", Capability(2, 0))
	SetXattr(t, dir+"/cap3", "security.capability", Capability(3, 1000))
	SetXattr(t, dir, "user.top", []byte("u"))
	SetXattr(t, dir, "trusted.top", []byte("t"))
	SetXattr(t, dir, "system.posix_acl_access", ACL(1000, 0))
	SetXattr(t, dir, "system.posix_acl_default", ACL(0, 7))
}

// Shift exchanges 0 and MaxID as owners of all that is in dir, and in ACLs and capabilities: what BaggageClaim does to an unprivileged volume.
func Shift(t testing.TB, dir string) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		acls := map[string][]byte{}
		for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
			buf := make([]byte, 1024)
			if n, err := unix.Lgetxattr(path, name, buf); err == nil {
				acls[name] = swapACL(buf[:n])
			}
		}
		if err := os.Lchown(path, int(Swap(st.Uid)), int(Swap(st.Gid))); err != nil {
			return err
		}
		for name, acl := range acls {
			SetXattr(t, path, name, acl)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			if err := unix.Chmod(path, st.Mode&0o7777); err != nil { // chown took the setuid bit
				return err
			}
		}
		times := []unix.Timespec{st.Atim, st.Mtim}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
	}))
	SetXattr(t, dir+"/cap2", "security.capability", Capability(3, MaxID)) // chown took them
	SetXattr(t, dir+"/cap3", "security.capability", Capability(3, 1000))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
