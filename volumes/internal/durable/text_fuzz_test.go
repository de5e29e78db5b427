package durable

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A text comes back as it was, in a record that any reader of JSON can read; and any other record gives one text, or an error that says so.
func FuzzText(f *testing.F) {
	f.Add("/volumes/live/v/volume", []byte(`"plain"`))
	f.Add("\xff\x00\"\\\u2028", []byte(`{"base64":"/w=="}`))
	f.Add("", []byte(`{"base64":5}`))
	f.Add("\ufffd", []byte(`"\ud800"`))
	f.Add(`{"base64":""}`, []byte(`null`))
	path := filepath.Join(f.TempDir(), "record")
	f.Fuzz(func(t *testing.T, s string, raw []byte) {
		type record struct{ A, B Text }
		want := record{Text(s), Text(raw)}
		b, err := json.Marshal(want)
		var got record
		if err := errors.Join(err, json.Unmarshal(b, &got)); err != nil || got != want {
			t.Errorf("%q became %+v, %v", b, got, err)
		}

		if err := WriteFile(path, raw); err != nil {
			t.Fatal(err)
		}
		var text, again Text
		switch err := ReadJSON(path, &text); {
		case err != nil && (!errors.Is(err, ErrDamaged) || text != ""):
			t.Errorf("%q: %q, %v", raw, text, err)
		case err == nil && !json.Valid(raw):
			t.Errorf("%q is taken for the text %q", raw, text)
		case err == nil:
			b, err := json.Marshal(text)
			if err := errors.Join(err, json.Unmarshal(b, &again)); err != nil || again != text {
				t.Errorf("%q is read as %q, and then as %q, %v", raw, text, again, err)
			}
		}
	})
}

// The text of a link is the text that was asked for, or nothing is changed.
func FuzzReplaceLink(f *testing.F) {
	f.Add("7 0123456789abcdef0123456789abcdef-0 boot", "")
	f.Add("", "\x00")
	f.Add("../../\xff\n", "x")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, one, other string) {
		link, now := filepath.Join(dir, "link"), ""
		for _, text := range []string{one, other} {
			switch err := ReplaceLink(link, filepath.Join(dir, "next"), text); {
			case err == nil && (text == "" || len(text) >= 4096):
				t.Errorf("%q is no symlink's text, and worked", text)
			case err == nil:
				now = text
			}
			if got, err := os.Readlink(link); now != "" && (err != nil || got != now) {
				t.Errorf("%q, %v, want %q", got, err, now)
			}
			if _, err := os.Lstat(filepath.Join(dir, "next")); err == nil {
				t.Error("the temporary link is left")
			}
		}
	})
}
