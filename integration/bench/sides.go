package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// The names of what others are compared with.
const (
	emptyProgram = "an empty program"
	bareCreate   = "its bare system calls: create"
	bareDelete   = "its bare system calls: delete"
)

// commandSides are the sides whose commands are compared.
func (p *place) commandSides(image string) ([]side, error) {
	var sides []side
	for _, add := range []func(string) ([]side, error){p.floorSides, p.oursSides, p.librarySides, p.grootSides} {
		more, err := add(image)
		if err != nil {
			return nil, err
		}
		sides = append(sides, more...)
	}
	return sides, nil
}

// floorSides are a static Go program that does nothing, and one that does only the system calls of a volume.
func (p *place) floorSides(image string) ([]side, error) {
	store, err := p.bareStore("bare")
	if err != nil {
		return nil, err
	}
	empty := side{func(m *meter) error { return m.time(emptyProgram, func() error { return command(p.empty) }) }}
	bare := side{func(m *meter) error {
		return errors.Join(
			m.time(bareCreate, func() error { return command(p.empty, "create", image, store) }),
			m.time(bareDelete, func() error { return command(p.empty, "delete", store) }))
	}}
	return []side{empty, bare}, nil
}

// bareStore makes the directories that the bare system calls work in.
func (p *place) bareStore(name string) (string, error) {
	store := filepath.Join(p.fs, name)
	return store, errors.Join(os.MkdirAll(store+"/layers", 0o711), os.MkdirAll(store+"/mnt", 0o711))
}

// ours is the plugin on one store.
type ours struct {
	plugin, store string
	flags         []string
}

func (p *place) ours(store string, flags ...string) ours {
	return ours{p.plugin, filepath.Join(p.fs, store), flags}
}

func (o ours) run(args ...string) error {
	return command(o.plugin, append(append([]string{"--store", o.store}, o.flags...), args...)...)
}

// change writes a file in each copy of a cache of the one container there is.
func (o ours) change(text string) error {
	copies, err := filepath.Glob(filepath.Join(o.store, "mnt/*/cache-*"))
	for _, dir := range copies {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o644))
	}
	return err
}

// withCaches is the rootfs URL of an image with n caches.
func withCaches(image string, n int) string {
	url, mark := "file://"+image, "?"
	for i := range n {
		url += fmt.Sprintf("%scache=key-%d&cache-path=/cache-%d&cache-promote=always", mark, i, i)
		mark = "&"
	}
	return url
}

func (p *place) oursSides(image string) ([]side, error) {
	unprivileged, privileged := p.ours("store"), p.ours("store", "--privileged")
	sides := []side{
		{func(m *meter) error {
			return errors.Join(
				m.time("create", func() error { return unprivileged.run("create", image, "h") }),
				m.time("stats", func() error { return unprivileged.run("stats", "h") }),
				m.time("delete", func() error { return unprivileged.run("delete", "h") }),
				m.time("delete, unknown handle", func() error { return unprivileged.run("delete", "h") }))
		}},
		{func(m *meter) error {
			return errors.Join(
				m.time("create --privileged", func() error { return privileged.run("create", image, "h") }),
				m.time("delete --privileged", func() error { return privileged.run("delete", "h") }))
		}},
	}
	for n := 1; n <= 2; n++ {
		url, o := withCaches(image, n), p.ours(fmt.Sprintf("store-%d", n))
		// The first generation, or it would be a copy of nothing.
		if err := errors.Join(o.run("create", url, "first"), o.change("first"), o.run("delete", "first")); err != nil {
			return nil, err
		}
		sides = append(sides, side{func(m *meter) error {
			return errors.Join(
				m.time(fmt.Sprintf("create, %d cached", n), func() error { return o.run("create", url, "h") }),
				m.time(fmt.Sprintf("delete, %d cached, unchanged", n), func() error { return o.run("delete", "h") }))
		}})
	}
	return sides, nil
}

// librarySides are the store in this process.
func (p *place) librarySides(image string) ([]side, error) {
	caches := cachecopy.New(volumes.Options{Dir: filepath.Join(p.fs, "library"), Driver: overlay.New(overlay.Options{})}, cachecopy.Options{})
	h, err := volumes.ParseHandle("h")
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return []side{{func(m *meter) error {
		return errors.Join(
			m.time("library: create", func() error {
				img, err := volumes.OpenImage(image)
				if err != nil {
					return err
				}
				defer img.Close()
				_, err = caches.Create(ctx, h, volumes.Request{Image: img})
				return err
			}),
			m.time("library: delete", func() error { _, _, err := caches.Delete(ctx, h); return err }))
	}}}, nil
}

// groot is GrootFS on one store.
type groot struct{ program, tardis, store, tar string }

func (g groot) run(args ...string) error {
	return command(g.program, append([]string{"--store", g.store, "--tardis-bin", g.tardis}, args...)...)
}

// newGroot makes a store of GrootFS that has unpacked the image.
func (p *place) newGroot(image, store string, mapped bool) (groot, error) {
	g := groot{p.groot, p.tardis, filepath.Join(p.fs, store), filepath.Join(p.fs, store+".tar")}
	init := []string{"init-store"}
	if mapped {
		for _, kind := range []string{"--uid-mapping", "--gid-mapping"} {
			init = append(init, kind, "0:4294967294:1", kind, "1:1:4294967293")
		}
	}
	return g, errors.Join(
		command("tar", "-C", image, "-cf", g.tar, "."), g.run(init...), g.run("create", "--with-mount", g.tar, "first"), g.run("delete", "first"))
}

func (p *place) grootSides(image string) ([]side, error) {
	var sides []side
	if p.groot == "" {
		return nil, nil
	}
	for name, mapped := range map[string]bool{"GrootFS": false, "GrootFS, mapped": true} {
		g, err := p.newGroot(image, fmt.Sprintf("groot-%t", mapped), mapped)
		if err != nil {
			return nil, err
		}
		sides = append(sides, side{func(m *meter) error {
			return errors.Join(
				m.time(name+": create", func() error { return g.run("create", "--with-mount", g.tar, "h") }),
				m.time(name+": delete", func() error { return g.run("delete", "h") }))
		}})
	}
	return sides, nil
}
