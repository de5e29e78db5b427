package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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

// build builds the plugin with all of its work kept on the main thread: what an init locks stays so in main (package runtime).
func build(dir string) (string, error) {
	source := os.Getenv("BC_TORTURE_SOURCE")
	if source == "" {
		source = filepath.Join("..", "..")
	}
	source, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source + "/cmd/bc-image-plugin/one_thread.go": dir + "/one_thread.go"}})
	if err != nil {
		return "", err
	}
	for name, text := range map[string]string{
		"one_thread.go": "package main\n\nimport \"runtime\"\n\nfunc init() { runtime.LockOSThread() }\n",
		"overlay.json":  string(overlay),
	} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.Command("go", "build", "-C", source, "-tags", "urfave_cli_no_docs", "-overlay", dir+"/overlay.json", "-o", dir+"/bc-image-plugin", "./cmd/bc-image-plugin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir + "/bc-image-plugin", nil
}

// job is a fault in a scenario.
type job struct {
	scenario *prepared
	fault    fault
}

// prepared is a scenario with the store it begins with, and that store's names without caches.
type prepared struct {
	scenario
	template string
	empty    []string
}

// TestTorture puts faults into runs: all with BC_TORTURE=all, all kills with BC_TORTURE=kill, those that begin as BC_TORTURE_ONLY, else a sample.
func TestTorture(t *testing.T) {
	inspect.NeedRoot(t)
	inspect.NeedTool(t, "strace")
	seed := number(t, "BC_TORTURE_SEED", uint64(time.Now().UnixNano()))
	which, only := os.Getenv("BC_TORTURE"), os.Getenv("BC_TORTURE_ONLY")
	otherwise := uint64(40)
	if which+only != "" {
		otherwise = 24 * 60 * 60
	}
	began, budget := time.Now(), time.Duration(number(t, "BC_TORTURE_SECONDS", otherwise))*time.Second
	t.Logf("BC_TORTURE_SEED=%d", seed)

	rep := newReport()
	random := rand.New(rand.NewPCG(seed, 0))
	var jobs []job
	for _, i := range random.Perm(len(scenarios)) {
		s := scenarios[i]
		if len(jobs) > 0 && time.Since(began) > budget/3 {
			break // a sample has fewer commands on a busy machine
		}
		if !strings.HasPrefix(only+" ", s.name+" ") && only != "" {
			continue
		}
		ready, traced := prepare(t, s)
		rep.planned(s, traced)
		for _, f := range faults(traced.calls) {
			point := s.name + " " + f.String() + " "
			if (which != "kill" || f.what == "KILL") && (only == "" || strings.HasPrefix(point, only+" ")) {
				jobs = append(jobs, job{ready, f})
			}
		}
	}
	if len(jobs) == 0 {
		t.Fatal("no such point")
	}
	random.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })

	queue := make(chan job)
	var workers sync.WaitGroup
	for range 2 { // cores
		p := newPlace(t)
		workers.Add(1)
		go func() {
			defer workers.Done()
			for j := range queue {
				hit, outcome, err := j.run(p)
				rep.add(j.scenario.scenario, j.fault, hit, outcome, err)
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

	for _, v := range rep.violations {
		t.Errorf("%s", v)
	}
	hits := rep.runs
	for _, counts := range rep.scenarios {
		hits -= counts[missed]
	}
	t.Logf("%d of %d faults tried, %d hit", rep.runs, len(jobs), hits)
	if hits < rep.runs*9/10 {
		t.Errorf("only %d of %d faults hit: this shows little", hits, rep.runs)
	}
	if path := os.Getenv("BC_TORTURE_REPORT"); path != "" {
		if err := os.WriteFile(path, []byte(rep.markdown(seed)), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// tries is how often a run that hit something else is repeated.
const tries = 3

// run does it. After a violation the place is made anew.
func (j job) run(p *place) (hit call, outcome string, err error) {
	s := j.scenario
	p.privileged = s.privileged
	defer func() {
		if failed := p.wipe(); err == nil {
			err = failed
		}
	}()
	for range tries {
		if err := s.ready(p, s.template); err != nil {
			return hit, "", fmt.Errorf("making the situation: %w", err)
		}
		r, err := p.strace(&j.fault, s.command(s.scenario, p))
		if err != nil {
			return hit, "", err
		}
		got, ok := r.hit(j.fault)
		if ok && ofTheRuntime(got) { // it ends at an error of some
			if err := p.wipe(); err != nil {
				return hit, "", err
			}
			continue
		}
		if ok {
			hit = got
		}
		if outcome, err = s.judge(p, &j.fault, got, r, s.empty); err != nil {
			if !ok {
				got = j.fault.call
			}
			return got, "", err
		}
		if ok && hit.site() == j.fault.site() {
			return hit, outcome, nil
		}
	}
	if hit.name != "" {
		return hit, outcome, nil // another call, and hit all the same
	}
	return hit, missed, nil
}

// prepare makes a scenario's template, and traces one run without a fault, which has to keep all that is promised.
func prepare(t *testing.T, s scenario) (*prepared, run) {
	t.Helper()
	p := newPlace(t)
	p.privileged = s.privileged
	ready := &prepared{scenario: s, template: p.dir + "/template"}
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
		must(os.Rename(p.store, ready.template))
	}
	must(s.ready(p, ready.template))
	traced, err := p.strace(nil, s.command(s, p))
	must(err)
	_, err = s.judge(p, nil, call{}, traced, ready.empty)
	must(err)
	return ready, traced
}

// newPlace is a file system in memory, which a busy disk does not make slow, with an image, and no store yet.
func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0711"); err != nil {
		t.Fatal(errors.Join(err, os.Remove(dir)))
	}
	p := &place{dir: dir, store: dir + "/store", image: dir + "/image"}
	t.Cleanup(func() {
		err := p.wipe()
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
