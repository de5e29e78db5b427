package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// bare makes what the store prepares for a driver: directories, features, and a view without layers of a container of a slot.
func (p *place) bare(name string, s slot) (volumes.View, volumes.Features) {
	p.Helper()
	image := p.path("image")
	if !exists(image) {
		p.small("image")
		p.create("h", image, privileged) // sets up the store
		p.delete("h")
	}
	v := volumes.View{
		Target: p.store + "/mnt/" + name + "/rootfs", Layers: p.store + "/layers", Upper: name, Mapped: s == unprivileged,
		MaxID: inspect.MaxID, Warn: func(err error) { p.Error(err) },
	}
	p.check(os.MkdirAll(v.Target, 0o755))
	p.check(os.MkdirAll(v.Layers+"/"+name, 0o700))
	p.check(p.Driver.New(p.Context(), v.Layers, []string{name}, ""))
	scratch := v
	scratch.Mapped = false
	scratch.Upper, scratch.Target = name+"-scratch", p.store+"/mnt/"+name+"-scratch/rootfs"
	p.check(errors.Join(os.MkdirAll(scratch.Target, 0o755), os.MkdirAll(v.Layers+"/"+scratch.Upper, 0o700)))
	p.check(p.Driver.New(p.Context(), v.Layers, []string{scratch.Upper}, ""))
	f, err := p.Driver.Probe(p.Context(), scratch)
	p.check(err)
	p.takeApart(scratch)
	if got := p.Driver.CanMap(f); got != p.CanMap {
		p.Fatalf("CanMap(%+v) = %v, and %v was expected", f, got, p.CanMap)
	}
	v.UpperMapped = v.Mapped && p.CanMap
	if v.Mapped {
		if v.UserNS, err = userns.New(inspect.MaxID); err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { v.UserNS.Close() })
	}
	return v, f
}

// takeApart removes a view as the store does.
func (p *place) takeApart(v volumes.View) {
	p.Helper()
	dir := v.Target[:len(v.Target)-len("/rootfs")]
	for range 2 { // doing it again is success
		p.check(p.Driver.Unmount(p.Context(), dir))
		p.check(os.RemoveAll(dir))
		p.check(p.Driver.Remove(p.Context(), v.Layers, v.Upper))
	}
	if exists(v.Layers + "/" + v.Upper) {
		p.Errorf("layer %q is left", v.Upper)
	}
}

// noLayers: without a layer below, the merged root is an empty directory of the container's root.
func noLayers(p *place) {
	for _, s := range slots {
		v, f := p.bare("empty", s)
		p.check(p.Driver.Mount(p.Context(), f, v))
		p.wantOwner(v.Target, [2]uint32{s.root(), s.root()})
		info, err := os.Stat(v.Target)
		if err != nil || info.Mode().Perm() != 0o755 {
			p.Errorf("%v: %v, %v, want mode 0755", s, info, err)
		}
		if names, err := os.ReadDir(v.Target); err != nil || len(names) > 0 {
			p.Errorf("%v: it holds %v, %v", s, names, err)
		}
		p.check(as(s.root(), "touch "+v.Target+"/file"))
		p.wantOwner(v.Target+"/file", [2]uint32{s.root(), s.root()})
		u, err := p.Driver.Usage(p.Context(), v.Layers, v.Upper)
		if err != nil || u.Partial || u.Bytes > 64<<10 {
			p.Errorf("%v: usage %+v, %v", s, u, err)
		}
		p.takeApart(v)
	}
}

// layers: many layers from outside of the store are shown, the first on top, some of them mapped.
func layers(p *place) {
	const n = 12
	for _, s := range slots {
		v, f := p.bare("many", s)
		root := int(s.root())
		for i := range n {
			dir := p.path(fmt.Sprintf("layer-%d-%v", i, s))
			p.check(os.Mkdir(dir, 0o755))
			p.write(dir+"/same", fmt.Sprint(i))
			p.write(fmt.Sprintf("%s/only-%d", dir, i), "")
			owner, mapped := root, false
			if p.CanMap && i%2 == 0 {
				owner, mapped = int(inspect.Swap(s.root())), true
			}
			for _, f := range []string{"", "/same", fmt.Sprintf("/only-%d", i)} {
				p.check(os.Chown(dir+f, owner, owner))
			}
			d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
			p.check(err)
			defer d.Close()
			v.Lowers = append(v.Lowers, volumes.Lower{Dir: d, Map: mapped})
		}
		p.check(os.Chmod(p.path(fmt.Sprintf("layer-0-%v", s)), 0o751))
		if v.UserNS == nil {
			ns, err := userns.New(inspect.MaxID)
			p.check(err)
			defer ns.Close()
			v.UserNS = ns
		}
		p.check(p.Driver.Mount(p.Context(), f, v))
		if got := p.read(v.Target + "/same"); got != "0" {
			p.Errorf("%v: the file of layer %s is on top", s, got)
		}
		for i := range n {
			p.wantOwner(fmt.Sprintf("%s/only-%d", v.Target, i), [2]uint32{s.root(), s.root()})
		}
		if info, err := os.Stat(v.Target); err != nil || info.Mode().Perm() != 0o751 {
			p.Errorf("%v: %v, %v, want the mode of the topmost layer", s, info, err)
		}
		p.takeApart(v)
	}
}

// driverFindsNothing: what is not there is success for whoever takes it apart.
func driverFindsNothing(p *place) {
	ctx, cancel := context.WithCancel(p.Context())
	cancel() // nobody has to wait for anything
	for _, dir := range []string{p.store + "/mnt/absent", p.path("absent/absent")} {
		if err := p.Driver.Unmount(ctx, dir); err != nil {
			p.Errorf("unmount %q: %v", dir, err)
		}
	}
	p.check(os.MkdirAll(p.path("dir/rootfs/sub"), 0o755))
	if err := p.Driver.Unmount(ctx, p.path("dir")); err != nil {
		p.Errorf("unmount a directory with nothing mounted: %v", err)
	}
	if !exists(p.path("dir/rootfs/sub")) {
		p.Error("unmounting removed files")
	}
	for _, layers := range []string{p.dir, p.path("absent")} {
		if err := p.Driver.Remove(ctx, layers, "absent"); err != nil {
			p.Errorf("remove from %q: %v", layers, err)
		}
	}
}
