// Package tree walks, measures, removes and copies directory trees that somebody hostile may have filled.
//
// Every step goes through a descriptor of the directory, with openat2(2) RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV:
// no symlink is followed, no mount is crossed, ".." is never part of a name. Trees may be deeper than PATH_MAX and than the
// limit of open files. Files are never opened for their contents except regular ones by [Copy].
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxOpen is how many directories of the path down to the current one stay open. Those above are reopened through "..",
// and checked to be the same directory, on the way back.
const maxOpen = 32

// level is one directory on the path from the root of the walk to the current directory.
type level struct {
	fd   int // -1 when closed for the time being
	dev  uint64
	ino  uint64
	name string // in its parent
	next int64  // where reading goes on: a directory offset as in telldir(3)
}

// stack is the path from the root of a walk to the current directory.
type stack struct {
	levels []level
	stat   unix.Stat_t // of the directory that was entered last, when it was opened
}

// errMoved: the way back up does not lead to where the way down came from, or a name is something else at each look.
var errMoved = errors.New("was moved or replaced while it was walked")

// isReplaced says whether a name was no directory any more when it was opened as one.
func isReplaced(err error) bool { return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) }

// patience is how often something that is being replaced all the time is looked at.
const patience = 1000

// openRoot starts a stack at the directory name below dirfd.
func openRoot(dirfd int, name string) (*stack, error) {
	s := &stack{}
	return s, s.enter(dirfd, name)
}

func (s *stack) enter(dirfd int, name string) error {
	fd, err := openDir(dirfd, name)
	if err != nil {
		return err
	}
	if err := unix.Fstat(fd, &s.stat); err != nil {
		unix.Close(fd)
		return &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	s.levels = append(s.levels, level{fd: fd, dev: s.stat.Dev, ino: s.stat.Ino, name: name})
	return nil
}

// openDir opens a directory for reading without following a symlink or crossing a mount. EXDEV: a mount is there. The kernel also says so of a directory that was moved
// out of dirfd while it was looked up (fs/namei.c, complete_walk), but not again and again.
func openDir(dirfd int, name string) (int, error) {
	for try := 0; ; try++ {
		fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: a rename raced with the look-up
			continue
		case errors.Is(err, unix.EXDEV) && try < 3:
			continue
		case errors.Is(err, unix.EXDEV):
			return -1, fmt.Errorf("open %q: something is mounted there: %w", name, err)
		}
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
}

func (s *stack) depth() int  { return len(s.levels) }
func (s *stack) top() *level { return &s.levels[len(s.levels)-1] }
func (s *stack) fd() int     { return s.top().fd }

// push makes the child name the current directory.
func (s *stack) push(name string) error {
	if err := s.enter(s.fd(), name); err != nil {
		return err
	}
	// The root stays open: whoever walks holds on to it by this one.
	if i := s.depth() - 1 - maxOpen; i > 0 && s.levels[i].fd >= 0 {
		unix.Close(s.levels[i].fd)
		s.levels[i].fd = -1
	}
	return nil
}

// pop goes back to the parent and returns the name of the directory it left.
func (s *stack) pop() (string, error) {
	gone := *s.top()
	p := &s.levels[len(s.levels)-2]
	if p.fd < 0 {
		fd, err := unix.Openat(gone.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", &os.PathError{Op: "open the parent of", Path: gone.name, Err: err}
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return "", &os.PathError{Op: "fstat", Path: p.name, Err: err}
		}
		if st.Dev != p.dev || st.Ino != p.ino {
			unix.Close(fd)
			return "", fmt.Errorf("directory %q %w", gone.name, errMoved)
		}
		p.fd = fd
	}
	unix.Close(gone.fd)
	s.levels = s.levels[:len(s.levels)-1]
	return gone.name, nil
}

func (s *stack) close() {
	for _, l := range s.levels {
		if l.fd >= 0 {
			unix.Close(l.fd)
		}
	}
	s.levels = nil
}

// direntBytes is the buffer of one getdents64(2) call.
const direntBytes = 16 << 10

// dirent is one entry of a directory.
type dirent struct {
	name string
	kind byte  // unix.DT_…, DT_UNKNOWN on file systems that do not tell
	next int64 // offset behind this entry
}

// readEntries reads the next entries of fd, without "." and "..". io.EOF: there are no more, or fd's directory itself was removed, which
// getdents64(2) answers with ENOENT.
func readEntries(fd int, buf []byte) ([]dirent, error) {
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ENOENT) || (err == nil && n == 0) {
			return nil, io.EOF
		}
		if err != nil {
			return nil, os.NewSyscallError("getdents", err)
		}
		if entries := parseEntries(buf[:n]); len(entries) > 0 {
			return entries, nil
		}
	}
}

// checkEvery is how many entries are handled between two looks at the context.
const checkEvery = 256

// ticker looks at a context now and then.
type ticker struct {
	ctx context.Context
	n   int
}

func (t *ticker) tick() error {
	if t.n++; t.n%checkEvery == 1 {
		return t.ctx.Err()
	}
	return nil
}
