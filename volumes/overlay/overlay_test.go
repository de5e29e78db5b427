package overlay

import (
	"fmt"
	"os"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func size(mib int64) string { return fmt.Sprintf("%dm", mib) }

func TestConformance(t *testing.T) {
	inspect.NeedRoot(t)
	for _, kind := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			fs := newFS(t, kind, 600)
			for _, c := range []struct {
				idMap             IDMap
				canMap, neverCopy bool
			}{
				{Auto, true, false},
				{Mount, true, true}, // as --idmap mount is used
				{Copy, false, false},
			} {
				t.Run(string(c.idMap), func(t *testing.T) {
					t.Parallel()
					dir := fs + "/" + string(c.idMap)
					must(t, os.Mkdir(dir, 0o755))
					volumetest.Run(t, volumetest.Config{
						Driver: New(Options{IDMap: c.idMap}), Dir: dir, Upper: "fs", CanMap: c.canMap, NeverCopy: c.neverCopy,
					})
				})
			}
		})
	}
}
