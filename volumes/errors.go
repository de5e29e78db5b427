package volumes

import (
	"errors"
	"fmt"

	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"golang.org/x/sys/unix"
)

// What callers branch on, by errors.Is.
var (
	// ErrInvalid: the caller gave something that can never work.
	ErrInvalid = errors.New("invalid")
	// ErrExists: there is a live container of this handle; it was not touched.
	ErrExists = errors.New("already exists")
	// ErrNotFound: there is no such container, or not any more.
	ErrNotFound = errors.New("not found")
	// ErrBusy: a mount was in use for as long as we were allowed to wait. Nothing was removed through it; trying again goes on.
	ErrBusy = errors.New("busy")
	// ErrUnsupported: this host, this file system or this store cannot do what was asked for.
	ErrUnsupported = errors.New("not supported")
	// ErrCannotMap: a driver cannot show a layer under the other ownership. Create then uses a shifted copy, if it may.
	ErrCannotMap = errors.New("cannot be id-mapped")
)

// hint adds what to do about the system's error, where the error alone misleads or leaves one helpless. It is for the moment of the failure:
// what is undone leaves room behind. An error that has its hint is returned as it is.
func (s *Store) hint(err error) error {
	var has hinted
	switch {
	case err == nil || errors.As(err, &has):
		return err
	case errors.Is(err, unix.EROFS):
		return hinted{err, fmt.Sprintf("the store %q is on a read-only file system; see the kernel log for why, then remount it read-write", s.dir)}
	case errors.Is(err, unix.EDQUOT):
		return hinted{err, fmt.Sprintf("the store %q is over its disk quota", s.dir)}
	case errors.Is(err, unix.ENOSPC) && !errors.Is(err, mnt.ErrMountLimit):
		return hinted{err, s.whatIsFull()}
	}
	return err
}

// hinted is an error with what to do about it.
type hinted struct {
	error
	hint string
}

func (h hinted) Error() string { return h.error.Error() + ": " + h.hint }
func (h hinted) Unwrap() error { return h.error }

// whatIsFull tells a lack of inodes from a lack of blocks, for which the system has only one error.
func (s *Store) whatIsFull() string {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.home(), &fs); err != nil {
		return fmt.Sprintf("the file system of the store %q is full", s.dir)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	switch {
	// File systems that make inodes as they need them (btrfs) say 0 in all.
	case fs.Files > 0 && fs.Ffree < fs.Files/100+16:
		return fmt.Sprintf("the file system of the store %q is out of inodes (%d of %d free), not of bytes", s.dir, fs.Ffree, fs.Files)
	case fs.Bavail < fs.Blocks/50 || free < min(64<<20, fs.Blocks/10*uint64(fs.Bsize)):
		return fmt.Sprintf("the file system of the store %q is full (%d MiB of %d MiB free)", s.dir, free>>20, fs.Blocks*uint64(fs.Bsize)>>20)
	}
	return fmt.Sprintf("the file system of the store %q has room (%d MiB free), so a limit of the kernel may be reached, such as fs.mount-max or user.max_user_namespaces",
		s.dir, free>>20)
}
