package durable

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string) *Lock {
	t.Helper()
	l, err := OpenLock(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestNameExcludesTheSameNameOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, b := open(t, path), open(t, path)
	unlock, err := a.Name(soon(t), Handles, "h")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Name(soon(t), Handles, "h"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("same name: %v, want a time-out", err)
	}
	if _, err := b.Name(soon(t), Images, "h"); err != nil {
		t.Fatalf("same name in another space: %v", err)
	}
	if _, err := b.Name(soon(t), Handles, "i"); err != nil {
		t.Fatalf("another name: %v", err)
	}
	unlock()
	if _, err := b.Name(soon(t), Handles, "h"); err != nil {
		t.Fatalf("after unlock: %v", err)
	}
}

// A process that is forked has every open file until it executes its program: a lock outlived the Close of its holder by that time.
func TestCloseReleasesWhateverElseHasTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := OpenLock(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Dup(int(l.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	for _, name := range []string{"a", "b"} {
		if _, err := l.Name(soon(t), Caches, name); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	next := open(t, path)
	for _, name := range []string{"a", "b"} {
		if _, err := next.Name(soon(t), Caches, name); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestRecordIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	for _, want := range []string{"one", "two"} {
		if err := WriteJSON(path, want); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := ReadJSON(path, &got); err != nil || got != want {
			t.Fatalf("read %q, %v, want %q", got, err, want)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(names) > 0 {
		t.Fatalf("left behind: %q", names)
	}
}
