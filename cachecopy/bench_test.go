package cachecopy_test

import (
	"fmt"
	"testing"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// BenchmarkCycle is a container's create and delete, with a small change that becomes a generation. It must not depend on the size of the
// cache, nor on how many generations there were before; merging, once in seven times, is part of it.
func BenchmarkCycle(b *testing.B) {
	for _, files := range []int{10, 10_000} {
		for _, p := range []cachecopy.Promote{cachecopy.Never, cachecopy.Always} {
			b.Run(fmt.Sprintf("files=%d/promote=%s", files, p), func(b *testing.B) {
				inspect.NeedRoot(b)
				f := newFixture(b, nil)
				f.generation("k", func(dir string) {
					for i := range files {
						write(b, fmt.Sprintf("%s/%d/%d", dir, i%100, i), "x")
					}
				})
				for n := 0; b.Loop(); n++ {
					v, err := f.Create(b.Context(), handle("h"), volumes.Request{}, cachecopy.Cache{Key: "k", Promote: p})
					check(b, err)
					write(b, v.Copies[0]+"/0/changed", fmt.Sprint(n))
					_, _, err = f.Delete(b.Context(), handle("h"))
					check(b, err)
				}
			})
		}
	}
}
