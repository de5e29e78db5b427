package tree

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// pin returns a descriptor (O_PATH) of what is at the entry's name now, whatever it is, and makes the entry's status that of it: from here on it is one file. Nothing is
// opened by that: no device notices, and no FIFO is waited for.
func pin(e *Entry) (int, error) {
	fd, err := unix.Openat(e.Dir, e.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open", err)
	}
	if err := unix.Fstat(fd, &e.Stat); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fstat", err)
	}
	return fd, nil
}

// reopen opens for reading what fd is pinned to. It has to be a regular file or a directory.
func reopen(fd int) (int, error) {
	in, err := unix.Open(pinned(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	return in, os.NewSyscallError("open", err)
}

// pinned is a path of what a descriptor leads to, also if that is a symlink: a magic link's target is not followed any further (proc_pid_fd(5)).
func pinned(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
