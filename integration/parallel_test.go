package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// gdn's calls run in parallel, without limit and without a lock per handle. Every call here is a process of its own.

func TestParallelCreatesAndDeletes(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes)) // cold: all of them want to make the store
	const count = 100
	handle := func(i int) string { return fmt.Sprintf("parallel-%d", i) }
	roots := make([]string, count)
	err := together(count, func(i int) error {
		image := []string{"busybox", "busybox-shifted"}[i/2%2]
		spec, err := g.create(handle(i), rootfs{url: volumes.url(image), privileged: i%2 == 0})
		if err != nil {
			return err
		}
		roots[i] = spec.Root.Path
		return os.WriteFile(filepath.Join(spec.Root.Path, "mine"), []byte(handle(i)), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, root := range roots {
		if content, err := os.ReadFile(filepath.Join(root, "mine")); err != nil || string(content) != handle(i) {
			t.Errorf("the root of %s holds %q, %v", handle(i), content, err)
		}
	}
	if n := len(live(t, g.store)); n != count {
		t.Errorf("%d live volumes, want %d", n, count)
	}
	// Each of them twice at once: a container's destroy, and a retry of it that came early.
	if err := together(2*count, func(i int) error { return g.destroy(handle(i / 2)) }); err != nil {
		t.Error(err)
	}
	for i := range count {
		clean(t, g, handle(i))
	}
	if left := layers(t, g.store); len(left) != 0 {
		t.Errorf("layers left: %q", left)
	}
	// Made cold, so there is no earlier state to compare with: what one more container leaves is all that there may be.
	for _, dir := range []string{"volumes/init", "volumes/live", "volumes/dead", "mnt"} {
		after := namesIn(t, filepath.Join(g.store, dir))
		warm(t, g, volumes.url("busybox"))
		if now := namesIn(t, filepath.Join(g.store, dir)); !slices.Equal(after, now) || len(now) > 1 {
			t.Errorf("in %s %q, and after one more container %q", dir, after, now)
		}
	}
}

// Where an image has to be copied, the copy is made once, also when all want it at once, and it is whole for all.
func TestParallelCreatesOfOneCopiedImage(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes), "--idmap", "copy")
	const count = 20
	handle := func(i int) string { return fmt.Sprintf("copied-%d", i) }
	want := len(namesIn(t, filepath.Join(volumes.content("busybox"), "rootfs", "bin")))
	err := together(count, func(i int) error {
		spec, err := g.create(handle(i), rootfs{url: volumes.url("busybox")})
		if err != nil {
			return err
		}
		bin, err := os.ReadDir(filepath.Join(spec.Root.Path, "bin"))
		if err == nil && len(bin) != want {
			err = fmt.Errorf("%d names in /bin, want %d", len(bin), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if n := len(layers(t, g.store)); n != count+1 {
		t.Errorf("%d layers for %d containers, want one more than containers", n, count)
	}
	if err := together(count, func(i int) error { return g.destroy(handle(i)) }); err != nil {
		t.Error(err)
	}
	if n := len(layers(t, g.store)); n != 1 {
		t.Errorf("%d layers without a container, want the copy only", n)
	}
}

// Two creates of one handle both reach the plugin. One wins, and its root file system stays whole.
func TestParallelCreatesOfOneHandle(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const handle, racers = "all-want-this", 4
	for round := range 20 {
		var won atomic.Int32
		var root atomic.Value
		err := together(racers, func(i int) error {
			spec, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: i%2 == 0})
			if err != nil {
				if !strings.Contains(err.Error(), "exist") {
					return err
				}
				return nil
			}
			won.Add(1)
			root.Store(spec.Root.Path)
			return os.WriteFile(filepath.Join(spec.Root.Path, "winner"), nil, 0o600)
		})
		if err != nil {
			t.Errorf("round %d: a loser's failure does not say that the handle exists: %v", round, err)
		}
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of %d creates succeed, want 1", round, won.Load(), racers)
		}
		for _, name := range []string{"winner", "bin/busybox"} {
			if _, err := os.Stat(filepath.Join(root.Load().(string), name)); err != nil {
				t.Errorf("round %d: the winner's root: %v", round, err)
			}
		}
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
	}
	clean(t, g, handle)
	same(t, "the store", before, storeTree(t, g.store))
}

// Creates and deletes of one handle at once: whoever wins, each outcome is a whole one, and the last delete leaves nothing.
func TestParallelCreateAndDeleteOfOneHandle(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const handle = "comes-and-goes"
	for round := range 20 {
		err := together(4, func(i int) error {
			if i%2 == 0 {
				return g.destroy(handle)
			}
			// Not g.create, which looks at the root: a delete may have taken it away already.
			res := g.call(g.slot(round%2 == 0), "create", volumes.url("busybox"), handle)
			if res.err != nil && !strings.Contains(string(res.stdout), "exist") {
				return fmt.Errorf("create: %w: %s", res.err, res.stdout)
			}
			return nil
		})
		if err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		if err := g.destroy(handle); err != nil {
			t.Errorf("round %d: the last delete: %v", round, err)
		}
		same(t, fmt.Sprintf("the store after round %d", round), before, storeTree(t, g.store))
	}
	clean(t, g, handle)
}
