package volumetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
)

// stepper is told of each step of a call: before and after each method of the driver, after each step that the store traces, and each time
// that somebody asks the context whether it is over.
type stepper func(step string)

// stepped is a driver that tells of its steps.
type stepped struct {
	volumes.Driver
	step stepper
}

func (d stepped) Probe(ctx context.Context, v volumes.View) (volumes.Features, error) {
	d.step("before Probe")
	defer d.step("after Probe")
	return d.Driver.Probe(ctx, v)
}

func (d stepped) New(ctx context.Context, layers string, names []string, container string) error {
	d.step("before New")
	err := d.Driver.New(ctx, layers, names, container)
	d.step("after New")
	return err
}

func (d stepped) Mount(ctx context.Context, f volumes.Features, v volumes.View) error {
	d.step("before Mount")
	err := d.Driver.Mount(ctx, f, v)
	d.step("after Mount")
	return err
}

func (d stepped) Unmount(ctx context.Context, dir string) error {
	d.step("before Unmount")
	err := d.Driver.Unmount(ctx, dir)
	d.step("after Unmount")
	return err
}

func (d stepped) Remove(ctx context.Context, layers, name string) error {
	d.step("before Remove")
	err := d.Driver.Remove(ctx, layers, name)
	d.step("after Remove")
	return err
}

// asked is a context that tells when it is asked.
type asked struct {
	context.Context
	n    int
	step stepper
}

func (a *asked) Err() error {
	a.n++
	a.step(fmt.Sprintf("look %d", a.n))
	return a.Context.Err()
}

// call is something that a test does to a store.
type call func(ctx context.Context, s *volumes.Store)

// with runs f with a store and a context that tell of their steps.
func (p *place) with(ctx context.Context, step stepper, f call) {
	f(&asked{Context: ctx, step: step}, p.open(func(o *volumes.Options) {
		o.Driver = stepped{p.Driver, step}
		o.Trace = func(s string, _ time.Duration) { step("done: " + s) }
	}))
}

// steps are those that f goes through, in order, each once.
func (p *place) steps(f call) []string {
	p.Helper()
	var all []string
	p.with(p.Context(), func(step string) {
		if !slices.Contains(all, step) {
			all = append(all, step)
		}
	}, f)
	if len(all) < 5 {
		p.Fatalf("only the steps %q, so little would be tested", all)
	}
	return all
}

// killed is what ends a call that is killed.
type killed struct{}

// killAt runs f and ends it at a step, as far as that goes in one process: what f deferred runs, which releases its locks, but sees no error and
// so undoes nothing.
func (p *place) killAt(step string, f call) {
	p.Helper()
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r)
			}
			return
		}
		p.Errorf("it did not come to %q", step)
	}()
	p.with(p.Context(), func(s string) {
		if s == step {
			panic(killed{})
		}
	}, f)
}
