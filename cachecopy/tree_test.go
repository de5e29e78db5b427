package cachecopy_test

import (
	"regexp"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

var (
	// The number of names counts those in older layers.
	linkCount = regexp.MustCompile(` links \d+`)
	changed   = regexp.MustCompile(` changed \d+`)
)

// describe is inspect.Tree without what a copy does not keep: the number of names that a file has, and the time of the top directory.
func describe(t testing.TB, root string, id func(uint32) uint32) map[string]string {
	t.Helper()
	all := inspect.Tree(t, root, id)
	for name, line := range all {
		all[name] = linkCount.ReplaceAllString(line, "")
	}
	all["."] = changed.ReplaceAllString(all["."], "")
	return all
}

// id translates owners in a copy to what the container sees.
func id(privileged bool) func(uint32) uint32 {
	if privileged {
		return inspect.Keep
	}
	return inspect.Swap
}
