package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// Deleted says what a Delete did.
type Deleted struct {
	ID     string    // of the container that is gone; empty if there was none
	Copies []CopyEnd // what became of its copies
}

// Delete removes all that the store has of container h, in whatever state it is. An unknown handle is success, touches nothing, and
// does not even need the store to exist or to be writable.
//
// nil means that no mount and no file of the container is left. After an error the rest is found and removed by the next Delete or Create of h.
// A root file system in use is waited for until ctx is done, then the error wraps [ErrBusy] and no file was removed.
func (s *Store) Delete(ctx context.Context, h Handle) (Deleted, error) {
	step := s.timer()
	// Garden deletes each container twice, through both slots, and many that never existed: these take no lock.
	if _, _, err := s.find(h); errors.Is(err, ErrNotFound) {
		found, err := s.foundElsewhere(ctx, h)
		if err == nil && found {
			_, err = s.open(ctx)
		}
		if err != nil {
			return Deleted{}, fmt.Errorf("delete %q: %w", h.name, s.hint(err))
		}
		if !found {
			return Deleted{}, nil
		}
	}
	d, err := s.remove(ctx, h, step)
	if err != nil {
		return d, fmt.Errorf("delete %q: %w", h.name, s.hint(err))
	}
	return d, nil
}

func (s *Store) remove(ctx context.Context, h Handle, step func(string)) (Deleted, error) {
	unlock, err := s.lock(ctx, h)
	if err != nil {
		return Deleted{}, err
	}
	defer unlock()
	st, id, err := s.findOwn(ctx, h)
	if errors.Is(err, ErrNotFound) {
		return Deleted{}, nil // another delete was first
	}
	if err != nil {
		return Deleted{}, err
	}
	return s.removeFound(ctx, h, st, id, step)
}

// removeFound removes the container id, whose entry in st is h. The caller holds h's lock.
func (s *Store) removeFound(ctx context.Context, h Handle, st state, id string, step func(string)) (Deleted, error) {
	// One that was never finished stays in init: what its copies hold now would look like a change that somebody made.
	if st == stateLive {
		switch err := s.moveEntry(st, stateDead, h); {
		case err == nil:
			st = stateDead
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			// Even a rename can need a block. Removing does not: go on from where it is. If we die meanwhile, it is a
			// container without its mount, as after a reboot, which the next Delete removes.
		default:
			return Deleted{}, err
		}
	}
	step("lock")
	ends, err := s.dismantle(ctx, id, st != stateInit, step)
	if err == nil {
		err = s.removeEntry(st, h)
	}
	return Deleted{ID: id, Copies: ends}, err
}

// forget removes what the entry of h in st leads to, then the entry. The caller holds h's lock.
func (s *Store) forget(ctx context.Context, st state, h Handle, id string) error {
	if _, err := s.dismantle(ctx, id, st != stateInit, func(string) {}); err != nil {
		return err
	}
	return s.removeEntry(st, h)
}

// dismantle unmounts and removes everything that is named id: first the mounts, then the mount points, then what its copies are worth keeping for
// is kept, then the layer. Each part may be absent, so it can be stopped at any point and done again. Nothing is kept of a container that was never
// finished.
func (s *Store) dismantle(ctx context.Context, id string, finished bool, step func(string)) (ends []CopyEnd, err error) {
	// Without a record, or with a torn one, no layer of ours is known to be in use by this one.
	r, torn := readHolds(s.path("layers", id, "layer.json"))
	if torn != nil && !errors.Is(torn, os.ErrNotExist) && !errors.Is(torn, durable.ErrDamaged) {
		return nil, torn
	}
	if finished && torn == nil && len(r.Copies) > 0 {
		if err := s.freeze(ctx, id, r.Copies); err != nil {
			return nil, err
		}
		step("freeze")
	}
	if err := s.opts.Driver.Unmount(ctx, s.path("mnt", id)); err != nil {
		return nil, err
	}
	if err := tree.RemoveIn(ctx, s.path("mnt"), id); err != nil {
		return nil, err
	}
	step("unmount")
	if torn == nil {
		if err := s.removable(id, r); err != nil {
			return nil, err
		}
		if err := s.unuse(id, r); err != nil {
			return nil, err
		}
		if len(r.Copies) > 0 {
			if ends, err = s.endCopies(ctx, id, r, finished); err != nil {
				return ends, err
			}
			step("caches")
		}
	}
	err = s.opts.Driver.Remove(ctx, s.path("layers"), id)
	step("remove")
	return ends, err
}
