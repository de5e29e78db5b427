package tree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync makes the contents of all files in the tree name below dirfd durable. What holds them, names, directories, links and attributes, is durable as soon as any name is that is made
// after Sync: file systems bring names to the disk in the order in which they were made, or all at once. Nothing else on the file system is waited for, as
// syncfs(2) would: beside a neighbour's gigabytes of dirty data that takes seconds.
//
// No directory is flushed, since btrfs does not keep that order for one: its flush puts what was removed from that directory into a log of its own, and after a power cut it is
// gone, while what made it unnecessary, the rename of a pointer elsewhere, say, is undone (fs/btrfs/tree-log.c, replay_dir_deletes).
//
// First all data is sent on its way, then each file is flushed. The flush of the first one commits the journal for all; those of
// the others find little to do.
func Sync(ctx context.Context, dirfd int, name string) error {
	for _, flush := range []func(fd int) error{
		func(fd int) error {
			err := unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
			if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ESPIPE) {
				return nil // it is only a hint
			}
			return err
		},
		unix.Fsync,
	} {
		err := Walk(ctx, dirfd, name, Visitor{
			Visit: func(e Entry) error {
				if e.Stat.Mode&unix.S_IFMT != unix.S_IFREG || e.Stat.Size == 0 {
					return nil // it has no contents
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
				if err := flush(fd); err != nil {
					return &os.PathError{Op: "sync", Path: e.Name, Err: err}
				}
				return nil
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
