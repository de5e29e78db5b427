package bcserver

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest"
)

// The suite of the embedded store, on real servers of each driver.
func TestConformance(t *testing.T) {
	for _, server := range []bctest.Options{
		{Driver: "overlay"}, {Driver: "btrfs", SizeMiB: 2048}, {Driver: "naive"},
	} {
		t.Run(server.Driver+server.Version, func(t *testing.T) {
			s := start(t, server)
			c := NewClient(s.URL)
			t.Cleanup(func() { // copies of images stay until the image is gone and gc is run
				all, err := c.List(context.Background(), nil)
				for _, v := range all {
					if v.Properties[propRole] != roleImage {
						t.Errorf("volume %q is left: %v", v.Handle, v.Properties)
					}
					check(t, c.Destroy(context.Background(), v.Handle))
				}
				check(t, err)
				wantClean(t, s)
			})
			stores := filepath.Dir(s.Volumes) + "/stores" // and images: a file copied up from another file system gets another inode number
			check(t, os.Mkdir(stores, 0o755))
			for _, m := range []struct {
				idMap  overlay.IDMap
				canMap bool
			}{{overlay.Auto, true}, {overlay.Copy, false}} {
				if m.idMap == overlay.Copy && server.Driver != "overlay" {
					continue
				}
				t.Run(string(m.idMap), func(t *testing.T) {
					dir := stores + "/" + string(m.idMap)
					check(t, os.Mkdir(dir, 0o755))
					volumetest.Run(t, volumetest.Config{
						Driver: New(Options{URL: s.URL, Overlay: overlay.Options{IDMap: m.idMap}}), Dir: dir, CanMap: m.canMap,
						Upper: "volume/fs", Record: "server.json",
					})
				})
			}
		})
	}
}
