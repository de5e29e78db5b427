package durable

import (
	"errors"
	"os"
	"testing"
)

// A pointer that could not be replaced left its temporary link.
func TestReplaceLink(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/current/in-the-way", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceLink(dir+"/current", dir+"/next", "text"); err == nil {
		t.Fatal("a directory was replaced")
	}
	if _, err := os.Lstat(dir + "/next"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary link is left: %v", err)
	}
	for _, text := range []string{"text", "newer"} {
		if err := os.Symlink("of a killed call", dir+"/next"); err != nil {
			t.Fatal(err)
		}
		if err := ReplaceLink(dir+"/other", dir+"/next", text); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(dir + "/other"); err != nil || got != text {
			t.Errorf("%q, %v, want %q", got, err, text)
		}
	}
}
