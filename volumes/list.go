package volumes

import (
	"context"
	"errors"
	"os"
	"time"
	"unicode/utf8"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"golang.org/x/sys/unix"
)

// Entry is one container as List sees it.
type Entry struct {
	Handle     string    `json:"handle"`
	HandleRaw  []byte    `json:"handle_raw,omitempty"` // in base64, if the handle's bytes are not UTF-8
	ID         string    `json:"id"`                   // "" for an entry that the store did not make: delete of its handle removes it
	State      string    `json:"state"`                // "init", "live", "dead"
	Mounted    bool      `json:"mounted"`
	Root       string    `json:"root"`
	Privileged bool      `json:"privileged"`
	Image      string    `json:"image,omitempty"`
	Created    time.Time `json:"created"`
}

// List returns all containers of the store, in no order. It takes no lock: what is made or deleted meanwhile may be in it or not. A store that does not exist
// has none.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	var list []Entry
	store := s.realDir()
	for _, st := range states {
		names, err := readNames(s.path("volumes", string(st)))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			h := Handle{name}
			id, err := s.readEntry(st, h)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil && !errors.Is(err, errForeign) {
				return nil, err
			}
			list = append(list, s.describe(store, h, st, id))
		}
	}
	return list, nil
}

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if errors.Is(err, unix.ENOENT) { // it was removed since (fs/readdir.c, iterate_dir)
		return nil, nil
	}
	return names, err
}

func (s *Store) describe(store string, h Handle, st state, id string) Entry {
	e := Entry{Handle: h.name, ID: id, State: string(st)}
	if !utf8.ValidString(h.name) {
		e.HandleRaw = []byte(h.name)
	}
	if id == "" {
		return e
	}
	e.Mounted, e.Root = s.mounted(id, "rootfs"), rootPath(store, id)
	var r layerRecord
	// A container that is just being made or removed has no record; it is listed all the same.
	if err := durable.ReadJSON(s.path("layers", id, "layer.json"), &r); err == nil {
		e.Privileged, e.Image, e.Created = r.Privileged, string(r.Image), r.Created
	}
	return e
}
