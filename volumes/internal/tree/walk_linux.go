package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Entry is one file or directory met by [Walk].
type Entry struct {
	Dir  int    // descriptor of the directory that holds it; valid during the call
	Name string // "." for the root of the walk
	Stat unix.Stat_t
}

// IsDir says whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// Visitor is told of each entry: Visit before what is in a directory, Leave (if not nil) after it.
type Visitor struct {
	Visit func(e Entry) error
	Leave func(dir int) error // dir is the directory that is being left
}

// Walk visits the directory name below dirfd and everything in it, each directory before its contents. What is mounted on a directory of
// the tree is not gone into: an error that wraps EXDEV. What vanishes meanwhile is passed over; the order is the file system's.
func Walk(ctx context.Context, dirfd int, name string, v Visitor) error {
	s, err := openRoot(dirfd, name)
	if err != nil {
		return err
	}
	defer s.close()
	root := Entry{Dir: s.fd(), Name: "."}
	if err := unix.Fstat(s.fd(), &root.Stat); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := v.Visit(root); err != nil {
		return err
	}
	buf := make([]byte, direntBytes)
	tick := ticker{ctx: ctx}
	for {
		entries, err := readEntries(s.fd(), buf)
		if errors.Is(err, io.EOF) {
			if v.Leave != nil {
				if err := v.Leave(s.fd()); err != nil {
					return err
				}
			}
			if s.depth() == 1 {
				return nil
			}
			if _, err := s.pop(); err != nil {
				return err
			}
			// Go on behind the directory just left: what was read beyond it was forgotten, so memory stays small.
			if _, err := unix.Seek(s.fd(), s.top().next, io.SeekStart); err != nil {
				return os.NewSyscallError("lseek", err)
			}
			continue
		}
		if err != nil {
			return err
		}
		for _, d := range entries {
			if err := tick.tick(); err != nil {
				return err
			}
			s.top().next = d.next
			e, err := s.meet(d.name)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return err
			}
			if err := v.Visit(e); err != nil {
				return err
			}
			if e.IsDir() {
				break
			}
		}
	}
}

// meet looks at a name in the current directory, and makes it the current one if it is a directory: opened before it is visited, so that a visitor who was told of a
// directory is told of its end, too. What is opened is what is told of, whatever was there when it was looked at. ENOENT: it has vanished.
func (s *stack) meet(name string) (Entry, error) {
	for range patience {
		e := Entry{Dir: s.fd(), Name: name}
		if err := unix.Fstatat(e.Dir, name, &e.Stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return e, &os.PathError{Op: "stat", Path: name, Err: err}
		}
		if !e.IsDir() {
			return e, nil
		}
		err := s.push(name)
		if isReplaced(err) {
			continue
		}
		e.Stat = s.stat
		return e, err
	}
	return Entry{}, fmt.Errorf("%q %w", name, errMoved)
}
