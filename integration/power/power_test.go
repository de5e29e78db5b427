package power

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// job is what one process does: one machine, which has a mount namespace and boots of its own.
type job struct {
	Kind    string
	Dir     string // of its own
	Plugin  string
	Seed    uint64
	All     bool
	Only    string
	Seconds uint64
	Moment  bool // TestSnapshotIsOneMoment
}

func (j job) result() string { return j.Dir + "/report" }

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if text := os.Getenv("BC_POWER_JOB"); text != "" {
			if err := inMachine(text); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
		return m.Run()
	}())
}

// build builds the plugin, of this source or of that in BC_POWER_SOURCE: such as one with a mistake put in.
func build(t *testing.T) string {
	t.Helper()
	source := os.Getenv("BC_POWER_SOURCE")
	if source == "" {
		source = filepath.Join("..", "..")
	}
	to := t.TempDir() + "/bc-image-plugin"
	cmd := exec.Command("go", "build", "-C", source, "-tags", "urfave_cli_no_docs,nethttpomithttp2", "-o", to, "./cmd/bc-image-plugin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

// start runs a job in a process of its own: its mounts, devices and the id of its boot go with it, however it ends.
func (j job) start() (r report, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return r, err
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BC_POWER_JOB="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return r, fmt.Errorf("%s: %w: %s", j.Kind, err, out)
	}
	b, err := os.ReadFile(j.result())
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

// TestPower takes the power away, on each file system that a store may be on.
func TestPower(t *testing.T) {
	need(t)
	began := time.Now()
	seed, only := number(t, "BC_POWER_SEED", uint64(time.Now().UnixNano())), os.Getenv("BC_POWER_ONLY")
	t.Logf("BC_POWER_SEED=%d", seed)
	var all report
	j := job{Plugin: build(t), Seed: seed, All: os.Getenv("BC_POWER") == "all", Only: only, Seconds: number(t, "BC_POWER_SECONDS", 30)}
	var machines sync.WaitGroup
	var mu sync.Mutex
	for i, kind := range kinds {
		if only != "" && !strings.HasPrefix(only+" ", kind+" ") {
			continue
		}
		j.Kind, j.Dir, j.Seed = kind, inspect.NewDir(t), seed+uint64(i)
		mine := j
		machines.Go(func() { // all at once: most of it is to wait
			r, err := mine.start()
			mu.Lock()
			defer mu.Unlock()
			all.merge(r)
			if err != nil {
				t.Error(err)
			}
		})
	}
	machines.Wait()
	for _, v := range all.Violations {
		t.Errorf("%s", v)
	}
	t.Logf("%d snapshots in %s", all.total(), time.Since(began).Round(time.Second))
	if all.total() == 0 {
		t.Error("none: this shows nothing")
	}
	if path := os.Getenv("BC_POWER_REPORT"); path != "" {
		if err := os.WriteFile(path, []byte(all.markdown(seed)), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func need(t *testing.T) {
	t.Helper()
	inspect.NeedRoot(t)
	inspect.NeedTool(t, "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mount")
}

// inMachine is the process of a job.
func inMachine(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	plugin = j.Plugin
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	m, err := newMachine(j.Kind, j.Dir)
	if err != nil {
		return err
	}
	r := &report{}
	switch {
	case j.Moment:
		err = m.oneMoment(r)
	case j.All:
		err = j.all(m, r)
	default:
		err = j.sample(m, r)
	}
	b, failed := json.Marshal(r)
	return errors.Join(err, failed, os.WriteFile(j.result(), b, 0o644))
}

// sample does some of everything, until its time is over.
func (j job) sample(m *machine, r *report) error {
	random := rand.New(rand.NewPCG(j.Seed, 0))
	end := time.Now().Add(time.Duration(j.Seconds) * time.Second)
	for n := 0; n < 2 || time.Now().Before(end); n++ { // both kinds at least once
		var shots []snapshot
		var err error
		if n%2 == 0 && j.wants("random") {
			shots, err = m.moments(10, random)
		} else {
			s := scenarios[random.IntN(len(scenarios))]
			if !j.wants(s.name) {
				continue
			}
			if err := m.makeTemplate(s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			p := plan{brought: writebacks[random.IntN(len(writebacks))]}
			if random.IntN(2) == 0 && p.brought != nothing {
				p.once = 1 + random.IntN(60)
			}
			shots, _, err = m.run(s, p, func(c call) bool {
				return p.brought == nothing || p.once > 0 || c.name == "" || random.IntN(4) == 0 && (!c.ofTree || random.IntN(8) == 0)
			})
		}
		if err == nil {
			err = j.judge(m, shots, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// all looks at each moment of each command with each writeback. Where something flushes, writeback before it can matter: there, it comes also once, before every third of the
// calls (of those that remove a tree, none), and a part of the moments after it is looked at.
func (j job) all(m *machine, r *report) error {
	random := rand.New(rand.NewPCG(j.Seed, 0))
	one := func(s scenario, p plan, wanted func(call) bool) (shots int, calls []call, err error) {
		all, calls, err := m.run(s, p, wanted)
		if err == nil {
			err = j.judge(m, all, r)
		}
		return len(all), calls, err
	}
	for _, s := range scenarios {
		if !j.wants(s.name) {
			continue
		}
		if err := m.makeTemplate(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		var calls []call
		flushes := false
		for _, w := range writebacks {
			shots, of, err := one(s, plan{brought: w}, func(call) bool { return true })
			if err != nil {
				return err
			}
			flushes, calls = flushes || w == nothing && shots > 2, of // the first and the last there are always
		}
		for _, w := range []writeback{names, everything} {
			for i := random.IntN(3); i < len(calls) && flushes; i += 3 {
				if calls[i].ofTree {
					continue
				}
				if _, _, err := one(s, plan{w, calls[i].n}, func(call) bool { return random.IntN(3) == 0 }); err != nil {
					return err
				}
			}
		}
	}
	const rounds = 30
	for n := 0; n < rounds && j.wants("random"); n++ {
		shots, err := m.moments(30, random)
		if err == nil {
			err = j.judge(m, shots, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wants says whether BC_POWER_ONLY, a file system and the beginning of a command, is that.
func (j job) wants(command string) bool {
	_, prefix, _ := strings.Cut(j.Only, " ")
	return strings.HasPrefix(command, prefix)
}

// judge judges snapshots, and removes them. BC_POWER_KEEP is a directory for those that are violations, as they were.
func (j job) judge(m *machine, shots []snapshot, r *report) error {
	for _, s := range shots {
		was, keep := s.disk+"-was", os.Getenv("BC_POWER_KEEP")
		if keep != "" {
			if err := reflink(s.disk, was); err != nil {
				return err
			}
		}
		v, violation := m.judge(s)
		r.add(m.kind, s, v, violation)
		var err error
		if violation != nil {
			err = m.away() // what is left of it is in the way of the next
		}
		if violation != nil && keep != "" {
			err = errors.Join(err, command("cp", "--sparse=always", was, fmt.Sprintf("%s/%s-%d", keep, m.kind, len(r.Violations))))
		}
		if keep != "" {
			err = errors.Join(err, os.Remove(was))
		}
		if err = errors.Join(err, os.Remove(s.disk)); err != nil {
			return err
		}
	}
	return nil
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
