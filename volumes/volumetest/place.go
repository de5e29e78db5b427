package volumetest

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
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// place is where one test happens: a store and the images it uses. In the end nothing of a container may be left in the store,
// nothing may be mounted below it, and the images are as they were.
type place struct {
	*testing.T
	Config
	dir   string // holds the store and the images
	store string // the store's directory
	*volumes.Store
}

// slot is the kind of container, as gdn has a plugin for each.
type slot bool

const (
	unprivileged slot = false
	privileged   slot = true
)

var slots = []slot{unprivileged, privileged}

func (s slot) String() string {
	if s == privileged {
		return "privileged"
	}
	return "unprivileged"
}

// root is the owner of the files of the container's root, as the host sees them.
func (s slot) root() uint32 {
	if s == privileged {
		return 0
	}
	return inspect.MaxID
}

func newPlace(t *testing.T, c Config) *place {
	dir, err := os.MkdirTemp(c.Dir, "place-")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{T: t, Config: c, dir: dir, store: dir + "/store"}
	p.check(os.Chmod(dir, 0o755))
	p.Cleanup(p.tearDown)
	p.Cleanup(p.isEmpty)
	p.Store = p.open(nil)
	return p
}

// open returns the store with other options than usual.
func (p *place) open(edit func(*volumes.Options)) *volumes.Store {
	o := volumes.Options{Dir: p.store, Driver: p.Driver, NeverCopy: p.NeverCopy, Warn: func(err error) { p.Errorf("warning: %v", err) }}
	if edit != nil {
		edit(&o)
	}
	return volumes.New(o)
}

// tearDown takes everything away, also after a test that failed.
func (p *place) tearDown() {
	for m := inspect.Mounts(p, p.dir); len(m) > 0; m = m[:len(m)-1] {
		inspect.Unmount(p, m[len(m)-1])
	}
	if os.RemoveAll(p.dir) != nil {
		_ = exec.Command("chattr", "-R", "-f", "-i", "-a", p.dir).Run() // it fails at what has no flags
		inspect.Command(p, "rm", "-rf", p.dir)
	}
}

// isEmpty fails the test if anything of a container is left in the store: in its directories, or mounted below it. A copy of an image may
// stay if images/ names it.
func (p *place) isEmpty() {
	p.Helper()
	p.isEmptyBut("-")
}

// isEmptyBut is isEmpty where the names that begin with purpose may be left on purpose.
func (p *place) isEmptyBut(purpose string) {
	p.Helper()
	inspect.Sound(p, func(ctx context.Context) ([]volumes.Problem, error) {
		problems, err := p.Check(ctx)
		return slices.DeleteFunc(problems, func(one volumes.Problem) bool { return strings.HasPrefix(one.Path, purpose) }), err
	})
	if left := inspect.Mounts(p, p.store); len(left) > 0 {
		p.Errorf("mounts are left: %q", left)
	}
	for _, dir := range []string{"volumes/init", "volumes/live", "volumes/dead", "mnt", "caches"} {
		if left := p.names(dir); len(left) > 0 {
			p.Errorf("%s holds %q", dir, left)
		}
	}
	copies := p.copiesKept()
	for _, id := range p.names("layers") {
		if !slices.Contains(copies, id) {
			p.Errorf("layers holds %q", id)
		}
	}
	for _, name := range p.names("") {
		if !slices.Contains([]string{"caches", "images", "layers", "lock", "mnt", "store.json", "volumes"}, name) && name != p.Record {
			p.Errorf("the store holds %q", name)
		}
	}
}

// names are those in a directory of the store, or none if it does not exist.
func (p *place) names(dir string) []string {
	p.Helper()
	entries, err := os.ReadDir(filepath.Join(p.store, dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// copiesKept are the layers of shifted copies, whole ones and others.
func (p *place) copiesKept() []string {
	p.Helper()
	var all []string
	for _, name := range p.names("images") {
		if strings.HasSuffix(name, ".copy") || strings.HasSuffix(name, ".making") {
			id, err := os.Readlink(p.store + "/images/" + name)
			p.check(err)
			all = append(all, id)
		}
	}
	return all
}

func (p *place) check(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *place) handle(s string) volumes.Handle {
	p.Helper()
	h, err := volumes.ParseHandle(s)
	p.check(err)
	return h
}

// make calls Create of any store for the image directory.
func (p *place) make(ctx context.Context, s *volumes.Store, handle, image string, slot slot) (*volumes.Volume, error) {
	p.Helper()
	img, err := volumes.OpenImage(image)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	return s.Create(ctx, p.handle(handle), volumes.Request{Image: img, Privileged: bool(slot)})
}

// create makes a container, which must work.
func (p *place) create(handle, image string, slot slot) *volumes.Volume {
	p.Helper()
	v, err := p.make(p.Context(), p.Store, handle, image, slot)
	p.check(err)
	return v
}

// patience is how long a delete may wait for a root that nobody uses: programs that other tests start hold files for a moment. It only bounds how
// long a test takes to fail.
const patience = 30 * time.Second

// delete removes a container, which must work.
func (p *place) delete(handle string) volumes.Deleted {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer cancel()
	d, err := p.Delete(ctx, p.handle(handle))
	p.check(err)
	return d
}

// wantError fails the test if err does not wrap is and say all of want.
func (p *place) wantError(what string, err, is error, want ...string) {
	p.Helper()
	if !errors.Is(err, is) {
		p.Errorf("%s: error %v, want one that wraps %q", what, err, is)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			p.Errorf("%s: error %q does not say %q", what, err, w)
		}
	}
}

// image makes an image: an inspect.Zoo, with the ids of a volume that BaggageClaim shifted or not. It must not change during the test.
func (p *place) image(name string, shifted bool) string {
	p.Helper()
	dir := p.path(name)
	p.check(os.Mkdir(dir, 0o755))
	inspect.Zoo(p, dir)
	if shifted {
		inspect.Shift(p, dir)
	}
	before := inspect.Tree(p, dir, inspect.Keep)
	p.Cleanup(func() { inspect.Same(p, inspect.Tree(p, dir, inspect.Keep), before) })
	return dir
}

// small makes an image of one file, which the test may change. Its root is 0.
func (p *place) small(name string) string {
	p.Helper()
	dir := p.path(name)
	p.check(os.Mkdir(dir, 0o755))
	p.write(dir+"/file", "lower")
	return dir
}

// suits is whether a container of a slot can be made from an image here, and needsMap whether it has to be shown under the other ownership.
func (p *place) suits(shifted bool, s slot) (suits, needsMap bool) {
	needsMap = shifted == (s == privileged)
	return !needsMap || p.CanMap || p.copies(), needsMap
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) write(path, content string) {
	p.Helper()
	p.check(os.WriteFile(path, []byte(content), 0o644))
}

func (p *place) read(path string) string {
	p.Helper()
	b, err := os.ReadFile(path)
	p.check(err)
	return string(b)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// editRecord changes a key of a JSON file of the store.
func (p *place) editRecord(name, key, value string) {
	p.Helper()
	record := map[string]any{}
	p.check(json.Unmarshal([]byte(p.read(p.store+"/"+name)), &record))
	if _, ok := record[key]; !ok {
		p.Fatalf("%s has no %q, so nothing would be tested", name, key)
	}
	record[key] = value
	b, err := json.Marshal(record)
	p.check(err)
	p.write(p.store+"/"+name, string(b))
}

// mountTmpfs makes the directory dir, if need be, and mounts a tmpfs on it.
func (p *place) mountTmpfs(dir string) {
	p.Helper()
	p.check(os.MkdirAll(dir, 0o755))
	if err := unix.Mount("volumetest", dir, "tmpfs", 0, "mode=0755"); err != nil {
		p.Fatalf("mount tmpfs on %q: %v", dir, err)
	}
}

// overlayOf makes an overlay mount whose lower layer is dir: what BaggageClaim makes of a copied volume.
func (p *place) overlayOf(dir, name string) string {
	p.Helper()
	at := p.path(name)
	for _, d := range []string{at, at + ".upper", at + ".work"} {
		p.check(os.Mkdir(d, 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s.upper,workdir=%s.work,index=off", dir, at, at)
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		p.Fatalf("mount an overlay: %v", err)
	}
	// The merged top has the attributes of the upper's: here they are plain, its owner is 0.
	return at
}
