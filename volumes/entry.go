package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// state is where a container is in its life: the directory below volumes/ that holds its entry.
type state string

const (
	stateInit state = "init" // being made
	stateLive state = "live" // made, and not deleted yet
	stateDead state = "dead" // being removed
)

// states in the order in which an entry moves. Looking them through in this order never misses an entry that moves meanwhile.
var states = []state{stateInit, stateLive, stateDead}

// An entry is a symlink named by the handle whose target text is the container's random ID. It leads nowhere. A symlink is made,
// moved and read by one system call each, and it has no contents that a power cut could leave empty: the text is in the inode.

func (s *Store) entryPath(st state, h Handle) string {
	return s.dir + "/volumes/" + string(st) + "/" + h.name
}

// errForeign: an entry that no store made, being no symlink or naming no ID. It leads to nothing, so it is all that has to be removed.
var errForeign = errors.New("was not made by the store")

// readEntry returns the ID that h's entry in st names. ErrNotFound: there is none.
func (s *Store) readEntry(st state, h Handle) (string, error) {
	id, err := os.Readlink(s.entryPath(st, h))
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return "", ErrNotFound
	case errors.Is(err, unix.EINVAL), err == nil && !ids.Valid(id):
		return "", fmt.Errorf("entry %q %w", s.entryPath(st, h), errForeign)
	case err != nil:
		return "", err
	}
	return id, nil
}

// find returns the state and ID of h's entry. ErrNotFound: there is none in any state.
func (s *Store) find(h Handle) (state, string, error) {
	for _, st := range states {
		id, err := s.readEntry(st, h)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		return st, id, err
	}
	return "", "", ErrNotFound
}

// findOwn is find, after it removed what stands in the way under h's name. The caller holds h's lock.
func (s *Store) findOwn(ctx context.Context, h Handle) (state, string, error) {
	for {
		st, id, err := s.find(h)
		if !errors.Is(err, errForeign) {
			return st, id, err
		}
		if err := tree.RemoveIn(ctx, s.path("volumes", string(st)), h.name); err != nil {
			return st, "", err
		}
	}
}

func (s *Store) makeEntry(st state, h Handle, id string) error {
	return os.Symlink(id, s.entryPath(st, h))
}

func (s *Store) moveEntry(from, to state, h Handle) error {
	return unix.Rename(s.entryPath(from, h), s.entryPath(to, h)) // os.Rename looks first whether the target is a directory
}

func (s *Store) removeEntry(st state, h Handle) error {
	err := os.Remove(s.entryPath(st, h))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
