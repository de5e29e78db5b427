package inspect

import (
	"context"
	"fmt"
	"testing"
)

// Sound fails the test if check, the method Check of a store, finds a problem.
func Sound[P fmt.Stringer](t testing.TB, check func(context.Context) ([]P, error)) {
	t.Helper()
	problems, err := check(context.Background()) // the test's own may be done
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		t.Errorf("problem: %s", p)
	}
}

// SoundAtEnd is Sound when the test is done.
func SoundAtEnd[P fmt.Stringer](t testing.TB, check func(context.Context) ([]P, error)) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		Sound(t, check)
	})
}
