package volumes

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
)

// What create writes by hand is what encoding/json reads back, and writes.
func TestLayerRecordIsWrittenAsEncodingJSONDoes(t *testing.T) {
	copies := []copyRecord{
		{Stack: "s", Policy: "always"},
		{Stack: `"\`, Policy: "p", Generation: 1<<64 - 1, Base: "b", BaseBoot: "1", Layers: []string{"a", "b"}},
	}
	for _, r := range []layerRecord{
		{},
		{Kind: kindRootfs, Created: time.Now().UTC(), Boot: "b 1", Privileged: true, Image: "/é \n\"", Identity: "1-2-3", Lowers: []string{"a", "b"}, Copies: copies},
		{Kind: kindRootfs, Created: time.Unix(5, 0).UTC(), Image: "/\xff", Copies: copies[:1]},
		{Kind: kindCache, Created: time.Unix(1<<40, 1).In(time.FixedZone("", 3600)), Stack: "s", Bytes: 1, Entries: 1 << 63},
	} {
		if want, err := json.Marshal(r); err == nil {
			if got, err := r.append(nil); err != nil || string(got) != string(want) {
				t.Errorf("got  %s, %v\nwant %s", got, err, want)
			}
		}
	}
	// Every field is filled above: one that is added later and not written by append is noticed here.
	filled := layerRecord{
		Kind: "k", Driver: "d", Created: time.Unix(5, 0).UTC(), Boot: "b", Privileged: true, Image: "/i", Identity: "i", Lowers: []string{"l"}, Copies: copies[1:],
		Stack: "s", Bytes: 1, Entries: 2,
	}
	for i, v := 0, reflect.ValueOf(filled); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Fatalf("the test does not fill %s", v.Type().Field(i).Name)
		}
	}
	b, err := filled.append(nil)
	var back layerRecord
	if err := errors.Join(err, json.Unmarshal(b, &back)); err != nil || !reflect.DeepEqual(back, filled) {
		t.Errorf("%s is read back as %+v, %v", b, back, err)
	}
}

func TestHostRecordIsReadAsEncodingJSONDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.json")
	quick := 0
	for bits := range 16 {
		for _, text := range []string{"plain", "", `"quoted\`, "é <&>"} {
			want := hostRecord{Format: format + bits/8, Driver: text, FS: "ext4", Boot: text + " user:[1]", Features: Features{
				LayerFDs: bits&1 != 0, IDMap: bits&2 != 0, Volatile: bits&4 != 0, UserXattr: bits&8 != 0,
			}}
			if err := durable.WriteJSON(path, want); err != nil {
				t.Fatal(err)
			}
			if got, err := readHost(path); err != nil || got != want {
				t.Errorf("read %+v, %v, want %+v", got, err, want)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := parseHost(string(b)); ok && got != want {
				t.Errorf("parsed %+v, want %+v", got, want)
			} else if ok {
				quick++
			}
		}
	}
	if quick != 16 { // of this format and plain text
		t.Errorf("%d were read without encoding/json, want 16", quick)
	}
	for _, damaged := range []string{"", "{", `{"format":1,"driver":"overlay"`} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readHost(path); err == nil {
			t.Errorf("%q is taken for a record", damaged)
		}
	}
}

func TestWhatARecordHoldsIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layer.json")
	copies := []copyRecord{{Stack: "s", Base: "b"}}
	for _, r := range []layerRecord{{Kind: kindRootfs}, {Kind: kindRootfs, Lowers: []string{"l"}}, {Kind: kindRootfs, Copies: copies}, {Driver: "d"}} {
		if err := writeRecord(path, r); err != nil {
			t.Fatal(err)
		}
		if got, err := readHolds(path); err != nil || !reflect.DeepEqual(got.Lowers, r.Lowers) || !reflect.DeepEqual(got.Copies, r.Copies) || got.Driver != r.Driver {
			t.Errorf("%+v: read %+v, %v", r, got, err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"kind":"rootfs","lowers":["l`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readHolds(path); !errors.Is(err, durable.ErrDamaged) {
		t.Errorf("a torn record: %v", err)
	}
}
