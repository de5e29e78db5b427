package volumetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// waited is a context that calls f each time somebody is about to wait for its end.
type waited struct {
	context.Context
	f func()
}

func (w waited) Done() <-chan struct{} {
	w.f()
	return w.Context.Done()
}

// busyRoot: a root in use is waited for, and not touched when the time runs out (field case 26).
func busyRoot(p *place) {
	v := p.create("h", p.small("image"), privileged)
	p.write(v.Root+"/mine", "precious")
	f, err := os.Open(v.Root + "/mine")
	p.check(err)
	defer f.Close()
	over, cancel := context.WithCancel(p.Context())
	cancel()
	upper := p.store + "/layers/" + v.ID + "/" + p.Upper
	before := inspect.Tree(p, upper, inspect.Keep)
	for range 2 {
		_, err = p.Delete(over, p.handle("h"))
		p.wantError("no time", err, volumes.ErrBusy, `delete "h"`, v.Root, "device or resource busy", "fuser -vm", "mount namespace")
		if !errors.Is(err, unix.EBUSY) || strings.Contains(err.Error(), "\n") {
			p.Errorf("error %q: it must wrap the system's, in one line", err)
		}
		if p.read(v.Root+"/mine") != "precious" || p.read(v.Root+"/file") != "lower" {
			p.Error("files are gone")
		}
		inspect.Same(p, inspect.Tree(p, upper, inspect.Keep), before)
	}
	_, err = p.Stats(p.Context(), p.handle("h"))
	p.wantError("stats while it is being deleted", err, volumes.ErrNotFound)
	_, err = p.make(over, p.Store, "h", p.path("image"), privileged)
	p.wantError("create over it", err, volumes.ErrBusy, "earlier")

	waits := 0
	_, err = p.Delete(waited{p.Context(), func() {
		if waits++; waits == 2 {
			f.Close()
		}
	}}, p.handle("h"))
	p.check(err)
	if waits < 2 {
		p.Errorf("it waited %d times", waits)
	}
}

// stackedMounts: whatever is mounted over the root, and below each of those mounts, is taken off (field case 28).
func stackedMounts(p *place) {
	bound := p.path("bound")
	p.check(os.MkdirAll(bound+"/sub", 0o755))
	p.write(bound+"/precious", "")
	v := p.create("h", p.small("image"), privileged)
	for range 3 {
		p.mountTmpfs(v.Root + "/below")
		p.mountTmpfs(v.Root + "/below/it's\tbelow \\")
		p.check(unix.Mount(bound, v.Root, "", unix.MS_BIND, ""))
	}
	p.check(unix.Mount(bound, v.Root+"/sub", "", unix.MS_BIND, ""))
	p.mountTmpfs(filepath.Dir(v.Root) + "/beside")
	p.mountTmpfs(filepath.Dir(v.Root)) // hides the mount points themselves
	p.delete("h")
	if !exists(bound + "/precious") {
		p.Error("it was deleted through a mount")
	}
}

// storeBehindASymlink: mountinfo has real paths, and runc refuses a root file system whose path has symlinks.
func storeBehindASymlink(p *place) {
	p.check(os.Mkdir(p.store, 0o711))
	p.check(os.Symlink("store", p.path("link")))
	image := p.small("image")
	s := p.open(func(o *volumes.Options) { o.Dir = p.path("link") })
	v, err := p.make(p.Context(), s, "h", image, privileged)
	p.check(err)
	if real, err := filepath.EvalSymlinks(v.Root); err != nil || real != v.Root {
		p.Errorf("root %q is really %q, %v", v.Root, real, err)
	}
	if list, err := s.List(p.Context()); err != nil || len(list) != 1 || list[0].Root != v.Root {
		p.Errorf("list: %+v, %v", list, err)
	}
	p.mountTmpfs(v.Root + "/below")
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer cancel()
	_, err = s.Delete(ctx, p.handle("h"))
	p.check(err)
}

// lostMounts: after a reboot, directories and entries are there and mounts are not (field case 29).
func lostMounts(p *place) {
	image := p.small("image")
	v := p.create("h", image, privileged)
	p.write(v.Root+"/mine", "")
	p.check(unix.Unmount(v.Root, unix.MNT_DETACH))
	_, err := p.Stats(p.Context(), p.handle("h"))
	p.wantError("stats", err, volumes.ErrNotFound, "mounted any more", "only delete is possible")
	if list, err := p.List(p.Context()); err != nil || len(list) != 1 || list[0].Mounted {
		p.Errorf("list: %+v, %v", list, err)
	}
	_, err = p.make(p.Context(), p.Store, "h", image, privileged)
	p.wantError("create over it", err, volumes.ErrExists, "delete it first")
	k := p.create("k", image, privileged)
	if p.read(k.Root+"/file") != "lower" {
		p.Error("the new one is not whole")
	}
	p.delete("h")
	if p.read(k.Root+"/file") != "lower" {
		p.Error("deleting the old one touched the new one")
	}
	p.delete("k")
}

// anotherBoot: what was found out about the host holds for one boot, and is found out again.
func anotherBoot(p *place) {
	image := p.small("image")
	probes := 0
	s := p.open(func(o *volumes.Options) {
		o.Driver = stepped{p.Driver, func(step string) {
			if step == "before Probe" {
				probes++
			}
		}}
	})
	for i, want := range []int{1, 1, 2, 2} {
		if i == 2 {
			p.editRecord("store.json", "boot", "another boot")
		}
		_, err := p.make(p.Context(), s, "h", image, privileged)
		p.check(err)
		p.delete("h")
		if probes != want {
			p.Errorf("create %d: probed %d times, want %d", i, probes, want)
		}
	}
}

// anotherDriver: a store that another driver made is not used, but can be emptied (field case 35).
func anotherDriver(p *place) {
	image := p.small("image")
	p.create("h", image, privileged)
	for key, value := range map[string]string{"driver": "other", "fs": "otherfs"} {
		before := p.read(p.store + "/store.json")
		p.editRecord("store.json", key, value)
		_, err := p.make(p.Context(), p.Store, "k", image, privileged)
		p.wantError(key, err, volumes.ErrUnsupported, p.store, value)
		p.editRecord("store.json", "boot", "another boot") // nor is it then made over
		_, err = p.make(p.Context(), p.Store, "k", image, privileged)
		p.wantError(key, err, volumes.ErrUnsupported, p.store, value)
		p.write(p.store+"/store.json", before)
	}
	p.editRecord("store.json", "driver", "other")
	p.delete("h")
}

// damagedRecord: everything in store.json can be found out again.
func damagedRecord(p *place) {
	image := p.small("image")
	p.create("h", image, privileged)
	p.write(p.store+"/store.json", `{"format":`)
	if _, err := p.Stats(p.Context(), p.handle("h")); err != nil {
		p.Error(err)
	}
	p.create("k", image, privileged)
	p.delete("k")
	p.write(p.store+"/store.json", "")
	p.delete("h")
	p.create("k", image, privileged) // writes it anew
	p.delete("k")
}
