package volumes

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// A stack is an immutable tree that many containers take private copies of, kept as overlay layers. Each change puts another layer on top and
// makes another generation:
//
//	caches/NAME/current   -> "GENERATION TOP BOOT": the topmost layer, and the boot in which it was put there
//	caches/NAME/dropped.TOP  was current, and is being dropped
//	layers/ID/fs          what the layer holds
//	layers/ID/parent      -> ID of the layer below; absent at the bottom
//	layers/ID/users/      one name for each that needs the layer: the stack whose top it is, the layer above, containers
//	layers/ID/layer.json  its size
//	layers/ID/durable     it is on disk for certain, and so is everything below it that has this mark
//
// Pointers are symlinks, like entries of containers: made, read and replaced whole by one system call. A layer is removed by who takes
// the last name out of users: removing the directory users works only when it is empty, and then nobody can begin to use it.

// maxLayers is how many layers a stack may have before those above the bottom are merged. Each costs a container about 4 µs to mount and
// 1 µs at each first look-up of a name.
const maxLayers = 8

func (s *Store) maxLayers() int {
	if s.opts.MaxLayers > 0 {
		return s.opts.MaxLayers
	}
	return maxLayers
}

// stackTop is what a stack's pointer says.
type stackTop struct {
	generation uint64
	layer      string
	boot       string // first part of the boot id
}

// String is the text of the pointer. It is short enough to be kept inside the inode (60 bytes on ext4).
func (t stackTop) String() string {
	return strconv.FormatUint(t.generation, 10) + " " + t.layer + " " + t.boot
}

func parseTop(text string) (stackTop, error) {
	f := strings.Split(text, " ")
	if len(f) != 3 || !isLayer(f[1]) {
		return stackTop{}, fmt.Errorf("damaged pointer %q", text)
	}
	n, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil {
		return stackTop{}, fmt.Errorf("damaged pointer %q", text)
	}
	return stackTop{n, f[1], f[2]}, nil
}

// isLayer: a layer is named by an ID, or by the ID of the container that made it and the number of its copy: "ID-N", and "ID-Nm" if others were merged
// into it below that.
func isLayer(name string) bool {
	id, n, has := strings.Cut(name, "-")
	if has {
		if _, err := strconv.ParseUint(strings.TrimSuffix(n, "m"), 10, 16); err != nil {
			return false
		}
	}
	return ids.Valid(id)
}

// ValidStack says whether name can be a stack's: 64 hex digits, with "-shifted" behind them where root's files belong to the highest id on
// disk, since this host cannot map ids.
func ValidStack(name string) bool {
	hash := strings.TrimSuffix(name, shiftedSuffix)
	_, err := hex.DecodeString(hash)
	return err == nil && len(hash) == 64 && hash == strings.ToLower(hash)
}

const shiftedSuffix = "-shifted"

func (s *Store) stackPointer(name string) string { return s.path("caches", name, "current") }

// top returns where the stack's pointer leads. ErrNotFound: the stack has no generation.
func (s *Store) top(name string) (stackTop, error) {
	text, err := os.Readlink(s.stackPointer(name))
	switch {
	case errors.Is(err, unix.ENOENT):
		return stackTop{}, ErrNotFound
	case err != nil:
		return stackTop{}, err
	}
	t, err := parseTop(text)
	if err != nil {
		return t, fmt.Errorf("stack %s: %w", name, err)
	}
	return t, nil
}

// shortBoot is the part of the boot id that pointers keep.
func shortBoot(bootKey string) string {
	return strings.ReplaceAll(bootKey[:min(18, len(bootKey))], "-", "")
}

// readStack returns where the stack's pointer leads and the layers that are served, top first; the zero top and no layers where there is no
// generation yet. Nothing holds them: only who then finds the top's users, and gets a name into them, can rely on what was read here.
func (s *Store) readStack(name, boot string) (stackTop, []string, error) {
	t, err := s.top(name)
	if errors.Is(err, ErrNotFound) {
		return stackTop{}, nil, nil
	}
	if err != nil {
		return t, nil, err
	}
	layers, err := s.chain(t.layer)
	if err == nil && t.boot != boot {
		layers, err = s.durablePart(layers)
	}
	return t, layers, err
}

// noteUse notes when the stack was last used, for who removes the least recently used first. Best effort: without it the stack looks older.
func (s *Store) noteUse(name string) {
	now := unix.NsecToTimespec(time.Now().UnixNano())
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, s.path("caches", name), []unix.Timespec{now, now}, 0)
}

// chain returns layer and all below it, top first.
func (s *Store) chain(layer string) ([]string, error) {
	var layers []string
	for range 10 * maxLayers {
		layers = append(layers, layer)
		parent, err := os.Readlink(s.path("layers", layer, "parent"))
		if errors.Is(err, unix.ENOENT) {
			return layers, nil
		}
		if err != nil {
			return nil, err
		}
		if !isLayer(parent) {
			return nil, fmt.Errorf("layer %s: damaged parent %q", layer, parent)
		}
		layer = parent
	}
	return nil, fmt.Errorf("layer %s: more than %d layers are below it", layers[0], 10*maxLayers)
}

// durablePart leaves out, after a reboot, the layers that were never made durable, and all above them: a power cut may have taken their
// files' contents and left the names.
func (s *Store) durablePart(layers []string) ([]string, error) {
	for i := len(layers) - 1; i >= 0; i-- {
		is, err := durable.Exists(s.path("layers", layers[i], "durable"))
		if err != nil {
			return nil, err
		}
		if !is {
			return slices.Clone(layers[i+1:]), nil
		}
	}
	return layers, nil
}

// isDurable says whether the layer is on disk for certain.
func (s *Store) isDurable(layer string) bool {
	is, err := durable.Exists(s.path("layers", layer, "durable"))
	return is && err == nil
}

// makeDurable flushes a sealed layer and marks it.
func (s *Store) makeDurable(ctx context.Context, layer string) error {
	top, err := s.opts.Driver.Tree(s.path("layers"), layer)
	if err != nil {
		return err
	}
	for _, dir := range slices.Compact([]string{top, s.path("layers", layer)}) {
		if err := syncTree(ctx, dir); err != nil {
			return fmt.Errorf("make layer %s durable: %w", layer, err)
		}
	}
	// If this name survives a power cut, so do the contents that were flushed before it, and all older names. It is not flushed itself: see tree.Sync.
	return durable.Touch(s.path("layers", layer, "durable"))
}

func syncTree(ctx context.Context, dir string) error {
	d, err := os.OpenFile(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return tree.Sync(ctx, int(d.Fd()), filepath.Base(dir))
}

// markLayer puts user into the layer's users. ENOENT: the layer is gone, or going.
func (s *Store) markLayer(layer, user string) error {
	return durable.Touch(s.path("layers", layer, "users", user))
}

// unmarkLayer takes user out, and removes the layer if that was the last one, then its parent likewise, and so on.
//
// All marks are taken off before anything is removed, and the lowest layer goes first: a layer leads to those below it for as long as they are
// there, so who was killed is followed by doing it again.
func (s *Store) unmarkLayer(ctx context.Context, layer, user string) error {
	var unused []string
	for len(unused) < 10*maxLayers {
		err := os.Remove(s.path("layers", layer, "users", user))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		// Absent already: whoever removed it may have been killed before the rest, so the rest is done again.
		err = os.Remove(s.path("layers", layer, "users"))
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			break
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		unused = append(unused, layer)
		parent, err := os.Readlink(s.path("layers", layer, "parent"))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if !isLayer(parent) {
			break
		}
		layer, user = parent, layer
	}
	for _, layer := range slices.Backward(unused) {
		if err := s.removeLayer(ctx, layer); err != nil {
			return err
		}
	}
	return nil
}

// publish makes layer, whose parent and users are in place, the top of the stack, if its top is still base (the zero value: it has none). It
// reports whether it did, and what the top is.
func (s *Store) publish(ctx context.Context, name string, base stackTop, layer string) (stackTop, bool, error) {
	boot, err := bootID()
	if err != nil {
		return stackTop{}, false, err
	}
	unlock, err := s.lockStack(ctx, name)
	if err != nil {
		return stackTop{}, false, err
	}
	defer unlock()
	now, err := s.top(name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return now, false, err
	}
	if now.layer == layer {
		return now, true, nil // done before we were killed
	}
	// Without the stack's mark the layer was published before, dropped, and is being removed: we were killed over it, and are late.
	marked, err := durable.Exists(s.path("layers", layer, "users", name))
	if err != nil || now != base || !marked {
		return now, false, err
	}
	if err := os.Mkdir(s.path("caches", name), 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return now, false, err
	}
	t := stackTop{generation: base.generation + 1, layer: layer, boot: shortBoot(boot)}
	if err := durable.ReplaceLink(s.stackPointer(name), s.path("caches", name, "next"), t.String()); err != nil {
		if base.layer == "" { // a stack that still has no generation has no directory
			err = errors.Join(err, notEmpty(os.Remove(s.path("caches", name))))
		}
		return now, false, err
	}
	return t, true, nil
}

// notEmpty is the error of removing a directory, unless something is in it, or it is gone.
func notEmpty(err error) error {
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// lockStack takes the lock of one stack. It is held for a few system calls, never while a tree is copied, merged or removed.
func (s *Store) lockStack(ctx context.Context, name string) (unlock func(), err error) {
	l, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return nil, err
	}
	if _, err := l.Name(ctx, durable.Caches, name); err != nil {
		l.Close()
		return nil, err
	}
	return func() { l.Close() }, nil
}
