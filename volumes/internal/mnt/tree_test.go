package mnt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestMountLimit(t *testing.T) {
	err := MountLimit(&os.PathError{Op: "mount", Path: "/x", Err: unix.ENOSPC})
	if !errors.Is(err, ErrMountLimit) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	for _, other := range []error{nil, unix.EBUSY, errors.New("x")} {
		if got := MountLimit(other); got != other {
			t.Errorf("%v became %v", other, got)
		}
	}
}

func TestClone(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	tmpfs(t, dir)
	mkdirs(t, dir, "sub/m", "at")
	tmpfs(t, dir+"/sub/m")
	check(t, os.WriteFile(dir+"/sub/m/hidden", nil, 0o600))
	check(t, os.WriteFile(dir+"/sub/file", nil, 0o600))

	clone, err := Clone(opath(t, dir+"/sub"))
	check(t, err)
	defer clone.Close()
	if clone.Name() != dir+"/sub" {
		t.Errorf("its name is %q", clone.Name())
	}
	check(t, Attach(int(clone.Fd()), dir+"/at"))
	if _, err := os.Stat(dir + "/at/file"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/at/m/hidden"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is mounted below came along: %v", err)
	}
	check(t, Detach(dir+"/at"))
	if _, err := os.Stat(dir + "/at/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Detach: %v", err)
	}
	if err := Detach(dir + "/at"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Detach of nothing: %v", err)
	}
}

func TestSetIDMap(t *testing.T) {
	inspect.NeedRoot(t)
	max, err := userns.MaxID()
	check(t, err)
	ns, err := userns.New(max)
	check(t, err)
	defer ns.Close()
	dir := newDir(t)
	tmpfs(t, dir)
	mkdirs(t, dir, "sub", "at")
	for i, id := range []uint32{0, 1000, max} {
		p := fmt.Sprintf("%s/sub/%d", dir, i)
		check(t, os.WriteFile(p, nil, 0o600))
		check(t, os.Chown(p, int(id), int(id)))
	}
	clone, err := Clone(opath(t, dir+"/sub"))
	check(t, err)
	defer clone.Close()
	check(t, SetIDMap(clone, ns))
	if err := SetIDMap(clone, ns); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		t.Errorf("a second map: %v", err)
	}
	check(t, Attach(int(clone.Fd()), dir+"/at"))
	for i, want := range []uint32{max, 1000, 0} {
		var st unix.Stat_t
		check(t, unix.Stat(fmt.Sprintf("%s/at/%d", dir, i), &st))
		if st.Uid != want || st.Gid != want {
			t.Errorf("file %d belongs to %d:%d, want %d", i, st.Uid, st.Gid, want)
		}
	}
	// An overlay can never be mapped.
	o, target := scratch(t, newDir(t)+"/fs", 1)
	check(t, o.MountFDs(target))
	clone, err = Clone(opath(t, target))
	check(t, err)
	defer clone.Close()
	if err := SetIDMap(clone, ns); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), target) {
		t.Errorf("map of an overlay: %v", err)
	}
}

func TestBind(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	mkdirs(t, dir, "a", "b")
	check(t, os.WriteFile(dir+"/a/file", []byte("a"), 0o600))
	check(t, os.WriteFile(dir+"/file", nil, 0o600))
	check(t, Bind(dir+"/a", dir+"/b"))
	check(t, Bind(dir+"/a/file", dir+"/file"))
	for _, p := range []string{"b/file", "file"} {
		if b, err := os.ReadFile(dir + "/" + p); err != nil || string(b) != "a" {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
	if err := Bind(dir+"/absent", dir+"/b"); !errors.Is(err, unix.ENOENT) || errors.Is(err, ErrMountLimit) {
		t.Errorf("bind of nothing: %v", err)
	}
}

func TestUnmount(t *testing.T) {
	inspect.NeedRoot(t)
	t.Run("nothing mounted, nothing there", func(t *testing.T) {
		dir := newDir(t)
		for _, p := range []string{dir, dir + "/absent"} {
			if err := Unmount(over(t), p, nil); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("all that are stacked", func(t *testing.T) {
		dir := newDir(t)
		for range 5 {
			tmpfs(t, dir)
		}
		check(t, Unmount(over(t), dir, nil))
		if left := inspect.Mounts(t, dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("a file", func(t *testing.T) {
		dir := newDir(t)
		check(t, os.WriteFile(dir+"/file", nil, 0o600))
		check(t, Bind(dir+"/file", dir+"/file"))
		check(t, Unmount(over(t), dir+"/file", nil))
		if left := inspect.Mounts(t, dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("a symlink is not followed", func(t *testing.T) {
		dir := newDir(t)
		tmpfs(t, dir+"/m")
		check(t, os.Symlink("m", dir+"/link"))
		if err := Unmount(over(t), dir+"/link", nil); err != nil {
			t.Error(err)
		}
		if left := inspect.Mounts(t, dir); len(left) != 1 {
			t.Errorf("left: %q, want the one that the link leads to", left)
		}
	})
}

// waited is a context that calls f when somebody begins to wait for its end.
type waited struct {
	context.Context
	f func()
}

func (w waited) Done() <-chan struct{} {
	w.f()
	return w.Context.Done()
}

func TestUnmountWaitsForUsers(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	tmpfs(t, dir)
	check(t, os.WriteFile(dir+"/file", nil, 0o600))
	f, err := os.Open(dir + "/file")
	check(t, err)
	defer f.Close()

	err = Unmount(over(t), dir, nil)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), dir) {
		t.Errorf("with an open file: %v", err)
	}
	if _, err := os.Stat(dir + "/file"); err != nil {
		t.Errorf("it was unmounted lazily: %v", err)
	}
	waits := 0
	check(t, Unmount(waited{t.Context(), func() {
		if waits++; waits == 3 {
			f.Close()
		}
	}}, dir, nil))
	if waits < 3 || len(inspect.Mounts(t, dir)) > 0 {
		t.Errorf("waited %d times, left %q", waits, inspect.Mounts(t, dir))
	}
}

// Mounts stacked on one another, each with mounts of its own below: only the first level's were taken off, then it waited for ever.
func TestUnmountAsksAgainAfterEachLayer(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	const levels = 3
	for i := range levels {
		tmpfs(t, dir)
		tmpfs(t, fmt.Sprintf("%s/below-%d", dir, i))
	}
	asked := 0
	err := Unmount(over(t), dir, func() error {
		asked++
		below, err := Below(dir)
		if err != nil {
			return err
		}
		for _, b := range below {
			if err := Unmount(over(t), b, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || asked != levels || len(inspect.Mounts(t, dir)) > 0 {
		t.Errorf("error %v, asked %d times, left %q", err, asked, inspect.Mounts(t, dir))
	}
}

func TestUnmountEndsWithTheErrorOfBusy(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	tmpfs(t, dir)
	tmpfs(t, dir+"/m")
	stop := errors.New("stop")
	if err := Unmount(t.Context(), dir, func() error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}
