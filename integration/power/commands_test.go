package power

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/concourse/bc-image-plugin/imagespec"
	"github.com/concourse/bc-image-plugin/integration/generation"
)

// scenario is a command in a situation. The container that it is about is "h".
type scenario struct {
	name       string
	privileged bool
	caches     int  // how many h has
	grown      int  // generations that they have before
	heavy      int  // files in the first of them
	young      bool // the last of them was made just now
	live       bool // h is there, and has committed another generation
	fresh      bool // the store does not exist
	prepare    func(m *machine) error
	command    func(s scenario, m *machine) []string
}

var keys = []string{"key 0", "key 1"}

func create(s scenario, m *machine) []string {
	return m.creation("h", s.privileged, keys[:s.caches]...)
}
func remove(scenario, *machine) []string { return []string{"delete", "h"} }
func drop(scenario, *machine) []string   { return []string{"cache", "drop", imagespec.CacheID(keys[0])} }
func gc(scenario, *machine) []string     { return []string{"gc"} }

// layersBeforeMerge is volumes.Options.MaxLayers' default: a promotion on so many merges.
const layersBeforeMerge = 8

var scenarios = []scenario{
	{name: "create-first", fresh: true, caches: 1, command: create},
	{name: "create-2-caches", caches: 2, grown: 2, command: create},
	{name: "create-privileged", privileged: true, caches: 1, grown: 2, command: create},
	{name: "create-after-kill", caches: 1, grown: 1, live: true, prepare: killedDelete, command: create},
	{name: "delete", live: true, command: remove},
	{name: "delete-first-generation", caches: 1, live: true, command: remove},
	{name: "delete-2-promotions", caches: 2, grown: 2, live: true, command: remove},
	{name: "delete-young", caches: 1, grown: 3, young: true, live: true, command: remove},
	{name: "delete-merge-upper", caches: 1, grown: layersBeforeMerge, heavy: 80, live: true, command: remove},
	{name: "delete-merge-all", caches: 1, grown: layersBeforeMerge, live: true, command: remove},
	{name: "delete-merge-young", caches: 1, grown: layersBeforeMerge, young: true, live: true, command: remove},
	{name: "delete-merge-upper-young", caches: 1, grown: layersBeforeMerge, heavy: 80, young: true, live: true, command: remove},
	{name: "drop", caches: 1, grown: 3, command: drop},
	{name: "gc", caches: 1, grown: 1, live: true, prepare: leftovers, command: gc},
}

// killedDelete makes h one whose delete was killed.
func killedDelete(m *machine) error {
	return os.Rename(m.store()+"/volumes/live/h", m.store()+"/volumes/dead/h")
}

// leftovers makes of h one whose delete was killed, and adds one that lost its entry.
func leftovers(m *machine) error {
	if _, err := m.create("lost", false, keys[0]); err != nil {
		return err
	}
	return errors.Join(os.Remove(m.store()+"/volumes/live/lost"), killedDelete(m))
}

// is says whether the scenario's command is that one.
func (s scenario) is(command string) bool { return strings.HasPrefix(s.name, command) }

// makeTemplate makes the disk that a scenario's runs begin with. All of it is on disk, and each generation but the last was flushed by the plugin. The last that a scenario
// has before its command is not among them: ready makes it, so that nothing of it is on disk.
func (m *machine) makeTemplate(s scenario) (err error) {
	if err := m.format(); err != nil {
		return err
	}
	if err := m.on(m.disk(), before); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.off(), os.Rename(m.disk(), m.template())) }()
	if !s.fresh {
		err = m.cycle("growing", false, 0) // sets the store up
	}
	for g := 1; g < s.grown && err == nil; g++ {
		err = m.grow(s, true)
	}
	return errors.Join(err, m.bring(everything))
}

// grow makes the next generation of the scenario's caches; an old one is flushed by the next promotion.
func (m *machine) grow(s scenario, old bool) error {
	err := m.cycle("growing", false, s.heavy, keys[:s.caches]...)
	for _, key := range keys[:s.caches] {
		if err == nil && old {
			err = m.age(key)
		}
	}
	return err
}

// ready makes the situation, of which nothing is flushed.
func (m *machine) ready(s scenario) error {
	if s.grown > 0 {
		if err := m.grow(s, !s.young); err != nil {
			return err
		}
	}
	if s.live {
		c, err := m.create("h", s.privileged, keys[:s.caches]...)
		if err != nil {
			return err
		}
		err = errors.Join(os.MkdirAll(c.root+"/a/b", 0o755), os.WriteFile(c.root+"/a/b/c", nil, 0o644), os.Remove(c.root+"/bin/tool"))
		for _, dir := range c.caches {
			err = errors.Join(err, generation.Write(dir, s.grown+1, s.heavy))
		}
		if err != nil {
			return err
		}
	}
	if s.prepare != nil {
		return s.prepare(m)
	}
	return nil
}

// plan says what the kernel brings to the disk while a command runs: before each of its changing calls (once: 0), or only before one of them.
type plan struct {
	brought writeback
	once    int
}

// run runs the scenario's command on a copy of the template, and returns a snapshot of each moment, between two calls that change something, at which the disk is not what
// it was at the last one. wanted says whether one is worth looking at.
func (m *machine) run(s scenario, p plan, wanted func(call) bool) (all []snapshot, calls int, err error) {
	if err := reflink(m.template(), m.disk()); err != nil {
		return nil, 0, err
	}
	if err := m.on(m.disk(), before); err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, m.off()) }()
	known := map[string]bounds{}
	if err := m.know(s, known); err != nil {
		return nil, 0, err
	}
	if err := m.ready(s); err != nil {
		return nil, 0, fmt.Errorf("making the situation: %w", err)
	}
	var last uint64
	take := func(c call, over bool) error {
		at, n := "when it was done", c.n
		if !over {
			at = fmt.Sprintf("before %s, the %d-th", c.name, n)
		}
		brought := nothing
		if p.once == 0 || p.once == n {
			brought = p.brought
			// The store stands still: what the plugin says it flushed is so, when the names are on disk.
			if brought != nothing {
				if err := m.know(s, known); err != nil {
					return err
				}
			}
			if err := m.bring(brought); err != nil {
				return err
			}
		}
		now, err := m.written()
		same := now == last
		last = now
		// A disk that is as it was has been looked at; so have those before once, when nothing was brought at all, and that at once, when it was each time.
		if err != nil || n <= p.once || (same && n > 1 && (!over || p.once > 0)) || !wanted(c) {
			return err
		}
		disk, err := m.snapshot()
		if err != nil {
			return err
		}
		shot := snapshot{disk: disk, command: s.name, at: at, brought: brought, caches: map[string]bounds{}, handles: []string{"h", "lost"}, order: m.copies}
		if p.once > 0 {
			shot.at += fmt.Sprintf(" (%s was on disk at the %d-th)", p.brought, p.once)
		}
		for key, b := range known {
			if s.is("drop") && (!over || brought == nothing) {
				b.least = 0
			}
			if s.is("drop") && over && brought != nothing {
				b = bounds{}
			}
			shot.caches[key] = b
		}
		shot.clean = over && brought == everything && (s.is("delete") || s.is("gc"))
		all = append(all, shot)
		return nil
	}
	code, stdout, log, err := m.step(s.command(s, m), func(c call) error {
		calls = c.n
		return take(c, false)
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s%s", s.name, code, stdout, log)
	}
	if err != nil {
		return nil, calls, err
	}
	err = take(call{n: calls + 1}, true)
	return all, calls, err
}

// know notes which generation of each cache was flushed, and which was made last.
func (m *machine) know(s scenario, known map[string]bounds) error {
	for _, key := range keys[:s.caches] {
		if _, again := known[key]; again && s.is("drop") {
			continue // it is going away
		}
		g, err := m.flushed(key)
		if err != nil {
			return err
		}
		b := bounds{max(g, known[key].least), s.grown}
		if s.live {
			b.most++
		}
		known[key] = b
	}
	return nil
}
