package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

var errFake = errors.New("the fake driver does not mount")

func failing(View) error { return errFake }

func TestNewTouchesNothing(t *testing.T) {
	dir := inspect.NewDir(t) + "/store"
	s := New(Options{Dir: dir, Driver: fakeDriver{}})
	if _, err := s.Delete(t.Context(), handle(t, "h")); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := s.Stats(t.Context(), handle(t, "h")); !errors.Is(err, ErrNotFound) {
		t.Errorf("stats: %v", err)
	}
	if n, err := s.Capacity(); err != nil || n == 0 {
		t.Errorf("capacity: %d, %v", n, err)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store's directory: %v", err)
	}
}

func TestSetUpMakesTheModesWhateverTheUmask(t *testing.T) {
	parent := inspect.NewDir(t)
	s := New(Options{Dir: parent + "/store", Driver: fakeDriver{mount: failing}})
	old := unix.Umask(0o077) // no parallel test: it is the process's
	_, err := s.Create(t.Context(), handle(t, "h"), privileged(t))
	unix.Umask(old)
	if !errors.Is(err, errFake) {
		t.Fatal(err)
	}
	for _, d := range directories {
		info, err := os.Stat(s.path(d.name))
		if err != nil || info.Mode().Perm() != d.mode {
			t.Errorf("%q: %v, %v, want mode %o", d.name, info, err, d.mode)
		}
	}
}

func TestTheHostIsProbedOnce(t *testing.T) {
	var probes atomic.Int32
	s := New(Options{Dir: inspect.NewDir(t) + "/store", Driver: fakeDriver{mount: failing, probe: func(v View) (Features, error) {
		probes.Add(1)
		return Features{Volatile: true}, errors.Join(os.WriteFile(v.Layers+"/"+v.Upper+"/x", nil, 0o600), os.WriteFile(v.Target+"/x", nil, 0o600))
	}}})
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		req := privileged(t)
		all.Go(func() {
			if _, err := s.Create(context.Background(), Handle{name}, req); !errors.Is(err, errFake) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := probes.Load(); n != 1 {
		t.Errorf("probed %d times", n)
	}
	if left := contents(t, s); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if names, err := filepath.Glob(s.path("*.tmp")); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
}

// open reads a damaged record as an error, though the comment beside it said that it is written anew.
func TestADamagedRecordIsWrittenAnew(t *testing.T) {
	for _, damage := range []string{"", "{", `{"format":"x"}`, "\x00\x00\x00", "null", "[]", "{}", `{"format":1,"driver":7}`} {
		dir := inspect.NewDir(t)
		check(t, os.WriteFile(dir+"/store.json", []byte(damage), 0o600))
		s := New(Options{Dir: dir, Driver: fakeDriver{mount: failing}})
		if _, err := s.Create(t.Context(), handle(t, "h"), privileged(t)); !errors.Is(err, errFake) {
			t.Errorf("%q: %v", damage, err)
		}
		b, err := os.ReadFile(dir + "/store.json")
		if err != nil || !strings.Contains(string(b), `"driver":"fake"`) {
			t.Errorf("%q became %q, %v", damage, b, err)
		}
	}
}

// A file or directory that somebody made by hand under a handle's name could be neither deleted nor created over, and no list was made.
func TestEntriesThatTheStoreDidNotMake(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"directory": func(p string) error { return os.MkdirAll(p+"/volume/x", 0o755) },
		"file":      func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
		"symlink":   func(p string) error { return os.Symlink("/etc", p) },
		"empty ID":  func(p string) error { return os.Symlink("..", p) },
		"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		for _, st := range states {
			t.Run(name+" in "+string(st), func(t *testing.T) {
				s := New(Options{Dir: inspect.NewDir(t), Driver: fakeDriver{mount: failing}})
				h := handle(t, "h")
				if _, err := s.Create(t.Context(), h, privileged(t)); !errors.Is(err, errFake) {
					t.Fatal(err)
				}
				check(t, make(s.entryPath(st, h)))
				list, err := s.List(t.Context())
				if err != nil || len(list) != 1 || list[0].Handle != "h" || list[0].ID != "" || list[0].Root != "" || list[0].Mounted {
					t.Errorf("list: %+v, %v", list, err)
				}
				if _, err := s.Stats(t.Context(), h); err == nil {
					t.Error("it has stats")
				}
				if _, err := s.Delete(t.Context(), h); err != nil {
					t.Errorf("delete: %v", err)
				}
				if left := contents(t, s); len(left) > 0 {
					t.Errorf("after delete: %q", left)
				}
				check(t, make(s.entryPath(st, h)))
				if _, err := s.Create(t.Context(), h, privileged(t)); !errors.Is(err, errFake) {
					t.Errorf("create: %v", err)
				}
				if left := contents(t, s); len(left) > 0 {
					t.Errorf("after create: %q", left)
				}
			})
		}
	}
}

func TestDeleteOfAnUnknownHandleNeedsNoLock(t *testing.T) {
	s := New(Options{Dir: inspect.NewDir(t), Driver: fakeDriver{mount: failing}})
	if _, err := s.Create(t.Context(), handle(t, "h"), privileged(t)); !errors.Is(err, errFake) {
		t.Fatal(err)
	}
	unlock, err := s.lock(t.Context(), handle(t, "unknown"))
	check(t, err)
	defer unlock()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := s.Delete(over, handle(t, "unknown")); err != nil || d.ID != "" || d.Copies != nil {
		t.Errorf("deleted %+v, %v", d, err)
	}
}

// Field case 72: who waits for a lock says so, and for which handle; other handles go on.
func TestALockedHandleIsWaitedFor(t *testing.T) {
	s := New(Options{Dir: inspect.NewDir(t), Driver: fakeDriver{mount: failing}})
	h := handle(t, "mine")
	if _, err := s.Create(t.Context(), h, privileged(t)); !errors.Is(err, errFake) {
		t.Fatal(err)
	}
	check(t, s.makeEntry(stateDead, h, strings.Repeat("0", 32)))
	unlock, err := s.lock(t.Context(), h)
	check(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, createErr := s.Create(over, h, privileged(t))
	_, deleteErr := s.Delete(over, h)
	for _, err := range []error{createErr, deleteErr} {
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `wait for the lock of handle "mine", which another command holds`) {
			t.Errorf("error %v", err)
		}
	}
	if _, err := s.Create(t.Context(), handle(t, "other"), privileged(t)); !errors.Is(err, errFake) {
		t.Errorf("another handle: %v", err)
	}
	unlock()
	if _, err := s.Delete(t.Context(), h); err != nil {
		t.Errorf("after the lock is free: %v", err)
	}
}

func TestListNamesAnyHandle(t *testing.T) {
	s := New(Options{Dir: inspect.NewDir(t), Driver: fakeDriver{mount: failing}})
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("before there is a store: %v, %v", list, err)
	}
	if _, err := s.Create(t.Context(), handle(t, "h"), privileged(t)); !errors.Is(err, errFake) {
		t.Fatal(err)
	}
	id := strings.Repeat("ab", 16)
	check(t, s.makeLayer(id, layerRecord{Kind: kindRootfs, Image: "/img", Privileged: true, Created: time.Unix(5, 0).UTC()}))
	check(t, s.makeEntry(stateLive, handle(t, "a\nb"), id))
	check(t, s.makeEntry(stateInit, handle(t, "\xff"), strings.Repeat("cd", 16)))
	check(t, s.makeEntry(stateDead, handle(t, "-d"), strings.Repeat("ef", 16)))
	list, err := s.List(t.Context())
	check(t, err)
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Handle, b.Handle) })
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	for i, want := range []struct{ handle, state, raw string }{{"-d", "dead", ""}, {"a\nb", "live", ""}, {"\xff", "init", "\xff"}} {
		if e := list[i]; e.Handle != want.handle || e.State != want.state || string(e.HandleRaw) != want.raw || e.Mounted ||
			e.Root != s.path("mnt", e.ID, "rootfs") {
			t.Errorf("%+v, want %+v", e, want)
		}
	}
	if e := list[1]; !e.Privileged || e.Image != "/img" || !e.Created.Equal(time.Unix(5, 0)) || e.ID != id {
		t.Errorf("%+v", e)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.List(over); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id, err := ids.New()
		if err != nil || !ids.Valid(id) || seen[id] {
			t.Fatalf("%q, %v", id, err)
		}
		seen[id] = true
	}
	for _, s := range []string{"", "..", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("g", 32), strings.Repeat("../", 10) + "ab"} {
		if ids.Valid(s) {
			t.Errorf("%q is an ID", s)
		}
	}
}

func TestCapacityIsThatOfTheFileSystem(t *testing.T) {
	dir := newTmpfs(t, "size=5m")
	for _, store := range []string{dir, dir + "/not/yet/there"} {
		if n, err := New(Options{Dir: store, Driver: fakeDriver{}}).Capacity(); err != nil || n != 5<<20 {
			t.Errorf("%q: %d, %v", store, n, err)
		}
	}
}
