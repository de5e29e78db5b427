package overlay

import (
	"fmt"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// BenchmarkStore is the life of one root file system in this process, by how many files its image has and how it is made:
//
//	go test ./volumes/overlay -run '^$' -bench Store -count 10 | tee new.txt
//	go run golang.org/x/perf/cmd/benchstat@latest old.txt new.txt
func BenchmarkStore(b *testing.B) {
	inspect.NeedRoot(b)
	for _, files := range []int{10, 10_000} {
		for _, idMap := range []IDMap{Auto, Mount} {
			for _, privileged := range []bool{false, true} {
				b.Run(fmt.Sprintf("files=%d/idmap=%s/privileged=%t", files, idMap, privileged), func(b *testing.B) {
					s, img := newStore(b, inspect.NewDir(b)+"/store", idMap), newImage(b, files)
					for b.Loop() {
						_, err := create(b, s, "h", img, privileged)
						must(b, err)
						must(b, remove(b, s, "h"))
					}
				})
			}
		}
	}
}

// BenchmarkDeleteOfTheUnknown is what gdn asks the slot that has nothing of a container, for each one.
func BenchmarkDeleteOfTheUnknown(b *testing.B) {
	inspect.NeedRoot(b)
	s, img := newStore(b, inspect.NewDir(b)+"/store", Auto), newImage(b, 1)
	_, err := create(b, s, "h", img, false)
	must(b, err)
	must(b, remove(b, s, "h"))
	for b.Loop() {
		must(b, remove(b, s, "h"))
	}
}
