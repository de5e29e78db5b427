package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"golang.org/x/sys/unix"
)

// A shifted copy is a layer that holds an image with the ids 0 and max swapped, for hosts and images where no id map does it. There is one
// per image, which all containers share:
//
//	images/IDENTITY.copy    -> ID of the layer
//	images/IDENTITY.making  -> ID of the layer that is being made
//	layers/ID/{fs,layer.json,users/}
//
// It is not flushed to disk and so holds for one boot only, and in one user namespace. It stays while its image is there: the container that removes its
// name from users/ last removes the copy if the image is gone or has changed, or images/ names another layer by now, and so does whoever makes a copy of
// another image. One that cannot be used and is in use loses its name in images/ and nothing else.

// shiftedCopy returns the copy of img, made now if there is none. Only the lock of this image is held while it is copied: other images, and all
// deletes, go on. Who wants the same image waits until ctx is done. It is not marked as used yet, see [Store.use].
func (s *Store) shiftedCopy(ctx context.Context, host hostRecord, img *Image, maxID uint32) (layer string, dir *os.File, err error) {
	link := s.path("images", img.identity()+".copy")
	if layer, dir, err = s.openCopy(link, host); !errors.Is(err, ErrNotFound) {
		return layer, dir, err
	}
	lock, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return "", nil, err
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Images, img.identity()); err != nil {
		return "", nil, fmt.Errorf("image %q: %w", img.path, err)
	}
	if layer, dir, err = s.openCopy(link, host); !errors.Is(err, ErrNotFound) {
		return layer, dir, err // somebody made it while we waited
	}
	s.sweepImages(ctx)
	if err := s.makeCopy(ctx, host, img, maxID); err != nil {
		return "", nil, fmt.Errorf("copy image %q: %w", img.path, err)
	}
	return s.openCopy(link, host)
}

// openCopy opens the copy that link names. ErrNotFound: there is none that can be used.
func (s *Store) openCopy(link string, host hostRecord) (string, *os.File, error) {
	layer, err := os.Readlink(link)
	if errors.Is(err, unix.ENOENT) || (err == nil && !ids.Valid(layer)) {
		return "", nil, ErrNotFound
	}
	if err != nil {
		return "", nil, err
	}
	var r layerRecord
	if err := durable.ReadJSON(s.path("layers", layer, "layer.json"), &r); err != nil || r.Boot != host.Boot {
		return "", nil, ErrNotFound
	}
	if !exists(s.path("layers", layer, "users")) {
		return "", nil, ErrNotFound // its removal was begun
	}
	top, err := s.tree(layer)
	if err != nil {
		return "", nil, err
	}
	dir, err := os.OpenFile(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", nil, ErrNotFound
	}
	return layer, dir, err
}

// use marks the layers as used by the container id, whose record names them already: whatever happens, its delete finds the marks.
//
// users/ is removed, in one call that fails while there is a user, before a layer is: who gets a name into it has the layer.
func (s *Store) use(id string, layers []string) error {
	for _, layer := range layers {
		mark, err := os.OpenFile(s.path("layers", layer, "users", id), os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, unix.ENOENT) {
			return errors.New("its image was replaced meanwhile: try again")
		}
		if err != nil {
			return err
		}
		mark.Close()
	}
	return nil
}

// makeCopy makes the copy of img. The caller holds the image's lock.
func (s *Store) makeCopy(ctx context.Context, host hostRecord, img *Image, maxID uint32) (err error) {
	making, link := s.path("images", img.identity()+".making"), s.path("images", img.identity()+".copy")
	for _, l := range []string{making, link} { // of a process that was killed, or of an earlier boot
		if err := s.dropCopy(ctx, l); err != nil {
			return err
		}
	}
	id, err := ids.New()
	if err != nil {
		return err
	}
	if err := os.Symlink(id, making); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			err = errors.Join(s.hint(err), s.dropCopy(undo, making))
		}
	}()
	r := layerRecord{Kind: kindShifted, Driver: s.keeper(), Created: time.Now().UTC(), Boot: host.Boot, Image: durable.Text(img.path), Identity: img.identity()}
	if err := s.makeLayer(id, r); err != nil {
		return err
	}
	if err := s.opts.Driver.New(ctx, s.path("layers"), []string{id}, ""); err != nil {
		return err
	}
	place, err := s.opts.Driver.Tree(s.path("layers"), id)
	if err != nil {
		return err
	}
	layer, err := os.OpenFile(place, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer layer.Close()
	dir, done := img.withoutMounts()
	defer done()
	err = tree.Copy(ctx, dir, int(layer.Fd()), "fs", tree.CopyOptions{
		MapID: func(id uint32) uint32 { return userns.Swap(id, maxID) },
		Warn:  s.opts.Warn,
	})
	if err != nil {
		return err
	}
	if err := os.Mkdir(s.path("layers", id, "users"), 0o700); err != nil {
		return err
	}
	return os.Rename(making, link)
}

// dropCopy takes link away, and removes the layer that it names, unless that is in use: then its last user does. Nothing there is success. The caller holds
// the image's lock.
func (s *Store) dropCopy(ctx context.Context, link string) error {
	layer, err := os.Readlink(link)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.EINVAL) { // no symlink: it was not made by a store
		return err
	}
	if ids.Valid(layer) {
		if _, err := s.removeUnused(ctx, layer); err != nil {
			return err
		}
	}
	return removeIfThere(link)
}

// unuse takes the mark of container id, whose record is r, off the shifted copies it uses, and removes those that nobody uses and no new container will.
func (s *Store) unuse(id string, r layerRecord) error {
	for _, layer := range r.Lowers {
		if !ids.Valid(layer) {
			continue // a torn or foreign record: nothing of ours has such a name
		}
		if err := removeIfThere(s.path("layers", layer, "users", id)); err != nil {
			return err
		}
		if s.isWanted(layer, r) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), undoTime)
		err := s.dropUnwanted(ctx, layer, r)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// isWanted says whether new containers of the image in r use the layer.
func (s *Store) isWanted(layer string, r layerRecord) bool {
	named, err := os.Readlink(s.path("images", r.Identity+".copy"))
	return err == nil && named == layer && imageIs(string(r.Image), r.Identity)
}

// dropUnwanted removes a layer that held a copy of the image in r, if nobody uses it.
func (s *Store) dropUnwanted(ctx context.Context, layer string, r layerRecord) error {
	lock, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Images, r.Identity); err != nil {
		return fmt.Errorf("remove the copy of image %q: %w", r.Image, err)
	}
	return s.dropUnused(ctx, layer, r)
}

// dropUnused is dropUnwanted for who holds the image's lock.
func (s *Store) dropUnused(ctx context.Context, layer string, r layerRecord) error {
	if s.isWanted(layer, r) {
		return nil
	}
	if removed, err := s.removeUnused(ctx, layer); err != nil || !removed {
		return err
	}
	// The link goes last: an interrupted removal is found by it.
	link := s.path("images", r.Identity+".copy")
	if named, err := os.Readlink(link); err == nil && named == layer {
		return removeIfThere(link)
	}
	return nil
}

// removeUnused removes a shifted copy, unless a container may have it mounted.
func (s *Store) removeUnused(ctx context.Context, layer string) (removed bool, err error) {
	users := s.path("layers", layer, "users")
	err = os.Remove(users)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		names, err := readNames(users)
		if err != nil {
			return false, err
		}
		for _, id := range names {
			if s.mayRun(id) {
				return false, nil
			}
			if err := removeIfThere(users + "/" + id); err != nil {
				return false, err
			}
		}
		return s.removeUnused(ctx, layer)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	// From here on nobody can begin to use it.
	return true, s.removeLayer(ctx, layer)
}

// mayRun says whether the container id can have anything mounted: it is there, and was not made in an earlier boot.
func (s *Store) mayRun(id string) bool {
	var r layerRecord
	err := durable.ReadJSON(s.path("layers", id, "layer.json"), &r)
	if err != nil {
		return exists(s.path("layers", id))
	}
	return thisBoot(r.Boot)
}

// imageIs says whether the directory at path is still the image of that identity.
func imageIs(path, identity string) bool {
	img, err := OpenImage(path)
	if err != nil {
		return false
	}
	defer img.Close()
	return img.identity() == identity
}

// sweepImages removes what the store keeps about images that are gone: sizes, and copies that nobody uses or whose maker died. It is called
// by who is about to do work that grows with an image, so what is kept stays within what exists. Failures are only told: it is done again.
func (s *Store) sweepImages(ctx context.Context) {
	names, err := os.ReadDir(s.path("images"))
	if err != nil {
		s.warn(err)
		return
	}
	for _, n := range names {
		path := s.path("images", n.Name())
		switch {
		case strings.HasSuffix(n.Name(), ".copy"):
			layer, err := os.Readlink(path)
			if err != nil {
				continue // somebody else removes it
			}
			var r layerRecord
			err = durable.ReadJSON(s.path("layers", layer, "layer.json"), &r)
			switch identity := strings.TrimSuffix(n.Name(), ".copy"); {
			case errors.Is(err, unix.ENOENT), !ids.Valid(layer):
				s.warn(s.dropAbandoned(ctx, n.Name()))
			case err == nil && r.Identity == identity && !imageIs(string(r.Image), identity):
				_, err := s.tryLock(ctx, durable.Images, identity, func() error { return s.dropUnused(ctx, layer, r) })
				s.warn(err)
			}
		case strings.HasSuffix(n.Name(), ".making"):
			s.warn(s.dropAbandoned(ctx, n.Name()))
		case strings.HasSuffix(n.Name(), ".size"):
			var r sizeRecord
			if err := durable.ReadJSON(path, &r); err != nil || !imageIs(string(r.Image), strings.TrimSuffix(n.Name(), ".size")) {
				if err := os.Remove(path); err != nil && !errors.Is(err, unix.ENOENT) {
					s.warn(err)
				}
			}
		}
	}
}

// dropAbandoned removes the copy that images/NAME leads to, of which somebody died who made or removed it: nobody holds the image's lock.
func (s *Store) dropAbandoned(ctx context.Context, name string) error {
	identity, _, _ := strings.Cut(name, ".")
	_, err := s.tryLock(ctx, durable.Images, identity, func() error { return s.dropCopy(ctx, s.path("images", name)) })
	return err
}
