package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// peakKiB is the most memory that a program had resident. It is stopped at its end to be asked: rusage of a child counts its parent's, which it shares
// until it executes its program.
func peakKiB(name string, args ...string) (kib int64, err error) {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	c := exec.Command(name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := c.Start(); err != nil {
		return 0, err
	}
	pid := c.Process.Pid
	defer func() { err = errors.Join(err, c.Process.Release()) }()
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return 0, err
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT|unix.PTRACE_O_EXITKILL); err != nil {
		return 0, err
	}
	for !status.Exited() && !status.Signaled() {
		signal := 0
		switch {
		case status.Stopped() && status.TrapCause() == unix.PTRACE_EVENT_EXIT:
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				return 0, err
			}
			if _, rest, ok := strings.Cut(string(text), "VmHWM:"); ok {
				if _, err := fmt.Sscan(rest, &kib); err != nil {
					return 0, err
				}
			}
		case status.Stopped() && status.StopSignal() != unix.SIGTRAP:
			signal = int(status.StopSignal())
		}
		if err := unix.PtraceCont(pid, signal); err != nil {
			return 0, err
		}
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
			return 0, err
		}
	}
	if status.ExitStatus() != 0 || kib == 0 {
		return 0, fmt.Errorf("%s %q: exit status %d, peak %d KiB", name, args, status.ExitStatus(), kib)
	}
	return kib, nil
}
