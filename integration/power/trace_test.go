package power

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is a system call that is about to change something.
type call struct {
	name   string // empty: there is none any more
	n      int    // of all such calls of the command, from 1
	ofTree bool   // it removes what is in a tree, one name after the other
}

// changing are the calls between which the disk can differ. Those of torture (calls_test.go) that change no disk are not among them; an open is, if it makes a file, and
// a write, if it is to a file on the disk.
var changing = map[uint64]string{
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_LINKAT: "linkat", unix.SYS_MKNODAT: "mknodat", unix.SYS_RENAMEAT: "renameat",
	unix.SYS_RENAMEAT2: "renameat2", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_OPENAT: "openat", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_SYNCFS: "syncfs", unix.SYS_SYNC_FILE_RANGE: "sync_file_range",
	unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHOWN: "fchown", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_UTIMENSAT: "utimensat",
	unix.SYS_SETXATTR: "setxattr", unix.SYS_LSETXATTR: "lsetxattr", unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_REMOVEXATTR: "removexattr",
	unix.SYS_LREMOVEXATTR: "lremovexattr", unix.SYS_FREMOVEXATTR: "fremovexattr", unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2", unix.SYS_MOVE_MOUNT: "move_mount",
	unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount",
}

// changes says whether a call is one of them.
func (m *machine) changes(pid int, nr uint64, args [6]uint64) (string, bool) {
	name, ok := changing[nr]
	switch name {
	case "openat":
		ok = args[2]&unix.O_CREAT != 0
	case "write", "pwrite64":
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, args[0]))
		ok = err == nil && strings.HasPrefix(path, m.point()+"/")
	}
	return name, ok
}

// step runs the plugin and calls at before each call of its that changes something; the program stands still meanwhile. It returns the exit code, stdout and the log.
//
// It is a small strace: that one stops at all calls of a name or at the N-th of a thread, where all calls of all threads are wanted here, and tells nobody that it has. All
// threads are traced (PTRACE_O_TRACECLONE, ptrace(2)), as Go moves work between them; one works at a time. The program is the one that operators get.
func (m *machine) step(args []string, at func(call) error) (code int, stdout, log string, err error) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	out, err := os.Create(m.lost() + "/stdout")
	if err != nil {
		return 0, "", "", err
	}
	defer out.Close()
	errs, err := os.Create(m.lost() + "/stderr")
	if err != nil {
		return 0, "", "", err
	}
	defer errs.Close()
	cmd := exec.Command(plugin, m.flags(args)...)
	cmd.Stdout, cmd.Stderr = out, errs // files: nobody has to copy
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return 0, "", "", err
	}
	status, err := m.follow(cmd.Process.Pid, at)
	if err != nil {
		err = errors.Join(fmt.Errorf("trace %q: %w", args, err), unix.Kill(cmd.Process.Pid, unix.SIGKILL))
		for { // let it end
			if _, failed := unix.Wait4(-1, nil, unix.WALL|unix.WNOTHREAD, nil); failed != nil && !errors.Is(failed, unix.EINTR) {
				return 0, "", "", errors.Join(err, cmd.Process.Release())
			}
		}
	}
	err = cmd.Process.Release() // follow has waited for it
	text, failed := os.ReadFile(out.Name())
	logged, failedToo := os.ReadFile(errs.Name())
	return status.ExitStatus(), string(text), string(logged), errors.Join(err, failed, failedToo)
}

// follow traces the process pid, which this thread has just started and which has stopped at its first instruction, until it is gone.
func (m *machine) follow(pid int, at func(call) error) (unix.WaitStatus, error) {
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return status, err
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		return status, err
	}
	goOn := func(tid, signal int) error {
		if err := unix.PtraceSyscall(tid, signal); err != nil && !errors.Is(err, unix.ESRCH) { // the process may end while one of its threads is stopped
			return err
		}
		return nil
	}
	if err := goOn(pid, 0); err != nil {
		return status, err
	}
	n := 0
	for {
		// Children of this thread only: the program's threads.
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return status, err
		case status.Exited() || status.Signaled():
			if tid == pid {
				return status, nil // the leader is reported last
			}
			continue
		}
		signal := 0
		switch s := status.StopSignal(); {
		case s == unix.SIGTRAP|0x80: // TRACESYSGOOD
			nr, args, entry, err := callOf(tid)
			if err != nil {
				return status, err
			}
			if name, ok := m.changes(pid, nr, args); entry && ok {
				n++
				if err := at(call{name, n, name == "unlinkat" && int32(args[0]) != unix.AT_FDCWD}); err != nil {
					return status, err
				}
			}
		case s == unix.SIGTRAP && status.TrapCause() > 0: // a new thread
		case s == unix.SIGSTOP: // with which a new thread begins
		default:
			signal = int(s)
		}
		if err := goOn(tid, signal); err != nil {
			return status, err
		}
	}
}

// callOf is the system call at which a thread stands, and whether it is about to make it.
func callOf(tid int) (nr uint64, args [6]uint64, entry bool, err error) {
	var info struct { // struct ptrace_syscall_info, include/uapi/linux/ptrace.h, Linux 5.3
		op    uint8
		_     [3]uint8
		arch  uint32
		ip    uint64
		sp    uint64
		nr    uint64
		args  [6]uint64
		spare uint64
	}
	const opEntry = 1
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 && errno != unix.ESRCH {
		return 0, args, false, os.NewSyscallError("ptrace", errno)
	}
	return info.nr, info.args, info.op == opEntry, nil
}

func ioctl(f *os.File, request uintptr, value *uint64) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
		return errno
	}
	return nil
}
