package cachecopy_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// A whole generation holds a number, that many names in turn, and a checksum over all that would not fit to another generation's.
const partsOfAGeneration = 12

func writeGeneration(dir, text string) error {
	sum := sha256.New()
	for i := range partsOfAGeneration {
		// One part of three is new each time, by another name: parts of two generations would not fit.
		if err := os.RemoveAll(fmt.Sprintf("%s/part-%d", dir, i)); err != nil {
			return err
		}
		content := fmt.Sprintf("%s %d", text, i)
		fmt.Fprint(sum, content)
		if err := os.Mkdir(fmt.Sprintf("%s/part-%d", dir, i), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(fmt.Sprintf("%s/part-%d/file", dir, i), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(dir+"/sum", fmt.Appendf(nil, "%x", sum.Sum(nil)), 0o644)
}

// isWhole says whether dir shows one generation, or nothing at all.
func isWhole(dir string) error {
	want, err := os.ReadFile(dir + "/sum")
	if errors.Is(err, os.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 {
			err = fmt.Errorf("%q has %d names and no checksum", dir, len(entries))
		}
		return err
	}
	if err != nil {
		return err
	}
	sum := sha256.New()
	for i := range partsOfAGeneration {
		b, err := os.ReadFile(fmt.Sprintf("%s/part-%d/file", dir, i))
		if err != nil {
			return err
		}
		sum.Write(b)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != string(want) {
		return fmt.Errorf("%q is not one generation", dir)
	}
	return nil
}

// cycle is the life of one container: its copy has to be whole at the beginning and, whatever others do, at the end.
func cycle(ctx context.Context, c *cachecopy.Caches, name string, promote bool) (bool, error) {
	v, err := c.Create(ctx, handle(name), volumes.Request{Privileged: len(name)%2 == 0}, cachecopy.Cache{Key: "k"})
	if err != nil {
		return false, err
	}
	dir := v.Copies[0]
	errs := []error{isWhole(dir)}
	if promote {
		errs = append(errs, writeGeneration(dir, name), os.WriteFile(dir+"/"+cachecopy.Marker, nil, 0o600))
	}
	errs = append(errs, isWhole(dir))
	d, _, err := c.Delete(ctx, handle(name))
	errs = append(errs, err)
	promoted := false
	for _, e := range d.Copies {
		promoted = promoted || e.Promoted
		if promote && !e.Promoted && !strings.HasPrefix(e.Reason, "overtaken") {
			errs = append(errs, fmt.Errorf("%s is dropped: %s", name, e.Reason))
		}
	}
	return promoted, errors.Join(errs...)
}

// Cases 63 and 70: sixteen use a cache while others replace it.
func TestCase70CopiesWhileGenerationsAreReplaced(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 3 })
	var users sync.WaitGroup
	done := make(chan struct{})
	for n := range 16 {
		users.Go(func() {
			c := cachecopy.New(f.opts, cachecopy.Options{})
			for i := range 12 {
				if _, err := cycle(t.Context(), c, fmt.Sprintf("user-%d-%d", n, i), i%4 == 3); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	go func() { users.Wait(); close(done) }()
	defer func() {
		// Somebody was first each time. Who, is the scheduler's choice.
		if all, err := f.List(t.Context()); err != nil || len(all) != 1 || all[0].Generation < 2 {
			t.Errorf("in the end there is %+v, %v, want one cache of several generations", all, err)
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			if w := f.warned(); len(w) > 0 {
				t.Errorf("warnings: %q", w)
			}
			return
		default:
		}
		if _, err := cycle(t.Context(), f.Caches, fmt.Sprintf("promoter-%d", i), true); err != nil {
			t.Error(err)
			<-done
			return
		}
	}
}

// workerEnv makes this program a process that uses the cache of a store, see work.
const workerEnv = "CACHECOPY_TEST_WORKER"

type worker struct {
	Dir    string
	Name   string
	Cycles int
}

// work is what a process of its own does for a test.
func work(arg string) int {
	var w worker
	if err := json.Unmarshal([]byte(arg), &w); err != nil {
		panic(err)
	}
	opts := volumes.Options{Dir: w.Dir, Driver: overlay.New(overlay.Options{}), MaxLayers: 2, Warn: func(err error) { fmt.Fprintln(os.Stderr, "warning:", err) }}
	c := cachecopy.New(opts, cachecopy.Options{})
	for i := range w.Cycles {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := cycle(ctx, c, fmt.Sprintf("%s-%d", w.Name, i), true)
		cancel()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

func startWorker(t *testing.T, w worker) (wait func()) {
	t.Helper()
	arg, err := json.Marshal(w)
	check(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), workerEnv+"="+string(arg))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	check(t, cmd.Start())
	return func() {
		if err := cmd.Wait(); err != nil || out.Len() > 0 {
			t.Errorf("%s: %v: %s", w.Name, err, out.String())
		}
	}
}

// The same between processes: nothing is shared but the disk.
func TestProcessesRaceOnOneKey(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 2 })
	var waits []func()
	for _, name := range []string{"first", "second", "third!"} {
		waits = append(waits, startWorker(t, worker{f.dir, name, 25}))
	}
	for _, wait := range waits {
		wait()
	}
	if got := f.read("k", "sum"); got == "" {
		t.Error("no generation is left")
	}
}

// A cache that is dropped again and again meanwhile may be lost, and is never half there.
func TestDropWhileUsed(t *testing.T) {
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { o.MaxLayers = 2 })
	wait := startWorker(t, worker{f.dir, "user", 30})
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		default:
		}
		if err := f.Drop(t.Context(), cachecopy.ID("k")); err != nil && !errors.Is(err, volumes.ErrNotFound) {
			t.Error(err)
			<-done
			return
		}
		time.Sleep(time.Millisecond)
	}
}
