package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What happens to creates, containers and destroys, and how often in 100. Which of them happen to which check follows from the seed; where exactly
// a kill strikes does not.
var (
	creates = []chance{
		{"create", 70}, {"bad sub-path", 4}, {"missing image", 4}, {"disk limit", 4}, {"out of time", 6}, {"killed create", 6}, {"answer unread", 6},
	}
	works    = []chance{{"committed", 76}, {"not committed", 12}, {"killed container", 12}}
	destroys = []chance{
		{"destroy", 60}, {"destroyed twice", 10}, {"two destroys at once", 10}, {"killed delete, again", 6}, {"killed delete, forgotten", 4}, {"busy, then destroyed", 4},
		{"delete never comes", 6},
	}
)

type chance struct {
	name string
	of   int
}

func draw(rng *rand.Rand, list []chance) string {
	n := rng.IntN(100)
	for _, c := range list {
		if n -= c.of; n < 0 {
			return c.name
		}
	}
	panic("the chances do not add up to 100")
}

// inRunc is that one check in so many is a real container, if nothing kills it.
const inRunc = 40

// snow is the load on a store of ours.
type snow struct {
	gdn
	seed      uint64
	dir, url  string // the store; the server that keeps its layers, or ""
	work      string // a directory for bundles and the depot
	resources []*resource
	buildRoot string

	mu       sync.Mutex
	happened map[string]int
	// forgotten are checks whose containers nobody will ever ask us to delete: gdn was restarted and does not know them.
	forgotten map[int]bool
}

func handleOf(check int) string { return fmt.Sprintf("check-%06d", check) }

func (s *snow) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.happened[what]++
}

func (s *snow) forget(check int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten[check] = true
}

// check is one check from its create to its destroy, whatever becomes of it. It returns an error if something happened that must not.
func (s *snow) check(n int) error {
	rng := rand.New(rand.NewPCG(s.seed, uint64(n)))
	r := s.resources[n%len(s.resources)]
	privileged := rng.IntN(2) == 0
	handle := handleOf(n)

	spec, base, err := s.create(rng, r, n, privileged)
	if err != nil || spec.Root == nil {
		return err
	}
	what := draw(rng, works)
	w := plan(rng, handle, base.tree, what == "committed", what == "killed container")
	if what != "killed container" && rng.IntN(inRunc) == 0 {
		s.count("in runc")
		err = runc(spec, privileged, w.script, s.work, handle)
	} else {
		err = standIn(spec, privileged, w.script)
	}
	if what == "killed container" {
		if err == nil {
			return fmt.Errorf("%s was not killed", handle)
		}
	} else if err != nil {
		return err
	}
	s.count(what)
	return s.destroy(rng, r, n, spec, func(certain bool) {
		if what == "committed" {
			r.committed(n, base, w.tree, certain)
		}
	})
}

// create makes the container of a check, and compares what it sees with the model. Without an error and without a container the check is over.
func (s *snow) create(rng *rand.Rand, r *resource, n int, privileged bool) (none specs.Spec, _ state, _ error) {
	handle := handleOf(n)
	query := "?cache=" + url.QueryEscape(r.key) + "&cache-path=" + cacheAt
	image := "baggageclaim://image/rootfs" + query
	var h how
	var args []string
	what := draw(rng, creates)
	switch what {
	case "bad sub-path":
		image = "baggageclaim://image/rootfs/nowhere" + query
	case "missing image":
		image = "baggageclaim://nowhere/rootfs" + query
	case "disk limit":
		args = []string{"--disk-limit-size-bytes", "10485760"}
	case "out of time":
		h.timeout = time.Duration(1+rng.IntN(6000)) * time.Microsecond
	case "killed create":
		h.killAfter = time.Duration(1+rng.IntN(12000)) * time.Microsecond
	case "answer unread":
		h.unread = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	spec, err := s.gdn.create(privileged, h, handle, image, args...)
	var bug broken
	switch {
	case errors.As(err, &bug):
		return none, state{}, err
	case err != nil && what == "create":
		return none, state{}, fmt.Errorf("create of %s: %w", handle, err)
	case err == nil && (what == "bad sub-path" || what == "missing image" || what == "disk limit"):
		return none, state{}, fmt.Errorf("create of %s succeeds with %s", handle, what)
	case err != nil:
		s.count(what)
		switch {
		case what == "answer unread":
			// gdn died: nobody asks for a delete, and nothing may be left.
			return none, state{}, s.nothingOf(n)
		case errors.Is(err, errKilled) && rng.IntN(2) == 0:
			s.count("killed create, forgotten") // gdn died with it
			s.forget(n)
			return none, state{}, nil
		}
		return none, state{}, errors.Join(s.gdn.destroy(handle), s.nothingOf(n))
	}
	if what != "create" {
		s.count(what + ", too late")
	} else {
		s.count(what)
	}
	for name, want := range map[string]bool{"result": false, "etc/motd": true, "bin/busybox": true} {
		if _, err := os.Lstat(filepath.Join(spec.Root.Path, name)); (err == nil) != want {
			return none, state{}, broken{fmt.Errorf("the root file system of %s is not as the image: %s: %v", handle, name, err)}
		}
	}
	t, err := readTree(spec.Mounts[0].Source, privileged)
	if err != nil {
		return none, state{}, err
	}
	base, err := r.observe(t)
	return spec, base, errors.Join(err, s.know(handle))
}

// destroy ends the container of a check; committed notes for the model what becomes of its copy.
func (s *snow) destroy(rng *rand.Rand, r *resource, n int, spec specs.Spec, committed func(certain bool)) (err error) {
	handle := handleOf(n)
	what := draw(rng, destroys)
	s.count(what)
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { err = errors.Join(err, s.unknow(handle)) }()
	kill := func() error {
		h := how{killAfter: time.Duration(1+rng.IntN(12000)) * time.Microsecond}
		_, err := s.call(false, h, "delete", handle)
		if errors.Is(err, errKilled) {
			return nil
		}
		return err
	}
	switch what {
	case "destroyed twice":
		err = errors.Join(s.gdn.destroy(handle), s.gdn.destroy(handle))
	case "two destroys at once":
		other := make(chan error)
		go func() { other <- s.gdn.destroy(handle) }()
		err = errors.Join(s.gdn.destroy(handle), <-other)
	case "killed delete, again":
		err = errors.Join(kill(), s.gdn.destroy(handle))
	case "busy, then destroyed":
		// A process of the container outlives it; gdn tries again.
		f, oerr := os.Open(filepath.Join(spec.Root.Path, "bin/busybox"))
		if oerr != nil {
			return oerr
		}
		if _, derr := s.call(false, how{timeout: 30 * time.Millisecond}, "delete", handle); derr == nil {
			err = broken{fmt.Errorf("delete of %s exits 0 while a file of it is open", handle)}
		}
		err = errors.Join(err, f.Close(), s.gdn.destroy(handle))
	case "killed delete, forgotten":
		committed(false)
		s.forget(n)
		return kill()
	case "delete never comes":
		committed(false)
		s.forget(n)
		return nil
	default:
		err = s.gdn.destroy(handle)
	}
	committed(true)
	return errors.Join(err, s.nothingOf(n))
}

// nothingOf fails if the store has an entry of the check.
func (s *snow) nothingOf(n int) error {
	for _, dir := range []string{"init", "live", "dead"} {
		if path := filepath.Join(s.dir, "volumes", dir, handleOf(n)); exists(path) {
			return broken{fmt.Errorf("%s is left", path)}
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
