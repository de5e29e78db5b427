// Package mnt performs mounts: overlays, clones of a directory, id maps, and unmounting. It holds no state and writes no log.
//
// Mounts are values ([Overlay]) or descriptors; what to mount and when is the caller's business. EPERM here usually means no
// CAP_SYS_ADMIN in the user namespace that owns the file system, EINVAL an older kernel or a file system that cannot.
package mnt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Clone returns a detached copy of the mount at dir, whose root is dir. Nothing that is mounted below dir comes along. It
// lives until the descriptor is closed, or as long as an overlay uses it (open_tree(2), Linux 5.2).
func Clone(dir *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, MountLimit(&os.PathError{Op: "open_tree", Path: dir.Name(), Err: err})
	}
	return os.NewFile(uintptr(fd), dir.Name()), nil
}

// SetIDMap makes the detached mount show owners through the id map of a user namespace (mount_setattr(2), Linux 5.12; as an
// overlay layer 5.19). A mount can be mapped once. EINVAL: this file system cannot (an overlay never can). EPERM: no
// CAP_SYS_ADMIN over the file system, as in a user namespace that did not mount it.
func SetIDMap(clone, userns *os.File) error {
	err := unix.MountSetattr(int(clone.Fd()), "", unix.AT_EMPTY_PATH,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())})
	if err != nil {
		return &os.PathError{Op: "id-map the mount of", Path: clone.Name(), Err: err}
	}
	return nil
}

// Attach puts the detached mount at target. ENOSPC here is the limit fs.mount-max of mounts in one mount namespace, not the
// disk; the error then wraps [ErrMountLimit].
func Attach(mountFD int, target string) error {
	err := unix.MoveMount(mountFD, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return MountLimit(&os.PathError{Op: "move_mount to", Path: target, Err: err})
	}
	return nil
}

// Bind mounts source, a file or a directory, on target.
func Bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return MountLimit(&os.PathError{Op: "bind mount on", Path: target, Err: err})
	}
	return nil
}

// ErrMountLimit says what ENOSPC of a mount call means.
var ErrMountLimit = errors.New("too many mounts in this mount namespace, not the disk: see sysctl fs.mount-max")

// MountLimit adds [ErrMountLimit] to an ENOSPC of a mount call (fs/namespace.c, count_mounts).
func MountLimit(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w (%w)", err, ErrMountLimit)
	}
	return err
}

// Detach unmounts target and all below it from the name space at once; users of the mount keep it until they are done.
func Detach(target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "umount -l", Path: target, Err: err}
	}
	return nil
}

// RemountReadOnly makes the overlay that is mounted on target read-only, in all its mounts. While a file is open for writing it tries again until ctx is done, then the
// error wraps EBUSY. No overlay there is success: whatever else is mounted there was not made by us, and may be somebody's whole disk.
func RemountReadOnly(ctx context.Context, target string) error {
	var fs unix.Statfs_t
	err := unix.Statfs(target, &fs)
	if errors.Is(err, unix.ENOENT) || (err == nil && fs.Type != unix.OVERLAYFS_SUPER_MAGIC) {
		return nil
	}
	for delay := time.Millisecond; err == nil; delay = min(2*delay, 50*time.Millisecond) {
		err = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			err = nil
		}
	}
	return &os.PathError{Op: "remount read-only", Path: target, Err: err}
}

// maxStacked bounds how many mounts on one directory Unmount takes off.
const maxStacked = 1000

// Unmount takes every mount off target: mounts can be stacked on one directory. No mount there is success. While the mount is
// in use (EBUSY) it tries again until ctx is done; the error then wraps EBUSY. It never detaches lazily: a mount that somebody
// still uses would go on living where nobody sees it.
//
// busy, if not nil, is called after an EBUSY, once for each of the stacked mounts; it may unmount what is mounted below target.
func Unmount(ctx context.Context, target string, busy func() error) error {
	delay := time.Millisecond
	asked := false
	for stacked := 0; stacked < maxStacked; {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			stacked++
			asked = false // the next one has mounts of its own below
			continue
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // not a mount point (any more)
		case !errors.Is(err, unix.EBUSY):
			return &os.PathError{Op: "umount", Path: target, Err: err}
		}
		if busy != nil && !asked {
			if err := busy(); err != nil {
				return err
			}
			asked = true
			continue // what was below it is gone now, and with it perhaps the reason
		}
		select {
		case <-ctx.Done():
			return &os.PathError{Op: "umount", Path: target, Err: err}
		case <-time.After(delay):
			delay = min(2*delay, 50*time.Millisecond)
		}
	}
	return &os.PathError{Op: "umount", Path: target, Err: errors.New("more than 1000 mounts are stacked here")}
}
