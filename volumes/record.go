package volumes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/concourse/bc-image-plugin/internal/appendjson"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
)

// hostRecord is store.json: what was found out about host and file system, and for how long it holds.
type hostRecord struct {
	Format   int      `json:"format"`
	Driver   string   `json:"driver"`
	FS       string   `json:"fs"`   // kind of the file system the store was made on
	Boot     string   `json:"boot"` // boot id and user namespace in which Features hold
	Features Features `json:"features"`
}

// layerRecord is layer.json of a layer. It is written once, before the layer is used, and read by stats, list and delete. A power cut may leave
// it empty; then list and stats know less, and delete removes the layer all the same.
type layerRecord struct {
	Kind       string       `json:"kind"`             // "rootfs", "shifted", "cache"
	Driver     string       `json:"driver,omitempty"` // that must remove it: its tree is not in the layer's directory
	Created    time.Time    `json:"created"`
	Boot       string       `json:"boot,omitempty"` // for what holds in one boot only
	Privileged bool         `json:"privileged,omitempty"`
	Image      durable.Text `json:"image,omitempty"`
	Identity   string       `json:"image_identity,omitempty"`
	Lowers     []string     `json:"lowers,omitempty"` // shifted copies that this one uses

	Copies []copyRecord `json:"copies,omitempty"` // of a container

	Stack   string `json:"stack,omitempty"` // of a layer of a stack
	Bytes   uint64 `json:"bytes,omitempty"`
	Entries uint64 `json:"entries,omitempty"`
}

const (
	kindRootfs  = "rootfs"
	kindShifted = "shifted"
	kindCache   = "cache"
)

// append appends the record as encoding/json writes it, but for its escapes of HTML. By hand: reflection over its types takes 0.1 ms, and every create pays it anew.
func (r layerRecord) append(b []byte) ([]byte, error) {
	b = appendjson.String(append(b, `{"kind":`...), r.Kind)
	b = appendText(b, `,"driver":`, r.Driver)
	b = r.Created.AppendFormat(append(b, `,"created":"`...), time.RFC3339Nano)
	b = appendText(append(b, '"'), `,"boot":`, r.Boot)
	if r.Privileged {
		b = append(b, `,"privileged":true`...)
	}
	if utf8.ValidString(string(r.Image)) {
		b = appendText(b, `,"image":`, string(r.Image))
	} else {
		image, err := json.Marshal(r.Image)
		if err != nil {
			return b, err
		}
		b = append(append(b, `,"image":`...), image...)
	}
	b = appendText(b, `,"image_identity":`, r.Identity)
	b = appendList(b, `,"lowers":`, r.Lowers)
	for i, c := range r.Copies {
		if i == 0 {
			b = append(b, `,"copies":[`...)
		} else {
			b = append(b, ',')
		}
		b = c.append(b)
	}
	if len(r.Copies) > 0 {
		b = append(b, ']')
	}
	b = appendText(b, `,"stack":`, r.Stack)
	b = appendNumber(b, `,"bytes":`, r.Bytes)
	b = appendNumber(b, `,"entries":`, r.Entries)
	return append(b, '}'), nil
}

func (c copyRecord) append(b []byte) []byte {
	b = appendjson.String(append(b, `{"stack":`...), c.Stack)
	b = appendText(b, `,"policy":`, c.Policy)
	b = strconv.AppendUint(append(b, `,"generation":`...), c.Generation, 10)
	b = appendText(b, `,"base":`, c.Base)
	b = appendText(b, `,"base_boot":`, c.BaseBoot)
	b = appendList(b, `,"layers":`, c.Layers)
	return append(b, '}')
}

// appendText, appendList and appendNumber append a field, or nothing for a zero value, as omitempty does.
func appendText(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return appendjson.String(append(b, key...), value)
}

func appendList(b []byte, key string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	return appendjson.Strings(append(b, key...), list)
}

func appendNumber(b []byte, key string, n uint64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendUint(append(b, key...), n, 10)
}

// writeRecord writes a record that need not survive a power cut, and that nobody reads before it is written.
func writeRecord(path string, r layerRecord) error {
	b, err := r.append(make([]byte, 0, 1024))
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'))
}

// readHost reads store.json. fs.ErrNotExist: there is none.
func readHost(path string) (hostRecord, error) {
	b, err := durable.ReadFile(path)
	if err != nil {
		return hostRecord{}, err
	}
	if r, ok := parseHost(string(b)); ok {
		return r, nil
	}
	var r hostRecord
	err = json.Unmarshal(b, &r)
	return r, err
}

// hostText is how encoding/json writes the record of a host.
const hostText = `{"format":%d,"driver":"%s","fs":"%s","boot":"%s","features":{"layer_fds":%t,"id_map":%t,"volatile":%t,"user_xattr":%t}}` + "\n"

// parseHost reads the record if it is written as this program does it, and else is not ok: it takes out what it takes for the values, and is right
// exactly if the record is the same with these put in. encoding/json takes 0.1 ms to get ready for the types, in each create.
func parseHost(text string) (r hostRecord, ok bool) {
	r.Format, r.Driver, r.FS, r.Boot = format, after(text, `"driver":"`), after(text, `"fs":"`), after(text, `"boot":"`)
	is := func(name string) bool { return strings.Contains(text, `"`+name+`":true`) }
	r.Features = Features{LayerFDs: is("layer_fds"), IDMap: is("id_map"), Volatile: is("volatile"), UserXattr: is("user_xattr")}
	f := r.Features
	odd := func(c rune) bool { return c == '\\' || c < ' ' } // what JSON escapes
	return r, !strings.ContainsFunc(strings.TrimSuffix(text, "\n"), odd) && utf8.ValidString(text) &&
		text == fmt.Sprintf(hostText, r.Format, r.Driver, r.FS, r.Boot, f.LayerFDs, f.IDMap, f.Volatile, f.UserXattr)
}

// after returns what stands in text between mark and the next quotation mark.
func after(text, mark string) string {
	_, rest, _ := strings.Cut(text, mark)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// readHolds reads of a container's record what its end needs: layers and copies, which have to be given back, and the driver that has to do it. Most
// have nothing of that, and that is seen without encoding/json, which takes 0.1 ms: who has it has one of these names in its record.
func readHolds(path string) (r layerRecord, err error) {
	b, err := durable.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := r.parseHolds(b); err != nil {
		return r, fmt.Errorf("record %q is %w: %w", path, durable.ErrDamaged, err)
	}
	return r, nil
}

func (r *layerRecord) parseHolds(b []byte) error {
	if !slices.ContainsFunc([]string{`"lowers"`, `"copies"`, `"driver"`}, func(name string) bool { return bytes.Contains(b, []byte(name)) }) {
		return nil
	}
	return json.Unmarshal(b, r)
}
