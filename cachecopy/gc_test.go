package cachecopy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// someID is an ID that no container has.
var someID = strings.Repeat("0123456789abcdef", 2)

// problems are the paths of what Check finds.
func (f *fixture) problems() (all []string) {
	f.t.Helper()
	found, err := f.Store().Check(context.Background())
	check(f.t, err)
	for _, p := range found {
		all = append(all, p.Path)
	}
	return all
}

// gc runs GC, which must remove all that it finds, and returns a line for each.
func (f *fixture) gc(o volumes.GCOptions) (lines []string) {
	f.t.Helper()
	all, err := f.GC(context.Background(), o)
	check(f.t, err)
	for _, c := range all {
		lines = append(lines, c.Problem.String())
		if c.Err != nil {
			f.t.Errorf("gc: %s: %v", c.Problem, c.Err)
		}
	}
	return lines
}

// TestGC: each kind of leftover alone is seen by Check, named and left by a dry run, and removed by GC; then nothing is left of it, and what is live is as it was.
func TestGC(t *testing.T) {
	f := newFixture(t, nil)
	f.generation("key", func(dir string) { write(t, dir+"/file", "one") })
	base := f.top(cachecopy.ID("key"))
	live := f.open("live", "key", privileged, cachecopy.Always)
	write(t, live+"/live", "live")
	stack := strings.Repeat("ab", 32)
	link := func(text, path string) func() {
		return func() {
			check(t, os.MkdirAll(filepath.Dir(f.dir+"/"+path), 0o700))
			check(t, os.Symlink(text, f.dir+"/"+path))
		}
	}
	layer := func(name string, files ...string) func() {
		return func() {
			for _, file := range append(files, "fs/file") {
				write(t, f.dir+"/layers/"+name+"/"+file, "")
			}
		}
	}
	mount := func(path string) func() {
		return func() {
			check(t, os.MkdirAll(f.dir+"/"+path, 0o755))
			check(t, unix.Mount("gc", f.dir+"/"+path, "tmpfs", 0, ""))
		}
	}
	both := func(a, b func()) func() { return func() { a(); b() } }
	for name, c := range map[string]struct {
		make func()
		want string // part of what Check says; "": it is no problem, only of no use
	}{
		"entry in init":              {both(link(someID, "volumes/init/dead one"), layer(someID)), `"volumes/init/dead one": its create died`},
		"entry in dead":              {both(link(someID, "volumes/dead/h"), layer(someID, "layer.json", "cache-0/fs/file")), `"volumes/dead/h": its delete died`},
		"no entry in init":           {func() { write(t, f.dir+"/volumes/init/h/file", "") }, `"volumes/init/h": was not made by the store`},
		"no entry in dead":           {func() { write(t, f.dir+"/volumes/dead/h", "") }, `"volumes/dead/h": was not made by the store`},
		"layer without an entry":     {layer(someID, "work/work/x", "cache-0/fs/x"), `layers/` + someID + `": no container`},
		"layer with a torn record":   {layer(someID, "layer.json"), `layers/` + someID + `": no container`},
		"sealed layer without users": {layer(someID + "-0"), "nobody uses this layer"},
		"merged layer, torn":         {layer(someID+"-3m", "layer.json", "users/"+someID+"-3"), someID + `-3": this user is gone`},
		"sealed layer of no stack":   {both(layer(someID+"-0", "layer.json", "users/"+stack), link(base, "layers/"+someID+"-0/parent")), "this user is gone"},
		"sealed layer over another": {func() {
			layer(someID+"-0", "layer.json", "users/"+stack)()
			layer(someID+"-1", "layer.json", "users/"+someID+"-0")()
			link(someID+"-1", "layers/"+someID+"-0/parent")()
		}, "this user is gone"},
		"marks in a layer that lives": {func() {
			for _, user := range []string{someID + ".0", someID + "-7", someID + "-7m"} {
				check(t, os.WriteFile(f.dir+"/layers/"+base+"/users/"+user, nil, 0o600))
			}
		}, base + "/users/" + someID + `.0": this user is gone`},
		"mount point":               {func() { check(t, os.MkdirAll(f.dir+"/mnt/"+someID+"/rootfs", 0o755)) }, "no container has this mount point"},
		"mounts":                    {both(mount("mnt/"+someID+"/rootfs"), both(mount("mnt/"+someID+"/rootfs"), mount("mnt/"+someID+"/rootfs/x"))), "no container has this mount point"},
		"mount and layer":           {both(mount("mnt/"+someID+"/cache-0"), layer(someID)), "no container has this mount point"},
		"dropped pointer":           {link("1 "+someID+"-0 x", "caches/"+stack+"/dropped."+someID+"-0"), "whoever dropped this generation died"},
		"dropped pointer and layer": {both(link("1 "+someID+"-0 x", "caches/"+stack+"/dropped."+someID+"-0"), layer(someID+"-0", "layer.json", "users/"+stack)), "whoever dropped"},
		"empty cache":               {func() { check(t, os.Mkdir(f.dir+"/caches/"+stack, 0o700)) }, "whoever dropped this cache died"},
		"pointer to nothing":        {link("1 "+someID+"-0 x", "caches/"+stack+"/current"), "no container can have a copy"},
		"damaged pointer":           {link("damaged", "caches/"+stack+"/current"), "no container can have a copy"},
		"next pointer":              {link("1 "+someID+"-0 x", "caches/"+cachecopy.ID("key")+"/next"), "whoever published a generation died"},
		"next total":                {link("1 1 1", "caches.total.next"), `"caches.total.next"`},
		"half a store.json":         {func() { write(t, f.dir+"/store.json.tmp", "{") }, `"store.json.tmp"`},
		"probe":                     {both(layer("probe", "lower/x"), mount("mnt/probe/rootfs")), "a look at the host died"},
		"copy being made":           {both(link(someID, "images/1-2-3.making"), layer(someID)), "whoever copied this image died"},
		"pointer to no copy":        {link(someID, "images/1-2-3.copy"), "leads to a layer that is gone"},
		"pointer to half a copy":    {both(link(someID, "images/1-2-3.copy"), layer(someID)), "leads to a layer whose removal died"},
		"copy without a name":       {layer(someID, "layer.json", "users/"+strings.Repeat("0", 32)), "this user is gone"},
		"size of no image":          {func() { write(t, f.dir+"/images/1-2-3.size", "{}") }, ""},
		"half a size":               {func() { write(t, f.dir+"/images/1-2-3.size.tmp", "{") }, ""},
	} {
		before := inspect.Tree(t, f.dir, inspect.Keep)
		c.make()
		if c.want != "" {
			if all := f.said(); !strings.Contains(all, c.want) {
				t.Errorf("%s: check says %q, want %q", name, all, c.want)
			}
		}
		made := inspect.Tree(t, f.dir, inspect.Keep)
		if lines := f.gc(volumes.GCOptions{DryRun: true}); len(lines) == 0 {
			t.Errorf("%s: a dry run finds nothing", name)
		}
		inspect.Same(t, inspect.Tree(t, f.dir, inspect.Keep), made)
		f.gc(volumes.GCOptions{})
		if left := f.problems(); len(left) > 0 {
			t.Errorf("%s: %q is left", name, left)
		}
		inspect.Same(t, withoutTimes(inspect.Tree(t, f.dir, inspect.Keep)), withoutTimes(before))
		if t.Failed() {
			t.Fatal(name)
		}
	}
	if got := f.read("key", "file"); got != "one" {
		t.Errorf("the cache holds %q", got)
	}
	f.promote("live")
	if got := f.read("key", "live"); got != "live" {
		t.Errorf("the live copy became %q", got)
	}
}

// withoutTimes is a tree without the times of its files: those of directories change when something is made in them.
func withoutTimes(tree map[string]string) map[string]string {
	for name, line := range tree {
		tree[name] = changed.ReplaceAllString(line, "")
	}
	return tree
}

// A power cut may take the contents of records that were not flushed: of a layer that is used, of a live container.
func TestGCAfterTornRecords(t *testing.T) {
	f := newFixture(t, nil)
	f.generation("k", func(dir string) { write(t, dir+"/file", strings.Repeat("x", 1<<20)) })
	top := f.top(cachecopy.ID("k"))
	size := func() uint64 {
		t.Helper()
		list, err := f.List(t.Context())
		check(t, err)
		return list[0].Bytes
	}
	whole := size()
	check(t, os.Truncate(f.dir+"/layers/"+top+"/layer.json", 0))
	if size() == whole {
		t.Fatal("the record was not torn")
	}
	if lines := f.gc(volumes.GCOptions{}); len(lines) != 1 || !strings.Contains(lines[0], "measured anew") {
		t.Errorf("gc says %q", lines)
	}
	if got := size(); got != whole {
		t.Errorf("%d bytes, and %d before", got, whole)
	}

	v, err := f.Create(t.Context(), handle("h"), privileged, cachecopy.Cache{Key: "k"})
	check(t, err)
	record := f.dir + "/layers/" + v.ID + "/layer.json"
	check(t, os.Truncate(record, 10))
	if all := f.said(); !strings.Contains(all, `"volumes/live/h": the record`) {
		t.Errorf("check says %q", all)
	}
	if lines := f.gc(volumes.GCOptions{}); len(lines) > 0 {
		t.Errorf("gc of a live container: %q", lines)
	}
	_, _, err = f.Delete(t.Context(), handle("h"))
	check(t, err)
	// Nobody knows what it used, but gc.
	if lines := f.gc(volumes.GCOptions{}); len(lines) != 1 || !strings.Contains(lines[0], top+"/users/"+v.ID+".0") {
		t.Errorf("gc says %q", lines)
	}
}

// An entry that cannot be read may name any layer: nothing is taken for a leftover of containers until it is gone.
func TestGCBesideADamagedEntry(t *testing.T) {
	f := newFixture(t, nil)
	dir := f.open("h", "k", privileged, cachecopy.Always)
	write(t, dir+"/file", "")
	entry := f.dir + "/volumes/live/h"
	id, err := os.Readlink(entry)
	check(t, err)
	check(t, os.Remove(entry))
	check(t, os.Symlink("damaged", entry))
	write(t, f.dir+"/layers/"+someID+"/fs/file", "") // rubbish, which nobody can know now
	if all := f.said(); !strings.Contains(all, `"volumes/live/h": cannot be read`) {
		t.Errorf("check says %q", all)
	}
	if lines := f.gc(volumes.GCOptions{}); len(lines) > 0 {
		t.Errorf("gc says %q", lines)
	}
	write(t, dir+"/file", "still there")
	check(t, os.Remove(entry))
	check(t, os.Symlink(id, entry))
	if lines := f.gc(volumes.GCOptions{}); len(lines) != 1 {
		t.Errorf("gc says %q", lines)
	}
	f.promote("h")
}

// said is all that Check says.
func (f *fixture) said() string {
	f.t.Helper()
	found, err := f.Store().Check(context.Background())
	check(f.t, err)
	return fmt.Sprint(found)
}

// gcTime is how long the tests that race with GC run: long enough to find what is wrong in every try, or as long as BC_TEST_GC_TIME says.
func gcTime(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("BC_TEST_GC_TIME")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	check(t, err)
	return d
}

// TestGCBesideEverything: containers are made, written to, promoted and deleted, with shared caches and shifted copies, caches are dropped, others collect, and none of
// it fails; and whoever looks, at any moment, takes nothing of it for a problem (case 22).
func TestGCBesideEverything(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 3 })
	copying := volumes.Options{Dir: f.dir, Driver: overlay.New(overlay.Options{IDMap: overlay.Copy}), MaxLayers: 3, Warn: f.warn}
	image := newDir(t)
	write(t, image+"/file", "image")
	ctx, cancel := context.WithTimeout(t.Context(), gcTime(t))
	defer cancel()
	var all sync.WaitGroup
	loop := func(body func(n int)) {
		all.Go(func() {
			for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
				body(n)
			}
		})
	}
	always := context.WithoutCancel(ctx)
	var made, promoted, dropped, looks, collections atomic.Int64
	for w := range 20 {
		caches := f.Caches
		if w%4 == 0 {
			caches = cachecopy.New(copying, cachecopy.Options{})
		}
		h := handle(fmt.Sprintf("worker-%d", w))
		loop(func(n int) {
			img, err := volumes.OpenImage(image)
			if err != nil {
				t.Error(err)
				return
			}
			defer img.Close()
			cache := cachecopy.Cache{Key: fmt.Sprint("key-", (w+n)%3), Promote: cachecopy.Always}
			v, err := caches.Create(always, h, volumes.Request{Image: img, Privileged: w%2 == 1}, cache)
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			for _, dir := range []string{v.Root, v.Copies[0]} {
				if err := os.WriteFile(fmt.Sprintf("%s/%d-%d", dir, w, n), []byte("x"), 0o644); err != nil {
					t.Errorf("touch: %v", err)
				}
			}
			d, _, err := caches.Delete(always, h)
			if err != nil {
				t.Errorf("delete: %v", err)
			}
			made.Add(1)
			for _, e := range d.Copies {
				if e.Promoted {
					promoted.Add(1)
				}
			}
		})
	}
	loop(func(n int) {
		err := f.Drop(always, cachecopy.ID(fmt.Sprint("key-", n%3)))
		if err == nil {
			dropped.Add(1)
		} else if !errors.Is(err, volumes.ErrNotFound) {
			t.Errorf("drop: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	})
	for range 2 {
		loop(func(int) {
			found, err := f.GC(always, volumes.GCOptions{})
			if err != nil {
				t.Errorf("gc: %v", err)
			}
			for _, c := range found {
				t.Errorf("gc took for a leftover %s (%v)", c.Problem, c.Err)
			}
			collections.Add(1)
		})
	}
	loop(func(int) {
		found, err := f.Store().Check(always)
		if err != nil {
			t.Errorf("check: %v", err)
		}
		for _, p := range found {
			t.Errorf("check took for a problem %s", p)
		}
		looks.Add(1)
	})
	all.Wait()
	t.Logf("%d containers, %d promoted, %d drops, %d looks, %d collections", made.Load(), promoted.Load(), dropped.Load(), looks.Load(), collections.Load())
	check(t, os.RemoveAll(image)) // nobody needs its copy now
	f.gc(volumes.GCOptions{})
	if made.Load() < 20 || promoted.Load() < 3 || dropped.Load() < 1 || looks.Load() < 1 || collections.Load() < 1 {
		t.Error("too little was done to show anything")
	}
}
