// Package durable holds the two things that must be right for a store to survive: locks that a dead process cannot keep, and
// records that are either whole or not there.
package durable

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is one open lock file. All locks taken through it are released by Close, and by the kernel when the process dies, so a
// lock file that exists means nothing.
//
// Locks belong to the open file, not to the process: two Locks on one file exclude each other, also inside one program.
type Lock struct{ f *os.File }

// OpenLock opens, and makes if need be, the lock file at path.
func OpenLock(path string) (*Lock, error) {
	fd, err := openFD(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	return &Lock{os.NewFile(uintptr(fd), path)}, nil
}

// Close releases every lock taken through l. Closing the file alone would leave them to a process that was just forked, until it executes its program
// or ends.
func (l *Lock) Close() error {
	_ = unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}) // a length of 0 is the whole file
	return l.f.Close()
}

// Name takes the exclusive lock of one name in one space of names, and returns what releases it. It waits until ctx is done.
//
// It is a lock on one byte of the file, at an offset made from the name (F_OFD_SETLK, Linux 3.15): as many locks as there are
// names, without a file for each that somebody would have to remove. Two names that meet at one offset (2^-61) wait for each
// other and nothing else.
func (l *Lock) Name(ctx context.Context, space Space, name string) (unlock func(), err error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	at := int64(h.Sum64()>>3) | int64(space)<<61
	set := func(kind int16) error {
		return unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Whence: 0, Start: at, Len: 1})
	}
	if err := poll(ctx, func() error { return set(unix.F_WRLCK) }); err != nil {
		return nil, fmt.Errorf("wait for the lock of %s %q, which another command holds: %w", space, name, err)
	}
	return func() { _ = set(unix.F_UNLCK) }, nil
}

// Space separates kinds of names from each other.
type Space int64

// The spaces of names.
const (
	Handles Space = iota
	Images
	Caches
	Records
)

func (s Space) String() string { return [...]string{"handle", "image", "cache", "record"}[s] }

// poll tries until it works, fails for another reason than being locked, or ctx is done. Polling, since fcntl cannot wait with a time
// limit; the pauses stay short beside what a command does under a lock.
func poll(ctx context.Context, try func() error) error {
	delay := 100 * time.Microsecond
	for {
		err := try()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
			delay = min(2*delay, 20*time.Millisecond)
		}
	}
}
