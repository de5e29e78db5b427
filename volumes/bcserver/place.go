package bcserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"golang.org/x/sys/unix"
)

// place is where a volume is, or will be: <volumes>/live/<handle>/volume, as all versions of the server lay it out.
//
// It is the text of the symlink layers/NAME/volume, made before the server is asked, so that whatever happens to us the volume is found by the
// layer it was made for. In the place of a volume whose server nobody has seen yet, volumes is empty.
type place struct{ volumes, handle string }

// pointer is the name of that symlink in the layer's directory.
const pointer = "volume"

func (p place) tree() string { return p.in("live") + "/volume" }

// in returns the volume's directory in one of the server's states: init, live or dead.
func (p place) in(state string) string { return p.volumes + "/" + state + "/" + p.handle }

// isIn says whether the volume is in one of these states, on a disk that is known.
func (p place) isIn(states ...string) (bool, error) {
	if p.volumes == "" {
		return false, nil
	}
	for _, state := range states {
		if there, err := durable.Exists(p.in(state)); err != nil || there {
			return there, err
		}
	}
	return false, nil
}

func parsePlace(text string) (place, bool) {
	rest, ok := strings.CutSuffix(text, "/volume")
	dir, handle := filepath.Split(rest)
	dir, live := strings.CutSuffix(dir, "/live/")
	p := place{dir, handle}
	return p, ok && live && ids.Valid(handle) && p.tree() == text && (dir == "" || filepath.IsAbs(dir) && filepath.Clean(dir) == dir)
}

// readPlace returns the place of the layer's volume. volumes.ErrNotFound: the layer has none that we made.
func readPlace(layer string) (place, error) {
	text, err := os.Readlink(layer + "/" + pointer)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EINVAL):
		return place{}, fmt.Errorf("layer %q has no volume: %w", layer, volumes.ErrNotFound)
	case err != nil:
		return place{}, err
	}
	p, ok := parsePlace(text)
	if !ok {
		return place{}, fmt.Errorf("layer %q has no volume of ours: %w", layer, volumes.ErrNotFound)
	}
	return p, nil
}

// write makes the layer's pointer, or replaces it.
func (p place) write(layer string) error {
	return durable.ReplaceLink(layer+"/"+pointer, layer+"/"+pointer+".next", p.tree())
}
