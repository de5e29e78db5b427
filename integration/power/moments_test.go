package power

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/concourse/bc-image-plugin/integration/generation"
)

// workload is several schedulers that use a store at once, each for itself: containers with caches of which most are promoted, drops of a cache, gc. They go on until they are
// told to stop; a command that does not exit 0 is an error.
type workload struct {
	*machine
	stop chan struct{}

	mu      sync.Mutex
	open    map[string]bool // handles from before their create until after their delete
	newest  map[string]int  // by key: the last generation that somebody began to write
	refused map[string]bool // tags of copies whose container did not commit, or whose delete said that it promoted nothing
	failed  error
}

const (
	dropped = "key that is dropped" // nothing is promised of its cache but that it is whole
	tagFile = "tag"                 // in each generation: who wrote it
)

// scheduler does things at random.
func (w *workload) scheduler(name string, random *rand.Rand) {
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			return
		default:
		}
		var err error
		switch random.IntN(10) {
		case 0:
			err = w.drop(dropped)
		case 1:
			_, _, err = w.do("gc")
		default:
			err = w.container(fmt.Sprintf("%s-%d", name, n), random)
		}
		if err != nil {
			w.mu.Lock()
			w.failed = errors.Join(w.failed, err)
			w.mu.Unlock()
			return
		}
	}
}

// container is one from create to delete; some are left alive.
func (w *workload) container(h string, random *rand.Rand) error {
	mine := append(slices.Clone(keys), dropped)
	random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
	mine = mine[:random.IntN(len(mine)+1)]
	w.note(func() { w.open[h] = true })
	c, err := w.create(h, random.IntN(2) == 0, mine...)
	if err != nil {
		return err
	}
	commits := random.IntN(5) > 0
	for i, dir := range c.caches {
		tag := h + " " + mine[i]
		if !commits {
			w.note(func() { w.refused[tag] = true })
		}
		if err := w.write(dir, mine[i], tag, random); err != nil {
			return err
		}
		if !commits {
			if err := os.Remove(dir + "/.bc-cache-commit"); err != nil {
				return err
			}
		}
	}
	if random.IntN(10) == 0 {
		return nil // it lives on
	}
	_, log, err := w.do("delete", h)
	if err != nil {
		return err
	}
	w.note(func() {
		delete(w.open, h)
		for _, key := range mine {
			if !promoted(log, key) {
				w.refused[h+" "+key] = true
			}
		}
	})
	for _, key := range mine {
		if random.IntN(3) > 0 && promoted(log, key) {
			if err := w.age(key); err != nil {
				return err
			}
		}
	}
	return nil
}

// write makes the next generation, with some files of different sizes that its list has as well.
func (w *workload) write(dir, key, tag string, random *rand.Rand) error {
	g, err := generation.Read(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", tag, err)
	}
	w.note(func() { w.newest[key] = max(w.newest[key], g+1) })
	err = os.WriteFile(dir+"/"+tagFile, []byte(tag), 0o644)
	for i := range random.IntN(6) {
		err = errors.Join(err, os.WriteFile(fmt.Sprintf("%s/some-%d", dir, i), []byte(strings.Repeat(tag, random.IntN(4000))), 0o644))
	}
	return errors.Join(err, generation.Write(dir, g+1, 0))
}

func (w *workload) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// schedulers is how many processes of the plugin there are at once.
const schedulers = 3

// moments runs the workload on an empty disk, and returns snapshots of n random moments.
func (m *machine) moments(n int, random *rand.Rand) (all []snapshot, err error) {
	if err := m.format(); err != nil {
		return nil, err
	}
	if err := m.on(m.disk(), before); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.off()) }()
	w := &workload{machine: m, stop: make(chan struct{}), open: map[string]bool{}, newest: map[string]int{}, refused: map[string]bool{}}
	var running sync.WaitGroup
	for i := range schedulers {
		own := rand.New(rand.NewPCG(random.Uint64(), 0))
		running.Go(func() { w.scheduler(fmt.Sprintf("h-%d", i), own) })
	}
	flushed := map[string]int{}
	for range n {
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		s, failed := w.take([]writeback{nothing, nothing, names, everything}[random.IntN(4)], flushed)
		if err = failed; err != nil {
			break
		}
		all = append(all, s)
	}
	close(w.stop)
	running.Wait()
	return all, errors.Join(err, w.failed)
}

// take makes a snapshot. flushed is what was on disk at an earlier one: who goes on must not lose it.
func (w *workload) take(brought writeback, flushed map[string]int) (snapshot, error) {
	s := snapshot{command: "random moments", brought: brought, caches: map[string]bounds{}}
	if brought != nothing {
		for _, key := range keys {
			g, err := w.flushed(key)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was replaced while we looked
			}
			if err != nil {
				return s, err
			}
			// bring makes it so. Should that fail nothing is looked at.
			flushed[key] = max(flushed[key], g)
		}
	}
	if err := w.bring(brought); err != nil {
		return s, err
	}
	handles := map[string]bool{}
	w.note(func() { maps.Copy(handles, w.open) })
	var err error
	if s.disk, err = w.snapshot(); err != nil {
		return s, err
	}
	s.order, s.at = w.copies, fmt.Sprintf("the %d-th snapshot", w.copies)
	w.note(func() {
		maps.Copy(handles, w.open)
		for _, key := range append(slices.Clone(keys), dropped) {
			s.caches[key] = bounds{flushed[key], w.newest[key]}
		}
	})
	s.handles = keysOf(handles)
	s.refused = func(tag string) bool { return w.refused[tag] }
	return s, nil
}
