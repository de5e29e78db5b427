package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// besideDirtyData times deletes right after a neighbour wrote that much to the same file system: whoever syncs it, as unmounting an overlay does that is
// not volatile, writes the neighbour's data to the disk.
func (p *place) besideDirtyData(n, mib int, image string) (*meter, error) {
	m, o := newMeter(), p.ours("store")
	neighbour := func() error {
		return command("dd", "if=/dev/zero", "of="+filepath.Join(p.fs, "neighbour"), "bs=1M", fmt.Sprintf("count=%d", mib), "conv=notrunc", "status=none")
	}
	sides := []side{{func(m *meter) error {
		return errors.Join(p.settle(), o.run("create", image, "h"), m.time("delete, nothing dirty", func() error { return o.run("delete", "h") }),
			o.run("create", image, "h"), neighbour(), m.time("delete", func() error { return o.run("delete", "h") }))
	}}}
	if p.groot != "" {
		g, err := p.newGroot(image, "groot-dirty", false)
		if err != nil {
			return nil, err
		}
		sides = append(sides, side{func(m *meter) error {
			return errors.Join(g.run("create", "--with-mount", g.tar, "h"), neighbour(), m.time("GrootFS: delete", func() error { return g.run("delete", "h") }))
		}})
	}
	return m, rounds(m, n, sides)
}

// size is an image of so many files of so many bytes.
type size struct{ files, bytes int }

func (s size) String() string {
	if s.bytes == 0 {
		return fmt.Sprintf("%d files", s.files)
	}
	return fmt.Sprintf("%d files, %d MB", s.files, s.files*s.bytes/1_000_000)
}

// sizes times create and delete by the image's size.
func (p *place) sizes(n int, sizes []size) (*meter, error) {
	m, o := newMeter(), p.ours("store")
	var sides []side
	for _, s := range sizes {
		image, err := p.image(s.files, s.bytes)
		if err != nil {
			return nil, err
		}
		sides = append(sides, side{func(m *meter) error {
			return errors.Join(
				m.time("create: "+s.String(), func() error { return o.run("create", image, "h") }),
				m.time("delete: "+s.String(), func() error { return o.run("delete", "h") }))
		}})
		if p.groot == "" || s.bytes == 0 {
			continue
		}
		g, err := p.newGroot(image, "groot-size", true)
		if err != nil {
			return nil, err
		}
		sides = append(sides, side{func(m *meter) error {
			return errors.Join(
				m.time("GrootFS, mapped, create: "+s.String(), func() error { return g.run("create", "--with-mount", g.tar, "h") }),
				m.time("GrootFS, mapped, delete: "+s.String(), func() error { return g.run("delete", "h") }))
		}})
	}
	return m, errors.Join(p.settle(), rounds(m, n, sides))
}

// live times create and delete beside that many live containers. They are made by the library; the commands are what is timed. With ownMount the directory of their mount
// points is a mount, so that theirs are not on the one from which layers are cloned.
func (p *place) live(n int, levels []int, image string, ownMount bool) (m *meter, err error) {
	m = newMeter()
	name := fmt.Sprintf("store-live-%t", ownMount)
	o, privileged := p.ours(name), p.ours(name, "--privileged")
	if ownMount {
		points := filepath.Join(o.store, "mnt")
		if err := errors.Join(o.run("create", image, "first"), o.run("delete", "first"), command("mount", "--bind", points, points)); err != nil {
			return nil, err
		}
	}
	store := volumes.New(volumes.Options{Dir: o.store, Driver: overlay.New(overlay.Options{})})
	img, err := volumes.OpenImage(image)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	ctx := context.Background()
	handle := func(i int) volumes.Handle {
		h, perr := volumes.ParseHandle(fmt.Sprintf("live-%d", i))
		err = errors.Join(err, perr)
		return h
	}
	made := 0
	defer func() {
		for i := range made {
			_, derr := store.Delete(ctx, handle(i))
			err = errors.Join(err, derr)
		}
	}()
	for _, level := range levels {
		for ; made < level; made++ {
			if _, err := store.Create(ctx, handle(made), volumes.Request{Image: img}); err != nil {
				return nil, err
			}
		}
		sides := []side{
			{func(m *meter) error {
				return m.time(fmt.Sprintf("empty: %d live", level), func() error { return command(p.empty) })
			}},
			{func(m *meter) error {
				return errors.Join(
					m.time(fmt.Sprintf("create: %d live", level), func() error { return o.run("create", image, "h") }),
					m.time(fmt.Sprintf("delete: %d live", level), func() error { return o.run("delete", "h") }))
			}},
			{func(m *meter) error {
				return errors.Join(
					m.time(fmt.Sprintf("create --privileged: %d live", level), func() error { return privileged.run("create", image, "h") }),
					privileged.run("delete", "h"))
			}},
		}
		if err := errors.Join(p.settle(), rounds(m, n, sides)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// atOnce starts that many commands at the same time and waits for all.
func (p *place) atOnce(n, many int, image string) (*meter, error) {
	all := func(name string, args func(i int) []string) error {
		done := make(chan error)
		for i := range many {
			go func() { done <- command(name, args(i)...) }()
		}
		var errs []error
		for range many {
			errs = append(errs, <-done)
		}
		return errors.Join(errs...)
	}
	stores := make([]string, many)
	for i := range stores {
		var err error
		if stores[i], err = p.bareStore(fmt.Sprint("bare-", i)); err != nil {
			return nil, err
		}
	}
	bare := func(words ...string) func(int) []string {
		return func(i int) []string { return append(slices.Clone(words), stores[i]) }
	}
	o := p.ours("store")
	with := func(words ...string) func(int) []string {
		return func(i int) []string {
			return append(append([]string{"--store", o.store}, words...), fmt.Sprint("at-once-", i))
		}
	}
	sides := []side{
		{func(m *meter) error {
			return m.time(emptyProgram, func() error { return all(p.empty, func(int) []string { return nil }) })
		}},
		{func(m *meter) error {
			return errors.Join(m.time(bareCreate, func() error { return all(p.empty, bare("create", image)) }), m.time(bareDelete, func() error { return all(p.empty, bare("delete")) }))
		}},
		{func(m *meter) error {
			return errors.Join(m.time("create", func() error { return all(p.plugin, with("create", image)) }),
				m.time("delete", func() error { return all(p.plugin, with("delete")) }))
		}},
	}
	if p.groot != "" {
		g, err := p.newGroot(image, "groot-at-once", false)
		if err != nil {
			return nil, err
		}
		with := func(words ...string) func(int) []string {
			return func(i int) []string {
				return append(append([]string{"--store", g.store, "--tardis-bin", g.tardis}, words...), fmt.Sprint("at-once-", i))
			}
		}
		sides = append(sides, side{func(m *meter) error {
			return errors.Join(m.time("GrootFS: create", func() error { return all(g.program, with("create", "--with-mount", g.tar)) }),
				m.time("GrootFS: delete", func() error { return all(g.program, with("delete")) }))
		}})
	}
	m := newMeter()
	return m, rounds(m, n, sides)
}

// cycles are what many checks of one resource do: create with the cache, change a file in it, delete, which promotes the change. They are told by tenths.
type cycles struct {
	medians            []time.Duration
	median, p99        time.Duration
	diskStart, diskEnd int64 // bytes of the store after the first tenth, and at the end
}

func (p *place) checks(n int, image string) (c cycles, err error) {
	o, url, m := p.ours("store-cycles"), withCaches(image, 1), newMeter()
	for tenth := range 10 {
		part := newMeter()
		for i := range n / 10 {
			start := time.Now()
			if err := errors.Join(o.run("create", url, "check"), o.change(fmt.Sprint(tenth, i)), o.run("delete", "check")); err != nil {
				return c, err
			}
			part.add("cycle", time.Since(start))
			m.add("cycle", time.Since(start))
		}
		c.medians = append(c.medians, part.median("cycle"))
		used, err := output("du", "-s", "--block-size=1", o.store)
		if err != nil {
			return c, err
		}
		if _, err := fmt.Sscan(used, &c.diskEnd); err != nil {
			return c, err
		}
		if tenth == 0 {
			c.diskStart = c.diskEnd
		}
	}
	c.median, c.p99 = m.median("cycle"), m.quantile("cycle", 0.99)
	return c, nil
}
