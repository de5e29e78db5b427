package imagespec

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
)

// The URL schemes that ParseRef takes.
const (
	schemeVolume = "baggageclaim"
	schemeFile   = "file"
)

// maxVolumeBytes is NAME_MAX: a BaggageClaim volume is a directory named by its handle.
const maxVolumeBytes = 255

// Ref says which image a container starts from and which check caches it gets: a parsed rootfs URL.
//
// Exactly one of Volume and Dir is set. A Ref that ParseRef returned is valid. One that was put together by hand
// is valid exactly when ParseRef takes what its String method returns.
type Ref struct {
	// Volume is a BaggageClaim volume handle: 1 to 255 of the characters A-Z a-z 0-9 "-" "_" "." "~", not "."
	// or "..".
	Volume string

	// Dir is an absolute, clean directory of the host, never "/".
	Dir string

	// SubPath is a clean relative path below the top of Volume; "" is the top itself. It is always "" with Dir.
	SubPath string

	// Caches are the check caches to mount, in the order of the URL.
	Caches []Cache
}

// String returns the rootfs URL of a valid r: the inverse of ParseRef, also after gdn has rewritten it. All
// characters that have a meaning in any part of a URL are percent-encoded, so there is nothing to rewrite.
//
// The URL holds the cache keys in clear. Use Redacted for anything that is logged or shown.
func (r Ref) String() string {
	where := r.location()
	if len(r.Caches) == 0 {
		return where
	}
	return where + "?" + encodeCaches(r.Caches)
}

// Redacted returns r for a log or a person: where the image is, and how many caches there are, but not the keys.
func (r Ref) Redacted() string {
	switch n := len(r.Caches); n {
	case 0:
		return r.location()
	case 1:
		return r.location() + " (1 cache)"
	default:
		return fmt.Sprintf("%s (%d caches)", r.location(), n)
	}
}

// location returns the URL up to its query.
func (r Ref) location() string {
	switch {
	case r.Dir == "" && r.Volume == "":
		return ""
	case r.Dir == "":
		// A slash in Volume is a caller's mistake, and must not begin the sub-path.
		where := schemeVolume + "://" + strings.ReplaceAll(escape(r.Volume), "/", "%2F")
		if r.SubPath != "" {
			where += "/" + escape(r.SubPath)
		}
		return where
	case r.Volume == "" && r.SubPath == "":
		return schemeFile + "://" + escape(r.Dir)
	default:
		// Two images at once: writing only one of them would turn a caller's mistake into another image.
		return "invalid-ref:"
	}
}

// Within returns r with a Dir that is a live volume of the BaggageClaim at volumesDir, or lies in one,
// (<volumesDir>/live/HANDLE/volume[/SUB]) replaced by that Volume and SubPath, so that both ways to name a volume
// are the same from here on. Any other Ref, and every Ref when volumesDir is "", is returned as it is.
//
// It compares text only: a symlink to a volume is not followed.
func (r Ref) Within(volumesDir string) Ref {
	if r.Dir == "" || !strings.HasPrefix(volumesDir, "/") {
		return r
	}
	below, ok := strings.CutPrefix(r.Dir, path.Join(volumesDir, "live")+"/")
	if !ok {
		return r
	}
	handle, rest, _ := strings.Cut(below, "/")
	top, sub, _ := strings.Cut(rest, "/")
	if top != "volume" || checkVolume(handle) != nil {
		return r
	}
	r.Dir, r.Volume, r.SubPath = "", handle, sub
	return r
}

// escape percent-encodes every byte of s that is not unreserved in RFC 3986, slashes aside. That is more than any
// one part of a URL needs, and therefore right in all of them.
func escape(s string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '/' || isUnreserved(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hexDigits[c>>4])
		b.WriteByte(hexDigits[c&0xf])
	}
	return b.String()
}

// isUnreserved tells whether c is one of RFC 3986's unreserved characters, which mean themselves everywhere.
func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '.' || c == '~'
}

// unescape decodes percent-encoding, as url.PathUnescape does. It is not used itself: net/url is initialised after much of net/http, for which no create should wait
// (package first of the command).
func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errEscape
		}
		var c [1]byte
		if _, err := hex.Decode(c[:], []byte(s[i+1:i+3])); err != nil {
			return "", errEscape
		}
		b = append(b, c[0])
		i += 2
	}
	return string(b), nil
}

var errEscape = errors.New("two hexadecimal digits must follow a %")
