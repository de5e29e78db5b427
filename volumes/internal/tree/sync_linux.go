package tree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync makes the tree name below dirfd durable: contents, names and attributes of everything in it, and its own name. Nothing else on the
// file system is waited for, as syncfs(2) would: beside a neighbour's gigabytes of dirty data that takes seconds.
//
// First all data is sent on its way, then each file is flushed. The flush of the first one commits the journal for all; those of
// the others find little to do.
func Sync(ctx context.Context, dirfd int, name string) error {
	for _, flush := range []func(fd int, dir bool) error{
		func(fd int, dir bool) error {
			if dir {
				return nil
			}
			err := unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
			if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ESPIPE) {
				return nil // it is only a hint
			}
			return err
		},
		func(fd int, _ bool) error { return unix.Fsync(fd) },
	} {
		err := Walk(ctx, dirfd, name, Visitor{
			Visit: func(e Entry) error {
				if e.Stat.Mode&unix.S_IFMT != unix.S_IFREG {
					return nil // other inodes are durable with their directory
				}
				at, err := pin(&e)
				if errors.Is(err, unix.ENOENT) {
					return nil
				}
				if err != nil {
					return fmt.Errorf("%q: %w", e.Name, err)
				}
				defer unix.Close(at)
				if e.Stat.Mode&unix.S_IFMT != unix.S_IFREG {
					return nil // it was replaced
				}
				fd, err := reopen(at)
				if err != nil {
					return fmt.Errorf("%q: %w", e.Name, err)
				}
				defer unix.Close(fd)
				if err := flush(fd, false); err != nil {
					return &os.PathError{Op: "sync", Path: e.Name, Err: err}
				}
				return nil
			},
			Leave: func(dir int) error { return os.NewSyscallError("sync", flush(dir, true)) },
		})
		if err != nil {
			return err
		}
	}
	parent, err := openDir(dirfd, ".")
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return os.NewSyscallError("fsync", unix.Fsync(parent))
}
