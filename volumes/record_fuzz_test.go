package volumes

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
)

// What is read of store.json without encoding/json is what encoding/json reads.
func FuzzParseHost(f *testing.F) {
	f.Add(`{"format":1,"driver":"overlay","fs":"ext4","boot":"1-2 user:[3]","features":{"layer_fds":true,"id_map":true,"volatile":true,"user_xattr":false}}` + "\n")
	f.Add(`{"format":1,"driver":"\u003c","fs":"","boot":"","features":{"layer_fds":false,"id_map":false,"volatile":false,"user_xattr":false}}` + "\n")
	f.Add(`{"format":1,"driver":"","fs":"\"driver\":\"","boot":"`)
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseHost(text)
		if !ok {
			return
		}
		var want hostRecord
		if err := json.Unmarshal([]byte(text), &want); err != nil || got != want {
			t.Errorf("%q is read as %+v, by encoding/json as %+v, %v", text, got, want, err)
		}
	})
}

// What a record is written as, encoding/json reads, and writes; and its end is told of all that the container holds.
func FuzzLayerRecord(f *testing.F) {
	f.Add("rootfs", "/volumes/live/v/volume/rootfs", "1-2-3", "", "0123456789abcdef0123456789abcdef", "stack", "on-commit", uint64(0), uint64(0))
	f.Add("rootfs", "/\xff", "", "baggageclaim", "", "", "", uint64(1)<<63, uint64(1))
	f.Add(`"lowers"`, `"copies":[`, "\u2028", "\x00", "a,b", "c", `\`, uint64(7), uint64(0))
	f.Fuzz(func(t *testing.T, kind, image, identity, driver, lowers, stack, policy string, generation, bytes uint64) {
		r := layerRecord{
			Kind: kind, Driver: driver, Created: time.Unix(int64(bytes%1e10), int64(generation%1e9)).UTC(), Boot: policy, Image: durable.Text(image), Identity: identity,
			Stack: stack, Bytes: bytes, Entries: generation,
		}
		if lowers != "" {
			r.Lowers = strings.Split(lowers, ",")
		}
		if stack+policy != "" {
			r.Copies = []copyRecord{{Stack: stack, Policy: policy, Generation: generation, Base: kind, BaseBoot: identity, Layers: r.Lowers}, {}}
		}
		b, err := r.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		var all, marshalled, holds layerRecord
		byJSON, err := json.Marshal(r)
		// Not the same text: encoding/json escapes what would be HTML.
		if err := errors.Join(err, json.Unmarshal(b, &all), json.Unmarshal(byJSON, &marshalled)); err != nil || !reflect.DeepEqual(all, marshalled) {
			t.Errorf("written as %q\nby encoding/json as %q, %v", b, byJSON, err)
		}
		if all.Image != r.Image {
			t.Errorf("the image %q became %q", r.Image, all.Image)
		}
		if utf8.ValidString(strings.Join([]string{kind, identity, driver, lowers, stack, policy}, " ")) && !reflect.DeepEqual(all, r) {
			t.Errorf("%q is read as %+v", b, all)
		}
		if err := holds.parseHolds(b); err != nil || !reflect.DeepEqual(holds.Lowers, all.Lowers) || !reflect.DeepEqual(holds.Copies, all.Copies) || holds.Driver != all.Driver {
			t.Errorf("%q holds %+v, %v", b, holds, err)
		}
	})
}

// A record that was torn or damaged is said to be, or read as encoding/json does.
func FuzzParseHolds(f *testing.F) {
	f.Add([]byte(`{"kind":"rootfs","lowers":["0123456789abcdef0123456789abcdef"],"copies":[{"stack":"s","layers":["a","b"]}]}`))
	f.Add([]byte(`{"kind":"rootfs","lowers":["0123`))
	f.Add([]byte(`{"driver":null,"copies":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want layerRecord
		err := got.parseHolds(b)
		wantErr := json.Unmarshal(b, &want)
		seen := strings.Contains(string(b), `"lowers"`) || strings.Contains(string(b), `"copies"`) || strings.Contains(string(b), `"driver"`)
		if seen && ((err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want)) || !seen && (err != nil || !reflect.DeepEqual(got, layerRecord{})) {
			t.Errorf("%q: %+v, %v, by encoding/json %+v, %v", b, got, err, want, wantErr)
		}
	})
}

// BaggageClaim's own record of a volume is true or false, and nothing else is taken for one of them.
func FuzzReadPrivileged(f *testing.F) {
	for _, s := range []string{"true", "false", "null", "", " true\n", "1", `"true"`, "{}"} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, durable.WriteFile(filepath.Join(dir, "privileged.json"), b))
		shifted, err := readPrivileged(dir)
		switch text := strings.Trim(string(b), " \t\r\n"); {
		case text == "true" || text == "false":
			if err != nil || shifted == nil || *shifted != (text == "false") {
				t.Errorf("%q: %v, %v", b, shifted, err)
			}
		case err == nil || shifted != nil:
			t.Errorf("%q is taken for a record", b)
		}
	})
}
