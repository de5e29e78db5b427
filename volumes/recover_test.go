package volumes

import (
	"strings"
	"testing"
)

// The names come from a server that anybody may have written to: none must lead out of the container's own directory.
func TestMadeFor(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 2)
	for _, name := range []string{id, id + "/cache-0", id + "/cache-17"} {
		if got, ok := madeFor(name); !ok || got != id {
			t.Errorf("%q: %q, %v", name, got, ok)
		}
	}
	for _, name := range []string{
		"", "/", "..", "probe", id + "/", id + "/..", id + "/.", id + "/cache-", id + "/cache-x", id + "/cache--1", id + "/cache-01", id + "/merged-cache-0", id + "/cache-0/..",
		"../" + id, id + "-0", id[1:], "/" + id, id + "/users",
	} {
		if _, ok := madeFor(name); ok {
			t.Errorf("%q is taken", name)
		}
	}
}
