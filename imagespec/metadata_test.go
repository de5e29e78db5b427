package imagespec

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseMetadata(t *testing.T) {
	for _, tt := range []struct {
		name, json string
		want       Metadata
	}{
		{"what Concourse writes", `{"env":["PATH=/bin","EMPTY=","A=b=c"],"user":"root"}`,
			Metadata{Env: []string{"PATH=/bin", "EMPTY=", "A=b=c"}, User: "root"}},
		{"nothing", `{}`, Metadata{}},
		{"nulls", `{"env":null,"user":null}`, Metadata{}},
		{"more than we know", `{"user":"u","workdir":{"a":[1]}}`, Metadata{User: "u"}},
		{"newline in a value", `{"env":["A=b\nc"]}` + "\n", Metadata{Env: []string{"A=b\nc"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseMetadata([]byte(tt.json))
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %#v, %v; want %#v", got, err, tt.want)
			}
		})
	}
}

func TestParseMetadataRefuses(t *testing.T) {
	for _, tt := range []struct{ name, json, want string }{
		{"empty file", ``, "not JSON"},
		{"null", `null`, "null"},
		{"list", `[]`, "wrong type"},
		{"cut short", `{"env":["TOKEN=hunter2`, "not JSON"},
		{"two documents", `{}{}`, "not JSON"},
		{"env is an object", `{"env":{"TOKEN":"hunter2"}}`, "wrong type"},
		{"env holds numbers", `{"env":[1]}`, "wrong type"},
		{"entry without =", `{"env":["A=b","hunter2"]}`, "entry 2"},
		{"entry without a name", `{"env":["=hunter2"]}`, "entry 1"},
		{"zero byte", `{"env":["A=hunter2\u0000"]}`, "zero byte"},
		{"not UTF-8", "{\"env\":[\"A=\xff\"]}", "UTF-8"},
		{"too large", `{"user":"` + strings.Repeat("u", MaxMetadataBytes) + `"}`, "at most 1048576"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := ParseMetadata([]byte(tt.json))
			if err == nil {
				t.Fatalf("taken as %#v", m)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q does not say %q", err, tt.want)
			}
			checkSentence(t, err, "hunter")
		})
	}
}

func FuzzParseMetadata(f *testing.F) {
	f.Add([]byte(`{"env":["PATH=/bin:/usr/bin","A="],"user":"root"}`))
	f.Add([]byte(`{"env":["A"],"user":1}`))
	f.Add([]byte(`null`))
	f.Add([]byte("{\"env\":[\"A=\xff\x00\"]}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMetadata(b)
		if err != nil {
			checkSentence(t, err, "")
			return
		}
		for _, entry := range m.Env {
			if i := strings.IndexByte(entry, '='); i < 1 || strings.Contains(entry, "\x00") {
				t.Errorf("entry %q", entry)
			}
		}
	})
}
