package cachecopy_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// A drop that was killed after it took the pointer away left layers that nothing led to.
func TestKilledDropIsFinished(t *testing.T) {
	for name, finish := range map[string]func(f *fixture) error{
		"by the next drop": func(f *fixture) error {
			err := f.Drop(t.Context(), cachecopy.ID("k"))
			if !errors.Is(err, volumes.ErrNotFound) {
				return fmt.Errorf("%v, want that there is no such cache", err)
			}
			return nil
		},
		"by eviction": func(f *fixture) error {
			_, err := f.Store().Evict(t.Context(), volumes.Bounds{MaxAge: time.Hour}, 0)
			return err
		},
		"by a drop of the next generation": func(f *fixture) error {
			f.generation("k", func(dir string) { write(t, dir+"/again", "") })
			return f.Drop(t.Context(), cachecopy.ID("k"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			for i := range 3 {
				f.generation("k", func(dir string) { write(t, fmt.Sprintf("%s/gen-%d", dir, i), "") })
			}
			dir := f.dir + "/caches/" + cachecopy.ID("k")
			check(t, os.Rename(dir+"/current", dir+"/dropped."+f.top(cachecopy.ID("k"))))
			check(t, os.RemoveAll(f.dir+"/caches.total")) // so that eviction is due
			if got := f.names("k"); len(got) > 0 {
				t.Errorf("a dropped cache still holds %q", got)
			}
			check(t, finish(f))
			for _, dir := range []string{"layers", "caches"} {
				if left := readNames(t, f.dir+"/"+dir); len(left) > 0 {
					t.Errorf("left in %s: %q", dir, left)
				}
			}
		})
	}
}
