package cachecopy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// What was durable stays durable when it is merged: a power cut right after it once left the bottom layer, or nothing. Also when the layers above are too young to have been
// flushed: then these are, with the rest.
func TestMergingKeepsWhatIsDurable(t *testing.T) {
	for _, bigBottom := range []bool{true, false} { // a big bottom is not merged
		for _, durable := range []int{8, 7, 2} { // layers, from the bottom
			t.Run(fmt.Sprintf("big bottom %v, %d durable", bigBottom, durable), func(t *testing.T) {
				f := newFixture(t, nil)
				var want []string
				for i := range 8 {
					f.generation("k", func(dir string) {
						name := fmt.Sprintf("gen-%d", i)
						write(t, dir+"/"+name, "")
						want = append(want, name)
						if i == 0 && bigBottom {
							for n := range 100 {
								name := fmt.Sprintf("bottom-%02d", n)
								write(t, dir+"/"+name, "some bytes")
								want = append(want, name)
							}
						}
					})
				}
				f.durable("k", []int{0, 1, 2, 3, 4, 5, 6, 7}[:durable]...)
				e := f.generation("k", func(dir string) { write(t, dir+"/new", "") })
				if layers := map[bool]int{true: 3, false: 2}[bigBottom]; e.Merged == 0 || e.Layers != layers {
					t.Errorf("it is %+v, want %d layers", e, layers)
				}
				slices.Sort(want)
				if got := f.names("k"); !slices.Equal(got, append(slices.Clone(want), "new")) {
					t.Errorf("the copy holds %q", got)
				}
				f.verify()
				f.reboot("k")
				if got := f.names("k"); !slices.Equal(got, want) {
					t.Errorf("after a power cut the copy holds %q, want what was durable, %q", got, want)
				}
				f.verify()
			})
		}
	}
}

// A merge that is killed, or whose copy is overtaken, leaves neither of its two layers.
func TestMergeOfDurableLayersCutShort(t *testing.T) {
	for _, step := range []string{"before Merge", "after Merge", "before Seal", "after Seal"} {
		for _, overtaken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/overtaken %v", step, overtaken), func(t *testing.T) {
				d := &faulty{}
				f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) {
					d.Driver = o.Driver
					o.Driver = d
				})
				for i := range 8 {
					f.generation("k", func(dir string) { check(t, writeGeneration(dir, fmt.Sprint("old ", i))) })
				}
				f.durable("k", 0, 1, 2, 3, 4, 5, 6, 7)
				dir := f.open("h", "k", privileged, cachecopy.OnCommit)
				check(t, writeGeneration(dir, "new"))
				commit(t, dir)
				*d = faulty{d.Driver, step, true}
				die(t, func() { _, _, _ = f.Delete(t.Context(), handle("h")) })
				*d = faulty{Driver: d.Driver}
				want := "new 0"
				if overtaken {
					f.generation("k", func(dir string) { check(t, writeGeneration(dir, "other")) })
					want = "other 0"
				}
				if end := f.end("h"); end.Promoted == overtaken {
					t.Errorf("the next delete: %+v", end)
				}
				if got := f.read("k", "part-0/file"); got != want {
					t.Errorf("the next copy has %q, want %q", got, want)
				}
				f.verify()
			})
		}
	}
}
