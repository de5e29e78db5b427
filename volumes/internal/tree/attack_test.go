package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/attack"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	attack.Serve()
	os.Exit(m.Run())
}

// attacked are two trees, "wide" and "deep", in dir that a second process changes.
type attacked struct {
	*testing.T
	dir    string
	name   string // of the one that is worked on in this round
	parent int    // descriptor of dir
	plan   attack.Plan
	canary *attack.Canary
}

// Each operation on a tree, while a second process exchanges its directories and files with symlinks to the canary, FIFOs, devices and each other, and moves those
// that are being walked away and back. Whatever the operation makes of it, nothing outside is touched, nothing hangs, and nothing is mixed of two files.
func TestAttackedTree(t *testing.T) {
	for name, op := range map[string]func(*attacked) error{
		"measure": func(a *attacked) error {
			_, err := Measure(a.Context(), a.parent, a.name, 0)
			return err // never fails: this is what stats of a live container does
		},
		"copy":   (*attacked).copied,
		"merge":  (*attacked).merged,
		"sync":   func(a *attacked) error { return Sync(a.Context(), a.parent, a.name) },
		"remove": (*attacked).removed,
	} {
		t.Run(name, func(t *testing.T) {
			a := newAttacked(t)
			p := attack.Start(t, a.plan, nil)
			worked := attack.Rounds(t, func(round int) error {
				if a.name = "wide"; round%3 == 0 {
					a.name = "deep"
				}
				err := op(a)
				a.canary.Untouched(t)
				if name == "measure" && err != nil {
					t.Error(err)
				}
				return err
			})
			a.canary.Intact(t)
			if moves := p.Stop(t); moves < 1000 || worked == 0 {
				t.Errorf("%d moves, %d rounds worked: this shows nothing", moves, worked)
			}
		})
	}
}

func newAttacked(t *testing.T) *attacked {
	dir := newFS(t, "tmpfs", "mode=0755")
	a := &attacked{T: t, dir: dir, canary: attack.NewCanary(t, dir+"/canary")}
	a.plan = attack.Plan{Tree: dir, Stock: dir + "/stock", Away: dir + "/away", Canary: dir + "/canary"}
	a.plan.Fill(t, a.canary)
	a.canary.Shun(t, a.plan.Stock)
	a.canary.Beside(t, a.plan.Away)
	a.parent = fd(t, dir)
	a.fill("wide", dir+"/wide")
	a.fill("deep", dir+"/deep")
	for i := range members {
		a.plan.Dirs = append(a.plan.Dirs, fmt.Sprintf("wide/dir-%d", i), fmt.Sprintf("wide/dir-%d/sub", i))
		a.plan.Files = append(a.plan.Files, fmt.Sprintf("wide/file-%d", i), fmt.Sprintf("wide/dir-%d/file-%d", i, i))
	}
	for _, n := range []int{1, 4, 8, 20, deepest} {
		a.plan.Deep = append(a.plan.Deep, "deep"+strings.Repeat("/d", n))
	}
	return a
}

func (a *attacked) path() string { return filepath.Join(a.dir, a.name) }

const (
	members = 5
	deepest = maxOpen + 10 // so that the way back leads through ".."
)

// fill makes a tree that is attacked. The contents of a file say what the rest of it has to be.
func (a *attacked) fill(name, root string) {
	if name == "deep" {
		bottom := root + strings.Repeat("/d", deepest)
		mkdir(a, bottom)
		makeWide(a, bottom, 20)
		return
	}
	for i := range members {
		for _, name := range []string{fmt.Sprintf("file-%d", i), fmt.Sprintf("dir-%d/file-%d", i, i), fmt.Sprintf("dir-%d/sub/file-%d", i, i)} {
			path := filepath.Join(root, name)
			write(a, path, content(i))
			inspect.SetXattr(a, path, "user.who", []byte(content(i)))
			check(a, os.Lchown(path, 100+i, 200+i))
			check(a, unix.Chmod(path, mode(i)))
		}
		check(a, os.Link(fmt.Sprintf("%s/file-%d", root, i), fmt.Sprintf("%s/dir-%d/sub/link", root, i)))
	}
}

func content(i int) string { return strings.Repeat("x", i+1) }
func mode(i int) uint32    { return 0o4700 + uint32(i) }

// unmixed fails the test if a file of dir, which nobody changes any more, has the contents of one and the attributes of another.
func (a *attacked) unmixed(dir string) {
	check(a, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		i := len(b) - 1
		if err != nil || i < 0 || strings.Trim(string(b), "x") != "" { // not one of those
			return err
		}
		var st unix.Stat_t
		who := make([]byte, 100)
		n, err := unix.Lgetxattr(path, "user.who", who)
		if err = errors.Join(err, unix.Lstat(path, &st)); err != nil ||
			st.Uid != uint32(100+i) || st.Gid != uint32(200+i) || st.Mode&0o7777 != mode(i) || string(who[:n]) != content(i) {
			a.Errorf("%q has the contents of file %d, and owner %d:%d, mode %o, the attribute %q, %v", path, i, st.Uid, st.Gid, st.Mode&0o7777, who[:max(n, 0)], err)
		}
		return nil
	}))
}

func (a *attacked) copied() error {
	src := openNow(a, a.path())
	defer src.Close()
	err := Copy(a.Context(), src, a.parent, "copy", CopyOptions{})
	a.made("copy", "copy.links")
	return err
}

// made looks at what an operation made, and removes it.
func (a *attacked) made(names ...string) {
	for _, name := range names {
		if path := filepath.Join(a.dir, name); exists(path) {
			a.canary.NotIn(a, path)
			a.unmixed(path)
			check(a, Remove(a.Context(), a.parent, name))
		}
	}
}

func (a *attacked) merged() error {
	layers := []*os.File{openNow(a, a.path()), openNow(a, a.path())}
	defer layers[0].Close()
	defer layers[1].Close()
	err := Merge(a.Context(), layers, a.parent, "merged", MergeOptions{Opaque: opaqueMark, Below: layers[1:]})
	a.made("merged")
	return err
}

func openNow(t testing.TB, dir string) *os.File {
	f, err := os.Open(dir)
	check(t, err)
	return f
}

// removed puts a new tree in the place of the last one and removes it. What the attacker took away in time is not the remover's business.
func (a *attacked) removed() error {
	if !exists(a.path()) {
		a.fill(a.name, a.dir+"/next")
		check(a, os.Rename(a.dir+"/next", a.path()))
	}
	err := Remove(a.Context(), a.parent, a.name)
	for range 100 { // as the next delete does
		if !exists(a.path()) {
			return err
		}
		err = errors.Join(err, Remove(a.Context(), a.parent, a.name))
	}
	a.Errorf("it cannot be removed: %v", err)
	return err
}
