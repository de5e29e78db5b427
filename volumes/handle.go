package volumes

import (
	"fmt"
	"strings"
)

// Handle is a container's name, as its creator chose it: any byte string of 1 to 255 bytes that can be one component of a path,
// so without '/' and NUL, and not "." or "..". It may hold blanks, newlines, bytes that are not UTF-8, or begin with a dash.
//
// A Handle can only be had from [ParseHandle]; the zero value is no handle.
type Handle struct{ name string }

// maxHandleBytes is NAME_MAX, the longest name of a directory entry. gdn itself makes a directory of a handle's name.
const maxHandleBytes = 255

// ParseHandle checks that s can be a handle. The error wraps [ErrInvalid].
func ParseHandle(s string) (Handle, error) {
	why := ""
	switch {
	case s == "":
		why = "it is empty"
	case s == "." || s == "..":
		why = "it is a directory's own name"
	case len(s) > maxHandleBytes:
		why = fmt.Sprintf("it is %d bytes long, %d is the limit", len(s), maxHandleBytes)
	case strings.ContainsRune(s, '/'):
		why = "it contains a slash"
	case strings.ContainsRune(s, 0):
		why = "it contains a NUL byte"
	default:
		return Handle{s}, nil
	}
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return Handle{}, fmt.Errorf("%w handle %q: %s", ErrInvalid, s, why)
}

// String returns the handle's bytes as they are.
func (h Handle) String() string { return h.name }
