package volumes

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// fakeDriver mounts nothing. A nil field does what a driver does where there is nothing to do.
type fakeDriver struct {
	probe   func(View) (Features, error)
	mount   func(View) error
	unmount func(dir string) error
}

func (d fakeDriver) Name() string         { return "fake" }
func (d fakeDriver) CanMap(Features) bool { return false }
func (d fakeDriver) Probe(_ context.Context, v View) (Features, error) {
	if d.probe == nil {
		return Features{}, nil
	}
	return d.probe(v)
}

func (d fakeDriver) Mount(_ context.Context, _ Features, v View) error {
	if d.mount == nil {
		return nil
	}
	return d.mount(v)
}

func (d fakeDriver) Unmount(_ context.Context, dir string) error {
	if d.unmount == nil {
		return nil
	}
	return d.unmount(dir)
}

func (d fakeDriver) Usage(context.Context, string, string) (LayerUsage, error) {
	return LayerUsage{}, nil
}

func (d fakeDriver) Changed(string, string, string) (bool, error)                    { return false, nil }
func (d fakeDriver) Seal(context.Context, string, string) error                      { return nil }
func (d fakeDriver) Merge(context.Context, string, []string, []string, string) error { return nil }

func (d fakeDriver) Remove(_ context.Context, layers, name string) error {
	return os.RemoveAll(filepath.Join(layers, name))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTmpfs is a new tmpfs with mount options such as "size=1m".
func newTmpfs(t testing.TB, options string) string {
	t.Helper()
	inspect.NeedRoot(t)
	dir := inspect.NewDir(t)
	check(t, unix.Mount("test", dir, "tmpfs", 0, "mode=0755,"+options))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("umount: %v", err)
		}
	})
	return dir
}

func handle(t testing.TB, s string) Handle {
	t.Helper()
	h, err := ParseHandle(s)
	check(t, err)
	return h
}

// privileged is a request for a privileged container of an empty image.
func privileged(t testing.TB) Request {
	t.Helper()
	img, err := OpenImage(inspect.NewDir(t))
	check(t, err)
	t.Cleanup(func() { img.Close() })
	return Request{Image: img, Privileged: true}
}

// contents are the names in the directories of a store that must be empty when there is no container, of which there may be some, but no problems.
func contents(t testing.TB, s *Store) []string {
	t.Helper()
	inspect.Sound(t, s.Check)
	var all []string
	for _, dir := range []string{"layers", "volumes/init", "volumes/live", "volumes/dead", "images", "mnt"} {
		names, err := readNames(s.path(dir))
		check(t, err)
		for _, n := range names {
			all = append(all, dir+"/"+n)
		}
	}
	return all
}

func (fakeDriver) Freeze(context.Context, string) error { return nil }

func (fakeDriver) New(context.Context, string, []string, string) error { return nil }

func (fakeDriver) Tree(layers, name string) (string, error) { return layers + "/" + name, nil }

func (fakeDriver) Holds(string, string) bool { return false }

func (fakeDriver) Home(layers string) string { return layers }
