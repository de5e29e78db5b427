package cachecopy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// A cache goes through many generations, each changed at random by a container of its own. The same is done to a plain directory; each
// copy must show what is in there.
func TestModel(t *testing.T) {
	inspect.NeedRoot(t)
	for _, idMap := range []overlay.IDMap{overlay.Auto, overlay.Mount, overlay.Copy} {
		for _, maxLayers := range []int{2, 8} {
			t.Run(fmt.Sprintf("%s, %d layers", idMap, maxLayers), func(t *testing.T) {
				t.Parallel()
				testModel(t, idMap, maxLayers, 200)
			})
		}
	}
}

func testModel(t *testing.T, idMap overlay.IDMap, maxLayers, generations int) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) {
		o.Driver = overlay.New(overlay.Options{IDMap: idMap})
		o.MaxLayers = maxLayers
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := newModel(t, seed)
	merged := 0
	for n := range generations {
		// Where ids cannot be mapped, the two kinds of containers have caches of their own.
		req := volumes.Request{Privileged: idMap != overlay.Copy && n%2 == 0}
		m.copy = side{f.open("h", "k", req, cachecopy.Always), id(req.Privileged)}
		m.beginGeneration()
		if !m.compare() {
			t.Fatalf("generation %d begins with something else than the last one ended with", n)
		}
		for range 1 + m.rand.IntN(6) {
			m.step()
		}
		if !m.compare() {
			t.Fatalf("generation %d shows something else than was done; done: %s", n, strings.Join(m.done, "; "))
		}
		e := f.end("h")
		if !e.Promoted && e.Reason != "unchanged" { // some steps find nothing to do
			t.Fatalf("generation %d ended as %+v", n, e)
		}
		if e.Layers > maxLayers {
			t.Fatalf("generation %d has %d layers", n, e.Layers)
		}
		if e.Merged > 0 {
			merged++
		}
		if n%20 == 0 {
			f.verify()
		}
	}
	if merged < generations/maxLayers/2 {
		t.Errorf("only %d of %d generations were merged", merged, generations)
	}
}

// side is one of the two trees and what its owners are called there.
type side struct {
	root string
	id   func(uint32) uint32
}

func (s side) path(rel string) string { return s.root + "/" + rel }

// model does the same to both sides.
type model struct {
	t           *testing.T
	rand        *rand.Rand
	plain, copy side
	clock       int64
	old         map[uint64]bool // inodes in plain with several names that were there when the generation began
	done        []string
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, rand: rand.New(rand.NewPCG(seed, 0)), plain: side{newDir(t), inspect.Keep}}
	m.clock = time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC).UnixNano()
	return m
}

func (m *model) beginGeneration() {
	m.done = nil
	m.old = map[uint64]bool{}
	for _, rel := range m.all() {
		if st := m.stat(rel); st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
			m.old[st.Ino] = true
		}
	}
}

func (m *model) compare() bool {
	m.t.Helper()
	inspect.Same(m.t, describe(m.t, m.copy.root, m.copy.id), describe(m.t, m.plain.root, inspect.Keep))
	return !m.t.Failed()
}

// both does one operation on both sides.
func (m *model) both(what string, do func(s side) error) {
	m.t.Helper()
	m.done = append(m.done, what)
	for _, s := range []side{m.copy, m.plain} {
		if err := do(s); err != nil {
			m.t.Fatalf("%s in %q: %v; done: %s", what, s.root, err, strings.Join(m.done, "; "))
		}
	}
}

// stamp gives names, as far as they are there, one time on both sides.
func (m *model) stamp(rels ...string) {
	m.t.Helper()
	for _, rel := range rels {
		if !m.exists(rel) {
			continue
		}
		m.copyUp(rel)
		m.clock += 1_000_000_001
		times := []unix.Timespec{unix.NsecToTimespec(m.clock), unix.NsecToTimespec(m.clock)}
		m.both("stamp "+rel, func(s side) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, s.path(rel), times, unix.AT_SYMLINK_NOFOLLOW)
		})
	}
}

// copyUp is called before a file is changed. Overlayfs without an index copies a file with several names from a lower layer for the name that is
// changed only; the plain file is parted from its other names likewise.
func (m *model) copyUp(rel string) {
	m.t.Helper()
	st := m.stat(rel)
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !m.old[st.Ino] {
		return
	}
	delete(m.old, st.Ino)
	if st.Nlink == 1 {
		return
	}
	m.old[st.Ino] = true // for the other names
	name := m.plain.path(rel)
	var above unix.Stat_t
	check(m.t, unix.Lstat(path.Dir(name), &above))
	inspect.Command(m.t, "cp", "-a", "--", name, name+".new")
	check(m.t, os.Rename(name+".new", name))
	check(m.t, unix.UtimesNanoAt(unix.AT_FDCWD, path.Dir(name), []unix.Timespec{above.Atim, above.Mtim}, 0))
	delete(m.old, m.stat(rel).Ino)
}

func (m *model) stat(rel string) unix.Stat_t {
	m.t.Helper()
	var st unix.Stat_t
	check(m.t, unix.Lstat(m.plain.path(rel), &st))
	return st
}

func (m *model) exists(rel string) bool {
	_, err := os.Lstat(m.plain.path(rel))
	return err == nil
}

// all returns every name in the plain tree, "." first.
func (m *model) all(kinds ...uint32) []string {
	m.t.Helper()
	var rels []string
	check(m.t, filepath.WalkDir(m.plain.root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(m.plain.root, p)
		if err != nil {
			return err
		}
		kind := m.stat(rel).Mode & unix.S_IFMT
		ok := len(kinds) == 0
		for _, k := range kinds {
			ok = ok || k == kind
		}
		if ok {
			rels = append(rels, rel)
		}
		return nil
	}))
	return rels
}

func pick[T any](m *model, all []T) T { return all[m.rand.IntN(len(all))] }

var modelNames = []string{"a", "b", "c", "d", "e", "\xff\xfe", "with blank", ".hidden", ".wh.a"}

// free returns a name in some directory, and the directory. It may be taken.
func (m *model) somewhere() (rel, dir string) {
	for {
		dir = pick(m, m.all(unix.S_IFDIR))
		if strings.Count(dir, "/") < 4 {
			return path.Join(dir, pick(m, modelNames)), dir
		}
	}
}

var modelIDs = []uint32{0, 0, 1, 1000, 65534, inspect.MaxID - 1}

func (m *model) setOwner(rel string) {
	uid, gid := pick(m, modelIDs), pick(m, modelIDs)
	m.both(fmt.Sprintf("chown %d:%d %q", uid, gid, rel), func(s side) error {
		return os.Lchown(s.path(rel), int(s.id(uid)), int(s.id(gid)))
	})
}

// made is called for a new name.
func (m *model) made(rel, dir string) {
	delete(m.old, m.stat(rel).Ino) // a number may be used again
	m.setOwner(rel)
	m.stamp(rel, dir)
}

func (m *model) contents() []byte {
	return bytes.Repeat([]byte{byte(m.rand.IntN(256))}, m.rand.IntN(9000))
}

func (m *model) step() {
	m.t.Helper()
	if len(m.all()) > 70 {
		if dirs := m.all(unix.S_IFDIR); len(dirs) > 1 {
			m.remove(pick(m, dirs[1:]))
			return
		}
	}
	switch m.rand.IntN(20) {
	case 0, 1, 2:
		m.make(m.makeFile)
	case 3, 4, 5:
		m.make(m.makeDir)
	case 6:
		m.make(m.makeSymlink)
	case 7:
		m.make(m.makeNode)
	case 8, 9:
		m.change(m.writeFile, unix.S_IFREG)
	case 10:
		m.change(m.chmod, unix.S_IFREG, unix.S_IFDIR)
	case 11:
		m.change(func(rel string) { m.copyUp(rel); m.setOwner(rel) })
	case 12:
		m.change(m.xattr, unix.S_IFREG, unix.S_IFDIR)
	case 13:
		m.change(m.hardLink, unix.S_IFREG)
	case 14, 15, 16:
		m.change(m.move)
	case 17:
		m.change(m.remove)
	case 18: // a directory is replaced by a symlink, or by another directory of its name
		m.change(func(rel string) {
			m.remove(rel)
			if rel != "." {
				pick(m, []func(rel, dir string){m.makeSymlink, m.makeDir})(rel, path.Dir(rel))
			}
		}, unix.S_IFDIR)
	case 19: // a symlink, file or FIFO is replaced by a directory
		m.change(func(rel string) { m.remove(rel); m.makeDir(rel, path.Dir(rel)) }, unix.S_IFLNK, unix.S_IFREG, unix.S_IFIFO)
	}
}

// make puts something new somewhere, in the place of what is there.
func (m *model) make(do func(rel, dir string)) {
	rel, dir := m.somewhere()
	if m.exists(rel) {
		m.remove(rel)
	}
	do(rel, dir)
}

// change does something to a name of one of the kinds, if there is one.
func (m *model) change(do func(rel string), kinds ...uint32) {
	if all := m.all(kinds...); len(all) > 0 {
		do(pick(m, all))
	}
}

func (m *model) makeFile(rel, dir string) {
	content := m.contents()
	m.both(fmt.Sprintf("make %q", rel), func(s side) error { return os.WriteFile(s.path(rel), content, 0o644) })
	m.made(rel, dir)
}

// makeDir makes a directory with something in it.
func (m *model) makeDir(rel, dir string) {
	m.both(fmt.Sprintf("mkdir %q", rel), func(s side) error { return os.Mkdir(s.path(rel), 0o755) })
	m.made(rel, dir)
	for range m.rand.IntN(3) {
		if in := path.Join(rel, pick(m, modelNames)); !m.exists(in) {
			m.makeFile(in, rel)
		}
	}
}

func (m *model) makeSymlink(rel, dir string) {
	to := pick(m, []string{"/etc/passwd", "nowhere", "../../..", "a", ".", "/"})
	m.both(fmt.Sprintf("symlink %q", rel), func(s side) error { return os.Symlink(to, s.path(rel)) })
	m.made(rel, dir)
}

func (m *model) makeNode(rel, dir string) {
	mode := pick(m, []uint32{unix.S_IFIFO | 0o640, unix.S_IFSOCK | 0o600, unix.S_IFCHR | 0o666, unix.S_IFBLK | 0o600})
	m.both(fmt.Sprintf("mknod %q", rel), func(s side) error { return unix.Mknod(s.path(rel), mode, int(unix.Mkdev(1, 3))) })
	m.made(rel, dir)
}

func (m *model) writeFile(rel string) {
	m.copyUp(rel)
	content := m.contents()
	how := pick(m, []int{os.O_TRUNC, os.O_APPEND, 0})
	m.both(fmt.Sprintf("write %q", rel), func(s side) error {
		f, err := os.OpenFile(s.path(rel), os.O_WRONLY|how, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		return errors.Join(err, f.Close())
	})
	m.stamp(rel)
}

func (m *model) chmod(rel string) {
	m.copyUp(rel)
	modes := []uint32{0o644, 0o600, 0o755, 0, 0o4755, 0o2755, 0o6711}
	if m.stat(rel).Mode&unix.S_IFMT == unix.S_IFDIR {
		modes = []uint32{0o755, 0o700, 0o1777, 0}
	}
	mode := pick(m, modes)
	m.both(fmt.Sprintf("chmod %o %q", mode, rel), func(s side) error { return unix.Chmod(s.path(rel), mode) })
}

func (m *model) xattr(rel string) {
	m.copyUp(rel)
	name := pick(m, []string{"user.x", "user.y", "trusted.z"})
	if _, err := unix.Lgetxattr(m.plain.path(rel), name, nil); err == nil {
		m.both(fmt.Sprintf("remove %s of %q", name, rel), func(s side) error { return unix.Lremovexattr(s.path(rel), name) })
		return
	}
	value := m.contents()[:0]
	value = append(value, fmt.Sprint(m.rand.Int())...)
	m.both(fmt.Sprintf("set %s of %q", name, rel), func(s side) error { return unix.Lsetxattr(s.path(rel), name, value, 0) })
}

func (m *model) hardLink(rel string) {
	to, dir := m.somewhere()
	if m.exists(to) {
		return
	}
	m.copyUp(rel)
	m.both(fmt.Sprintf("link %q %q", rel, to), func(s side) error { return os.Link(s.path(rel), s.path(to)) })
	m.stamp(dir)
}

func (m *model) remove(rel string) {
	if rel == "." {
		return
	}
	m.both(fmt.Sprintf("rm -r %q", rel), func(s side) error { return os.RemoveAll(s.path(rel)) })
	m.stamp(path.Dir(rel))
}

// move does what mv(1) does: a directory that is also in a lower layer cannot be renamed (EXDEV), and is copied.
func (m *model) move(rel string) {
	to, dir := m.somewhere()
	if rel == "." || to == rel || strings.HasPrefix(to+"/", rel+"/") || strings.HasPrefix(rel+"/", to+"/") {
		return
	}
	isDir := m.stat(rel).Mode&unix.S_IFMT == unix.S_IFDIR
	if m.exists(to) && (isDir || m.stat(to).Mode&unix.S_IFMT == unix.S_IFDIR) {
		m.remove(to)
	}
	m.copyUp(rel)
	what := fmt.Sprintf("mv %q %q", rel, to)
	err := os.Rename(m.copy.path(rel), m.copy.path(to))
	if errors.Is(err, unix.EXDEV) && isDir {
		m.both(what+" by copying", func(s side) error {
			inspect.Command(m.t, "cp", "-a", "--", s.path(rel), s.path(to))
			return os.RemoveAll(s.path(rel))
		})
	} else {
		check(m.t, err)
		m.done = append(m.done, what)
		check(m.t, os.Rename(m.plain.path(rel), m.plain.path(to)))
	}
	m.stamp(path.Dir(rel), dir)
}
