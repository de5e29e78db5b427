package durable

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// A path that is not UTF-8 came back as another one, which then was not found.
func TestTextComesBackAsItWas(t *testing.T) {
	for _, s := range []Text{"", "/plain", "/é \"\\\n", "/\xff\xfe", "\x00", `{"base64":"eA=="}`} {
		b, err := json.Marshal(struct {
			T Text `json:"t,omitempty"`
		}{s})
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ T Text }
		if err := json.Unmarshal(b, &got); err != nil || got.T != s {
			t.Errorf("%q became %q by %s, %v", s, got.T, b, err)
		}
	}
	if b, err := json.Marshal(Text("/plain")); err != nil || string(b) != `"/plain"` {
		t.Errorf("a plain path is %s, %v", b, err)
	}
	var got Text
	for _, bad := range []string{"7", "[]", `{"base64":7}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s is taken for %q", bad, got)
		}
	}
}

func TestReadJSON(t *testing.T) {
	path := t.TempDir() + "/r.json"
	var v int
	if err := ReadJSON(path, &v); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	for _, damage := range []string{"", "{", "\x00", `"x"`, "1 2"} {
		if err := os.WriteFile(path, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ReadJSON(path, &v); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%q: %v", damage, err)
		}
	}
}

func TestWriteJSONThatFailsLeavesTheOldRecord(t *testing.T) {
	path := t.TempDir() + "/r.json"
	if err := WriteJSON(path, 1); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(path, func() {}); err == nil {
		t.Error("a function was written")
	}
	// A temporary file that a crash left is no obstacle, a directory in its place is.
	if err := os.WriteFile(path+".tmp", []byte("half a rec"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(path, 2); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(path+".tmp", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(path, 3); err == nil {
		t.Error("written without a temporary file")
	}
	var got int
	if err := ReadJSON(path, &got); err != nil || got != 2 {
		t.Errorf("read %d, %v, want 2", got, err)
	}
}
