package volumetest

import (
	"errors"
	"fmt"
	"os"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// imageInTheStore: what is in the store belongs to containers; one cannot be another's image, whichever way leads there.
func imageInTheStore(p *place) {
	v := p.create("h", p.small("image"), privileged)
	p.check(os.Symlink(v.Root, p.path("link")))
	for _, image := range []string{v.Root, p.store, p.store + "/layers/" + v.ID + "/" + p.Upper, p.path("link"), p.store + "/../store/mnt"} {
		for _, s := range slots {
			_, err := p.make(p.Context(), p.Store, "k", image, s)
			p.wantError(image, err, volumes.ErrInvalid, "inside the store", p.store)
		}
	}
	_, err := p.make(p.Context(), p.Store, "k", p.dir, privileged)
	p.wantError("around the store", err, volumes.ErrInvalid, p.dir, "is inside it")
	p.delete("h")
}

// oddPaths: paths of images and stores go through no parser that gives their characters a meaning.
func oddPaths(p *place) {
	for i, odd := range []string{"a:b", "c,d", `e\f`, "g h", "i\nj", `\:k,lowerdir=l`, "\xff", "100%s"} {
		dir := p.path(odd)
		p.check(os.Mkdir(dir, 0o755))
		s := p.open(func(o *volumes.Options) { o.Dir = dir + "/" + odd })
		image := p.small(odd + "/image" + odd)
		for _, slot := range slots {
			shifted := inspect.MaxID * (i % 2) // both ownerships, by turns
			p.check(os.Chown(image, shifted, shifted))
			p.check(os.Chown(image+"/file", shifted, shifted))
			suits, _ := p.suits(shifted != 0, slot)
			v, err := p.make(p.Context(), s, "h", image, slot)
			if !suits {
				p.wantError(odd, err, volumes.ErrCannotMap)
				continue
			}
			if err != nil {
				p.Errorf("%q, %v: %v", odd, slot, err)
				continue
			}
			if got := p.read(v.Root + "/file"); got != "lower" {
				p.Errorf("%q, %v: %q", odd, slot, got)
			}
			p.write(v.Root+"/file", "upper")
			p.wantOwner(v.Root+"/file", [2]uint32{slot.root(), slot.root()})
			p.mountTmpfs(v.Root + "/below")
			if _, err := s.Stats(p.Context(), p.handle("h")); err != nil {
				p.Error(err)
			}
			if _, err := s.Delete(p.Context(), p.handle("h")); err != nil {
				p.Errorf("%q, %v: %v", odd, slot, err)
			}
			if p.read(image+"/file") != "lower" {
				p.Errorf("%q: the image was changed", odd)
			}
		}
		if left := inspect.Mounts(p, dir); len(left) > 0 {
			p.Errorf("mounts are left: %q", left)
		}
	}
}

// imageWithWhiteouts: what other tools mean by whiteouts is content of an image like any other, except that overlayfs lets nobody open a character
// device 0/0; below the top directory it still lists its name (field case 45). With a copy of the image it is the same, and neither is in the way of
// the container, which can put files in their place and remove the directories they are in.
func imageWithWhiteouts(p *place) {
	image := p.small("image")
	p.check(unix.Mknod(image+"/whiteout", unix.S_IFCHR, 0))
	for _, f := range []string{".wh.file", ".wh..wh..opq"} {
		p.write(image+"/"+f, "kept")
	}
	for _, d := range []string{"opaque", "sub"} {
		p.check(os.Mkdir(image+"/"+d, 0o755))
		p.write(image+"/"+d+"/file", "kept")
		p.check(unix.Mknod(image+"/"+d+"/whiteout", unix.S_IFCHR, 0))
	}
	inspect.SetXattr(p, image+"/opaque", "trusted.overlay.opaque", []byte("y"))
	for _, shifted := range []int{0, inspect.MaxID} {
		p.check(os.Chown(image, shifted, shifted))
		for _, s := range slots {
			if suits, _ := p.suits(shifted != 0, s); !suits {
				continue
			}
			v := p.create("h", image, s)
			for _, f := range []string{".wh.file", ".wh..wh..opq", "opaque/file", "sub/file"} {
				if got := p.read(v.Root + "/" + f); got != "kept" {
					p.Errorf("%s: %q", f, got)
				}
			}
			for _, f := range []string{"whiteout", "sub/whiteout", "opaque/whiteout"} {
				if exists(v.Root + "/" + f) {
					p.Errorf("%s can be opened", f)
				}
				p.write(v.Root+"/"+f, "mine")
				if got := p.read(v.Root + "/" + f); got != "mine" {
					p.Errorf("a file in the place of %s holds %q", f, got)
				}
			}
			for _, d := range []string{"opaque", "sub"} {
				p.check(os.RemoveAll(v.Root + "/" + d))
			}
			if p.read(v.Root+"/file") != "lower" || exists(v.Root+"/sub") {
				p.Error("other files are not as they were")
			}
			p.delete("h")
		}
	}
}

// imageWithAMount: what is mounted inside an image is not part of it, however the image is shown, and not of its size.
func imageWithAMount(p *place) {
	image := p.small("image")
	p.check(os.Mkdir(image+"/m", 0o755))
	p.write(image+"/m/under", "under")
	p.create("before", image, privileged)
	size := p.stats("before").TotalBytes
	p.delete("before")
	p.mountTmpfs(image + "/m")
	p.data(image+"/m/over", mib)
	p.check(os.Chmod(image, 0o755)) // another image, so that nothing kept is used
	for _, s := range slots {
		if suits, _ := p.suits(false, s); !suits {
			continue
		}
		v := p.create("h", image, s)
		if exists(v.Root+"/m/over") || p.read(v.Root+"/m/under") != "under" {
			p.Errorf("%v: the mount is part of the image", s)
		}
		if u := p.stats("h"); u.TotalBytes > size+64<<10 {
			p.Errorf("%v: %+v, and %d without the mount", s, u, size)
		}
		p.delete("h")
	}
}

// imageOnAnOverlay: BaggageClaim's copied volumes are overlays. One more overlay can be made of it, but it cannot be id-mapped.
func imageOnAnOverlay(p *place) {
	for _, shifted := range []bool{false, true} {
		lower := p.small(fmt.Sprintf("lower-%v", shifted))
		image := p.overlayOf(lower, fmt.Sprintf("overlay-%v", shifted))
		p.write(image+"/copied", "by BaggageClaim")
		root := 0
		if shifted {
			root = inspect.MaxID
		}
		for _, f := range []string{"", "/file", "/copied"} {
			p.check(os.Chown(image+f, root, root))
		}
		for _, s := range slots {
			needsCopy := shifted == (s == privileged)
			for _, neverCopy := range []bool{false, true} {
				what := fmt.Sprintf("%v, shifted %v, never copy %v", s, shifted, neverCopy)
				store := p.open(func(o *volumes.Options) { o.NeverCopy = neverCopy })
				v, err := p.make(p.Context(), store, "h", image, s)
				if needsCopy && neverCopy {
					p.wantError(what, err, volumes.ErrCannotMap, image, "shifted copy", "--idmap auto")
					continue
				}
				p.check(err)
				if p.read(v.Root+"/file") != "lower" || p.read(v.Root+"/copied") != "by BaggageClaim" {
					p.Errorf("%s: files are not the image's", what)
				}
				for _, f := range []string{"", "/file", "/copied"} {
					p.wantOwner(v.Root+f, [2]uint32{s.root(), s.root()})
				}
				p.write(v.Root+"/file", "mine")
				if p.read(image+"/file") != "lower" {
					p.Errorf("%s: the image was changed", what)
				}
				p.delete("h")
			}
		}
	}
}

// imageRemovedByHand: who removes an image under its containers gets what overlayfs calls undefined, but delete works, and a new container
// fails for lack of the image (field case 43).
func imageRemovedByHand(p *place) {
	image := p.small("image")
	p.create("h", image, privileged)
	p.check(os.RemoveAll(image))
	warned := 0
	s := p.open(func(o *volumes.Options) { o.Warn = func(error) { warned++ } })
	if u, err := s.Stats(p.Context(), p.handle("h")); err != nil || !u.Partial || warned != 1 {
		p.Errorf("stats: %+v, %v, %d warnings: the image's size is not known", u, err, warned)
	}
	if _, err := volumes.OpenImage(image); !errors.Is(err, os.ErrNotExist) {
		p.Errorf("open the image: %v", err)
	}
	p.check(os.Mkdir(image, 0o755)) // another one in its place
	p.write(image+"/other", "")
	if u, err := s.Stats(p.Context(), p.handle("h")); err != nil || !u.Partial || warned != 2 {
		p.Errorf("stats: %+v, %v, %d warnings: another image is at its place", u, err, warned)
	}
	p.delete("h")
}
