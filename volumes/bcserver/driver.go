package bcserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/concourse/baggageclaim"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"golang.org/x/sys/unix"
)

// Options of the driver. URL must be set.
type Options struct {
	URL     string // of the server, as [ParseURL] returns it
	Overlay overlay.Options
}

// Driver implements [volumes.Driver] with volumes of a BaggageClaim server. Its state is in the layers' directories and in server.json beside them.
type Driver struct {
	opts   Options
	mounts *overlay.Driver
	client *Client
}

// New returns the driver. It makes no connection.
func New(opts Options) *Driver {
	return &Driver{opts: opts, mounts: overlay.New(opts.Overlay), client: NewClient(opts.URL)}
}

// Name is "baggageclaim".
func (d *Driver) Name() string { return "baggageclaim" }

// CanMap says whether layers can be id-mapped here, and may be.
func (d *Driver) CanMap(f volumes.Features) bool { return d.mounts.CanMap(f) }

// Probe implements [volumes.Driver]: it looks what kind of server made the scratch volume, and mounts scratch overlays in it.
func (d *Driver) Probe(ctx context.Context, scratch volumes.View) (volumes.Features, error) {
	p, err := readPlace(filepath.Join(scratch.Layers, scratch.Upper))
	if err != nil {
		return volumes.Features{}, err
	}
	s, err := d.learn(ctx, scratch.Layers, p)
	if err != nil {
		return volumes.Features{}, err
	}
	if err := d.findLost(ctx, scratch.Layers); err != nil {
		return volumes.Features{}, err
	}
	scratch.Layers, scratch.Upper = p.tree(), "."
	f, err := d.mounts.Probe(ctx, scratch)
	if err != nil {
		err = fmt.Errorf("in a volume of BaggageClaim server %s (driver %s): %w", s.URL, s.Driver, err)
	}
	return f, err
}

// learn finds out about the server by the volume that it has just made at p, and keeps that.
func (d *Driver) learn(ctx context.Context, layers string, p place) (server, error) {
	s, err := look(d.opts.URL, p)
	if err == nil {
		err = d.shared(ctx, p)
	}
	if err != nil {
		return s, err
	}
	lock, err := durable.OpenLock(filepath.Dir(layers) + "/lock")
	if err != nil {
		return s, err
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Records, "server.json"); err != nil {
		return s, err
	}
	return s, durable.WriteJSON(recordPath(layers), s)
}

// shared looks whether the server sees what is written to its volume here. A server in another mount namespace has its mounts to itself: here
// are the empty directories below them, which look like volumes.
func (d *Driver) shared(ctx context.Context, p place) error {
	const name = "seen"
	if err := os.WriteFile(p.tree()+"/"+name, nil, 0o600); err != nil {
		return err
	}
	switch sees, err := d.client.Sees(ctx, p.handle, name); {
	case err != nil:
		return err
	case !sees:
		return fmt.Errorf("%w: BaggageClaim server %s does not see what is written to its volume %q here: it has to run on this host, in this mount namespace",
			volumes.ErrUnsupported, d.opts.URL, p.tree())
	}
	return os.Remove(p.tree() + "/" + name)
}

// The properties of our volumes. The server knows nothing about them; they are for people, for gc, and for when the store's directory is lost.
const (
	propStore     = "bc-image-plugin-store"     // path of the store's directory: every volume of ours has it
	propLayer     = "bc-image-plugin-layer"     // name of the layer it was made for
	propContainer = "bc-image-plugin-container" // handle of the container it was made for, percent-encoded like a path
	propRole      = "bc-image-plugin-role"
	propCreated   = "bc-image-plugin-created" // RFC 3339
)

// The values of propRole.
const (
	roleRoot  = "rootfs" // what a container writes to its root file system
	roleCopy  = "cache"  // what a container writes to its copy of a cache
	roleLayer = "layer"  // a layer of a cache, or one that others are merged into
	roleImage = "image"  // a shifted copy of an image
)

func role(name, container string) string {
	switch _, part, nested := strings.Cut(name, "/"); {
	case nested && strings.HasPrefix(part, "cache-"):
		return roleCopy
	case nested:
		return roleLayer
	case container != "":
		return roleRoot
	}
	return roleImage
}

// New implements [volumes.Driver]: it has the server make an empty volume for each layer, all at once.
//
// Every volume is asked for once, under a fresh handle: a second creation of a handle would destroy what the first one holds. It is privileged, which makes the
// server leave owners alone.
func (d *Driver) New(ctx context.Context, layers string, names []string, container string) error {
	s, err := readServer(layers)
	if err != nil {
		return err
	}
	if s.URL != d.opts.URL {
		s = server{} // it is another server
	}
	places := make([]place, len(names))
	for i, name := range names {
		h, err := ids.New()
		if err != nil {
			return err
		}
		places[i] = place{s.Volumes, h}
		// Intent first: whatever becomes of us, the volume is found.
		if err := places[i].write(filepath.Join(layers, name)); err != nil {
			return err
		}
		if err := d.client.Start(ctx, request(h, layers, name, container)); err != nil {
			return d.explain(s, err)
		}
	}
	for i, name := range names {
		v, err := d.client.Wait(ctx, places[i].handle)
		if err != nil {
			return d.explain(s, err)
		}
		p, ok := parsePlace(v.Path)
		if !ok || p.handle != places[i].handle {
			return fmt.Errorf("BaggageClaim server %s made volume %q at %q: this is not where the servers that we know do", d.opts.URL, places[i].handle, v.Path)
		}
		if p != places[i] { // the server was not known, is another one, or was started anew with another directory
			if err := p.write(filepath.Join(layers, name)); err != nil {
				return err
			}
			if s.Volumes != p.volumes {
				if s, err = d.learn(ctx, layers, p); err != nil {
					return err
				}
			}
		}
		if err := s.check(p); err != nil {
			return err
		}
	}
	return nil
}

func request(handle, layers, name, container string) baggageclaim.VolumeRequest {
	r := baggageclaim.VolumeRequest{
		Handle: handle, Strategy: baggageclaim.EmptyStrategy{}.Encode(), Privileged: true,
		Properties: baggageclaim.VolumeProperties{
			propStore: printable(filepath.Dir(layers)), propLayer: name, propRole: role(name, container),
			propCreated: time.Now().UTC().Format(time.RFC3339),
		},
	}
	if container != "" {
		r.Properties[propContainer] = printable(container)
	}
	return r
}

// printable percent-encodes a path or a handle: JSON is UTF-8, and these need not be.
func printable(s string) string { return (&url.URL{Path: s}).EscapedPath() }

// explain adds to the server's bare "failed" what may be the reason, as far as it can be seen from here.
func (d *Driver) explain(s server, err error) error {
	var fs unix.Statfs_t
	if !errors.Is(err, ErrServer) || s.Volumes == "" || unix.Statfs(s.Volumes, &fs) != nil {
		return err
	}
	inodes := "inodes as needed"
	if fs.Files > 0 {
		inodes = fmt.Sprintf("%d inodes", fs.Ffree)
	}
	state := ""
	if fs.Flags&unix.ST_RDONLY != 0 {
		state = ", and it is mounted read-only"
	}
	return fmt.Errorf("%w (free in its %q: %d MiB, %s%s)", err, s.Volumes, fs.Bavail*uint64(fs.Bsize)>>20, inodes, state)
}

// Tree implements [volumes.Driver].
func (d *Driver) Tree(layers, name string) (string, error) {
	p, err := readPlace(filepath.Join(layers, name))
	return p.tree(), err
}

// Freeze implements [volumes.Driver].
func (d *Driver) Freeze(ctx context.Context, target string) error {
	return d.mounts.Freeze(ctx, target)
}

// Home implements [volumes.Driver]. Before the server is known it is the store's own.
func (d *Driver) Home(layers string) string {
	if s, err := readServer(layers); err == nil && s.Volumes != "" {
		return s.Volumes
	}
	return layers
}

// Holds implements [volumes.Driver]. Images may well be volumes of the same server, but not those that a plugin made.
func (d *Driver) Holds(layers, path string) bool {
	s, err := readServer(layers)
	if err != nil || s.Volumes == "" {
		return false
	}
	if s.Overlays != "" && strings.HasPrefix(path+"/", s.Overlays+"/") {
		return true
	}
	rest, ok := strings.CutPrefix(path, s.Volumes+"/")
	part := strings.Split(rest, "/") // state, handle, "volume", …
	if !ok || len(part) < 2 || !ids.Valid(part[1]) {
		return false
	}
	var p baggageclaim.VolumeProperties
	err = durable.ReadJSON(filepath.Join(s.Volumes, part[0], part[1], "properties.json"), &p)
	return err == nil && p[propStore] != ""
}

// Mount implements [volumes.Driver].
func (d *Driver) Mount(ctx context.Context, f volumes.Features, v volumes.View) error {
	// Each volume may be a mount of its own, so each layer is mapped by itself, and not all by their common directory.
	lowers := make([]volumes.Lower, len(v.Lowers))
	for i, l := range v.Lowers {
		lowers[i] = l
		if l.Layer == "" {
			continue
		}
		tree, err := d.Tree(v.Layers, l.Layer)
		if err != nil {
			return err
		}
		dir, err := os.OpenFile(tree+"/fs", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer dir.Close()
		lowers[i] = volumes.Lower{Dir: dir, Map: v.UpperMapped}
	}
	tree, err := d.Tree(v.Layers, v.Upper)
	if err != nil {
		return err
	}
	v.Layers, v.Upper, v.Lowers = tree, ".", lowers
	return d.mounts.Mount(ctx, f, v)
}

// Unmount implements [volumes.Driver].
func (d *Driver) Unmount(ctx context.Context, dir string) error { return d.mounts.Unmount(ctx, dir) }

// Usage implements [volumes.Driver].
func (d *Driver) Usage(ctx context.Context, layers, name string) (volumes.LayerUsage, error) {
	tree, err := d.Tree(layers, name)
	if err != nil {
		return volumes.LayerUsage{}, err
	}
	return d.mounts.Usage(ctx, "/", tree)
}

// Changed implements [volumes.Driver].
func (d *Driver) Changed(layers, upper, below string) (bool, error) {
	names := []string{upper}
	if below != "" {
		names = append(names, below)
	}
	trees, err := d.trees(layers, names...)
	if err != nil {
		return false, err
	}
	if below != "" {
		below = trees[1]
	}
	return d.mounts.Changed("/", trees[0], below)
}

// Seal implements [volumes.Driver]. The volume is from now on a layer, also for who looks at the server.
func (d *Driver) Seal(ctx context.Context, layers, upper string) error {
	p, err := readPlace(filepath.Join(layers, upper))
	if err != nil {
		return err
	}
	if err := d.client.SetProperty(ctx, p.handle, propRole, roleLayer); err != nil {
		return err
	}
	return d.mounts.Seal(ctx, "/", p.tree())
}

// Merge implements [volumes.Driver]. Where volumes are mounts or subvolumes of their own, files are copied.
func (d *Driver) Merge(ctx context.Context, layers string, from, below []string, into string) error {
	fromTrees, err := d.trees(layers, from...)
	if err != nil {
		return err
	}
	belowTrees, err := d.trees(layers, below...)
	if err != nil {
		return err
	}
	tree, err := d.Tree(layers, into)
	if err != nil {
		return err
	}
	return d.mounts.Merge(ctx, "/", fromTrees, belowTrees, tree)
}

// trees returns the trees of several layers.
func (d *Driver) trees(layers string, names ...string) ([]string, error) {
	var all []string
	for _, name := range names {
		tree, err := d.Tree(layers, name)
		if err != nil {
			return nil, err
		}
		all = append(all, tree)
	}
	return all, nil
}

var (
	_ volumes.Driver   = (*Driver)(nil)
	_ volumes.Finder   = (*Driver)(nil)
	_ volumes.Examiner = (*Driver)(nil)
	_ volumes.Sweeper  = (*Driver)(nil)
)
