package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes"
	"golang.org/x/sys/unix"
)

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
