package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// Layers are made as containers make them: by changing a mounted overlay. Whichever of them that are side by side are merged, the stack
// must show the same, and again when the result is merged.
func TestMergeOfRandomLayers(t *testing.T) {
	inspect.NeedRoot(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for n := range 40 {
		if !t.Run(fmt.Sprint(n), func(t *testing.T) {
			layers := []string{makeLayer(t)} // top first
			for range 2 + r.IntN(5) {
				layers = slices.Insert(layers, 0, changedLayer(t, r, layers))
			}
			want := shows(t, view(t, layers...))
			for len(layers) > 1 {
				from := r.IntN(len(layers) - 1)
				to := from + 2 + r.IntN(len(layers)-from-1)
				var below []*os.File
				for _, l := range layers[to:] {
					below = append(below, open(t, l))
				}
				merged := mustMerge(t, layers[from:to], MergeOptions{Below: below})
				layers = slices.Replace(layers, from, to, merged)
				inspect.Same(t, shows(t, view(t, layers...)), want)
				if t.Failed() {
					t.Fatalf("layers %d to %d of %d were merged", from, to, len(layers)-1+to-from)
				}
			}
			inspect.Same(t, shows(t, layers[0]), want) // a bottom layer is a plain tree
		}) {
			return
		}
	}
}

// changedLayer mounts layers with a new upper, changes what is seen, and returns the upper.
func changedLayer(t *testing.T, r *rand.Rand, layers []string) string {
	t.Helper()
	dir, at := newDir(t), newDir(t)
	upper := dir + "/fs"
	mkdir(t, upper)
	mkdir(t, dir+"/work")
	check(t, os.Chmod(upper, 0o755))
	data := "index=off,metacopy=off,redirect_dir=nofollow,xino=auto,nfs_export=off,volatile,lowerdir=" + strings.Join(layers, ":") +
		",upperdir=" + upper + ",workdir=" + dir + "/work"
	check(t, unix.Mount("test", at, "overlay", 0, data))
	defer func() { check(t, unix.Unmount(at, 0)) }()
	for range 3 + r.IntN(12) {
		changeSomething(r, at)
	}
	return upper
}

// changeSomething does one thing that may fail: what the overlay shows then is what counts.
func changeSomething(r *rand.Rand, root string) {
	names := []string{"a", "b", "c", "d", "\xff"}
	some := func() string {
		parts := []string{root}
		for range 1 + r.IntN(4) {
			parts = append(parts, names[r.IntN(len(names))])
		}
		return filepath.Join(parts...)
	}
	p, q := some(), some()
	switch r.IntN(14) {
	case 0, 1, 2:
		_ = os.MkdirAll(p, 0o755)
	case 3, 4, 5:
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		_ = os.WriteFile(p, []byte(fmt.Sprint(r.Int())), 0o644)
	case 6, 7, 8:
		_ = os.RemoveAll(p)
	case 9:
		_ = os.Rename(p, q)
	case 10:
		_ = os.RemoveAll(p)
		_ = os.Symlink(q, p)
	case 11:
		_ = os.Link(p, q)
	case 12:
		_ = os.Lchown(p, r.IntN(3), r.IntN(3))
		_ = unix.Setxattr(p, "user.x", []byte(fmt.Sprint(r.Int())), 0)
	case 13: // replaced by another directory of that name
		_ = os.RemoveAll(p)
		_ = os.MkdirAll(filepath.Join(p, names[r.IntN(len(names))]), 0o700)
	}
}
