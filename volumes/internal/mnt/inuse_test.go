package mnt

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

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
