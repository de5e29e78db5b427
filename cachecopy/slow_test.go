package cachecopy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// slow is a driver whose Seal takes longer than anybody waits.
type slow struct{ volumes.Driver }

func (d slow) Seal(ctx context.Context, _, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// A promotion that takes all the time there is made the delete fail, at every retry again.
func TestPromotionThatTakesTooLongFailsNoDelete(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.Driver = slow{o.Driver} })
	write(t, f.open("h", "k", privileged, cachecopy.Always)+"/file", "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	d, _, err := f.Delete(ctx, handle("h"))
	check(t, err)
	if len(d.Copies) != 1 || d.Copies[0].Promoted || !strings.Contains(d.Copies[0].Reason, "deadline") {
		t.Errorf("the copy ended as %+v", d.Copies)
	}
	f.warned()
	if left := readNames(t, f.dir+"/layers"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A lower bound holds at once, whatever the one before it was.
func TestLoweredBoundIsHeld(t *testing.T) {
	f := newFixture(t, nil)
	f.generation("k", func(dir string) { write(t, dir+"/file", strings.Repeat("x", 100_000)) })
	dropped, err := f.Store().Evict(t.Context(), volumes.Bounds{MaxBytes: 50_000}, 0)
	check(t, err)
	if len(dropped) != 1 {
		t.Errorf("dropped %+v, want the one cache", dropped)
	}
}
