package cachecopy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// fixture is a store of its own for one test. At its end all containers are deleted and the store is looked through.
type fixture struct {
	*cachecopy.Caches
	t    testing.TB
	dir  string
	opts volumes.Options
	keep cachecopy.Options

	mu       sync.Mutex
	warnings []string
}

func newFixture(t testing.TB, change func(*volumes.Options, *cachecopy.Options)) *fixture {
	t.Helper()
	inspect.NeedRoot(t)
	f := &fixture{t: t}
	f.opts = volumes.Options{Dir: filepath.Join(newDir(t), "store"), Driver: overlay.New(overlay.Options{}), Warn: f.warn}
	if change != nil {
		change(&f.opts, &f.keep)
	}
	f.dir = f.opts.Dir
	f.Caches = cachecopy.New(f.opts, f.keep)
	t.Cleanup(f.finish)
	return f
}

// newDir is an empty directory that rm(1) removes in the end: it can cope with any depth. Containers' roots have to be able to cross it.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "caches")
	check(t, err)
	check(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if out, err := exec.Command("rm", "-rf", dir).CombinedOutput(); err != nil {
			t.Errorf("rm: %v: %.500s", err, out)
		}
	})
	return dir
}

// inMemory is a directory for a store whose test does so much that a disk would only be in the way.
func inMemory(t testing.TB) string {
	t.Helper()
	dir := newDir(t)
	check(t, unix.Mount("test", dir, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { check(t, unix.Unmount(dir, 0)) })
	return filepath.Join(dir, "store")
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) warn(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warnings = append(f.warnings, err.Error())
}

func (f *fixture) warned() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.warnings)
}

func handle(name string) volumes.Handle {
	h, err := volumes.ParseHandle(name)
	if err != nil {
		panic(err)
	}
	return h
}

var privileged = volumes.Request{Privileged: true}

// open makes container h with one cache and returns the copy's path.
func (f *fixture) open(h, key string, req volumes.Request, p cachecopy.Promote) string {
	f.t.Helper()
	v, err := f.Create(f.t.Context(), handle(h), req, cachecopy.Cache{Key: key, Promote: p})
	check(f.t, err)
	return v.Copies[0]
}

// end deletes container h and says what became of its only copy.
func (f *fixture) end(h string) volumes.CopyEnd {
	f.t.Helper()
	d, _, err := f.Delete(f.t.Context(), handle(h))
	check(f.t, err)
	if len(d.Copies) != 1 {
		f.t.Fatalf("delete %q: %d copies, want 1", h, len(d.Copies))
	}
	return d.Copies[0]
}

// promote ends h, which must become a generation.
func (f *fixture) promote(h string) volumes.CopyEnd {
	f.t.Helper()
	e := f.end(h)
	if !e.Promoted {
		f.t.Fatalf("%q is not promoted: %s", h, e.Reason)
	}
	return e
}

// generation makes one generation of key, by a container that calls change on its copy.
func (f *fixture) generation(key string, change func(dir string)) volumes.CopyEnd {
	f.t.Helper()
	dir := f.open("generation", key, privileged, cachecopy.Always)
	change(dir)
	return f.promote("generation")
}

// read is the content of a file in a fresh copy of key, "" if there is none.
func (f *fixture) read(key, name string) string {
	f.t.Helper()
	dir := f.open("reader", key, privileged, cachecopy.Never)
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	f.end("reader")
	return string(b)
}

// names are those in the top directory of a fresh copy of key.
func (f *fixture) names(key string) []string {
	f.t.Helper()
	dir := f.open("reader", key, privileged, cachecopy.Never)
	list := readNames(f.t, dir)
	f.end("reader")
	return list
}

// finish deletes what the test left alive and looks the store through.
func (f *fixture) finish() {
	ctx := context.Background() // the test's own is done
	list, err := f.Store().List(ctx)
	if err != nil {
		f.t.Error(err)
	}
	for _, e := range list {
		if _, _, err := f.Delete(ctx, handle(e.Handle)); err != nil {
			f.t.Error(err)
		}
	}
	f.verify()
	inspect.Sound(f.t, f.Store().Check)
}

// verify reports whatever is in the store that should not be there: mounts, layers that nobody names, users that do not exist, and users that
// are missing. Nobody may be working on the store.
func (f *fixture) verify() {
	f.t.Helper()
	if _, err := os.Stat(f.dir); errors.Is(err, os.ErrNotExist) {
		return
	}
	for _, st := range []string{"init", "dead"} {
		if names := readNames(f.t, f.dir+"/volumes/"+st); len(names) > 0 {
			f.t.Errorf("volumes/%s: %q is left", st, names)
		}
	}
	live := map[string]bool{}
	wantMounts := map[string]bool{}
	want := map[string][]string{} // the users that each layer must have
	var todo []string
	use := func(layer, user string) {
		if want[layer] == nil {
			todo = append(todo, layer)
		}
		want[layer] = append(want[layer], user)
	}
	for _, h := range readNames(f.t, f.dir+"/volumes/live") {
		id, err := os.Readlink(f.dir + "/volumes/live/" + h)
		check(f.t, err)
		live[id] = true
		for n, c := range f.copiesOf(id) {
			wantMounts[fmt.Sprintf("%s/cache-%d", id, n)] = true
			if c.Base != "" {
				use(c.Base, fmt.Sprintf("%s.%d", id, n))
			}
		}
	}
	for _, name := range readNames(f.t, f.dir+"/caches") {
		if names := readNames(f.t, f.dir+"/caches/"+name); !slices.Equal(names, []string{"current"}) {
			f.t.Errorf("caches/%s holds %q", name, names)
			continue
		}
		use(f.top(name), name)
	}
	for len(todo) > 0 {
		layer := todo[0]
		todo = todo[1:]
		if parent, err := os.Readlink(f.dir + "/layers/" + layer + "/parent"); err == nil {
			use(parent, layer)
		}
	}
	for layer, users := range want {
		slices.Sort(users)
		if got := readNames(f.t, f.dir+"/layers/"+layer+"/users"); !slices.Equal(got, users) {
			f.t.Errorf("layer %s is used by %q, want %q", layer, got, users)
		}
		names := slices.DeleteFunc(readNames(f.t, f.dir+"/layers/"+layer), func(n string) bool { return n == "durable" || n == "parent" })
		if !slices.Equal(names, []string{"fs", "layer.json", "users"}) {
			f.t.Errorf("layer %s holds %q", layer, names)
		}
	}
	for _, layer := range readNames(f.t, f.dir+"/layers") {
		if want[layer] == nil && !live[layer] {
			f.t.Errorf("layer %s: nobody names it; its users are %q", layer, readNames(f.t, f.dir+"/layers/"+layer+"/users"))
		}
	}
	for _, id := range readNames(f.t, f.dir+"/mnt") {
		if !live[id] {
			f.t.Errorf("mnt/%s is left", id)
		}
	}
	for _, m := range inspect.Mounts(f.t, f.dir) {
		if !wantMounts[strings.TrimPrefix(m, f.dir+"/mnt/")] && filepath.Base(m) != "rootfs" {
			f.t.Errorf("mount %q is left", m)
		}
	}
}

type copyRecord struct {
	Base   string
	Layers []string
}

func (f *fixture) copiesOf(id string) []copyRecord {
	f.t.Helper()
	var r struct{ Copies []copyRecord }
	b, err := os.ReadFile(f.dir + "/layers/" + id + "/layer.json")
	check(f.t, err)
	check(f.t, json.Unmarshal(b, &r))
	return r.Copies
}

// top is the topmost layer of a stack.
func (f *fixture) top(stack string) string {
	f.t.Helper()
	text, err := os.Readlink(f.dir + "/caches/" + stack + "/current")
	check(f.t, err)
	fields := strings.Fields(text)
	if len(fields) != 3 {
		f.t.Fatalf("pointer of %s: %q", stack, text)
	}
	return fields[1]
}

// chain are the layers of key's current generation, top first.
func (f *fixture) chain(key string) []string {
	f.t.Helper()
	layers := []string{f.top(cachecopy.ID(key))}
	for {
		parent, err := os.Readlink(f.dir + "/layers/" + layers[len(layers)-1] + "/parent")
		if err != nil {
			return layers
		}
		layers = append(layers, parent)
	}
}

func readNames(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	check(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func write(t testing.TB, path, content string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, []byte(content), 0o644))
}

func commit(t testing.TB, dir string) {
	t.Helper()
	write(t, filepath.Join(dir, cachecopy.Marker), "")
}
