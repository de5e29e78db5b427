package volumes

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStackPointer(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 2)
	for _, want := range []stackTop{{1, id, "boot"}, {1<<64 - 1, id + "-0", "8ee788e3fc554abf"}, {7, id + "-65535", ""}} {
		got, err := parseTop(want.String())
		if err != nil || got != want {
			t.Errorf("parseTop(%q) = %+v, %v", want.String(), got, err)
		}
	}
	if text := (stackTop{1<<64 - 1, id + "-65535", "0123456789abcdef"}).String(); len(text) > 80 {
		t.Errorf("%d bytes", len(text))
	}
	for _, text := range []string{
		"", " ", "  ", "1", "1 " + id, "x " + id + " b", "-1 " + id + " b", "1  b", "1 .. b", "1 ../" + id[3:] + " b", "1 " + id + "/ b", "1 " + id + "-65536 b",
		"1 " + id + "- b", "1 " + id + "--1 b", "1 " + id[1:] + " b", "1 " + id + " b c", "18446744073709551616 " + id + " b", "1 " + id + "-0/../x b",
	} {
		if got, err := parseTop(text); err == nil {
			t.Errorf("parseTop(%q) = %+v, want an error", text, got)
		}
	}
}

func FuzzParseTop(f *testing.F) {
	id := strings.Repeat("ab", 16)
	for _, seed := range []string{"1 " + id + " b", "1 " + id + "-3 b", "", "1 ../.. b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		top, err := parseTop(text)
		if err != nil {
			return
		}
		if strings.ContainsAny(top.layer, "/.\x00") || len(top.layer) < 32 {
			t.Errorf("layer %q", top.layer)
		}
		if again, err := parseTop(top.String()); err != nil || again != top {
			t.Errorf("%q is read as %+v and then as %+v, %v", text, top, again, err)
		}
	})
}

func TestValidStack(t *testing.T) {
	hash := strings.Repeat("0123456789abcdef", 4)
	for name, want := range map[string]bool{
		hash: true, hash + "-shifted": true, "": false, hash[1:]: false, hash + "0": false, strings.ToUpper(hash): false, "../" + hash[3:]: false,
		hash + "-shifted-shifted": false, "-shifted": false, hash + "/": false, hash[:63] + "g": false,
	} {
		if got := ValidStack(name); got != want {
			t.Errorf("ValidStack(%q) = %v", name, got)
		}
	}
}

// A first generation that could not be published left an empty directory of the stack. One that is in use stays.
func TestNotEmpty(t *testing.T) {
	dir := t.TempDir()
	check(t, os.MkdirAll(dir+"/stack/current", 0o755))
	if err := notEmpty(os.Remove(dir + "/stack")); err != nil || !exists(dir+"/stack") {
		t.Errorf("a directory that is in use: %v", err)
	}
	if err := notEmpty(os.Remove(dir + "/absent")); err != nil {
		t.Errorf("a directory that is gone: %v", err)
	}
	if err := notEmpty(unix.EROFS); !errors.Is(err, unix.EROFS) {
		t.Errorf("another error: %v", err)
	}
}
