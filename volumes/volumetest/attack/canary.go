// Package attack is a second process that replaces and moves what is in a tree while the code under test works on it, and the canary outside of that tree which
// nobody may touch meanwhile.
package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// Secret is what is in each file of a canary, in its names and in its extended attributes.
const Secret = "SeCrEt-of-the-host"

// Canary is a directory that nobody may read, list, change or remove. It is watched by inotify(7), which tells of each such try, whatever came of it.
type Canary struct {
	Dir     string
	inotify int
	watched map[int32]string
	beside  string
	inodes  map[[2]uint64]string
	before  map[string]string
}

// touched is all that inotify tells of but the opening of a directory, which a way back through ".." may do in order to see where it leads.
const touched = unix.IN_ACCESS | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MODIFY | unix.IN_MOVE | unix.IN_MOVE_SELF

// NewCanary makes a canary in dir, which does not exist.
func NewCanary(t testing.TB, dir string) *Canary {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	c := &Canary{Dir: dir, inotify: fd, watched: map[int32]string{}, inodes: map[[2]uint64]string{}}
	for _, name := range []string{"file", "dir/" + Secret, "dir/sub/" + Secret, "d/d/d/" + Secret, "metadata.json"} {
		path := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte(Secret), 0o600))
		inspect.SetXattr(t, path, "user.secret", []byte(Secret))
		inspect.SetXattr(t, filepath.Dir(path), "user.secret", []byte(Secret))
		check(t, os.Lchown(path, 1234, 5678))
	}
	c.before = inspect.Tree(t, dir, inspect.Keep)
	check(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		c.watch(t, path, touched|unix.IN_OPEN)
		var st unix.Stat_t
		check(t, unix.Lstat(path, &st))
		c.inodes[[2]uint64{st.Dev, st.Ino}] = path
		return err
	}))
	c.events(t) // those of the walk itself
	return c
}

// Holds returns the path in the canary of what fd leads to, "" if that is none of it.
func (c *Canary) Holds(t testing.TB, fd int) string {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Fstat(fd, &st))
	return c.Has(st.Dev, st.Ino)
}

// Has is Holds of an inode.
func (c *Canary) Has(dev, ino uint64) string { return c.inodes[[2]uint64{dev, ino}] }

// Shun watches the FIFO, the socket and the device in the stock of a plan, which nobody may open, by whatever name.
func (c *Canary) Shun(t testing.TB, stock string) {
	for _, name := range []string{"pipe", "socket", "device"} {
		c.watch(t, filepath.Join(stock, "vault", name), unix.IN_OPEN)
	}
}

// Beside watches a directory that the attacker moves things into, which somebody may still be working on: nobody may list it, or make and remove anything in it.
func (c *Canary) Beside(t testing.TB, dir string) {
	c.watch(t, dir, unix.IN_ACCESS|unix.IN_CREATE|unix.IN_DELETE)
	c.beside = dir
}

func (c *Canary) watch(t testing.TB, path string, mask uint32) {
	t.Helper()
	wd, err := unix.InotifyAddWatch(c.inotify, path, mask|unix.IN_DONT_FOLLOW)
	if err != nil {
		t.Fatalf("watch %q: %v", path, err)
	}
	c.watched[int32(wd)] = path
}

// events returns what was done to what is watched, each once.
func (c *Canary) events(t testing.TB) (all []string) {
	t.Helper()
	seen := map[string]bool{}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(c.inotify, buf)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}
		check(t, err)
		for b := buf[:n]; len(b) > 0; { // struct inotify_event: wd, mask, cookie, len, name
			mask, size := binary.NativeEndian.Uint32(b[4:]), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:size], "\x00"))
			dir := c.watched[int32(binary.NativeEndian.Uint32(b))]
			moved := dir == c.beside && name != "" && mask&unix.IN_ACCESS != 0 // the names of files in a watched directory come with it
			what := filepath.Join(dir, name) + " was " + maskText(mask)
			if b = b[size:]; !moved && !seen[what] && mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) == 0 {
				seen[what] = true
				all = append(all, what)
			}
		}
	}
}

func maskText(mask uint32) string {
	var all []string
	for _, m := range []struct {
		bit  uint32
		name string
	}{
		{unix.IN_OPEN, "opened"}, {unix.IN_ACCESS, "read"}, {unix.IN_ATTRIB, "given other attributes"}, {unix.IN_MODIFY, "written"}, {unix.IN_CREATE, "made"},
		{unix.IN_DELETE | unix.IN_DELETE_SELF, "removed"}, {unix.IN_MOVE | unix.IN_MOVE_SELF, "moved"}, {unix.IN_Q_OVERFLOW, "touched too often to be told"},
	} {
		if mask&m.bit != 0 {
			all = append(all, m.name)
		}
	}
	return strings.Join(all, " and ")
}

// Untouched fails the test if anybody touched the canary, or opened what is to be shunned, since the last call.
func (c *Canary) Untouched(t testing.TB) {
	t.Helper()
	for _, what := range c.events(t) {
		t.Error(what)
	}
}

// Intact is Untouched, and looks whether the canary is what it was.
func (c *Canary) Intact(t testing.TB) {
	t.Helper()
	c.Untouched(t)
	inspect.Same(t, inspect.Tree(t, c.Dir, inspect.Keep), c.before)
	c.events(t) // those of looking
}

// NotIn fails the test if something of the canary is in dir, which nobody changes any more: contents, names, attributes or the very files.
func (c *Canary) NotIn(t testing.TB, dir string) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.Contains(d.Name(), Secret) {
			t.Errorf("%q has a name of the canary's", path)
		}
		buf := make([]byte, 4096)
		if n, err := unix.Lgetxattr(path, "user.secret", buf); err == nil {
			t.Errorf("%q has an attribute of the canary's: %q", path, buf[:n])
		}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(Secret)) {
				t.Errorf("%q holds the canary's secret", path)
			}
			return err
		}
		return nil
	}))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
