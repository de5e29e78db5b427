package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseHandle(t *testing.T) {
	for _, s := range []string{
		"a", "-", "--help", "-rf", "...", "..a", ".hidden", " ", "a b", "\n", "*", `\`, "a:b,c", "é", "\xff\xfe", "12345",
		"8c7b2d5e-0d6f-4a53-6c9d-1f1f0a0f3f4d", strings.Repeat("x", 255), strings.Repeat("\xff", 255),
	} {
		h, err := ParseHandle(s)
		if err != nil || h.String() != s {
			t.Errorf("%.20q: %q, %v", s, h, err)
		}
	}
	for s, why := range map[string]string{
		"": "empty", ".": "own name", "..": "own name", "/": "slash", "a/b": "slash", "../evil": "slash", "a\x00b": "NUL",
		strings.Repeat("x", 256): "256 bytes long, 255 is the limit", strings.Repeat("é", 128): "256 bytes",
	} {
		_, err := ParseHandle(s)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), why) || len(err.Error()) > 300 {
			t.Errorf("%.20q: error %v, want one that says %q", s, err, why)
		}
	}
}

// What is taken for a handle must be one component of a path: it names an entry of a directory.
func FuzzParseHandle(f *testing.F) {
	for _, s := range []string{"a", "", "..", "../../x", "a\x00", "-h", "\xff", strings.Repeat("x", 256), "a b#c%20"} {
		f.Add(s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHandle(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || h != (Handle{}) || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("%q: handle %q, error %q", s, h, err)
			}
			return
		}
		if h.String() != s {
			t.Errorf("%q became %q", s, h)
		}
		link := dir + "/" + h.String()
		if err := os.Symlink("id", link); err != nil {
			t.Fatalf("%q can be no name of an entry: %v", s, err)
		}
		if names, _ := os.ReadDir(dir); len(names) != 1 || names[0].Name() != s || filepath.Dir(link) != dir {
			t.Errorf("%q made the entries %q", s, names)
		}
		if err := os.Remove(link); err != nil {
			t.Error(err)
		}
	})
}
