package torture

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/concourse/bc-image-plugin/imagespec"
)

// outcomes of a run that keeps what is promised.
const (
	killed   = "killed"   // and all was repaired
	said     = "failed"   // said why
	worked   = "worked"   // and nothing is missing
	kept     = "old kept" // worked, without the promotion, and said so
	violated = "VIOLATION"
	missed   = "not hit"
)

// judge looks at what a run with faults left, repairs it as Garden would, and at last takes everything away. An error is a violation. hit is the call that
// the only fault hit; two may leave more, until the next delete.
func (s scenario) judge(p *place, fs faults, hit call, r run, empty []string) (outcome string, err error) {
	found, err := p.problems()
	if err != nil {
		return "", fmt.Errorf("the checker: %w", err)
	}
	for _, problem := range found {
		// A delete that could not move its entry, since the disk was full, goes on in live; if it fails then, h is half a container, and the next delete's.
		if !problem.IsLeftover() && (len(fs) < 2 || problem.Path != "volumes/live/h") {
			return "", fmt.Errorf("only a person can mend %s", problem)
		}
	}
	switch {
	case r.code == -1 && fs.kill():
		outcome = killed
	case r.code == 0:
		if err := s.succeeded(p, fs, r); err != nil {
			return "", fmt.Errorf("exit 0, and %w", err)
		}
		outcome = worked
	case r.code == 1 && len(fs) > 0 && fs[0].what != "KILL":
		if err := s.failed(p, fs, hit, r); err != nil {
			return "", err
		}
		outcome = said
	default:
		return "", fmt.Errorf("exit code %d, stdout %q, stderr %s", r.code, r.stdout, r.stderr)
	}

	// What Garden or a person does next. A dropped cache is not there for a second drop.
	if s.is("drop") || s.is("gc") {
		if _, err := p.do(s.command(s, p)...); err != nil && !(s.is("drop") && strings.Contains(err.Error(), "not found")) {
			return "", fmt.Errorf("repeated: %w", err)
		}
	}
	if _, err := p.do("delete", "h"); err != nil {
		return "", fmt.Errorf("the next delete: %w", err)
	}
	var except []string
	if outcome == killed || len(fs) > 1 || s.fresh { // a first look at the host goes with the next one
		except = noContainers
	}
	if err := p.clean(except...); err != nil {
		return "", fmt.Errorf("the next delete exits 0, and %w", err)
	}
	g, err := s.again(p)
	if err != nil {
		return "", fmt.Errorf("a new container of the handle: %w", err)
	}
	if outcome == worked && s.is("delete") && slices.Contains(g, s.grown) && s.caches > 0 {
		if !strings.Contains(r.stderr, "dropped: ") && !strings.Contains(r.stderr, "not promoted") {
			return "", fmt.Errorf("a promotion was lost, and the log does not say so: %s", r.stderr)
		}
		outcome = kept
	}
	if outcome == killed || len(fs) > 1 {
		if _, err := p.do("gc"); err != nil {
			return "", err
		}
	}
	return outcome, s.emptied(p, empty)
}

// noContainers are what a kill may leave that belongs to no container, so that no delete removes it: the next create or gc does (volumes/doc.go).
var noContainers = []string{"probe", "store.json.tmp", "caches.total.next", "next"}

// succeeded says what is missing after exit 0. The second of two faults may keep a half of a record from being removed.
func (s scenario) succeeded(p *place, fs faults, r run) error {
	switch {
	case s.is("create"):
		c, err := parseSpec(r.stdout)
		if _, lost := os.Readlink(p.store + "/volumes/live/h"); err != nil || lost != nil {
			return errors.Join(err, lost)
		}
		g, err := p.whole(c, s.caches)
		if err != nil {
			return err
		}
		return s.inBounds(g)
	case s.is("drop"):
		out, err := p.do("cache", "list")
		if err == nil && strings.Contains(out, imagespec.CacheID(keys[0])) {
			err = errors.New("the cache is still listed")
		}
		return err
	case len(fs) > 1:
		return p.clean(noContainers...)
	default:
		return p.clean()
	}
}

// failed says what is wrong with a failure: a sentence has to name the cause, and a create has to leave nothing, unless the fault was in its clean-up.
func (s scenario) failed(p *place, fs faults, hit call, r run) error {
	mute := slices.ContainsFunc(r.calls, func(c call) bool { return c.name == "write" && c.injected && strings.HasPrefix(c.args, "1, ") })
	text := strings.ToLower(r.stdout)
	switch {
	case mute: // nobody can be told
		return s.undone(p, fs, hit)
	case s.is("gc") && strings.Contains(text, "left "): // a line for each thing
	case strings.Count(r.stdout, "\n") != 1:
		return fmt.Errorf("exit 1 without one sentence: %q", r.stdout)
	}
	named := func(f fault) bool {
		return slices.ContainsFunc(words[f.what], func(w string) bool { return strings.Contains(text, w) })
	}
	if !slices.ContainsFunc(fs, named) {
		return fmt.Errorf("the sentence does not name %s: %q", fs, r.stdout)
	}
	return s.undone(p, fs, hit)
}

// undone says what a failed create left. What was there before, of a killed command or of a first look at the host, may be there still.
func (s scenario) undone(p *place, fs faults, hit call) error {
	if s.is("create") && !s.fresh && s.prepare == nil && hit.name != "unlinkat" && hit.name != "umount2" && len(fs) == 1 {
		if err := p.clean(); err != nil {
			return fmt.Errorf("a failed create: %w", err)
		}
	}
	return nil
}

// again creates h anew and deletes it, and returns the generations it saw.
func (s scenario) again(p *place) ([]int, error) {
	out, err := p.do("create", p.url(s.caches), "h")
	if err != nil {
		return nil, err
	}
	c, err := parseSpec(out)
	if err != nil {
		return nil, err
	}
	g, err := p.whole(c, s.caches)
	if err == nil {
		err = s.inBounds(g)
	}
	if err != nil {
		return nil, err
	}
	_, err = p.do("delete", "h")
	return g, err
}

// inBounds wants the old or the new generation.
func (s scenario) inBounds(generations []int) error {
	least, most := s.grown, s.grown
	if s.live {
		most++
	}
	if s.is("drop") {
		least, most = 0, 0 // it was repeated
	}
	for _, g := range generations {
		if g < least || g > most {
			return fmt.Errorf("a cache shows generation %d, want %d to %d", g, least, most)
		}
	}
	return nil
}

// emptied drops all caches and wants the store of before there was any. It is removed then.
func (s scenario) emptied(p *place, empty []string) error {
	for _, key := range keys[:s.caches] {
		if _, err := p.do("cache", "drop", imagespec.CacheID(key)); err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
	}
	if err := p.clean(); err != nil {
		return fmt.Errorf("all dropped: %w", err)
	}
	now, err := tree(p.store)
	if err != nil {
		return err
	}
	for _, name := range now {
		if !slices.Contains(empty, name) {
			return fmt.Errorf("left of all: %s", name)
		}
	}
	for _, name := range empty {
		if !slices.Contains(now, name) {
			return fmt.Errorf("lost of the empty store: %s", name)
		}
	}
	return p.wipe()
}
