package volumes

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// createError makes a container whose mount fails with err, and returns what Create says.
func createError(t *testing.T, dir string, err error) error {
	t.Helper()
	s := New(Options{Dir: dir, Driver: fakeDriver{mount: func(View) error { return err }}})
	_, got := s.Create(t.Context(), handle(t, "h"), privileged(t))
	if left := contents(t, s); got == nil || len(left) > 0 {
		t.Fatalf("error %v, left %q", got, left)
	}
	return got
}

// Field case 34: ENOSPC of a mount call is the limit of mounts, and nothing is left.
func TestMountLimitIsNotAFullDisk(t *testing.T) {
	dir := inspect.NewDir(t) + "/store"
	err := createError(t, dir, mnt.MountLimit(&os.PathError{Op: "mount", Path: "/x", Err: unix.ENOSPC}))
	for _, want := range []string{`create the root file system of "h"`, "not the disk", "fs.mount-max", "mount /x"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	for _, bad := range []string{"is full (", "MiB", "inodes"} {
		if strings.Contains(err.Error(), bad) {
			t.Errorf("error %q says %q", err, bad)
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v does not wrap the system's", err)
	}
}

func TestHints(t *testing.T) {
	for _, c := range []struct {
		err  unix.Errno
		want []string
	}{
		{unix.EROFS, []string{"read-only file system", "kernel log", "remount it read-write"}},
		{unix.EDQUOT, []string{"over its disk quota"}},
		{unix.ENOSPC, []string{"no space left on device", "MiB free"}},
	} {
		dir := inspect.NewDir(t) + "/store"
		err := createError(t, dir, fmt.Errorf("deep inside: %w", &os.PathError{Op: "mkdir", Path: "/x", Err: c.err}))
		for _, want := range append(c.want, `"h"`, "deep inside: mkdir /x: "+c.err.Error(), fmt.Sprintf("the store %q", dir)) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: error %q does not say %q", c.err, err, want)
			}
		}
		if strings.Count(err.Error(), dir) != 1 || !errors.Is(err, c.err) {
			t.Errorf("%v: error %q, want one hint", c.err, err)
		}
	}
	s := New(Options{Dir: "/s"})
	if plain := errors.New("x"); s.hint(plain) != plain || s.hint(nil) != nil {
		t.Error("an error that needs no hint was changed")
	}
	once := s.hint(unix.EROFS)
	if twice := s.hint(fmt.Errorf("outer: %w", once)); twice.Error() != "outer: "+once.Error() {
		t.Errorf("hinted twice: %q", twice)
	}
}

// The hint was made after what filled the disk was removed again: it then said that most of the disk is free, and nothing of inodes.
func TestHintIsOfTheMomentOfTheFailure(t *testing.T) {
	for name, c := range map[string]struct{ options, want string }{
		"bytes":  {"size=32m", "is full (0 MiB of 32 MiB free)"},
		"inodes": {"nr_inodes=300", "is out of inodes (0 of 300 free), not of bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newTmpfs(t, c.options)
			s := New(Options{Dir: dir, Driver: fakeDriver{mount: func(v View) error { return fill(v.Layers + "/" + v.Upper) }}})
			_, err := s.Create(t.Context(), handle(t, "h"), privileged(t))
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
			if left := contents(t, s); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// fill makes files of 64 KiB in dir until there is no room for one.
func fill(dir string) error {
	for i := 0; ; i++ {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), make([]byte, 64<<10), 0o600); err != nil {
			return err
		}
	}
}

func TestVerifyWay(t *testing.T) {
	dir := inspect.NewDir(t)
	check(t, os.MkdirAll(dir+"/a/b/c", 0o755))
	check(t, verifyWay(dir+"/a/b/c"))
	check(t, verifyWay("/"))
	check(t, os.Symlink("a", dir+"/link"))
	check(t, verifyWay(dir+"/link/b"))

	for _, c := range []struct {
		closed string
		mode   os.FileMode
	}{{"a/b/c", 0o700}, {"a/b", 0o754}, {"a", 0o766}} {
		check(t, os.Chmod(dir+"/"+c.closed, c.mode))
		err := verifyWay(dir + "/a/b/c")
		want := fmt.Sprintf("directory %q has mode %04o: unprivileged containers cannot cross it to their root file system; chmod o+x it",
			dir+"/"+c.closed, c.mode)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		check(t, os.Chmod(dir+"/"+c.closed, 0o755))
	}
	if err := verifyWay(dir + "/link/absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

// One sentence of each failure: what was tried, on what, the system's words, what to do.
func TestErrorsCanBeActedUpon(t *testing.T) {
	dir := inspect.NewDir(t)
	write := func(name, content string) string {
		check(t, os.MkdirAll(dir+"/"+name, 0o755))
		check(t, os.WriteFile(dir+"/"+name+"/store.json", []byte(content), 0o600))
		return dir + "/" + name
	}
	boot, err := bootKey()
	check(t, err)
	fs, err := fileSystem(dir)
	check(t, err)
	record := func(name string, format int, driver, fs string) string {
		return write(name, fmt.Sprintf(`{"format":%d,"driver":%q,"fs":%q,"boot":%q}`, format, driver, fs, boot))
	}
	check(t, os.WriteFile(dir+"/file", nil, 0o600))
	create := func(store string) error {
		_, err := New(Options{Dir: store, Driver: fakeDriver{}}).Create(t.Context(), handle(t, "my handle"), privileged(t))
		return err
	}
	for name, c := range map[string]struct {
		err  error
		is   error
		want []string
	}{
		"format": {create(record("format", 2, "fake", fs)), ErrUnsupported,
			[]string{dir + "/format", "has format 2, this program writes 1", "use another directory or the program that made it"}},
		"a later format that cannot be read": {create(write("later", `{"format":7,"driver":{"name":"x"}}`)), ErrUnsupported,
			[]string{dir + "/later", "has format 7"}},
		"driver": {create(record("driver", 1, "other", fs)), ErrUnsupported,
			[]string{dir + "/driver", `driver "other", not "fake"`, "can be deleted, new ones need another directory"}},
		"file system": {create(record("fs", 1, "fake", "zfs")), ErrUnsupported,
			[]string{dir + "/fs", "made on zfs and is on " + fs, "is the right file system mounted?", "empty it"}},
		"relative":  {create("relative"), ErrInvalid, []string{`"relative"`, "must be absolute"}},
		"no folder": {create(dir + "/file"), unix.ENOTDIR, []string{"make the store", dir + "/file"}},
		"probe": {func() error {
			s := New(Options{Dir: dir + "/probe", Driver: fakeDriver{probe: func(View) (Features, error) { return Features{}, unix.EPERM }}})
			_, err := s.Create(t.Context(), handle(t, "my handle"), privileged(t))
			return err
		}(), ErrUnsupported, []string{dir + "/probe", "on " + fs, "cannot hold volumes", "operation not permitted"}},
		"mounted nowhere": {create(dir + "/nowhere"), nil, []string{dir + "/nowhere/mnt/", "nothing is mounted there", "mount namespace?"}},
		"no image": {func() error { _, err := OpenImage(dir + "/absent"); return err }(), os.ErrNotExist,
			[]string{"absent", dir + "/absent"}},
		"relative image": {func() error { _, err := OpenImage("absent"); return err }(), ErrInvalid, []string{`image path "absent"`, "absolute"}},
		"stats of nothing": {func() error {
			_, err := New(Options{Dir: dir + "/none", Driver: fakeDriver{}}).Stats(t.Context(), handle(t, "my handle"))
			return err
		}(), ErrNotFound, []string{`stats of "my handle"`, "not found"}},
	} {
		if c.err == nil || (c.is != nil && !errors.Is(c.err, c.is)) {
			t.Errorf("%s: error %v, want one that wraps %v", name, c.err, c.is)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(c.err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", name, c.err, want)
			}
		}
		if strings.Contains(c.err.Error(), "\n") {
			t.Errorf("%s: error %q is more than a sentence", name, c.err)
		}
	}
}
