package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// Usage is what a container's root file system takes.
type Usage struct {
	ExclusiveBytes uint64 // the container's own: blocks of its upper layers, of the root file system and of its copies
	TotalBytes     uint64 // the image's blocks and ExclusiveBytes: what it would take without sharing

	// Partial: a tree was too large to be measured in the time there is, or the image is gone. The numbers are then lower bounds.
	Partial bool
}

// sizeRecord is images/IDENTITY.size: an image's size, measured once.
type sizeRecord struct {
	Image    durable.Text `json:"image"`
	Bytes    uint64       `json:"bytes"`
	Partial  bool         `json:"partial,omitempty"`
	Measured time.Time    `json:"measured"`
}

const (
	// measureTime bounds each of the two walks of one Stats: Garden asks for all containers at once.
	measureTime = 800 * time.Millisecond
	// measureAgain is how long a size that could not be measured to its end is good for.
	measureAgain = 10 * time.Minute
)

// Stats measures the root file system of h. Blocks are counted as du does: holes not at all, a file with several links once, deleted image
// files not subtracted. [ErrNotFound]: there is no such container, it is not finished, being deleted, or its mount is gone after a reboot.
func (s *Store) Stats(ctx context.Context, h Handle) (Usage, error) {
	u, err := s.stats(ctx, h)
	if err != nil {
		return u, fmt.Errorf("stats of %q: %w", h.name, err)
	}
	return u, nil
}

func (s *Store) stats(ctx context.Context, h Handle) (Usage, error) {
	step := s.timer()
	st, id, err := s.find(h)
	switch {
	case err != nil:
		return Usage{}, err
	case st != stateLive:
		return Usage{}, fmt.Errorf("%w: it is %s", ErrNotFound, map[state]string{stateInit: "still being made", stateDead: "being deleted"}[st])
	case !s.mounted(id, "rootfs") && !s.mounted(id, copyName(0)):
		return Usage{}, fmt.Errorf("%w: nothing of it is mounted any more (was the host rebooted?); only delete is possible", ErrNotFound)
	}
	limited, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	var r layerRecord
	if err := durable.ReadJSON(s.path("layers", id, "layer.json"), &r); err != nil {
		return Usage{}, err
	}
	var u Usage
	uppers := []string{}
	if r.Image != "" {
		uppers = append(uppers, id)
	}
	for n := range r.Copies {
		uppers = append(uppers, id+"/"+copyName(n))
	}
	for _, name := range uppers {
		own, err := s.opts.Driver.Usage(limited, s.path("layers"), name)
		if err != nil {
			return Usage{}, err
		}
		u.ExclusiveBytes += own.Bytes
		u.Partial = u.Partial || own.Partial
	}
	u.TotalBytes = u.ExclusiveBytes
	step("measure")
	if r.Image == "" {
		return u, nil
	}
	size, err := s.imageSize(ctx, r)
	if err != nil {
		s.warn(fmt.Errorf("the size of image %q is left out: %w", r.Image, err))
		u.Partial = true
		return u, nil
	}
	step("image")
	u.TotalBytes += size.Bytes
	u.Partial = u.Partial || size.Partial
	return u, nil
}

// mounted says whether the mount point of that name of the container id is a mount of its own.
func (s *Store) mounted(id, name string) bool {
	var root, above unix.Stat_t
	return unix.Lstat(s.path("mnt", id, name), &root) == nil && unix.Lstat(s.path("mnt", id), &above) == nil && root.Dev != above.Dev
}

// imageSize returns the kept size of the image that r names, or measures it and keeps it.
func (s *Store) imageSize(ctx context.Context, r layerRecord) (sizeRecord, error) {
	path := s.path("images", r.Identity+".size")
	if size, ok := keptSize(path); ok {
		return size, nil
	}
	lock, err := durable.OpenLock(s.path("lock"))
	if errors.Is(err, unix.EROFS) {
		return measureImage(ctx, r) // and not kept
	}
	if err != nil {
		return sizeRecord{}, err
	}
	defer lock.Close()
	// One measures, the others wait for it.
	wait, cancel := context.WithTimeout(ctx, 2*measureTime)
	defer cancel()
	if _, err := lock.Name(wait, durable.Images, r.Identity); err != nil {
		return sizeRecord{}, err
	}
	if size, ok := keptSize(path); ok {
		return size, nil
	}
	size, err := measureImage(ctx, r)
	if err != nil {
		return size, err
	}
	s.sweepImages(ctx)
	// A size that cannot be kept (a full disk) is still a size.
	if err := durable.WriteJSON(path, size); err != nil {
		s.warn(fmt.Errorf("the size of image %q is not kept: %w", r.Image, err))
	}
	return size, nil
}

func keptSize(path string) (sizeRecord, bool) {
	var size sizeRecord
	err := durable.ReadJSON(path, &size)
	return size, err == nil && (!size.Partial || time.Since(size.Measured) < measureAgain)
}

func measureImage(ctx context.Context, r layerRecord) (sizeRecord, error) {
	img, err := OpenImage(string(r.Image))
	if err != nil {
		return sizeRecord{}, err
	}
	defer img.Close()
	if img.identity() != r.Identity {
		return sizeRecord{}, errors.New("another directory is at its place, or it was changed")
	}
	limited, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	dir, done := img.withoutMounts()
	defer done()
	u, err := tree.Measure(limited, int(dir.Fd()), ".", 0)
	if err != nil {
		return sizeRecord{}, err
	}
	return sizeRecord{Image: r.Image, Bytes: u.Bytes, Partial: u.Partial, Measured: time.Now().UTC()}, nil
}
