package bcserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
)

// Find implements [volumes.Finder]: properties tell which volume was made for which container. It has the server look at all its volumes.
func (d *Driver) Find(ctx context.Context, layers, container string, adopt func(container, name string) (bool, error)) error {
	want := map[string]string{propStore: printable(filepath.Dir(layers))}
	if container != "" {
		want[propContainer] = printable(container)
	}
	all, err := d.client.List(ctx, want)
	if err != nil {
		return err
	}
	for _, v := range all {
		p, ok := parsePlace(v.Path)
		if r := v.Properties[propRole]; !ok || r != roleRoot && r != roleCopy {
			continue
		}
		container, err := url.PathUnescape(v.Properties[propContainer])
		if err != nil {
			continue // somebody else's idea of our property
		}
		yes, err := adopt(container, v.Properties[propLayer])
		if err != nil {
			return err
		}
		if yes {
			if err := p.write(filepath.Join(layers, v.Properties[propLayer])); err != nil {
				return err
			}
		}
	}
	return nil
}

// Strays implements [volumes.Sweeper]: the server's volumes of this store to which no layer's pointer leads.
//
// A pointer is made before its volume and removed after it, and its layer changes its name once at most, when a copy becomes a layer of its own. So who
// lists the volumes first, and then misses a pointer twice, has found a volume that has none.
//
// Where containers were found by Find, after the store's directory was lost, layers of caches and copies of images are no strays: what the containers
// stand on is not known any more.
func (d *Driver) Strays(ctx context.Context, layers string) ([]volumes.Stray, error) {
	all, err := d.client.List(ctx, map[string]string{propStore: printable(filepath.Dir(layers))})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	known := map[string]bool{}
	found := false
	for range 2 {
		names, err := os.ReadDir(layers)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			dir := filepath.Join(layers, n.Name())
			places, err := placesBelow(dir)
			if err != nil {
				return nil, err
			}
			for _, p := range places {
				known[p.handle] = true
			}
			// The record is made before the pointer, but for a found one, which has none.
			if found || len(places) == 0 || !ids.Valid(n.Name()) {
				continue
			}
			recorded, err := durable.Exists(dir + "/layer.json")
			if err != nil {
				return nil, err
			}
			there, err := durable.Exists(dir)
			if err != nil {
				return nil, err
			}
			found = !recorded && there
		}
	}
	var strays []volumes.Stray
	for _, v := range all {
		if r := v.Properties[propRole]; known[v.Handle] || !ids.Valid(v.Handle) || found && (r == roleLayer || r == roleImage) {
			continue
		}
		strays = append(strays, volumes.Stray{
			Name:   fmt.Sprintf("volume %s of BaggageClaim server %s", v.Handle, d.opts.URL),
			Remove: func(ctx context.Context) error { return d.destroy(ctx, layers, place{handle: v.Handle}) },
		})
	}
	return strays, nil
}

// VolumesOf returns the server's directory of volumes, if it has a volume of that name: an image.
func (d *Driver) VolumesOf(ctx context.Context, volume string) (string, error) {
	v, err := d.client.Volume(ctx, volume)
	if errors.Is(err, ErrNoVolume) {
		return "", fmt.Errorf("parent missing: %w", err)
	}
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(filepath.Dir(filepath.Dir(v.Path)))
	if (place{dir, volume}).tree() != v.Path {
		return "", fmt.Errorf("BaggageClaim server %s has volume %q at %q: this is not where the servers that we know have theirs", d.opts.URL, volume, v.Path)
	}
	return dir, nil
}

// Examine implements [volumes.Examiner].
func (d *Driver) Examine(ctx context.Context, layers string) []volumes.Finding {
	var found []volumes.Finding
	add := func(l volumes.Level, format string, args ...any) {
		found = append(found, volumes.Finding{Level: l, Text: fmt.Sprintf(format, args...)})
	}
	s, err := readServer(layers)
	if err != nil {
		add(volumes.Fail, "%v", err)
		return found
	}
	all, err := d.client.List(ctx, nil)
	if err != nil {
		add(volumes.Fail, "%v", err)
		return found
	}
	version := "v1.9 or older"
	if d.client.knowsP2P(ctx) {
		version = "v1.10 or newer"
	}
	add(volumes.OK, "BaggageClaim server %s answers (%s): driver %s, volumes in %q", d.opts.URL, version, s.Driver, s.Volumes)

	mounts, err := mnt.Stacked()
	if err != nil {
		add(volumes.Warn, "look for mounts on its volumes: %v", err)
	}
	var foreign, other int
	var stacked, gone []string
	for _, v := range all {
		switch store := v.Properties[propStore]; {
		case store == "":
			foreign++
		case store != printable(filepath.Dir(layers)):
			other++
		}
		p, ok := parsePlace(v.Path)
		if !ok {
			continue // a stranger's handle
		}
		if mounts[p.tree()] > 1 {
			stacked = append(stacked, v.Handle)
		}
		if err := s.check(p); err != nil {
			gone = append(gone, v.Handle)
		}
	}
	if foreign > 0 {
		add(volumes.Warn, "it has %d volumes that no plugin made. If it is a Concourse worker's own, the ATC destroys every volume that it does not know, ours too: run another server for the plugin (see the operator's guide)", foreign)
	}
	if other > 0 {
		add(volumes.Warn, "it has %d volumes of plugins with other stores", other)
	}
	if len(stacked) > 0 {
		add(volumes.Warn, "several mounts are stacked on %d of its volumes, such as %q: it was restarted without a reboot. It cannot destroy them any more; the plugin's delete cleans up after it", len(stacked), stacked[0])
	}
	if len(gone) > 0 {
		add(volumes.Fail, "%d of its volumes cannot be seen here, such as %q: does it run on this host, in this mount namespace, and are its mounts there?", len(gone), gone[0])
	}
	return found
}
