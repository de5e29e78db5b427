package mnt

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestIsBusy(t *testing.T) {
	dir := newDir(t) + "/m"
	tmpfs(t, dir)
	want := func(what string, want bool) {
		t.Helper()
		// Twice: to ask must not unmount it.
		for range 2 {
			if got, err := IsBusy(dir); got != want || err != nil {
				t.Errorf("%s: %v, %v", what, got, err)
			}
		}
	}
	want("unused", false)
	f, err := os.Create(dir + "/file")
	check(t, err)
	want("an open file", true)
	f.Close()
	want("closed", false)
	check(t, os.Mkdir(dir+"/below", 0o755))
	check(t, unix.Mount("test", dir+"/below", "tmpfs", 0, ""))
	want("a mount below", true)
	check(t, unix.Unmount(dir+"/below", 0))
	want("unmounted below", false)
	if busy, err := IsBusy(dir + "/below"); busy || err != nil {
		t.Errorf("no mount: %v, %v", busy, err)
	}
	if busy, err := IsBusy(dir + "/absent"); busy || err != nil {
		t.Errorf("absent: %v, %v", busy, err)
	}
	if _, err := os.Stat(dir + "/below"); err != nil {
		t.Errorf("it was unmounted: %v", err)
	}
}

func TestFindUsers(t *testing.T) {
	parent := newDir(t)
	dir := parent + "/m"
	tmpfs(t, dir)
	var st unix.Stat_t
	check(t, unix.Stat(dir, &st))
	find := func(except string) string {
		t.Helper()
		users, err := FindUsers(except)
		check(t, err)
		return users[st.Dev]
	}
	if who := find("/nowhere"); who == "" {
		t.Error("a mount of our own namespace is not found")
	}
	if who := find(parent); who != "" {
		t.Errorf("unused: %s", who)
	}
	for name, cmd := range map[string]*exec.Cmd{
		"a working directory": {Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Dir: dir},
		// A namespace with a copy at another place, of which no process is inside.
		"a mount in another namespace": {
			Path: "/bin/sh", Args: []string{"sh", "-ec", "mount --make-rprivate /; mount --bind " + dir + " /mnt; echo; exec sleep 1000"},
			SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS},
		},
	} {
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		if cmd.SysProcAttr != nil {
			if _, err := out.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if who := find(parent); who == "" {
			t.Errorf("%s: nobody is found", name)
		}
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if who := find(parent); who != "" {
			t.Errorf("%s: gone, and found is %s", name, who)
		}
	}
}

// A process that has a directory open on a FUSE file system which answers nothing stopped gc: to look at it was to ask that file system.
func TestFindUsersAsksNoFileSystem(t *testing.T) {
	inspect.NeedRoot(t)
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		inspect.Cannot(t, "needs /dev/fuse")
	}
	parent := newDir(t)
	defer unix.Close(fuse) // which ends all that waits for it
	dir := parent + "/m"
	check(t, os.Mkdir(dir, 0o755))
	check(t, unix.Mount("test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)))
	opath(t, dir)
	var st unix.Statx_t
	check(t, unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st))
	found := make(chan string, 1)
	go func() {
		users, err := FindUsers(parent)
		found <- fmt.Sprintf("%s, %v", users[unix.Mkdev(st.Dev_major, st.Dev_minor)], err)
	}()
	select {
	case got := <-found:
		if want := fmt.Sprintf("process %d, <nil>", os.Getpid()); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
	case <-time.After(time.Minute): // it only bounds how long the test takes to fail
		t.Error("it waits for the file system")
	}
}
