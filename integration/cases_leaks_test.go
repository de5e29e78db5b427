package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// concourse/concourse#2454, #1990, #8001: a container that cannot be created is tried again at every interval, and each try left
// something.
func TestCase13FailingCreates(t *testing.T) {
	volumes := busybox(t)
	t.Run("image without the sub-folder", func(t *testing.T) {
		g := newGdn(t, newStore(t), string(volumes))
		failingCreates(t, g, volumes.url("busybox"), "baggageclaim://busybox/no-such-rootfs")
	})
	t.Run("full store", func(t *testing.T) {
		g := newGdn(t, filepath.Join(tmpFS(t, "size=4m"), "store"), string(volumes))
		warm(t, g, volumes.url("busybox"))
		fillSpace(t, filepath.Dir(g.store))
		failingCreates(t, g, "", volumes.url("busybox"))
	})
	t.Run("no inodes", func(t *testing.T) {
		g := newGdn(t, filepath.Join(tmpFS(t, "size=40m,nr_inodes=200"), "store"), string(volumes))
		warm(t, g, volumes.url("busybox"))
		fillInodes(t, filepath.Dir(g.store))
		failingCreates(t, g, "", volumes.url("busybox"))
	})
}

// failingCreates tries to create containers of a bad image, with and without the deletes that follow in gdn, and expects the
// store as it was. good makes the store first, if given.
func failingCreates(t *testing.T, g *gdn, good, bad string) {
	t.Helper()
	const tries = 200
	var before tree
	if good != "" {
		before = warm(t, g, good)
	} else {
		before = storeTree(t, g.store)
	}
	mounts := mountCount(t, g.store)
	for i := range 2 * tries {
		handle := fmt.Sprintf("fails-%d", i)
		if _, err := g.create(handle, rootfs{url: bad, privileged: i%2 == 0}); err == nil {
			t.Fatalf("create %s succeeds, this test shows nothing", handle)
		}
		if i < tries {
			if err := g.destroy(handle); err != nil {
				t.Fatal(err)
			}
		}
	}
	same(t, "the store after creates that failed", before, storeTree(t, g.store))
	if now := mountCount(t, g.store); now != mounts {
		t.Errorf("%d mounts, were %d", now, mounts)
	}
}

// concourse/baggageclaim#6, concourse/concourse#565, #1542, #4220, #4513, #2835, cloudfoundry/guardian#53: volumes and containers
// have two lives. A hundred random steps against a model of what has to be there.
func TestCase14OneLife(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"), volumes.url("busybox-shifted"))
	mounts := mountCount(t, g.store)
	const seed = 14 // fixed: a failure has to come again
	random := rand.New(rand.NewPCG(seed, seed))
	model := map[string]bool{}
	for step := range 100 {
		handle := fmt.Sprintf("model-%d", random.IntN(8))
		if random.IntN(2) == 0 {
			image := []string{"busybox", "busybox-shifted"}[random.IntN(2)]
			_, err := g.create(handle, rootfs{url: volumes.url(image), privileged: random.IntN(2) == 0})
			if (err == nil) == model[handle] {
				t.Fatalf("step %d: create %s: %v, and it was live: %t", step, handle, err, model[handle])
			}
			model[handle] = true
		} else {
			if err := g.destroy(handle); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			delete(model, handle)
		}
		wanted := make([]string, 0, len(model))
		for handle := range model {
			wanted = append(wanted, handle)
		}
		slices.Sort(wanted)
		if got := live(t, g.store); !slices.Equal(got, wanted) {
			t.Fatalf("step %d: live on disk %q, want %q", step, got, wanted)
		}
		if now := mountCount(t, g.store); now != mounts+len(model) {
			t.Fatalf("step %d: %d mounts for %d containers, were %d for none", step, now, len(model), mounts)
		}
	}
	for handle := range model {
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
	}
	same(t, "the store after everything is deleted", before, storeTree(t, g.store))
}

// Something left in init/ (or in dead/) must not block a handle for ever. The kills in mid-create that leave such things are in
// TestCase17KilledAtEachStep; here they are put there by hand, also ones that no crash of ours leaves.
func TestCase17LeftoversDoNotBlock(t *testing.T) {
	volumes := busybox(t)
	const handle = "left-by-a-crash"
	leftovers := map[string]func(path string) error{
		"a link to nothing": func(path string) error { return os.Symlink("0123456789abcdef0123456789abcdef", path) },
		"a link outside":    func(path string) error { return os.Symlink("../../../outside", path) },
		"a directory":       func(path string) error { return os.MkdirAll(filepath.Join(path, "volume"), 0o755) },
		"an empty file":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
	}
	for name, leave := range leftovers {
		for _, state := range []string{"init", "dead"} {
			t.Run(name+" in "+state, func(t *testing.T) {
				g := newGdn(t, newStore(t), string(volumes))
				before := warm(t, g, volumes.url("busybox"))
				outside := filepath.Join(filepath.Dir(g.store), "outside")
				if err := os.MkdirAll(filepath.Join(outside, "fs"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := leave(filepath.Join(g.store, "volumes", state, handle)); err != nil {
					t.Fatal(err)
				}
				if _, err := g.create(handle, rootfs{url: volumes.url("busybox")}); err != nil {
					if err := g.destroy(handle); err != nil {
						t.Fatalf("delete after the failed create: %v", err)
					}
					if _, err := g.create(handle, rootfs{url: volumes.url("busybox")}); err != nil {
						t.Fatalf("create still fails after a delete: %v", err)
					}
				}
				if err := g.destroy(handle); err != nil {
					t.Fatal(err)
				}
				clean(t, g, handle)
				same(t, "the store", before, storeTree(t, g.store))
				if _, err := os.Stat(filepath.Join(outside, "fs")); err != nil {
					t.Errorf("beside the store: %v", err)
				}
			})
		}
	}
}

// concourse/concourse#9685: a sweeper removed what a create was making. Here creates, uses and deletes race in one store, each of
// which may sweep in passing; a gc that runs beside them is for the issue that brings gc.
func TestCase22NobodySweepsALiveVolume(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const workers = 20
	deadline := time.Now().Add(8 * time.Second)
	err := together(workers, func(worker int) error {
		for round := 0; time.Now().Before(deadline); round++ {
			handle := fmt.Sprintf("swept-%d-%d", worker, round%2)
			spec, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: worker%2 == 0})
			if err != nil {
				return err
			}
			for i := range 10 {
				if err := os.WriteFile(filepath.Join(spec.Root.Path, fmt.Sprint(i)), nil, 0o600); err != nil {
					return fmt.Errorf("touch in a live root: %w", err)
				}
			}
			if _, err := os.ReadFile(filepath.Join(spec.Root.Path, "etc/motd")); err != nil {
				return fmt.Errorf("reading the image in a live root: %w", err)
			}
			if err := g.destroy(handle); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	same(t, "the store after the races", before, storeTree(t, g.store))
}

// concourse/concourse#9528, mitodl/ol-infrastructure#5401: the first command on a bare disk.
func TestCase23FirstCommand(t *testing.T) {
	volumes := busybox(t)
	bare := func(t *testing.T) *gdn {
		return newGdn(t, filepath.Join(newDir(t), "not", "there", "yet"), string(volumes))
	}
	for _, privileged := range []bool{false, true} {
		t.Run("create/"+slotName(privileged), func(t *testing.T) {
			g := bare(t)
			spec, err := g.create("the-first", rootfs{url: volumes.url("busybox"), privileged: privileged})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(spec.Root.Path, "bin/sh")); err != nil {
				t.Error(err)
			}
			if err := g.destroy("the-first"); err != nil {
				t.Error(err)
			}
			clean(t, g, "the-first")
		})
	}
	for name, first := range map[string]func(t *testing.T, g *gdn){
		"delete": func(t *testing.T, g *gdn) {
			if err := g.destroy("the-first"); err != nil {
				t.Error(err)
			}
		},
		"stats": func(t *testing.T, g *gdn) {
			if _, err := g.stats("the-first"); err == nil {
				t.Error("stats of nothing succeeds")
			}
		},
		"capacity": func(t *testing.T, g *gdn) {
			if _, err := g.capacity(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := bare(t)
			first(t, g)
			if _, err := g.create("the-second", rootfs{url: volumes.url("busybox")}); err != nil {
				t.Errorf("create after it: %v", err)
			}
			if err := g.destroy("the-second"); err != nil {
				t.Error(err)
			}
		})
	}
}
