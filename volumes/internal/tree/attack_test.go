package tree

import (
	"errors"
	"fmt"
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

// attacked is a tree "x" in dir that a second process changes.
type attacked struct {
	*testing.T
	dir    string
	parent int // descriptor of dir
	plan   attack.Plan
	canary *attack.Canary
}

// Each operation on a tree, while a second process exchanges its directories and files with symlinks to the canary, FIFOs, devices and each other, and moves those
// that are being walked away and back. Whatever the operation makes of it, nothing outside is touched, nothing hangs, and nothing is mixed of two files.
func TestAttackedTree(t *testing.T) {
	for name, op := range map[string]func(a *attacked, round int) error{
		"measure": func(a *attacked, _ int) error {
			_, err := Measure(a.Context(), a.parent, "x", 0)
			return err // never fails: this is what stats of a live container does
		},
		"copy":   (*attacked).copied,
		"merge":  (*attacked).merged,
		"sync":   func(a *attacked, _ int) error { return Sync(a.Context(), a.parent, "x") },
		"remove": (*attacked).removed,
	} {
		t.Run(name, func(t *testing.T) {
			a := newAttacked(t)
			p := attack.Start(t, a.plan, nil)
			worked := attack.Rounds(t, func(round int) error {
				err := op(a, round)
				a.canary.Untouched(t)
				if name == "measure" && err != nil {
					t.Error(err)
				}
				return err
			})
			if moves := p.Stop(t); moves < 1000 || worked == 0 {
				t.Errorf("%d moves, %d rounds worked: this shows nothing", moves, worked)
			}
		})
	}
}

func newAttacked(t *testing.T) *attacked {
	dir := newFS(t, "tmpfs", "mode=0755")
	a := &attacked{T: t, dir: dir, canary: attack.NewCanary(t, dir+"/canary")}
	a.plan = attack.Plan{Tree: dir + "/x", Stock: dir + "/stock", Away: dir + "/away", Canary: dir + "/canary"}
	a.plan.Fill(t, a.canary)
	a.parent = fd(t, dir)
	a.fill(dir + "/x")
	for i := range members {
		a.plan.Dirs = append(a.plan.Dirs, fmt.Sprintf("dir-%d", i), fmt.Sprintf("dir-%d/sub", i))
		a.plan.Files = append(a.plan.Files, fmt.Sprintf("file-%d", i), fmt.Sprintf("dir-%d/file-%d", i, i))
	}
	for _, n := range []int{1, 4, 8, 20, deepest} {
		a.plan.Deep = append(a.plan.Deep, "deep"+strings.Repeat("/d", n))
	}
	return a
}

const (
	members = 5
	deepest = maxOpen + 10 // so that the way back leads through ".."
)

// fill makes the tree that is attacked. The contents of a file say what the rest of it has to be.
func (a *attacked) fill(root string) {
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
	bottom := root + "/deep" + strings.Repeat("/d", deepest)
	mkdir(a, bottom)
	makeWide(a, bottom, 100)
}

func content(i int) string { return strings.Repeat("x", i+1) }
func mode(i int) uint32    { return 0o4700 + uint32(i) }

// unmixed fails the test if a file of dir, which nobody changes any more, has the contents of one and the attributes of another.
func (a *attacked) unmixed(dir string) {
	for name, line := range inspect.Tree(a, dir, inspect.Keep) {
		var st unix.Stat_t
		path := filepath.Join(dir, name)
		check(a, unix.Lstat(path, &st))
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		b, err := os.ReadFile(path)
		check(a, err)
		i := len(b) - 1
		if strings.Trim(string(b), "x") != "" || i < 0 {
			continue
		}
		who := fmt.Sprintf("user.who=%x", content(i))
		if st.Uid != uint32(100+i) || st.Gid != uint32(200+i) || st.Mode&0o7777 != mode(i) || !strings.Contains(line, who) {
			a.Errorf("%q has the contents of file %d, and is %s", name, i, line)
		}
	}
}

func (a *attacked) copied(int) error {
	src, err := os.Open(a.plan.Tree)
	check(a, err)
	defer src.Close()
	err = Copy(a.Context(), src, a.parent, "copy", CopyOptions{})
	a.made("copy", "copy.links")
	return err
}

// made looks at what an operation made, and removes it.
func (a *attacked) made(names ...string) {
	for _, name := range names {
		if path := filepath.Join(a.dir, name); exists(path) {
			a.canary.NotIn(a, path)
			a.unmixed(path)
			a.canary.Untouched(a)
			check(a, Remove(a.Context(), a.parent, name))
		}
	}
}

func (a *attacked) merged(int) error {
	layers := []*os.File{openNow(a, a.plan.Tree), openNow(a, a.plan.Tree)}
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
func (a *attacked) removed(int) error {
	if !exists(a.plan.Tree) {
		a.fill(a.dir + "/next")
		check(a, os.Rename(a.dir+"/next", a.plan.Tree))
	}
	err := Remove(a.Context(), a.parent, "x")
	for range 100 { // as the next delete does
		if !exists(a.plan.Tree) {
			return err
		}
		err = errors.Join(err, Remove(a.Context(), a.parent, "x"))
	}
	a.Errorf("it cannot be removed: %v", err)
	return err
}
