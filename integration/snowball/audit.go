package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
)

// warm makes what is made once per store and image, and stays, by a check of a cache that is dropped again. What is there then is what must be there
// when all caches are dropped.
func (s *snow) warm() (counts, error) {
	for i, privileged := range []bool{false, true} {
		r := newResource(fmt.Sprint("warming up ", i))
		spec, err := s.gdn.create(privileged, how{}, "warming-up", imageOf(r))
		if err != nil {
			return counts{}, err
		}
		if err := standIn(spec, privileged, "printf x > $2/.bc-cache-commit; printf x > $2/file"); err != nil {
			return counts{}, err
		}
		if _, err := s.call(privileged, how{}, "stats", "warming-up"); err != nil {
			return counts{}, err
		}
		if err := s.gdn.destroy("warming-up"); err != nil {
			return counts{}, err
		}
	}
	if err := s.drop(2); err != nil {
		return counts{}, err
	}
	return s.look()
}

// build is a container that lives through it all. No gc may touch it, and it keeps one from taking the depot for a wrong one.
const build = "a-build"

func (s *snow) startBuild() error {
	spec, err := s.gdn.create(false, how{}, build, imageOf(s.resources[0]))
	if err != nil {
		return err
	}
	s.buildRoot = spec.Root.Path
	return errors.Join(s.know(build), standIn(spec, false, "printf x > $1/result; printf x > $2/file"))
}

func (s *snow) endBuild() error {
	b, err := os.ReadFile(s.buildRoot + "/result")
	if err != nil || string(b) != "x" {
		return broken{fmt.Errorf("the container that lived through it all is damaged: %q, %v", b, err)}
	}
	return errors.Join(s.gdn.destroy(build), s.unknow(build))
}

func imageOf(r *resource) string {
	return "baggageclaim://image/rootfs?cache=" + url.QueryEscape(r.key) + "&cache-path=" + cacheAt
}

// drop drops all caches, of which there must be so many.
func (s *snow) drop(want int) error {
	all, err := s.caches()
	if err != nil {
		return err
	}
	if len(all) != want {
		return broken{fmt.Errorf("there are %d caches, want %d", len(all), want)}
	}
	for id := range all {
		if _, err := s.call(false, how{}, "cache", "drop", id); err != nil {
			return broken{err}
		}
	}
	return nil
}

// audit holds the store, in which no container is left, against the model: nothing but the caches, and each of them exactly as it must be. Then it drops them,
// and what is left must be what was there before the first check.
func (s *snow) audit(before counts) (caches, after counts, _ error) {
	fail := func(format string, args ...any) (counts, counts, error) {
		return caches, after, broken{fmt.Errorf(format, args...)}
	}
	out, err := s.call(false, how{}, "gc")
	if err != nil || len(out) > 0 {
		return fail("a second gc: %v: %s", err, out)
	}
	if err := s.sound(false); err != nil {
		return caches, after, err
	}
	kept := 0
	for _, r := range s.resources {
		if err := s.compare(r); err != nil {
			return caches, after, err
		}
		if r.current.generation > 0 {
			kept++
		}
	}
	if caches, err = s.look(); err != nil {
		return caches, after, err
	}
	list, err := s.caches()
	if err != nil {
		return caches, after, err
	}
	layers, bytes, entries := 0, int64(0), int64(0)
	for _, r := range s.resources {
		i := list[idOf(r)]
		if int(i.Generation) != r.current.generation || i.Users != 0 || i.Layers > maxLayers || int(i.Entries) < len(r.current.tree) {
			return fail("%s is %+v, want generation %d with at least %d entries", r.key, i, r.current.generation, len(r.current.tree))
		}
		layers += i.Layers
		bytes += int64(i.Bytes)
		entries += int64(i.Entries)
	}
	if caches.entries != 0 || caches.mounts != 0 || caches.layers != layers {
		return fail("left: %d entries, %d mounts, %d layers; the caches have %d layers", caches.entries, caches.mounts, caches.layers, layers)
	}
	if s.url == "" {
		if err := s.account(before, caches, layers, kept, bytes, entries); err != nil {
			return caches, after, err
		}
	}
	if n, err := names(s.dir + "/mnt"); err != nil || n != 0 {
		return fail("%d mount points are left, %v", n, err)
	}
	if err := s.drop(kept); err != nil {
		return caches, after, err
	}
	if after, err = s.look(); err != nil {
		return caches, after, err
	}
	if after != before {
		return fail("after all caches were dropped there is %+v, before the first check there was %+v", after, before)
	}
	return caches, after, s.sound(false)
}

// account fails if the store takes an inode, or a byte in a file, that its caches' layers do not explain.
func (s *snow) account(before, caches counts, layers, kept int, bytes, entries int64) error {
	trees, err := filepath.Glob(s.dir + "/layers/*/fs")
	if err != nil {
		return err
	}
	var inodes, fileBytes, dirBytes int64
	for _, t := range trees {
		n, files, dirs, err := usage(t)
		if err != nil {
			return err
		}
		inodes += n - 1 // without its top
		fileBytes += files
		dirBytes += dirs
		var top syscall.Stat_t
		if err := syscall.Lstat(t, &top); err != nil {
			return err
		}
		dirBytes -= top.Blocks * 512
	}
	durable, err := filepath.Glob(s.dir + "/layers/*/durable")
	if err != nil {
		return err
	}
	// A layer: its directory, layer.json, fs, users, one name in it, and its parent's name but for the lowest. A cache: its directory and current.
	want := before.inodes + inodes + int64(6*layers-kept+2*kept+len(durable))
	switch {
	case caches.inodes != want:
		return broken{fmt.Errorf("the store has %d inodes, and %d are explained", caches.inodes, want)}
	case inodes != entries || fileBytes+dirBytes != bytes:
		return broken{fmt.Errorf("layers hold %d entries and %d bytes, and the plugin says %d and %d", inodes, fileBytes+dirBytes, entries, bytes)}
	}
	return nil
}

// compare reads a cache once more, as the next check would, by either kind of container.
func (s *snow) compare(r *resource) error {
	for _, privileged := range []bool{false, true} {
		spec, err := s.gdn.create(privileged, how{}, "compare", imageOf(r))
		if err != nil {
			return err
		}
		t, err := readTree(spec.Mounts[0].Source, privileged)
		if err == nil {
			_, err = r.observe(t)
		}
		if err := errors.Join(err, s.gdn.destroy("compare")); err != nil {
			return err
		}
	}
	return nil
}

// sound fails if the store's own checker finds anything. What gc would remove is no fault while checks are being killed beside it.
func (s *snow) sound(loaded bool) error {
	problems, err := s.open().Store().Check(context.Background())
	for _, p := range problems {
		if !loaded || !p.IsLeftover() {
			err = errors.Join(err, broken{errors.New(p.String())})
		}
	}
	return err
}
