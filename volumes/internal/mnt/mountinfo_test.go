package mnt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func TestBelow(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	odd := " \t\n\r\v\\#\u00a0\u2003\xff"
	var want []string
	for _, p := range []string{"a", "a/b", "a/b", "a/" + odd, "aa"} {
		tmpfs(t, dir+"/"+p)
		if strings.HasPrefix(p, "a/") {
			want = append(want, dir+"/"+p)
		}
	}
	slices.Reverse(want) // latest first: in this order they can be unmounted
	got, err := Below(dir + "/a")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := Below(dir + "/absent"); err != nil || len(got) > 0 {
		t.Errorf("below nothing: %q, %v", got, err)
	}
}

// Doctor counted the mounts of the namespace with it and always found none.
func TestBelowTheRoot(t *testing.T) {
	got, err := Below("/")
	if err != nil || !slices.Contains(got, "/proc") || slices.Contains(got, "/") {
		t.Errorf("got %q, %v, want all mounts but / itself", got, err)
	}
}

func TestUnescapeOctal(t *testing.T) {
	for in, want := range map[string]string{
		`/a`: "/a", `/a\040b`: "/a b", `\134040`: `\040`, `\011\012\043`: "\t\n#", `\\`: `\\`, `\04`: `\04`, `\08x`: `\08x`, `\377`: "\xff", ``: "",
	} {
		if got := unescapeOctal(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// escapeOctal is what the kernel does (fs/seq_file.c, mangle_path).
func escapeOctal(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(" \t\n\\#", s[i]) >= 0 {
			fmt.Fprintf(&b, `\%03o`, s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func FuzzUnescapeOctal(f *testing.F) {
	for _, s := range []string{"/a", "/a b", `\040`, "\n\t\\#", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := unescapeOctal(escapeOctal(s)); got != s {
			t.Errorf("%q became %q", s, got)
		}
		if got := unescapeOctal(s); len(got) > len(s) { // any other input: it must not panic
			t.Errorf("%q grew to %q", s, got)
		}
	})
}

// A line gives back what the kernel was told, whatever it is and however much stands behind it; and any other text no more than it holds.
func FuzzParseTable(f *testing.F) {
	f.Add("8:1", "/", "/a b", "rw,noatime master:1 - ext4 /dev/root rw", "36 35 98:0 /mnt1 /mnt2 rw\n1 2 3")
	f.Add("0:50", "/sub\u00a0vol", "/x\r\v\x85", "rw - overlay overlay rw,lowerdir="+strings.Repeat("l", lineBytes), "\n\n \n1 2 3 4 5\n1 2 3 4 5 6")
	f.Fuzz(func(t *testing.T, device, root, point, rest, any string) {
		if len(root) > 4096 || len(point) > 4096 || strings.ContainsAny(root+point+device+rest, "\x00") || device == "" || strings.ContainsAny(device, " \t\n\r") {
			t.Skip("the kernel shows none such")
		}
		line := "36 35 " + device + " " + escapeOctal(root) + " " + escapeOctal(point) + " " + strings.ReplaceAll(rest, "\n", "") + "\n"
		got, err := parseTable(strings.NewReader(line + line))
		want := mountLine{device, root, point}
		if err != nil || !slices.Equal(got, []mountLine{want, want}) {
			t.Errorf("%q is read as %q, %v", line, got, err)
		}
		got, err = parseTable(strings.NewReader(any))
		size := 0
		for _, m := range got {
			size += len(m.device) + len(m.root) + len(m.point)
		}
		if err != nil || size > len(any) || len(got) > strings.Count(any, "\n")+1 {
			t.Errorf("%q: %q, %v", any, got, err)
		}
	})
}
