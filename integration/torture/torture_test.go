package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes/bcserver"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// binary is the plugin, with its work on the main thread.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "torture-build-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if binary, err = build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// build builds the plugin with all of its work kept on the main thread: what an init locks stays so in main (package runtime). What a connection to a server needs is done on
// one thread as well, which is another one: see testdata/network.go.txt.
func build(dir string) (string, error) {
	source := os.Getenv("BC_TORTURE_SOURCE")
	if source == "" {
		source = filepath.Join("..", "..")
	}
	source, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	network, err := os.ReadFile("testdata/network.go.txt")
	if err != nil {
		return "", err
	}
	server := source + "/volumes/bcserver/"
	client, err := os.ReadFile(server + "client.go")
	if err != nil {
		return "", err
	}
	const dial = "(&net.Dialer{Timeout: callTime}).DialContext"
	if strings.Count(string(client), dial) != 1 {
		return "", fmt.Errorf("client.go dials at another number of places than 1: see build")
	}
	changed := map[string]string{
		source + "/cmd/bc-image-plugin/one_thread.go": "package main\n\nimport \"runtime\"\n\nfunc init() { runtime.LockOSThread() }\n",
		server + "one_thread.go":                      string(network),
		server + "client.go":                          strings.Replace(string(client), dial, "oneThread("+dial+")", 1),
	}
	replace := map[string]string{}
	for path, text := range changed {
		replace[path] = fmt.Sprintf("%s/%d.go", dir, len(replace))
		if err := os.WriteFile(replace[path], []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(dir+"/overlay.json", overlay, 0o644); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-C", source, "-tags", "urfave_cli_no_docs,nethttpomithttp2", "-overlay", dir+"/overlay.json", "-o", dir+"/bc-image-plugin", "./cmd/bc-image-plugin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir + "/bc-image-plugin", nil
}

// job is a fault in a scenario. random decides about a second one.
type job struct {
	scenario *prepared
	faults   faults
	random   uint64
}

// prepared is a scenario with its own place, for one run at a time, the store it begins with, and that store's names without caches.
type prepared struct {
	scenario
	mu       sync.Mutex
	place    *place
	template string
	empty    []string
}

// TestTorture puts faults into runs: all with BC_TORTURE=all, all kills with BC_TORTURE=kill, those that begin as BC_TORTURE_ONLY, else a sample. To some runs with an error
// it then adds a second fault.
func TestTorture(t *testing.T) {
	inspect.NeedRoot(t)
	inspect.NeedTool(t, "strace")
	seed := number(t, "BC_TORTURE_SEED", uint64(time.Now().UnixNano()))
	which := os.Getenv("BC_TORTURE")
	only, second, _ := strings.Cut(os.Getenv("BC_TORTURE_ONLY"), then)
	seconds, pairs := uint64(52), uint64(0)
	if which+only != "" {
		seconds = 24 * 60 * 60
	}
	if which == "all" {
		pairs = 2000
	}
	began, budget := time.Now(), time.Duration(number(t, "BC_TORTURE_SECONDS", seconds))*time.Second
	pairs = number(t, "BC_TORTURE_PAIRS", pairs)
	t.Logf("BC_TORTURE_SEED=%d", seed)

	rep := newReport()
	random := rand.New(rand.NewPCG(seed, 0))
	var jobs []job
	for n, s := range inRandomOrder(random) {
		if n > 1 && time.Since(began) > budget/3 {
			break // a sample has fewer commands on a busy machine
		}
		if !strings.HasPrefix(only+" ", s.name+" ") && only != "" {
			continue
		}
		ready, traced := prepare(t, s)
		rep.planned(s, traced)
		for _, f := range possible(traced.calls) {
			point := s.name + " " + f.String() + " "
			if (which != "kill" || f.what == "KILL") && (only == "" || strings.HasPrefix(point, only+" ")) {
				jobs = append(jobs, job{ready, faults{f}, random.Uint64()})
			}
		}
	}
	if len(jobs) == 0 {
		t.Fatal("no such point")
	}
	random.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	var first []job
	for _, k := range known {
		isIt := func(j job) bool {
			return k.scenario == j.scenario.name && k.fault == j.faults[0].what && strings.HasPrefix(j.faults[0].site(), k.site)
		}
		before := len(first)
		jobs = slices.DeleteFunc(jobs, func(j job) bool {
			if isIt(j) {
				first = append(first, j)
			}
			return isIt(j)
		})
		if rep.sites[k.scenario] != nil && which != "kill" && only == "" && len(first) == before {
			t.Errorf("%v is no point any more", k)
		}
	}
	jobs = append(first, jobs...)
	oneIn := uint64(len(jobs)) / max(pairs, 1)
	if which+only == "" {
		oneIn = 5
	}

	queue := make(chan job)
	var workers sync.WaitGroup
	for range 2 { // cores
		workers.Add(1)
		go func() {
			defer workers.Done()
			for j := range queue {
				hit, traced, outcome, err := j.run()
				rep.add(t, j.scenario.scenario, j.faults, hit, outcome, err)
				if outcome != said && outcome != worked && outcome != kept {
					continue
				}
				all := traced.after(j.faults[0])
				if second != "" {
					all = slices.DeleteFunc(all, func(f fault) bool { return f.String() != second })
				} else if pairs == 0 && which+only != "" || j.random%max(oneIn, 1) != 0 {
					continue
				}
				if len(all) > 0 {
					j.faults = append(j.faults, all[j.random/max(oneIn, 1)%uint64(len(all))])
					hit, _, outcome, err := j.run()
					rep.add(t, j.scenario.scenario, j.faults, hit, outcome, err)
				}
			}
		}()
	}
	for n, j := range jobs {
		if n > 0 && time.Since(began) > budget {
			break
		}
		queue <- j
	}
	close(queue)
	workers.Wait()

	hits := rep.runs
	for _, counts := range rep.scenarios {
		hits -= counts[missed]
	}
	t.Logf("%d of %d faults tried, %d hit; and %d times two of them", rep.runs, len(jobs), hits, rep.pairRuns)
	if hits < rep.runs*9/10 {
		t.Errorf("only %d of %d faults hit: this shows little", hits, rep.runs)
	}
	if path := os.Getenv("BC_TORTURE_REPORT"); path != "" {
		if err := os.WriteFile(path, []byte(rep.markdown(seed)), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// inRandomOrder returns the scenarios, every other one with a server, so that a sample has both.
func inRandomOrder(random *rand.Rand) []scenario {
	var list []scenario
	half := len(scenarios) / 2
	embedded, server := random.Perm(half), random.Perm(half)
	for i := range half {
		list = append(list, scenarios[embedded[i]], scenarios[half+server[i]])
	}
	return list
}

// tries is how often a run that hit something else is repeated.
const tries = 3

// run does it. After a violation the place is made anew.
func (j job) run() (hit call, traced run, outcome string, err error) {
	s := j.scenario
	s.mu.Lock()
	defer s.mu.Unlock()
	p, last := s.place, j.faults[len(j.faults)-1]
	defer func() {
		if failed := p.wipe(); err == nil {
			err = failed
		}
	}()
	for range tries {
		if err := s.ready(p, s.template); err != nil {
			return hit, traced, "", fmt.Errorf("making the situation: %w", err)
		}
		r, err := p.strace(j.faults, s.command(s.scenario, p))
		if err != nil {
			return hit, traced, "", err
		}
		got, ok := r.hit(last)
		if ok && ofTheRuntime(got) || r.ofTheRuntime() { // it ends at an error of some
			if err := p.wipe(); err != nil {
				return hit, traced, "", err
			}
			continue
		}
		if ok {
			hit, traced = got, r
		}
		if outcome, err = s.judge(p, j.faults, got, r, s.empty); err != nil {
			if !ok {
				got = last.call
			}
			return got, r, "", err
		}
		if ok && hit.site() == last.site() {
			return hit, traced, outcome, nil
		}
	}
	if hit.name != "" {
		return hit, traced, outcome, nil // another call, and hit all the same
	}
	return hit, traced, missed, nil
}

// prepare makes a scenario's place and template, and traces one run without a fault, which has to keep all that is promised.
func prepare(t *testing.T, s scenario) (*prepared, run) {
	t.Helper()
	p := newPlace(t, s)
	ready := &prepared{scenario: s, place: p, template: p.dir + "/template"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	must(p.cycle(0, nil))
	var err error
	ready.empty, err = tree(p.store)
	must(err)
	must(p.wipe())
	must(s.makeTemplate(p))
	if !s.fresh {
		must(p.save(ready.template))
	}
	must(s.ready(p, ready.template))
	traced, err := p.strace(nil, s.command(s, p))
	must(err)
	_, err = s.judge(p, nil, call{}, traced, ready.empty)
	must(err)
	return ready, traced
}

// newPlace is a file system in memory, which a busy disk does not make slow, with an image, a server if the scenario wants one, and no store yet.
func newPlace(t *testing.T, s scenario) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0711"); err != nil {
		t.Fatal(errors.Join(err, os.Remove(dir)))
	}
	p := &place{dir: dir, store: dir + "/store", image: dir + "/image", privileged: s.privileged, driver: overlay.New(overlay.Options{})}
	t.Cleanup(func() {
		err := p.wipe()
		if p.server != nil {
			err = errors.Join(err, p.server.Close())
		}
		if err == nil {
			err = unix.Unmount(dir, 0)
		}
		if err == nil {
			err = os.Remove(dir)
		}
		if err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	if s.server {
		o := bctest.Options{Dir: dir + "/server", Driver: "overlay"}
		if err := os.Mkdir(o.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if p.server, err = bctest.Start(o); err != nil {
			t.Fatal(err)
		}
		p.driver = bcserver.New(bcserver.Options{URL: p.server.URL})
	}
	for name, text := range imageFiles {
		path := p.image + "/" + name
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
