package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The first create once changed the mode of whatever --store named, such as /tmp.
func TestDirectoryOfOthersIsNoStore(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "report.txt"), nil, 0o600))
	check(t, os.Chmod(dir, 0o777|os.ModeSticky))
	image, err := OpenImage(t.TempDir())
	check(t, err)
	defer image.Close()
	s := New(Options{Dir: dir, Driver: fakeDriver{}})
	if _, err := s.Create(t.Context(), handle(t, "h"), Request{Image: image, Privileged: true}); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v, want one that wraps ErrInvalid", err)
	}
	info, err := os.Stat(dir)
	check(t, err)
	names, err := readNames(dir)
	check(t, err)
	if info.Mode().Perm() != 0o777 || len(names) != 1 {
		t.Errorf("the directory has mode %v and holds %q now", info.Mode(), names)
	}
}

// Two cache paths that an image's symlinks bring together would hide each other; one that leads to the root would hide the root.
func TestDestinationsThroughSymlinks(t *testing.T) {
	root := t.TempDir()
	check(t, os.Mkdir(root+"/a", 0o755))
	check(t, os.Symlink("a", root+"/b"))
	check(t, os.Symlink("/", root+"/top"))
	a, err := makeDestination(root, "/a", uint32(os.Getuid()))
	check(t, err)
	b, err := makeDestination(root, "/b", uint32(os.Getuid()))
	check(t, err)
	if a != b {
		t.Error("one directory has two names")
	}
	if _, err := makeDestination(root, "/top", uint32(os.Getuid())); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path to the root: %v, want an error that wraps ErrInvalid", err)
	}
}
