package power

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/concourse/bc-image-plugin/integration/generation"
)

// snapshot is a disk at the moment of a power cut, and what is known of that moment.
type snapshot struct {
	disk    string // path
	command string // what was going on, for the report
	at      string // where, to find it again
	brought writeback

	caches  map[string]bounds // by key
	handles []string          // of containers that there may be
	clean   bool              // no container is left, and all is on disk
	refused func(tag string) bool
	order   int
}

// bounds are the generations that a cache may serve after the power cut. least was flushed, and said so on disk; most was the last that somebody made.
type bounds struct{ least, most int }

// verdict is what was seen of a snapshot that keeps all promises.
type verdict struct {
	least, later, none int // caches that serve the generation that was certain to be on disk, a later one, none
	leftovers          int // what the checker found, for gc
}

// judge switches the machine on with the snapshot's disk, looks what is there, and does what Garden and a scheduler do after a reboot. An error is a promise that was broken.
// At last everything is taken away, so it can be seen that nothing else is left.
func (m *machine) judge(s snapshot) (v verdict, err error) {
	if err := m.on(s.disk, after); err != nil {
		return v, fmt.Errorf("the file system itself: %w", err)
	}
	defer func() { err = errors.Join(err, m.off()) }()
	found, err := m.problems()
	if err != nil {
		return v, fmt.Errorf("the store does not open: %w", err)
	}
	for _, p := range found {
		// A container's record is not flushed; the checker says so then, and that a delete of the handle is enough.
		if !p.IsLeftover() && !strings.Contains(p.Text, "removes it all the same") {
			return v, fmt.Errorf("only a person can mend %s", p)
		}
	}
	if s.clean && len(found) > 0 {
		return v, fmt.Errorf("all containers were deleted, and it was on disk; the checker finds %v", found)
	}
	v.leftovers = len(found)
	var c container
	var served map[string]int
	deleteOld := func() error { return m.deleteOld(s) }
	first := func() (err error) { c, served, err = m.first(s); return err }
	for _, step := range [][]func() error{{deleteOld, first, m.collect}, {first, m.collect, deleteOld, m.collect}, {m.collect, deleteOld, m.collect, first}}[s.order%3] {
		if err := step(); err != nil {
			return v, err
		}
	}
	for key, g := range served {
		switch {
		case g == 0:
			v.none++
		case g == s.caches[key].least:
			v.least++
		default:
			v.later++
		}
	}
	if left, err := m.entries(); err != nil || !slices.Equal(left, []string{firstHandle}) {
		return v, fmt.Errorf("the old containers were deleted, and the store knows %q: %w", left, err)
	}
	if err := m.sound("the old containers were deleted, and gc was run"); err != nil {
		return v, err
	}
	return v, m.works(c, served)
}

// firstHandle is that of the first container of a boot.
const firstHandle = "first"

// first makes the first container of this boot, with all caches, and says which generations it got.
func (m *machine) first(s snapshot) (container, map[string]int, error) {
	keys := keysOf(s.caches)
	c, err := m.create(firstHandle, false, keys...)
	if err != nil {
		return c, nil, fmt.Errorf("the first create: %w", err)
	}
	served := map[string]int{}
	for i, key := range keys {
		g, err := generation.Read(c.caches[i])
		if err != nil {
			return c, nil, fmt.Errorf("the cache of %q: %w", key, err)
		}
		if b := s.caches[key]; g < b.least || g > b.most {
			return c, nil, fmt.Errorf("the cache of %q serves generation %d, want %d to %d", key, g, b.least, b.most)
		}
		if g > 0 && s.refused != nil {
			tag, err := os.ReadFile(c.caches[i] + "/" + tagFile)
			if err != nil {
				return c, nil, err
			}
			if s.refused(string(tag)) {
				return c, nil, fmt.Errorf("the cache of %q serves what %q wrote, which was never promoted", key, tag)
			}
		}
		served[key] = g
	}
	return c, served, nil
}

// deleteOld deletes the containers of before the power cut: those that Garden may ask for, and any that the store knows.
func (m *machine) deleteOld(s snapshot) error {
	known, err := m.entries()
	if err != nil {
		return err
	}
	for _, h := range append(known, s.handles...) {
		if h == firstHandle {
			continue
		}
		if _, _, err := m.do("delete", h); err != nil {
			return fmt.Errorf("the delete of an old container: %w", err)
		}
	}
	return nil
}

func (m *machine) collect() error {
	_, _, err := m.do("gc")
	return err
}

// sound wants nothing at all from the checker.
func (m *machine) sound(after string) error {
	found, err := m.problems()
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("the checker finds %v", found)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", after, err)
	}
	return nil
}

// works makes another generation in the first container's caches, wants the next container to have it, and then takes everything away.
func (m *machine) works(c container, served map[string]int) error {
	keys := keysOf(served)
	for i, key := range keys {
		if err := generation.Write(c.caches[i], served[key]+1, 0); err != nil {
			return err
		}
	}
	if _, log, err := m.do("delete", firstHandle); err != nil {
		return err
	} else if i := slices.IndexFunc(keys, func(key string) bool { return !promoted(log, key) }); i >= 0 {
		return fmt.Errorf("the first promotion of %q after the power cut: %s", keys[i], log)
	}
	next, err := m.create("second", true, keys...)
	if err != nil {
		return err
	}
	for i, key := range keys {
		if g, err := generation.Read(next.caches[i]); err != nil || g != served[key]+1 {
			return fmt.Errorf("the cache of %q after its first promotion: generation %d, want %d: %w", key, g, served[key]+1, err)
		}
	}
	if _, _, err := m.do("delete", "second"); err != nil {
		return err
	}
	for _, key := range keys {
		if err := m.drop(key); err != nil {
			return err
		}
	}
	if err := m.sound("all was deleted and dropped"); err != nil {
		return err
	}
	left, err := m.names("volumes/init", "volumes/live", "volumes/dead", "layers", "mnt", "caches")
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("all was deleted and dropped, and left is %q", left)
	}
	return err
}

func keysOf[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
