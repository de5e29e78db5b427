package imagespec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxMetadataBytes is the largest metadata.json that ParseMetadata takes. Real ones have some hundred bytes; what
// the kernel takes as an environment is of this order (a quarter of the stack limit, 2 MiB by default).
const MaxMetadataBytes = 1 << 20

// Metadata is what a Concourse image says about itself in the metadata.json beside its rootfs.
type Metadata struct {
	// Env holds NAME=VALUE entries, in the order of the file.
	Env []string `json:"env"`

	// User is the user that the image's processes run as. gdn takes no user from an image plugin, so it is here
	// for other readers.
	User string `json:"user"`
}

// ParseMetadata reads a metadata.json: {"env":["NAME=VALUE"],"user":"name"}. Both may be absent, and fields it
// does not know are left alone, as Concourse may add some. Anything else is an error; it never contains a value.
func ParseMetadata(b []byte) (Metadata, error) {
	if len(b) > MaxMetadataBytes {
		return Metadata{}, fmt.Errorf("image metadata has %d bytes: at most %d are possible", len(b), MaxMetadataBytes)
	}
	if !utf8.Valid(b) {
		// encoding/json would quietly put U+FFFD there.
		return Metadata{}, errors.New("image metadata is not UTF-8")
	}
	var m *Metadata
	if err := json.Unmarshal(b, &m); err != nil {
		return Metadata{}, jsonError(err)
	}
	if m == nil {
		return Metadata{}, errors.New("image metadata is null: it must be a JSON object")
	}
	for i, entry := range m.Env {
		name, _, ok := strings.Cut(entry, "=")
		switch {
		case !ok || name == "":
			return Metadata{}, fmt.Errorf("metadata.json: env entry %d is not NAME=VALUE", i+1)
		case strings.Contains(entry, "\x00"):
			return Metadata{}, fmt.Errorf("metadata.json: env entry %d contains a zero byte", i+1)
		}
	}
	return *m, nil
}

// jsonError says what is wrong and where, without encoding/json's own words: those may quote a part of a value.
func jsonError(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return fmt.Errorf(`metadata.json: wrong type at byte %d: it must be {"env":["NAME=VALUE"],"user":"name"}`, wrongType.Offset)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("image metadata is not JSON from byte %d on", syntax.Offset)
	}
	return errors.New("image metadata is not JSON")
}
