package appendjson

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// encoded is what encoding/json writes.
func encoded(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

func FuzzString(f *testing.F) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, s := range []string{"", "plain", string(all), "é\u2028\u2029\ufffd<&>", "\xff", "a\xe2\x80", "\U0010ffff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := string(String(nil, s)), encoded(t, s); got != want {
			t.Errorf("%q is written as %s, encoding/json writes %s", s, got, want)
		}
	})
}

func TestStrings(t *testing.T) {
	for _, list := range [][]string{{}, {"a"}, {"a", `b"`, ""}} {
		if got, want := string(Strings([]byte("x"), list)), "x"+encoded(t, list); got != want {
			t.Errorf("%q is written as %s, want %s", list, got, want)
		}
		var back []string
		if err := json.Unmarshal(Strings(nil, list), &back); err != nil || !slices.Equal(back, list) {
			t.Errorf("%q is read back as %q, %v", list, back, err)
		}
	}
}
