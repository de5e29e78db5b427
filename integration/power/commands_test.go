package power

import (
	"errors"
	"fmt"
	"maps"
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
	late       bool // the last but one of them was not old when the last was made
	since      int  // so many of them were made since anything was brought to the disk; 0 is one
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
	{name: "delete-2-merges", caches: 2, grown: layersBeforeMerge, live: true, command: remove},
	{name: "delete-merge-again", caches: 1, grown: 14, since: 6, heavy: 80, live: true, command: remove}, // the first of these merged, too
	{name: "delete-late", caches: 1, grown: 4, late: true, live: true, command: remove},
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
	first := s.grown - max(1, s.since)
	for g := 1; g <= first && err == nil; g++ {
		err = m.grow(s, !s.late || g < first)
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
	for g := max(1, s.since); g > 0 && s.grown > 0; g-- {
		if err := m.grow(s, g == 1 && !s.young); err != nil {
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

// session is a command that runs and is stopped for snapshots.
type session struct {
	*machine
	scenario
	plan
	wanted  func(call) bool
	known   map[string]bounds // of the caches, by key
	sectors uint64            // to the disk when it was last looked at
	shots   []snapshot
	calls   []call
}

// run runs the scenario's command on a copy of the template, and returns its changing calls and a snapshot of each moment, between two of them, at which the disk is not what it
// was at the last one. wanted says whether one is worth looking at.
func (m *machine) run(s scenario, p plan, wanted func(call) bool) (shots []snapshot, calls []call, err error) {
	if err := reflink(m.template(), m.disk()); err != nil {
		return nil, nil, err
	}
	if err := m.on(m.disk(), before); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, m.off()) }()
	o := &session{machine: m, scenario: s, plan: p, wanted: wanted, known: map[string]bounds{}}
	if err := o.know(); err != nil {
		return nil, nil, err
	}
	if err := m.ready(s); err != nil {
		return nil, nil, fmt.Errorf("making the situation: %w", err)
	}
	code, stdout, log, err := m.step(s.command(s, m), func(c call) error {
		o.calls = append(o.calls, c)
		return o.stop(c)
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s%s", s.name, code, stdout, log)
	}
	if err != nil {
		return nil, nil, err
	}
	err = o.stop(call{n: len(o.calls) + 1})
	return o.shots, o.calls, err
}

// stop is before a call, or after the last (without a name): it brings to the disk what the plan says, and takes a snapshot.
func (o *session) stop(c call) error {
	over, brought := c.name == "", nothing
	if o.once == 0 || o.once == c.n {
		brought = o.brought
	}
	if brought != nothing {
		// The store stands still: what the plugin says it flushed is so, when the names are on disk.
		if err := o.know(); err != nil {
			return err
		}
		if err := o.bring(brought); err != nil {
			return err
		}
	}
	now, err := o.written()
	same := now == o.sectors
	o.sectors = now
	// A disk that is as it was has been looked at; so have those before once, when nothing was brought at all, and that at once, when it was each time.
	if err != nil || c.n <= o.once || (same && c.n > 1 && (!over || o.once > 0)) || !o.wanted(c) {
		return err
	}
	disk, err := o.snapshot()
	if err != nil {
		return err
	}
	shot := snapshot{
		disk: disk, command: o.name, at: "when it was done", brought: brought, caches: maps.Clone(o.known), handles: []string{"h", "lost"}, order: o.copies,
		clean: over && brought == everything && (o.is("delete") || o.is("gc")),
	}
	if !over {
		shot.at = fmt.Sprintf("before %s, the %d-th", c.name, c.n)
	}
	if o.once > 0 {
		shot.at += fmt.Sprintf(" (%s was on disk at the %d-th)", o.brought, o.once)
	}
	if o.is("drop") {
		most := o.grown
		if over && brought != nothing {
			most = 0
		}
		shot.caches[keys[0]] = bounds{0, most}
	}
	o.shots = append(o.shots, shot)
	return nil
}

// know notes which generation of each cache was flushed, and which was made last.
func (o *session) know() error {
	if o.is("drop") && len(o.calls) > 0 {
		return nil // nothing is to be kept
	}
	for _, key := range keys[:o.caches] {
		g, err := o.flushed(key)
		if err != nil {
			return err
		}
		b := bounds{max(g, o.known[key].least), o.grown}
		if o.live {
			b.most++
		}
		o.known[key] = b
	}
	return nil
}
