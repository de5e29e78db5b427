package bcserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// Remove implements [volumes.Driver].
func (d *Driver) Remove(ctx context.Context, layers, name string) error {
	dir := filepath.Join(layers, name)
	places, err := placesBelow(dir)
	if err != nil {
		return err
	}
	for _, p := range places {
		if err := d.destroy(ctx, layers, p); err != nil {
			return err
		}
	}
	return d.mounts.Remove(ctx, layers, name)
}

// placesBelow returns the volumes of the layer whose directory is dir, and of the layers in it: a container's copies.
func placesBelow(dir string) ([]place, error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dirs := []string{dir}
	for _, n := range names {
		if n.IsDir() {
			dirs = append(dirs, filepath.Join(dir, n.Name()))
		}
	}
	var all []place
	for _, dir := range dirs {
		switch p, err := readPlace(dir); {
		case err == nil:
			all = append(all, p)
		case !errors.Is(err, volumes.ErrNotFound):
			return nil, err
		}
	}
	return all, nil
}

// settle is how long a volume that the server no longer knows may be half-made or half-destroyed on its disk before nobody is working on it.
// Making an empty one takes it less than a millisecond.
const settle = 2 * time.Second

// destroy makes the server destroy a volume, in whatever state it is, and looks on the disk whether it is gone. After an error it can be
// called again.
//
// The server's word is not enough: it moves a volume to dead/ before it takes it apart, and a failure there is told once; afterwards it has
// "no such volume", while mount and files stay for ever. What it gave up is removed here, where nothing but a new volume of the same handle could make the
// server look at it again.
func (d *Driver) destroy(ctx context.Context, layers string, p place) error {
	s, err := readServer(layers)
	if err != nil {
		return err
	}
	if p.volumes == "" {
		p.volumes = s.Volumes
	}
	for end := time.Now().Add(settle); ; {
		err := d.client.Destroy(ctx, p.handle)
		switch {
		case err == nil:
			return sweep(ctx, s, p)
		case errors.Is(err, ErrServer) && p.volumes == "":
			return lose(layers, p)
		case errors.Is(err, ErrServer):
			live, lookErr := p.isIn("live")
			if lookErr != nil || live {
				return errors.Join(d.explain(s, err), lookErr) // it could not even begin
			}
			if sweepErr := sweep(ctx, s, p); sweepErr != nil {
				return fmt.Errorf("%w; what it left: %w", err, sweepErr)
			}
			return nil
		case !errors.Is(err, ErrNoVolume):
			return err
		}
		// It may be about to be made. That is waited for: of one that is cancelled meanwhile, nobody is told when the server has made and destroyed it.
		// Where the server does not say, it is cancelled all the same.
		if pending, err := d.client.Pending(ctx, p.handle); err == nil && pending {
			select {
			case <-ctx.Done():
				return stillMaking(ctx, p)
			case <-time.After(time.Millisecond):
			}
			continue
		}
		remembered, err := d.client.Forget(ctx, p.handle)
		if err != nil {
			return err
		}
		working, err := p.isIn("init", "live")
		if err != nil {
			return err
		}
		if !remembered && p.volumes == "" {
			return lose(layers, p)
		}
		if !remembered && (!working || time.Now().After(end)) {
			return sweep(ctx, s, p)
		}
		select {
		case <-ctx.Done():
			return stillMaking(ctx, p)
		case <-time.After(time.Millisecond):
		}
	}
}

func stillMaking(ctx context.Context, p place) error {
	return fmt.Errorf("destroy volume %q: the server is still making it: %w", p.handle, context.Cause(ctx))
}

// lostPath is a directory that names volumes of which nothing more is known, until there is.
func lostPath(layers string) string { return filepath.Join(filepath.Dir(layers), "server.lost") }

// lose notes a volume that was asked for from a server that then died, before it had said where its volumes are: what it may have left cannot be
// looked for yet.
func lose(layers string, p place) error {
	if err := os.Mkdir(lostPath(layers), 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return durable.Touch(lostPath(layers) + "/" + p.handle)
}

// findLost destroys what was noted by lose. The server is known now.
func (d *Driver) findLost(ctx context.Context, layers string) error {
	names, err := os.ReadDir(lostPath(layers))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if ids.Valid(n.Name()) {
			if err := d.destroy(ctx, layers, place{handle: n.Name()}); err != nil {
				return err
			}
		}
		if err := os.Remove(filepath.Join(lostPath(layers), n.Name())); err != nil {
			return err
		}
	}
	return os.Remove(lostPath(layers))
}

// sweep removes what is left on disk of a volume that the server no longer has. Mostly it only looks.
func sweep(ctx context.Context, s server, p place) error {
	if p.volumes == "" {
		return nil // it was destroyed in an orderly way, by a server of which no more is known
	}
	// Without its directories, nothing can be seen and nothing be said.
	if there, err := durable.Exists(p.volumes + "/live"); err != nil {
		return err
	} else if !there {
		return fmt.Errorf("volume %q: the server's directory %q cannot be seen: is its file system mounted?", p.handle, p.volumes)
	}
	if live, err := p.isIn("live"); err != nil {
		return err
	} else if live {
		return fmt.Errorf("volume %q: the server says that it has none, and %q is there: is it another server?", p.handle, p.in("live"))
	}
	for _, state := range []string{"dead", "init"} {
		if there, err := p.isIn(state); err != nil {
			return err
		} else if !there {
			continue
		}
		if err := mnt.Unmount(ctx, p.in(state)+"/volume", nil); err != nil {
			if errors.Is(err, unix.EBUSY) {
				err = fmt.Errorf("%w: %w: something still uses it; find out with: fuser -vm %q", volumes.ErrBusy, err, p.in(state)+"/volume")
			}
			return err
		}
		if err := tree.RemoveIn(ctx, filepath.Join(p.volumes, state), p.handle); err != nil {
			return err
		}
	}
	if s.Overlays == "" || s.Volumes != p.volumes { // it was made by another server than the one that is known now
		return nil
	}
	return errors.Join(tree.RemoveIn(ctx, s.Overlays+"/work", p.handle), tree.RemoveIn(ctx, s.Overlays, p.handle))
}
