package cachecopy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// The marker is taken off before the copy is sealed: a delete that was killed between the two took the commit with it.
func TestKilledPromotionKeepsTheCommit(t *testing.T) {
	for step, generations := range map[string]int{
		"before Changed": 3, "before Seal": 3, "after Seal": 3, "before Merge": 3, "after Merge": 3,
		"after Changed": 0, "after Seal, alone": 0, // the first generation, below which there is nothing to compare it with
	} {
		step = strings.TrimSuffix(step, ", alone")
		t.Run(fmt.Sprintf("%s/%d generations", step, generations), func(t *testing.T) {
			d := &faulty{panic: true}
			f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) {
				d.Driver = o.Driver
				o.Driver, o.MaxLayers = d, layersFor(step)
			})
			for i := range generations {
				f.generation("k", func(dir string) { check(t, writeGeneration(dir, fmt.Sprint("old ", i))) })
			}
			dir := f.open("h", "k", privileged, cachecopy.OnCommit)
			check(t, writeGeneration(dir, "new"))
			commit(t, dir)
			d.at = step
			die(t, func() { _, _, _ = f.Delete(t.Context(), handle("h")) })
			d.at = ""
			if end := f.end("h"); !end.Promoted {
				t.Errorf("the next delete: %+v, want it promoted", end)
			}
			if got := f.read("k", "part-0/file"); got != "new 0" {
				t.Errorf("the next copy has %q", got)
			}
			for _, name := range f.names("k") {
				if name == cachecopy.Marker {
					t.Error("the generation has the marker")
				}
			}
			f.verify()
		})
	}
}
