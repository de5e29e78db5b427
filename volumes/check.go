package volumes

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
)

// Problem is one thing in a store that should not be there, or should be and is not.
type Problem struct {
	Path string // below the store's directory
	Text string // what is wrong with it

	// collect takes it away, if nobody needs it at this moment either. nil: a person has to, or Delete of a handle that Text names.
	collect func(context.Context) (Deleted, error)
	// spare: it is kept for the next who may need it, and nobody does. That is no problem, and GC removes it.
	spare bool
}

// IsLeftover says whether GC removes it.
func (p Problem) IsLeftover() bool { return p.collect != nil }

func (p Problem) String() string { return fmt.Sprintf("%q: %s", p.Path, p.Text) }

// Check compares all that the store has on disk and in the mount table of this mount namespace with itself, and returns what does not fit. It changes nothing. A
// store that does not exist has no problems.
//
// It may run beside creates, deletes and drops of caches, and takes for a problem nothing that they are about to finish. What a GC that runs beside it is about
// to remove may be among the problems.
//
// Not looked at: contents of trees, whether live containers are mounted (List says it), and names of users that are no names of ours.
func (s *Store) Check(ctx context.Context) ([]Problem, error) {
	l, err := s.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("check the store %q: %w", s.dir, s.hint(err))
	}
	return slices.DeleteFunc(l.found, func(p Problem) bool { return p.spare }), nil
}

// look is what was seen of a store, and what does not fit.
//
// It takes no lock that a create or a delete would have to wait for longer than a few system calls, so what it sees is of different moments. Being
// right all the same rests on the order, and on two facts. Intent first: an entry or a pointer is made before what it leads to, and removed after it. And an ID
// comes only once: what is gone does not come back. So what is seen first, and then is found to have no owner, has none for ever, or is gone already; things are
// read before their owners, owners in the order in which they move. Where an owner can be there and dead (init, dead, dropped, making), its
// lock tells.
//
// An exclusive lock of the whole store would make this simpler, and every create wait behind it, which itself waits for the longest of those that run.
type look struct {
	*Store
	ctx   context.Context
	found []Problem

	layers   []string            // in layers, in the beginning
	users    map[string][]string // of those that have a directory users, then
	mounts   map[string]bool     // names in mnt, and names below mnt that something is mounted on, in the beginning
	entries  map[string]entry    // by ID
	unknown  bool                // there is an entry that cannot be read: it may own anything
	copies   map[string]bool     // layers that images/ names
	releases map[string]bool     // layers that somebody may be removing because nobody uses them any more
}

type entry struct {
	state  state
	handle Handle
	record layerRecord
	torn   bool // the record cannot be read
}

func (s *Store) look(ctx context.Context) (*look, error) {
	l := &look{
		Store: s, ctx: ctx, users: map[string][]string{}, mounts: map[string]bool{}, entries: map[string]entry{}, copies: map[string]bool{},
		releases: map[string]bool{},
	}
	for _, step := range []func() error{
		// What is owned, then who owns it.
		l.readLayers, l.readMounts, l.readDrops, l.readEntries, l.readImages,
		l.judgeEntries, l.judgeMounts, l.judgeLayers, l.judgeStacks, l.judgeImages, l.judgeRecords, l.judgeStrays,
	} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// add notes a problem.
func (l *look) add(path, text string, collect func(context.Context) (Deleted, error)) {
	l.found = append(l.found, Problem{Path: path, Text: text, collect: collect})
}

// judgeStrays finds trees that the driver keeps elsewhere, and no layer leads to.
func (l *look) judgeStrays() error {
	sweeper, ok := l.opts.Driver.(Sweeper)
	if !ok || !exists(l.path("layers")) {
		return nil
	}
	strays, err := sweeper.Strays(l.ctx, l.path("layers"))
	for _, s := range strays {
		l.add(s.Name, "no layer has it", func(ctx context.Context) (Deleted, error) { return Deleted{}, s.Remove(ctx) })
	}
	return err
}

// readLayers is first: everything else is about whom they belong to.
func (l *look) readLayers() (err error) {
	if l.layers, err = readNames(l.path("layers")); err != nil {
		return err
	}
	slices.Sort(l.layers)
	for _, name := range l.layers {
		if users, err := readUsers(l.path("layers", name, "users")); err != nil {
			return err
		} else if users != nil {
			l.users[name] = users
		}
	}
	return nil
}

// readUsers returns the names in a directory, nil if there is no directory.
func readUsers(dir string) ([]string, error) {
	names, err := readNames(dir)
	if err == nil && names == nil && exists(dir) {
		names = []string{}
	}
	return names, err
}

func (l *look) readMounts() error {
	names, err := readNames(l.path("mnt"))
	if err != nil {
		return err
	}
	for _, n := range names {
		l.mounts[n] = true
	}
	dir := l.realDir() + "/mnt"
	points, err := mnt.Below(dir)
	for _, p := range points {
		name, _, _ := strings.Cut(strings.TrimPrefix(p, dir+"/"), "/")
		l.mounts[name] = true
	}
	return err
}

// readDrops finds which layers whoever drops a stack is about to remove.
func (l *look) readDrops() error {
	stacks, err := readNames(l.path("caches"))
	if err != nil {
		return err
	}
	for _, stack := range stacks {
		if !ValidStack(stack) {
			continue
		}
		names, err := readNames(l.path("caches", stack))
		if err != nil {
			return err
		}
		for _, n := range names {
			if layer, ok := strings.CutPrefix(n, droppedPrefix); ok {
				l.released(layer)
			}
		}
	}
	return nil
}

// released notes that layer, and all below it, may be about to go.
func (l *look) released(layer string) {
	for isLayer(layer) && !l.releases[layer] {
		l.releases[layer] = true
		layer, _ = os.Readlink(l.path("layers", layer, "parent")) // none: it is the lowest
	}
}

// readEntries reads the states in the order in which an entry moves, so none is missed.
func (l *look) readEntries() error {
	for _, st := range states {
		names, err := readNames(l.path("volumes", string(st)))
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			h := Handle{name}
			id, err := l.readEntry(st, h)
			switch {
			case isNotFound(err):
				continue
			case err != nil:
				l.judgeUnreadable(st, h, err)
				continue
			}
			e := entry{state: st, handle: h}
			e.torn = durable.ReadJSON(l.path("layers", id, "layer.json"), &e.record) != nil
			l.entries[id] = e
			for _, c := range e.record.Copies {
				l.released(c.Base)
			}
		}
	}
	return nil
}

// readImages reads who is making a copy before who has made one, for the same reason.
func (l *look) readImages() error {
	for _, kind := range []string{".making", ".copy"} {
		names, err := readNames(l.path("images"))
		if err != nil {
			return err
		}
		for _, n := range names {
			if !strings.HasSuffix(n, kind) {
				continue
			}
			if layer, err := os.Readlink(l.path("images", n)); err == nil {
				l.copies[layer] = true
			}
		}
	}
	return nil
}

// owned says whether the container id has an entry, or may have one.
func (l *look) owned(id string) bool {
	_, ok := l.entries[id]
	return ok || l.unknown
}

// owner returns the ID of the container that a layer, a mark or a mount point is named after.
func owner(name string) (id string, ok bool) {
	id, _, _ = strings.Cut(name, "-")
	id, _, _ = strings.Cut(id, ".")
	return id, ids.Valid(id)
}
