package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CopyOptions says how [Copy] copies. The zero value copies everything as it is.
type CopyOptions struct {
	// MapID, if not nil, maps every owner: of files, in POSIX ACLs, and the root id of file capabilities.
	MapID func(id uint32) uint32
	// Warn, if not nil, is told of attributes that the target cannot hold and that were left out (security labels).
	Warn func(error)
}

// Copy copies the directory src, with all that is in it, to a new directory name below dstDir.
//
// Kept: modes, owners (through MapID), times to the nanosecond of files, directories and symlinks, extended attributes, ACLs,
// capabilities, hard links inside the tree, holes, FIFOs, sockets and device nodes (which are made anew, never opened), names
// of any bytes. Not kept: ctime and birth time, flags of chattr. Data is shared with the source where the file system can (reflink).
// A mount below src is an error: see [Walk].
//
// A failed copy leaves what it had made so far, and a directory "name.links" beside it: remove both.
func Copy(ctx context.Context, src *os.File, dstDir int, name string, o CopyOptions) error {
	if err := unix.Mkdirat(dstDir, name, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	dst, err := openRoot(dstDir, name)
	if err != nil {
		return err
	}
	c := &copier{o: o, dst: dst, linksName: name + ".links", dstDir: dstDir, links: -1}
	defer c.close()
	if err := dropACLs(dst.fd()); err != nil {
		return fmt.Errorf("ACL of %q: %w", name, err)
	}
	err = Walk(ctx, int(src.Fd()), ".", Visitor{
		Visit: func(e Entry) error { return c.visit(ctx, e) },
		Leave: c.leave,
	})
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%w: one name was read twice, so somebody changes it", err)
	}
	if err != nil {
		return fmt.Errorf("copy %q: %w", src.Name(), err)
	}
	return Remove(ctx, dstDir, c.linksName)
}

// copier holds the target's side of a walk: the same path as the walk's stack, in the target.
type copier struct {
	o         CopyOptions
	dst       *stack
	dstDir    int
	links     int // directory with one name per source inode that has several links, -1 while there is none
	linksName string
	alone     bool          // a file with several names is not looked for among those that were copied before
	stats     []unix.Stat_t // of the source directories on the path, for their times
	buf       []byte
}

func (c *copier) close() {
	c.dst.close()
	if c.links >= 0 {
		unix.Close(c.links)
	}
}

func (c *copier) visit(ctx context.Context, e Entry) error {
	if e.IsDir() {
		if root := c.dst.levels[0]; e.Stat.Ino == root.ino && e.Stat.Dev == root.dev {
			return errors.New("the copy is inside its source")
		}
		if e.Name != "." {
			if err := unix.Mkdirat(c.dst.fd(), e.Name, 0o700); err != nil {
				return &os.PathError{Op: "mkdir", Path: e.Name, Err: err}
			}
			if err := c.dst.push(e.Name); err != nil {
				return err
			}
		}
		c.stats = append(c.stats, e.Stat)
		return nil
	}
	if err := c.file(ctx, e); err != nil {
		return fmt.Errorf("%q: %w", e.Name, err)
	}
	return nil
}

// leave gives a directory its attributes after its contents: adding entries changes times, and a mode without w would stop them.
func (c *copier) leave(dir int) error {
	st := c.stats[len(c.stats)-1]
	c.stats = c.stats[:len(c.stats)-1]
	if err := c.attributes(dir, c.dst.fd(), ".", st); err != nil {
		return fmt.Errorf("directory %q: %w", c.dst.top().name, err)
	}
	if c.dst.depth() > 1 {
		if _, err := c.dst.pop(); err != nil {
			return err
		}
	}
	return nil
}

// file copies anything that is not a directory. It copies one file, whatever comes to its name meanwhile: not one's contents with another's mode.
func (c *copier) file(ctx context.Context, e Entry) error {
	src, err := pin(&e)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	if e.IsDir() {
		return errors.New("became a directory while it was copied")
	}
	st := e.Stat
	linked := st.Nlink > 1 && !c.alone
	if linked {
		done, err := c.linked(e)
		if done || err != nil {
			return err
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if err := c.regular(ctx, src, e); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target, err := readlinkat(src, "")
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, c.dst.fd(), e.Name); err != nil {
			return os.NewSyscallError("symlink", err)
		}
	default: // FIFO, socket, device: made, never opened
		if err := unix.Mknodat(c.dst.fd(), e.Name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev)); err != nil {
			return os.NewSyscallError("mknod", err)
		}
	}
	if err := c.attributes(src, c.dst.fd(), e.Name, st); err != nil {
		return err
	}
	if linked {
		return c.remember(e)
	}
	return nil
}

// linked makes e as a hard link if its inode was copied before.
//
// Inodes with several links get one more name in a directory beside the copy: a name in the copy may be too deep to be
// reached by a path.
func (c *copier) linked(e Entry) (bool, error) {
	if c.links < 0 {
		if err := unix.Mkdirat(c.dstDir, c.linksName, 0o700); err != nil {
			return false, os.NewSyscallError("mkdir", err)
		}
		fd, err := openDir(c.dstDir, c.linksName)
		if err != nil {
			return false, err
		}
		c.links = fd
	}
	switch err := unix.Linkat(c.links, inodeName(e), c.dst.fd(), e.Name, 0); {
	case err == nil:
		return true, nil
	// EMLINK: the target's limit is lower than the source's. The next copy starts a new inode.
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EMLINK):
		return false, unix.Unlinkat(c.links, inodeName(e), 0)
	default:
		return false, os.NewSyscallError("link", err)
	}
}

func (c *copier) remember(e Entry) error {
	err := unix.Linkat(c.dst.fd(), e.Name, c.links, inodeName(e), 0)
	return os.NewSyscallError("link", err)
}

// inodeName is unique in one walk. A tree without mounts can still span devices (subvolumes of btrfs, layers of an overlay), each of which
// counts its inodes from the start.
func inodeName(e Entry) string {
	return strconv.FormatUint(e.Stat.Dev, 16) + "-" + strconv.FormatUint(e.Stat.Ino, 16)
}

func (c *copier) regular(ctx context.Context, src int, e Entry) (err error) {
	in, err := reopen(src)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := unix.Openat(c.dst.fd(), e.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return os.NewSyscallError("create", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(out))) }()
	if c.buf == nil {
		c.buf = make([]byte, 128<<10)
	}
	return copyData(ctx, out, in, e.Stat.Size, c.buf)
}

// copyData copies size bytes: by sharing the extents, else segment by segment with the holes left out.
func copyData(ctx context.Context, out, in int, size int64, buf []byte) error {
	if size == 0 {
		return nil
	}
	if unix.IoctlFileClone(out, in) == nil { // FICLONE, ioctl_ficlonerange(2)
		return nil
	}
	if err := unix.Ftruncate(out, size); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	for pos := int64(0); pos < size; {
		data, err := unix.Seek(in, pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		hole, err := unix.Seek(in, data, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		if err := copySegment(ctx, out, in, data, min(hole, size), buf); err != nil {
			return err
		}
		pos = hole
	}
	return nil
}

// copyStep is how much is copied between two looks at the context.
const copyStep = 32 << 20

// copySegment copies the bytes from pos up to end, inside the kernel where it can.
func copySegment(ctx context.Context, out, in int, pos, end int64, buf []byte) error {
	for pos < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		from, to := pos, pos
		n, err := unix.CopyFileRange(in, &from, out, &to, int(min(end-pos, copyStep)), 0)
		switch {
		case err == nil && n > 0:
			pos += int64(n)
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS):
			return os.NewSyscallError("copy_file_range", err)
		}
		n, err = unix.Pread(in, buf[:min(int64(len(buf)), end-pos)], pos)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if n == 0 {
			return io.ErrUnexpectedEOF // it shrank while it was copied
		}
		for done := 0; done < n; {
			w, err := unix.Pwrite(out, buf[done:n], pos+int64(done))
			if err != nil && !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("write", err)
			}
			done += max(w, 0)
		}
		pos += int64(n)
	}
	return nil
}

// readlinkat reads a symlink; with the name "", the one that dirfd is pinned to.
func readlinkat(dirfd int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dirfd, name, buf)
	if err != nil {
		return "", os.NewSyscallError("readlink", err)
	}
	return string(buf[:n]), nil
}
