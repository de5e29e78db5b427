package cachecopy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// faulty is a driver that fails, or ends the call as a kill would, at one of its steps.
type faulty struct {
	volumes.Driver
	at    string // the step, with "before " or "after " in front
	panic bool
}

var errFault = errors.New("injected")

// killed is what a panic of faulty holds. No deferred clean-up of the store looks at panics, and locks are released as by a kill.
type killed struct{}

func (d *faulty) step(name string, do func() error) error {
	for _, when := range []string{"before ", "after "} {
		if d.at == when+name {
			if d.panic {
				panic(killed{})
			}
			return errFault
		}
		if when == "before " {
			if err := do(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *faulty) Freeze(ctx context.Context, target string) error {
	return d.step("Freeze", func() error { return d.Driver.Freeze(ctx, target) })
}

func (d *faulty) Unmount(ctx context.Context, dir string) error {
	return d.step("Unmount", func() error { return d.Driver.Unmount(ctx, dir) })
}

func (d *faulty) Changed(layers, upper, below string) (changed bool, err error) {
	err = d.step("Changed", func() error { changed, err = d.Driver.Changed(layers, upper, below); return err })
	return changed, err
}

func (d *faulty) Seal(ctx context.Context, layers, upper string) error {
	return d.step("Seal", func() error { return d.Driver.Seal(ctx, layers, upper) })
}

func (d *faulty) Merge(ctx context.Context, layers string, from, below []string, into string) error {
	return d.step("Merge", func() error { return d.Driver.Merge(ctx, layers, from, below, into) })
}

func (d *faulty) Remove(ctx context.Context, layers, name string) error {
	return d.step("Remove", func() error { return d.Driver.Remove(ctx, layers, name) })
}

// die calls do, which must end at the injected kill.
func die(t *testing.T, do func()) {
	t.Helper()
	defer func() {
		t.Helper()
		switch r := recover().(type) {
		case killed:
		case nil:
			t.Fatal("it was not killed: the step was not reached")
		default:
			panic(r)
		}
	}()
	do()
}

// prepared is a store with three generations of "k", and container "h" with a change to be promoted.
func prepared(t *testing.T, maxLayers int) (*fixture, *faulty) {
	t.Helper()
	d := &faulty{}
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) {
		d.Driver = o.Driver
		o.Driver, o.MaxLayers = d, maxLayers
	})
	for i := range 3 {
		f.generation("k", func(dir string) { check(t, writeGeneration(dir, fmt.Sprint("old ", i))) })
	}
	dir := f.open("h", "k", privileged, cachecopy.Always)
	check(t, writeGeneration(dir, "new"))
	return f, d
}

// wholeAfter checks that the cache holds the old or the new generation whole, and that it goes on working. It returns which.
func wholeAfter(t *testing.T, f *fixture) string {
	t.Helper()
	f.verify()
	got := f.read("k", "part-0/file")
	if got != "old 2 0" && got != "new 0" {
		t.Errorf("the next copy has %q", got)
	}
	check(t, isWhole(f.open("reader", "k", privileged, cachecopy.Never)))
	f.end("reader")
	f.generation("k", func(dir string) { check(t, writeGeneration(dir, "later")) })
	if got := f.read("k", "part-3/file"); got != "later 3" {
		t.Errorf("the copy after that has %q", got)
	}
	f.verify()
	return got
}

var promotionSteps = []string{
	"before Freeze", "after Freeze", "before Unmount", "after Unmount", "before Changed", "after Changed", "before Seal", "after Seal", "before Merge", "after Merge",
	"before Remove", "after Remove",
}

// layersFor is a bound at which the step is reached.
func layersFor(step string) int {
	if strings.Contains(step, "Merge") {
		return 3
	}
	return 8
}

func TestKilledPromotion(t *testing.T) {
	for _, step := range promotionSteps {
		t.Run(step, func(t *testing.T) {
			f, d := prepared(t, layersFor(step))
			*d = faulty{d.Driver, step, true}
			for range 2 { // also the one that goes on after it
				die(t, func() { _, _, _ = f.Delete(t.Context(), handle("h")) })
			}
			*d = faulty{Driver: d.Driver}
			_, _, err := f.Delete(t.Context(), handle("h"))
			check(t, err)
			wholeAfter(t, f)
		})
	}
}

// What can be cleaned up never fails a delete.
func TestFailedPromotionFailsNoDelete(t *testing.T) {
	for _, step := range promotionSteps {
		t.Run(step, func(t *testing.T) {
			f, d := prepared(t, layersFor(step))
			*d = faulty{d.Driver, step, false}
			_, _, err := f.Delete(t.Context(), handle("h"))
			cleaning := strings.Contains(step, "Unmount") || strings.Contains(step, "Remove")
			switch {
			case cleaning && !errors.Is(err, errFault):
				t.Fatalf("Delete = %v, want the injected error", err)
			case !cleaning && err != nil:
				t.Fatalf("Delete = %v", err)
			case !cleaning && !strings.Contains(strings.Join(f.warned(), "\n"), "injected"):
				t.Errorf("warnings: %q", f.warned())
			}
			*d = faulty{Driver: d.Driver}
			_, _, err = f.Delete(t.Context(), handle("h"))
			check(t, err)
			if got, want := wholeAfter(t, f), map[bool]string{true: "new 0", false: "old 2 0"}[cleaning]; got != want {
				t.Errorf("the next copy has %q, want %q", got, want)
			}
		})
	}
}

// Between the calls of the driver, the store's own: what a kill there leaves is made by hand.
func TestKilledBetweenSealingAndPublishing(t *testing.T) {
	for _, overtaken := range []bool{false, true} {
		t.Run(fmt.Sprint("overtaken ", overtaken), func(t *testing.T) {
			f, d := prepared(t, 8)
			stack := f.dir + "/caches/" + cachecopy.ID("k")
			if overtaken {
				f.generation("k", func(dir string) { check(t, writeGeneration(dir, "old 2")) })
			}
			// A pointer that cannot be replaced stops it behind the seal.
			check(t, os.Mkdir(stack+"/next", 0o700))
			check(t, os.WriteFile(stack+"/next/x", nil, 0o600))
			*d = faulty{d.Driver, "before Remove", true}
			die(t, func() { _, _, _ = f.Delete(t.Context(), handle("h")) })
			check(t, os.RemoveAll(stack+"/next"))
			*d = faulty{Driver: d.Driver}
			f.end("h")
			wholeAfter(t, f)
		})
	}
}

// A kill in the middle of removing a layer that nobody uses any more: whatever of it is left, the next delete finds it.
func TestKilledWhileAnOldLayerIsRemoved(t *testing.T) {
	for _, left := range []string{"all but users", "empty users", "a part of the files", "the mark in the layer below is gone", "the layers below are gone"} {
		t.Run(left, func(t *testing.T) {
			f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 3 })
			for i := range 3 {
				f.generation("k", func(dir string) { check(t, writeGeneration(dir, fmt.Sprint(i))) })
			}
			layers := f.chain("k")
			f.open("h", "k", privileged, cachecopy.Never) // keeps the layers
			check(t, f.Drop(t.Context(), cachecopy.ID("k")))
			path := func(n int, name string) string { return f.dir + "/layers/" + layers[n] + "/" + name }
			check(t, os.RemoveAll(path(0, "users")))
			switch left {
			case "empty users":
				check(t, os.Mkdir(path(0, "users"), 0o700))
			case "a part of the files":
				check(t, os.RemoveAll(path(0, "fs/part-0")))
			case "the mark in the layer below is gone":
				check(t, os.Remove(path(1, "users/"+layers[0])))
			case "the layers below are gone":
				check(t, os.RemoveAll(path(1, "")))
				check(t, os.RemoveAll(path(2, "")))
			}
			f.end("h")
			f.verify()
		})
	}
}

// Removing a layer that stops half-way may have removed its link to the layer below: that must not be left to nobody.
func TestLayersBelowGoFirst(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 3 })
	for i := range 3 {
		f.generation("k", func(dir string) { check(t, writeGeneration(dir, fmt.Sprint(i))) })
	}
	layers := f.chain("k")
	f.open("h", "k", privileged, cachecopy.Never)
	check(t, f.Drop(t.Context(), cachecopy.ID("k")))
	// A mount in its files cannot be removed; all else of the topmost layer may go before it is met.
	busy := f.dir + "/layers/" + layers[0] + "/fs/part-0"
	check(t, unix.Mount("test", busy, "tmpfs", 0, ""))
	if _, _, err := f.Delete(t.Context(), handle("h")); err == nil {
		t.Error("Delete removed a layer with a mount in it")
	}
	for _, l := range layers[1:] {
		if _, err := os.Lstat(f.dir + "/layers/" + l); err == nil {
			t.Errorf("layer %s is still there", l)
		}
	}
	check(t, unix.Unmount(busy, 0))
	f.end("h")
	f.verify()
}

// What is wrong further down does not make a promotion undone that was done.
func TestPublishedIsPromoted(t *testing.T) {
	f, _ := prepared(t, 8)
	parent := f.dir + "/layers/" + f.chain("k")[1] + "/parent"
	was, err := os.Readlink(parent)
	check(t, err)
	check(t, os.Remove(parent))
	check(t, os.Symlink("damaged", parent))
	f.promote("h")
	if w := strings.Join(f.warned(), "; "); !strings.Contains(w, "damaged parent") || strings.Contains(w, "not promoted") {
		t.Errorf("warnings: %q", w)
	}
	check(t, os.Remove(parent))
	check(t, os.Symlink(was, parent))
	if got := f.read("k", "part-0/file"); got != "new 0" {
		t.Errorf("the cache holds %q", got)
	}
}
