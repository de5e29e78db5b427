package durable

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFiles(t *testing.T) {
	path := t.TempDir() + "/f"
	if _, err := ReadFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	for _, size := range []int{100_000, 1024, 1023, 0} { // each shorter than the one it replaces
		want := bytes.Repeat([]byte("x"), size)
		if err := WriteFile(path, want); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %d bytes, %v, wrote %d", len(got), err, size)
		}
	}
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, path + "2"} {
		if err := Touch(p); err != nil {
			t.Error(err)
		}
	}
	if b, err := ReadFile(path); err != nil || string(b) != "kept" {
		t.Errorf("touched: %q, %v", b, err)
	}
	if info, err := os.Stat(path + "2"); err != nil || info.Mode() != 0o600 || info.Size() != 0 {
		t.Errorf("made: %v, %v", info, err)
	}
	if _, err := OpenDir(path, 0); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file opened as a directory: %v", err)
	}
	if _, err := ReadFile(t.TempDir()); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory read: %v", err)
	}
	if err := WriteFile("/dev/full", []byte("x")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
}

// What cannot be looked at is not gone.
func TestExists(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("nowhere", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := Touch(dir + "/file"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"": true, "/link": true, "/file": true, "/none": false, "/none/below": false, "/file/below": false} {
		if there, err := Exists(dir + path); err != nil || there != want {
			t.Errorf("%q: %v, %v", path, there, err)
		}
	}
	if there, err := Exists(dir + "/" + string(bytes.Repeat([]byte("x"), 300))); there || !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("what cannot be looked at: %v, %v", there, err)
	}
}
