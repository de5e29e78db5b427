package inspect

import (
	"errors"
	"strings"
	"testing"
)

// WantError fails the test if err does not wrap is, or does not say all of want.
func WantError(t testing.TB, err, is error, want ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error %v, want one that wraps %q", err, is)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}
