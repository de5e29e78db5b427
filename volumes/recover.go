package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"golang.org/x/sys/unix"
)

// lost says whether the store's directory was lost, or never made, while its driver may have trees of it.
func (s *Store) lost() (Finder, bool) {
	f, ok := s.opts.Driver.(Finder)
	return f, ok && !exists(s.path("store.json"))
}

// foundElsewhere says whether the driver knows of a container that a lost store knew. It makes nothing.
func (s *Store) foundElsewhere(ctx context.Context, h Handle) (found bool, err error) {
	f, lost := s.lost()
	if !lost {
		return false, nil
	}
	err = f.Find(ctx, s.path("layers"), h.name, func(string, string) (bool, error) {
		found = true
		return false, nil
	})
	return found, err
}

// adopt makes entries of the containers that the driver knows of, so that Delete finds them. What their copies were good for was in the
// records that are lost: they are dropped. The caller holds the lock of store.json; the directories of the store exist.
func (s *Store) adopt(ctx context.Context) error {
	f, lost := s.lost()
	if !lost {
		return nil
	}
	return f.Find(ctx, s.path("layers"), "", func(container, name string) (bool, error) {
		h, err := ParseHandle(container)
		id, _, _ := strings.Cut(name, "/")
		if err != nil || !ids.Valid(id) || strings.Count(name, "/") > 1 {
			s.warn(fmt.Errorf("a volume says that it is layer %q of container %q: it is left alone", name, container))
			return false, nil
		}
		switch _, known, err := s.find(h); {
		case errors.Is(err, ErrNotFound):
			if err := s.makeEntry(stateLive, h, id); err != nil {
				return false, err
			}
		case err != nil:
			return false, err
		case known != id:
			s.warn(fmt.Errorf("a volume says that it is layer %q of container %q, which is %s: it is left alone", name, container, known))
			return false, nil
		}
		err = os.MkdirAll(s.path("layers", name), 0o700)
		if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		return err == nil, err
	})
}
