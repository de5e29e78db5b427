package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
	"golang.org/x/sys/unix"
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

// killedCreate: killed at any step, delete removes what is left, and create just works.
func killedCreate(p *place) {
	image := p.small("image")
	p.check(os.Chown(image, 0, 0))
	slot := privileged
	if p.CanMap {
		slot = unprivileged
	}
	create := func(ctx context.Context, s *volumes.Store) { _, _ = p.make(ctx, s, "h", image, slot) }
	prepare := func() { p.check(os.RemoveAll(p.store + "/store.json")) } // so that it begins with a probe
	p.everyKillOfCreate(create, prepare, image, slot)
}

// everyKillOfCreate kills create at each of its steps, after prepare brought the store to where it begins.
func (p *place) everyKillOfCreate(create call, prepare func(), image string, slot slot) {
	p.Helper()
	steps := p.steps(create)
	p.delete("h")
	for _, step := range steps {
		prepare()
		p.killAt(step, create)
		if _, err := p.Stats(p.Context(), p.handle("h")); err != nil && !errors.Is(err, volumes.ErrNotFound) {
			p.Errorf("killed at %q: stats: %v", step, err)
		}
		if _, err := p.List(p.Context()); err != nil {
			p.Errorf("killed at %q: list: %v", step, err)
		}
		p.delete("h")
		if !strings.HasSuffix(step, "Probe") { // what a probe leaves goes with the next one
			p.isEmpty()
		}

		prepare()
		p.killAt(step, create)
		v, err := p.make(p.Context(), p.Store, "h", image, slot)
		switch {
		case errors.Is(err, volumes.ErrExists) && step == "done: publish": // it was made, only nobody was told
		case err != nil:
			p.Errorf("killed at %q: create: %v", step, err)
		case p.read(v.Root+"/file") != "lower":
			p.Errorf("killed at %q: the root file system is not the image's", step)
		}
		p.delete("h")
		p.isEmpty()
		if p.Failed() {
			p.Fatalf("killed at %q", step)
		}
	}
}

// killedDelete: killed at any step, the next delete goes on, and so does a create.
func killedDelete(p *place) {
	image := p.small("image")
	prepare := func() {
		v := p.create("h", image, privileged)
		for i := range 600 { // removing looks at the context now and then
			p.check(unix.Mknod(fmt.Sprintf("%s/%d", v.Root, i), unix.S_IFREG|0o600, 0))
		}
	}
	del := func(ctx context.Context, s *volumes.Store) { _, _ = s.Delete(ctx, p.handle("h")) }
	prepare()
	steps := p.steps(del)
	for _, step := range steps {
		prepare()
		p.killAt(step, del)
		if _, err := p.Stats(p.Context(), p.handle("h")); !errors.Is(err, volumes.ErrNotFound) {
			p.Errorf("killed at %q: stats: %v", step, err)
		}
		p.delete("h")
		p.isEmpty()

		prepare()
		p.killAt(step, del)
		v, err := p.make(p.Context(), p.Store, "h", image, privileged)
		if err != nil {
			p.Fatalf("killed at %q: create: %v", step, err)
		}
		if p.read(v.Root+"/file") != "lower" || exists(v.Root+"/0") {
			p.Errorf("killed at %q: the root file system is not a new one", step)
		}
		p.delete("h")
		p.isEmpty()
	}
}

// entryMadeByHand: whatever stands under a handle's name, delete removes it and create works (field case 17).
func entryMadeByHand(p *place) {
	image := p.small("image")
	p.create("h", image, privileged)
	p.delete("h")
	id := strings.Repeat("0", 32)
	for _, state := range []string{"init", "dead"} {
		entry := p.store + "/volumes/" + state + "/h"
		for name, make := range map[string]func(){
			"entry without anything": func() { p.check(os.Symlink(id, entry)) },
			"a directory":            func() { p.check(os.MkdirAll(entry+"/volume", 0o755)) },
			"a file":                 func() { p.write(entry, "") },
			"a link to no ID":        func() { p.check(os.Symlink("../../..", entry)) },
			"a half-made layer": func() {
				p.check(os.Symlink(id, entry))
				p.check(os.MkdirAll(p.store+"/layers/"+id+"/work/work", 0o700))
				p.write(p.store+"/layers/"+id+"/layer.json", "") // torn by a power cut
				p.check(os.MkdirAll(p.store+"/mnt/"+id+"/rootfs", 0o700))
			},
			"a mount": func() {
				p.check(os.Symlink(id, entry))
				p.mountTmpfs(p.store + "/mnt/" + id + "/rootfs")
				p.mountTmpfs(p.store + "/mnt/" + id + "/other")
			},
		} {
			make()
			p.delete("h")
			p.isEmpty()
			make()
			v := p.create("h", image, privileged)
			if p.read(v.Root+"/file") != "lower" {
				p.Errorf("%s: the root file system is not the image's", name)
			}
			p.delete("h")
			p.isEmpty()
			if p.Failed() {
				p.Fatalf("%s in %s", name, state)
			}
		}
	}
}

// cancelledCreate: cancelled at any moment, nothing is left, or it was done already.
func cancelledCreate(p *place) {
	image := p.small("image")
	slot := privileged
	if p.CanMap {
		slot = unprivileged
	}
	create := func(ctx context.Context, s *volumes.Store) { _, _ = p.make(ctx, s, "h", image, slot) }
	steps := p.steps(create)
	p.delete("h")
	for _, step := range steps {
		ctx, cancel := context.WithCancel(p.Context())
		var err error
		p.check(os.RemoveAll(p.store + "/store.json"))
		p.with(ctx, func(s string) {
			if s == step {
				cancel()
			}
		}, func(ctx context.Context, s *volumes.Store) { _, err = p.make(ctx, s, "h", image, slot) })
		cancel()
		if err == nil {
			if step != "done: publish" {
				p.Errorf("cancelled at %q: it was made all the same", step)
			}
			p.delete("h")
		} else {
			p.wantError("cancelled at "+step, err, context.Canceled, `"h"`)
		}
		p.isEmpty()
	}
}

// cancelledDelete: cancelled at any moment, it says so, and the next one goes on.
func cancelledDelete(p *place) {
	image := p.small("image")
	prepare := func() {
		v := p.create("h", image, privileged)
		for i := range 600 {
			p.check(unix.Mknod(fmt.Sprintf("%s/%d", v.Root, i), unix.S_IFREG|0o600, 0))
		}
	}
	prepare()
	steps := p.steps(func(ctx context.Context, s *volumes.Store) { _, _ = s.Delete(ctx, p.handle("h")) })
	for _, step := range steps {
		prepare()
		ctx, cancel := context.WithCancel(p.Context())
		var err error
		p.with(ctx, func(s string) {
			if s == step {
				cancel()
			}
		}, func(ctx context.Context, s *volumes.Store) { _, err = s.Delete(ctx, p.handle("h")) })
		cancel()
		if err != nil {
			p.wantError("cancelled at "+step, err, context.Canceled, `delete "h"`)
		} else {
			p.isEmpty()
		}
		p.delete("h")
		p.isEmpty()
	}
}
