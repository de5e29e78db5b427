package torture

import (
	"errors"
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
	live       bool // h is there, and has committed another generation
	fresh      bool // the store does not exist
	server     bool // the store is on a BaggageClaim server
	prepare    func(p *place) error
	command    func(s scenario, p *place) []string
}

func create(s scenario, p *place) []string { return []string{"create", p.url(s.caches), "h"} }
func remove(scenario, *place) []string     { return []string{"delete", "h"} }
func drop(scenario, *place) []string       { return []string{"cache", "drop", imagespec.CacheID(keys[0])} }
func gc(scenario, *place) []string         { return []string{"gc"} }

// layersBeforeMerge is volumes.Options.MaxLayers' default: a promotion on so many merges.
const layersBeforeMerge = 8

var scenarios = onBoth([]scenario{
	{name: "create-first", fresh: true, command: create},
	{name: "create-2-caches", caches: 2, grown: 2, command: create},
	{name: "create-privileged", privileged: true, caches: 1, grown: 2, command: create},
	{name: "create-after-kill", caches: 1, grown: 1, live: true, prepare: killedDelete, command: create},
	{name: "delete", live: true, command: remove},
	{name: "delete-privileged", privileged: true, caches: 1, grown: 1, live: true, command: remove},
	{name: "delete-first-generation", caches: 1, live: true, command: remove},
	{name: "delete-2-promotions", caches: 2, grown: 2, live: true, command: remove},
	{name: "delete-merge-upper", caches: 1, grown: layersBeforeMerge, heavy: 80, live: true, command: remove},
	{name: "delete-merge-all", caches: 1, grown: layersBeforeMerge, live: true, command: remove},
	{name: "drop", caches: 1, grown: 3, command: drop},
	{name: "gc", caches: 1, grown: 1, live: true, prepare: leftovers, command: gc},
})

// onBoth adds to each scenario the same with a server.
func onBoth(list []scenario) []scenario {
	for _, s := range list {
		s.name += "@server"
		s.server = true
		list = append(list, s)
	}
	return list
}

// killedDelete makes h one whose delete was killed.
func killedDelete(p *place) error {
	return os.Rename(p.store+"/volumes/live/h", p.store+"/volumes/dead/h")
}

// leftovers makes of h one whose delete was killed, and adds one that lost its entry.
func leftovers(p *place) error {
	if _, err := p.do("create", p.url(1), "lost"); err != nil {
		return err
	}
	return errors.Join(os.Remove(p.store+"/volumes/live/lost"), killedDelete(p))
}

// makeTemplate makes the store that a scenario's runs begin with, with no container in it.
func (s scenario) makeTemplate(p *place) error {
	if s.fresh {
		return nil
	}
	if err := p.cycle(0, nil); err != nil { // sets the store up
		return err
	}
	for g := 1; g <= s.grown; g++ {
		if err := p.cycle(s.caches, func(dir string) error { return generation.Write(dir, g, s.heavy) }); err != nil {
			return err
		}
	}
	return p.clean()
}

// cycle is a container from create to delete.
func (p *place) cycle(caches int, work func(cache string) error) error {
	out, err := p.do("create", p.url(caches), "growing")
	if err != nil {
		return err
	}
	c, err := parseSpec(out)
	for _, dir := range c.caches {
		err = errors.Join(err, work(dir))
	}
	_, failed := p.do("delete", "growing")
	return errors.Join(err, failed)
}

// ready makes the situation in p's store, of which there is nothing yet.
func (s scenario) ready(p *place, template string) error {
	if !s.fresh {
		if err := p.restore(template); err != nil {
			return err
		}
	}
	if s.live {
		out, err := p.do("create", p.url(s.caches), "h")
		if err != nil {
			return err
		}
		c, err := parseSpec(out)
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
		return s.prepare(p)
	}
	return nil
}

// is says whether the scenario's command is that one.
func (s scenario) is(command string) bool { return strings.HasPrefix(s.name, command) }

// known are faults that once showed a mistake.
var known = []struct{ scenario, fault, site string }{
	{"gc", "EIO", `newfstatat(AT_FDCWD, "*/store/layers/*-*"`},                                // a layer was taken for gone, and its cache dropped
	{"gc", "EIO", `readlinkat(AT_FDCWD, "*/store/volumes/dead/h"`},                            // exit 0, with a container that died left
	{"delete-first-generation", "EIO", `newfstatat(AT_FDCWD, "*/store/caches/*`},              // a cache without a time was taken for old
	{"delete-2-promotions@server", "EIO", `newfstatat(AT_FDCWD, "*/server/volumes/live`},      // a volume was taken for gone
	{"create-after-kill@server", "EIO", `readlinkat(AT_FDCWD, "*/store/layers/*/cache-*/vol`}, // a panic
	{"create-first", "EIO", `openat(AT_FDCWD, "/proc/self/uid_map"`},                          // a boot without id maps
	{"create-first@server", "EBUSY", `umount2("*/store/mnt/probe"`},                           // the sentence named another error
}
