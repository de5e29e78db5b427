package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
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

// madeFor returns the container that a layer of that name was made for: it is the container's own, or one of its copies. The name comes from outside.
func madeFor(name string) (id string, ok bool) {
	id, part, nested := strings.Cut(name, "/")
	n, err := strconv.Atoi(strings.TrimPrefix(part, "cache-"))
	return id, ids.Valid(id) && (!nested || err == nil && n >= 0 && part == copyName(n))
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
		id, ok := madeFor(name)
		if err != nil || !ok {
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
		return err == nil, err
	})
}
