package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
)

// GCOptions say what GC removes. The zero value removes leftovers of what died.
type GCOptions struct {
	// DryRun: nothing is removed. What only comes to light when something else is gone is not in the list.
	DryRun bool

	// Known, if not nil, says whether the owner of containers (Garden, say) has one of that handle. Then live containers are removed as well that it does not have, if
	// they are older than MinAge and nobody uses what they have mounted: no process has it as root or working directory or has a file open there, and it is mounted nowhere
	// else, in any mount namespace. What a container committed is promoted, as by Delete. If it knows none of several that live in this boot, nothing is removed: ErrInvalid.
	Known func(Handle) (bool, error)
	// MinAge is how old a container has to be, for its owner may be about to note that it has it; 0 is an hour.
	MinAge time.Duration
}

// Collected is what GC found of no use.
type Collected struct {
	Problem
	Deleted Deleted // if it was a container
	Err     error   // why it is still there
}

// GC removes what killed creates, deletes and drops, power cuts and bugs left in the store: all that Check calls a leftover, and what is kept of images that are gone. It
// goes on with a delete that was killed as Delete would, so copies may be promoted by it. What is live, and what somebody works on, is not touched: creates and
// deletes, of containers that it removes too, and another GC, may run beside it. An entry that cannot be read counts as one that names anything.
//
// A container whose root is in use gets a part of the time until ctx is done, so that it does not keep GC from the others. The list says what was done and what was
// not; the error, that it could not be found out.
func (s *Store) GC(ctx context.Context, o GCOptions) ([]Collected, error) {
	g := gc{Store: s, tries: map[string]int{}}
	for range maxRounds {
		l, err := s.look(ctx)
		if err == nil {
			err = l.canSeeMounts()
		}
		if err == nil && o.Known != nil {
			err = l.judgeUnowned(o)
		}
		if err != nil {
			return g.all, fmt.Errorf("gc: %w", s.hint(err))
		}
		if o.DryRun {
			for _, p := range l.found {
				if p.IsLeftover() {
					g.all = append(g.all, Collected{Problem: p})
				}
			}
			return g.all, nil
		}
		// What is gone may have been the only one that named something.
		if !g.collect(ctx, l.found) {
			break
		}
	}
	return g.all, nil
}

// maxRounds is more than the kinds of things that name each other.
const maxRounds = 10

// gc is one run of GC.
type gc struct {
	*Store
	all   []Collected
	tries map[string]int // by path; those that failed
}

// collect removes what can be removed, and says whether it is worthwhile to look again.
func (g *gc) collect(ctx context.Context, found []Problem) (again bool) {
	for _, p := range found {
		tries := g.tries[p.Path]
		if !p.IsLeftover() || tries == maxTries {
			continue
		}
		d, err := collect(ctx, p, tries)
		if errors.Is(err, errTaken) {
			continue
		}
		g.all = slices.DeleteFunc(g.all, func(c Collected) bool { return c.Path == p.Path && c.Err != nil })
		g.all = append(g.all, Collected{Problem: p, Deleted: d, Err: g.hint(err)})
		if err != nil {
			g.tries[p.Path]++
		}
		again = again || err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrBusy)
	}
	return again && ctx.Err() == nil
}

// maxTries is how often one leftover is tried: shortly, and when the others are done.
const maxTries = 2

// collect removes one leftover in a part of the time that is left.
func collect(ctx context.Context, p Problem, tries int) (Deleted, error) {
	if err := ctx.Err(); err != nil {
		return Deleted{}, err
	}
	if end, ok := ctx.Deadline(); ok {
		part, cancel := context.WithTimeout(ctx, time.Until(end)/[maxTries]time.Duration{10, 2}[tries])
		defer cancel()
		ctx = part
	}
	return p.collect(ctx)
}

// errTaken: somebody works on what looked abandoned, or did.
var errTaken = errors.New("somebody works on it")

// locked runs f under a lock if nobody has it.
func (l *look) locked(ctx context.Context, space durable.Space, name string, f func() error) error {
	free, err := l.tryLock(ctx, space, name, f)
	if err == nil && !free {
		return errTaken
	}
	return err
}

// canSeeMounts refuses to remove anything where the mounts of running containers are out of sight: unmounting would find none, and files would be
// removed below them.
func (l *look) canSeeMounts() error {
	live := 0
	for id, e := range l.entries {
		if e.state != stateLive || e.torn || !thisBoot(e.record.Boot) {
			continue
		}
		if l.mounted(id, "rootfs") || l.mounted(id, copyName(0)) {
			return nil
		}
		if now, err := l.readEntry(stateLive, e.handle); err == nil && now == id { // else it was deleted meanwhile
			live++
		}
	}
	if live > 0 {
		return fmt.Errorf("%w: none of the %d live containers is mounted in this mount namespace, so what others have mounted cannot be seen; run it in gdn's: nsenter -t $(pidof gdn) -m",
			ErrUnsupported, live)
	}
	return nil
}
