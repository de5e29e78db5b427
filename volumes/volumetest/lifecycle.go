package volumetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func lifeCycle(p *place) {
	h := p.handle("h")
	image := p.small("image")
	absent := func(when string) {
		p.Helper()
		_, err := p.Stats(p.Context(), h)
		p.wantError(when+": stats", err, volumes.ErrNotFound, `"h"`)
		if list, err := p.List(p.Context()); err != nil || len(list) > 0 {
			p.Errorf("%s: list: %v, %v", when, list, err)
		}
		for range 2 {
			if d := p.delete("h"); d.ID != "" {
				p.Errorf("%s: delete says %+v", when, d)
			}
		}
	}
	absent("before there is a store")
	if exists(p.store) {
		p.Error("the store was made by something else than create")
	}
	var ids []string
	for range 2 {
		v := p.create("h", image, privileged)
		ids = append(ids, v.ID)
		if !filepath.IsAbs(v.Root) || p.read(v.Root+"/file") != "lower" {
			p.Errorf("root %q", v.Root)
		}
		if mounts := inspect.Mounts(p, p.store); !slices.Equal(mounts, []string{v.Root}) {
			p.Errorf("mounts %q, want only the root", mounts)
		}
		if _, err := p.Stats(p.Context(), h); err != nil {
			p.Error(err)
		}
		list, err := p.List(p.Context())
		if err != nil || len(list) != 1 || list[0].ID != v.ID || list[0].Root != v.Root || !list[0].Mounted || list[0].State != "live" ||
			!list[0].Privileged || list[0].Image != image || list[0].Created.IsZero() {
			p.Errorf("list: %+v, %v", list, err)
		}
		if d := p.delete("h"); d.ID != v.ID {
			p.Errorf("delete says %+v, want ID %q", d, v.ID)
		}
		absent("after delete")
		p.isEmpty()
	}
	if ids[0] == ids[1] {
		p.Error("two containers of one handle had the same ID")
	}
}

func createTwice(p *place) {
	image := p.small("image")
	v := p.create("h", image, privileged)
	p.write(v.Root+"/mine", "of the first")
	mounts := inspect.Mounts(p, p.store)
	layers := p.names("layers")
	for _, s := range slots {
		if s == unprivileged && !p.CanMap && !p.copies() {
			continue
		}
		_, err := p.make(p.Context(), p.Store, "h", image, s)
		p.wantError(s.String(), err, volumes.ErrExists, `"h"`, "delete it first")
	}
	if p.read(v.Root+"/mine") != "of the first" || p.read(v.Root+"/file") != "lower" {
		p.Error("the first was touched")
	}
	if now := inspect.Mounts(p, p.store); !slices.Equal(now, mounts) {
		p.Errorf("mounts %q became %q", mounts, now)
	}
	if now := p.names("layers"); len(now) > len(layers)+len(p.copiesKept()) {
		p.Errorf("layers %q became %q", layers, now)
	}
	if d := p.delete("h"); d.ID != v.ID {
		p.Errorf("deleted %+v, want the first, %q", d, v.ID)
	}
}

func anyHandle(p *place) {
	image := p.small("image")
	handles := []string{"1", "-rf", "a b", "..a", "a:b,c", `a\b`, "\xff\xfe", "line\nline", "*", "é", strings.Repeat("x", 255)}
	for _, h := range handles {
		v := p.create(h, image, privileged)
		p.write(v.Root+"/mine", h)
		if strings.Contains(v.Root[len(p.store):], h) && len(h) > 1 {
			p.Errorf("handle %q is part of the root's path %q", h, v.Root)
		}
	}
	if list, err := p.List(p.Context()); err != nil || len(list) != len(handles) {
		p.Errorf("list: %d entries, %v", len(list), err)
	}
	for _, h := range handles {
		if _, err := p.Stats(p.Context(), p.handle(h)); err != nil {
			p.Error(err)
		}
		p.delete(h)
	}
}

func manyAtOnce(p *place) {
	image := p.small("image")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for round := range 2 {
				h := fmt.Sprintf("h-%d", i)
				v, err := p.make(p.Context(), p.Store, h, image, privileged)
				if err != nil {
					p.Error(err)
					return
				}
				content := fmt.Sprintf("%d in round %d", i, round)
				if err := os.WriteFile(v.Root+"/file", []byte(content), 0o600); err != nil {
					p.Error(err)
				}
				if b, err := os.ReadFile(v.Root + "/file"); err != nil || string(b) != content {
					p.Errorf("%q, %v, want %q", b, err, content)
				}
				if _, err := p.Stats(p.Context(), p.handle(h)); err != nil {
					p.Error(err)
				}
				if _, err := p.Delete(p.Context(), p.handle(h)); err != nil {
					p.Error(err)
				}
			}
		})
	}
	all.Wait()
	if p.read(image+"/file") != "lower" {
		p.Error("the image was changed")
	}
}

func oneHandleAtOnce(p *place) {
	image := p.small("image")
	const racers = 6
	var all sync.WaitGroup
	wins := make(chan *volumes.Volume, racers)
	for range racers {
		all.Go(func() {
			v, err := p.make(p.Context(), p.Store, "h", image, privileged)
			switch {
			case err == nil:
				wins <- v
			case !errors.Is(err, volumes.ErrExists):
				p.Errorf("a loser's error: %v", err)
			}
		})
	}
	all.Wait()
	if len(wins) != 1 {
		p.Fatalf("%d creates won", len(wins))
	}
	if winner := <-wins; p.read(winner.Root+"/file") != "lower" {
		p.Error("the winner has no root file system")
	}
	// Field case 10: everybody deletes at once, and all succeed.
	deleted := make(chan volumes.Deleted, racers)
	for range racers {
		all.Go(func() {
			d, err := p.Delete(p.Context(), p.handle("h"))
			if err != nil {
				p.Error(err)
			}
			if d.ID != "" {
				deleted <- d
			}
		})
	}
	all.Wait()
	if len(deleted) != 1 {
		p.Errorf("%d deletes say that they deleted it", len(deleted))
	}
	// Creates and deletes mixed: any order is right, but nothing else may happen.
	for i := range 2 * racers {
		all.Go(func() {
			if i%2 == 0 {
				if _, err := p.make(p.Context(), p.Store, "h", image, privileged); err != nil && !errors.Is(err, volumes.ErrExists) {
					p.Error(err)
				}
			} else if _, err := p.Delete(p.Context(), p.handle("h")); err != nil {
				p.Error(err)
			}
		})
	}
	all.Wait()
	p.delete("h")
}
