package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"golang.org/x/sys/unix"
)

// Remove removes name below dirfd, a file or a whole tree. A name that is not there is success.
//
// It needs no free space and no memory that grows with the tree (beyond one small record per level), takes off the immutable
// and append-only flags that it meets, and never crosses a mount: one inside the tree is an error that wraps EXDEV or EBUSY.
// Stopped by ctx, or failed, it has removed a part and can be called again. Several may remove one tree at once: what another
// removed is gone, which is all that was asked for.
func Remove(ctx context.Context, dirfd int, name string) error {
	for range 10 {
		if err := removeOnce(ctx, dirfd, name); !becameAnother(err) || ctx.Err() != nil {
			return err
		}
	}
	return removeOnce(ctx, dirfd, name)
}

// becameAnother says whether an error is one of removing what was replaced, or filled again, since it was looked at.
func becameAnother(err error) bool {
	return isReplaced(err) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
}

func removeOnce(ctx context.Context, dirfd int, name string) error {
	switch err := unlink(dirfd, name, true); {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("remove %q: %w", name, err)
	}
	s, err := openRoot(dirfd, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.close()
	if err := empty(ctx, s); err != nil {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	if err := rmdir(dirfd, name); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}

// RemoveIn is Remove of name below the directory at the path dir. A directory that does not exist has nothing to remove.
func RemoveIn(ctx context.Context, dir, name string) error {
	d, err := durable.OpenDir(dir, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return Remove(ctx, int(d.Fd()), name)
}

// empty removes everything below the root of s.
//
// Before it goes down into a directory it forgets what it has read of the parent and reads that anew when it comes back. What
// it read was removed, so each pass is shorter, and the memory needed does not grow with the width of the levels.
func empty(ctx context.Context, s *stack) error {
	buf := make([]byte, direntBytes)
	tick := ticker{ctx: ctx}
	removed := 0  // since the current directory was last read from its start
	replaced := 0 // how often a name was something else than it was a moment before
	for {
		entries, err := readEntries(s.fd(), buf)
		switch {
		case errors.Is(err, io.EOF) && removed > 0:
			// Removing while reading may make a file system skip entries (readdir(3)).
			if err := rewind(s); err != nil {
				return err
			}
			removed = 0
			continue
		case errors.Is(err, io.EOF) && s.depth() == 1:
			return nil
		case errors.Is(err, io.EOF):
			name, err := s.pop()
			if err != nil {
				return err
			}
			if err := rmdir(s.fd(), name); err != nil && !errors.Is(err, unix.ENOENT) {
				// Somebody puts things there as fast as they are removed: it is looked at again, with the rest of its parent.
				if replaced++; replaced > patience || !becameAnother(err) {
					return fmt.Errorf("remove directory %q: %w", name, err)
				}
			}
			if err := rewind(s); err != nil {
				return err
			}
			removed = 1
			continue
		case err != nil:
			return err
		}
		for _, e := range entries {
			if err := tick.tick(); err != nil {
				return err
			}
			err := unlink(s.fd(), e.name, e.kind == unix.DT_DIR)
			if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
				if err = s.push(e.name); err == nil {
					removed = 0
					break
				}
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				if replaced++; replaced > patience || !becameAnother(err) {
					return fmt.Errorf("remove %q: %w", e.name, err)
				}
			}
			removed++
		}
	}
}

func rewind(s *stack) error {
	if _, err := unix.Seek(s.fd(), 0, io.SeekStart); err != nil {
		return os.NewSyscallError("lseek", err)
	}
	return nil
}

// unlink removes a file or an empty directory. likelyDir saves a call where it is right.
func unlink(dirfd int, name string, likelyDir bool) error {
	if likelyDir {
		if err := rmdir(dirfd, name); !errors.Is(err, unix.ENOTDIR) {
			return err
		}
	}
	err := unix.Unlinkat(dirfd, name, 0)
	// EISDIR is Linux's answer for a directory, EPERM that of POSIX and of a flagged file.
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if err := rmdir(dirfd, name); !errors.Is(err, unix.ENOTDIR) {
			return err
		}
		clearFlags(dirfd, name)
		err = unix.Unlinkat(dirfd, name, 0)
	}
	return err
}

func rmdir(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.EPERM) {
		clearFlags(dirfd, name)
		err = unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
	}
	return err
}

// clearFlags takes the immutable and append-only flags (chattr +i, +a) off a file or directory and off the directory it is
// in: a privileged container can set them. It does what it can; the unlink after it reports what is still in the way.
func clearFlags(dirfd int, name string) {
	clearFDFlags(dirfd)
	e := Entry{Dir: dirfd, Name: name}
	at, err := pin(&e)
	if err != nil {
		return
	}
	defer unix.Close(at)
	// Opening anything else may block or have effects, and has no flags.
	if kind := e.Stat.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return
	}
	fd, err := reopen(at)
	if err != nil {
		return
	}
	clearFDFlags(fd)
	unix.Close(fd)
}

func clearFDFlags(fd int) {
	const locked = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND // the same bits as FS_IMMUTABLE_FL, FS_APPEND_FL
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&locked == 0 {
		return
	}
	_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^uint32(locked)))
}
