package volumes

import (
	"os"
	"strings"
	"testing"
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

// A pointer that could not be replaced left its temporary link, and a first generation that could not be published an empty directory of the stack.
func TestFailedPointerLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	check(t, os.MkdirAll(dir+"/current/in-the-way", 0o755))
	if err := replaceLink(dir+"/current", dir+"/next", "text"); err == nil {
		t.Fatal("a directory was replaced")
	}
	if exists(dir + "/next") {
		t.Error("the temporary link is left")
	}
	check(t, replaceLink(dir+"/other", dir+"/next", "text"))
	check(t, replaceLink(dir+"/other", dir+"/next", "newer"))
	if text, err := os.Readlink(dir + "/other"); err != nil || text != "newer" {
		t.Errorf("%q, %v", text, err)
	}
	if err := notEmpty(os.Remove(dir)); err != nil {
		t.Errorf("a directory that is in use: %v", err)
	}
}
