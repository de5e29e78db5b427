package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// mustBeCopied makes an image of which no driver can do without a shifted copy for an unprivileged container, and what removes it.
func (p *place) mustBeCopied(name string) (image string, remove func()) {
	p.Helper()
	lower := p.small(name + "-lower")
	for i := range 600 { // copying looks at the context now and then
		p.check(unix.Mknod(fmt.Sprintf("%s/%d", lower, i), unix.S_IFREG|0o600, 0))
	}
	image = p.overlayOf(lower, name)
	return image, func() {
		p.Helper()
		inspect.Unmount(p, image)
		p.check(os.RemoveAll(image))
	}
}

// copyIsMadeOnce: who comes first makes it, the others wait, and all share it (field case 60).
func copyIsMadeOnce(p *place) {
	image, _ := p.mustBeCopied("image")
	var all sync.WaitGroup
	for i := range 5 {
		all.Go(func() {
			v, err := p.make(p.Context(), p.Store, fmt.Sprint(i), image, unprivileged)
			if err != nil {
				p.Error(err)
				return
			}
			if b, err := os.ReadFile(v.Root + "/file"); err != nil || string(b) != "lower" {
				p.Errorf("%q, %v", b, err)
			}
			p.wantOwner(v.Root+"/file", [2]uint32{inspect.MaxID, inspect.MaxID})
			if err := os.WriteFile(v.Root+"/file", nil, 0o600); err != nil {
				p.Error(err)
			}
		})
	}
	all.Wait()
	copies := p.copiesKept()
	if layers := p.names("layers"); len(copies) != 1 || len(layers) != 5+1 {
		p.Errorf("%d copies, %d layers for 5 containers", len(copies), len(layers))
	}
	for i := range 5 {
		p.delete(fmt.Sprint(i))
	}
	// It stays while its image is there, and is used again.
	if layers := p.names("layers"); !slices.Equal(layers, copies) {
		p.Errorf("layers %q after all are deleted, want the copy %q", layers, copies)
	}
	v := p.create("again", image, unprivileged)
	if p.read(v.Root+"/file") != "lower" {
		p.Error("the copy was changed by its users")
	}
	if now := p.copiesKept(); !slices.Equal(now, copies) {
		p.Errorf("copies %q became %q", copies, now)
	}
	p.delete("again")
}

// copyGoesAfterItsImage: with the last container that uses it, or with the next copy that is made.
func copyGoesAfterItsImage(p *place) {
	image, remove := p.mustBeCopied("image")
	p.create("a", image, unprivileged)
	b := p.create("b", image, unprivileged)
	remove()
	p.delete("a")
	if p.read(b.Root+"/file") != "lower" {
		p.Error("the copy is gone, and somebody uses it")
	}
	p.delete("b")
	if left := append(p.names("layers"), p.copiesKept()...); len(left) > 0 {
		p.Errorf("left: %q", left)
	}

	unused, removeUnused := p.mustBeCopied("unused")
	p.create("a", unused, unprivileged)
	p.delete("a")
	removeUnused()
	other, removeOther := p.mustBeCopied("other")
	p.create("a", other, unprivileged)
	if copies := p.copiesKept(); len(copies) != 1 {
		p.Errorf("copies: %q, want only that of the image that is there", copies)
	}
	removeOther()
	p.delete("a")
	if left := p.names("layers"); len(left) > 0 {
		p.Errorf("left: %q", left)
	}
}

// copyOfAnotherBoot: a copy is not flushed to disk, so it may not be whole after a reboot, and is made anew.
func copyOfAnotherBoot(p *place) {
	image, _ := p.mustBeCopied("image")
	v := p.create("h", image, unprivileged)
	old := p.copiesKept()
	p.check(unix.Unmount(v.Root, unix.MNT_DETACH)) // as after a reboot
	for _, layer := range []string{old[0], v.ID} {
		p.editRecord("layers/"+layer+"/layer.json", "boot", "another boot")
	}
	p.check(os.Truncate(p.store+"/layers/"+old[0]+"/"+p.Upper+"/file", 0)) // as after a power cut

	k := p.create("k", image, unprivileged)
	if p.read(k.Root+"/file") != "lower" {
		p.Error("it is not whole")
	}
	if now := p.copiesKept(); len(now) != 1 || now[0] == old[0] || slices.Contains(p.names("layers"), old[0]) {
		p.Errorf("copies %q became %q, layers %q", old, now, p.names("layers"))
	}
	p.delete("h")
	p.delete("k")
}

// copyInUse: a copy that cannot be used by new containers, but is by one, stays as it is until that one goes.
func copyInUse(p *place) {
	boot := strings.TrimSpace(p.read("/proc/sys/kernel/random/boot_id"))
	for name, spoil := range map[string]func(record string){
		"a torn record":             func(record string) { p.write(p.store+"/"+record, "") },
		"of another user namespace": func(record string) { p.editRecord(record, "boot", boot+" user:[1]") },
		"its name was taken away":   func(string) { p.check(os.RemoveAll(p.store + "/images")); p.check(os.Mkdir(p.store+"/images", 0o700)) },
	} {
		image, remove := p.mustBeCopied(name)
		v := p.create("h", image, unprivileged)
		old := p.copiesKept()[0]
		spoil("layers/" + old + "/layer.json")
		k := p.create("k", image, unprivileged)
		if now := p.copiesKept(); len(now) != 1 || now[0] == old {
			p.Errorf("%s: copies %q, and the old one is %s", name, now, old)
		}
		for _, root := range []string{v.Root, k.Root} {
			if p.read(root+"/file") != "lower" {
				p.Errorf("%s: a file is not the image's", name)
			}
		}
		if !exists(p.store + "/layers/" + old + "/" + p.Upper + "/file") {
			p.Errorf("%s: the copy was removed below a container", name)
		}
		p.delete("h")
		if exists(p.store + "/layers/" + old) {
			p.Errorf("%s: the old copy is left", name)
		}
		p.delete("k")
		remove()
		all, err := p.GC(p.Context(), volumes.GCOptions{})
		p.check(err)
		for _, c := range all {
			p.check(c.Err)
		}
		p.isEmpty()
		if left := p.names("layers"); len(left) > 0 {
			p.Fatalf("%s: layers %q are left", name, left)
		}
	}
}

// killedCreateWithACopy: killed at any step, also in the middle of the copy, nothing stays behind that an image does not keep.
func killedCreateWithACopy(p *place) {
	n, remove := 0, func() {}
	var image string
	prepare := func() { // another image each time, so that it is copied each time
		remove()
		n++
		image, remove = p.mustBeCopied(fmt.Sprintf("image-%d", n))
	}
	create := func(ctx context.Context, s *volumes.Store) { _, _ = p.make(ctx, s, "h", image, unprivileged) }
	p.create("h", p.small("plain"), privileged) // makes the store: what killing that leaves is killedCreate's
	p.delete("h")
	prepare()
	steps := p.steps(create)
	p.delete("h")
	for _, step := range steps {
		prepare()
		p.killAt(step, create)
		p.delete("h")
		p.isEmptyBut("images/") // the next copy of the image removes it
		v, err := p.make(p.Context(), p.Store, "h", image, unprivileged)
		if err != nil || p.read(v.Root+"/file") != "lower" {
			p.Fatalf("killed at %q: create: %v", step, err)
		}
		p.delete("h")
		if left := p.copiesKept(); len(left) != 1 {
			p.Fatalf("killed at %q: copies %q, want that of the image", step, left)
		}

		prepare()
		p.killAt(step, create)
		remove()
		remove = func() {}
		p.delete("h")
		// What was left of a copy goes with the next one.
		p.withAnotherCopy(func() {
			if left := p.copiesKept(); len(left) != 1 {
				p.Fatalf("killed at %q, then the image went: copies %q are kept", step, left)
			}
		})
		p.isEmpty()
	}
}

// withAnotherCopy runs f while there is a copy of another image and nothing else.
func (p *place) withAnotherCopy(f func()) {
	p.Helper()
	other, remove := p.mustBeCopied("other")
	p.create("other", other, unprivileged)
	f()
	remove()
	p.delete("other")
	p.check(os.RemoveAll(p.path("other-lower")))
	p.check(errors.Join(os.RemoveAll(p.path("other.upper")), os.RemoveAll(p.path("other.work"))))
}

// killedDeleteOfTheLastUse: killed at any step, also while the copy of an image that is gone is removed, the next delete goes on.
func killedDeleteOfTheLastUse(p *place) {
	n := 0
	prepare := func() {
		n++
		image, remove := p.mustBeCopied(fmt.Sprintf("image-%d", n))
		p.create("h", image, unprivileged)
		remove()
	}
	del := func(ctx context.Context, s *volumes.Store) { _, _ = s.Delete(ctx, p.handle("h")) }
	prepare()
	steps := p.steps(del)
	for _, step := range steps {
		prepare()
		p.killAt(step, del)
		p.delete("h")
		p.isEmpty()
		if left := p.names("layers"); len(left) > 0 {
			p.Fatalf("killed at %q: layers %q are kept", step, left)
		}
	}
}

// cancelledCopy: a copy that is cancelled leaves nothing.
func cancelledCopy(p *place) {
	p.create("h", p.small("plain"), privileged) // makes the store
	p.delete("h")
	image, remove := p.mustBeCopied("image")
	create := func(ctx context.Context, s *volumes.Store) { _, _ = p.make(ctx, s, "h", image, unprivileged) }
	steps := p.steps(create)
	p.delete("h")
	remove()
	p.withAnotherCopy(func() {})
	image, _ = p.mustBeCopied("image-2")
	cut := 0
	for _, step := range steps {
		ctx, cancel := context.WithCancel(p.Context())
		var err error
		p.with(ctx, func(s string) {
			if s == step {
				cancel()
			}
		}, func(ctx context.Context, s *volumes.Store) { _, err = p.make(ctx, s, "h", image, unprivileged) })
		cancel()
		p.delete("h")
		p.isEmpty()
		if err == nil {
			continue // cancelled too late, or the step is one of the copy's, which is there now
		}
		p.wantError("cancelled at "+step, err, context.Canceled, `"h"`)
		if layers := p.names("layers"); len(layers) == 0 {
			cut++
		}
	}
	if cut < 2 {
		p.Errorf("the copy was cut %d times, so the test shows little", cut)
	}
}
