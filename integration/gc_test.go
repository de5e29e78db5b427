package integration

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/imagespec"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// gcTime is how long each of these tests goes on: a few seconds, or what BC_TEST_GC_TIME says.
func gcTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BC_TEST_GC_TIME")
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// gc runs the command and returns its lines. It must work.
func (g *gdn) gc(args ...string) []string {
	g.t.Helper()
	res := g.call(g.unprivileged, append([]string{"gc"}, args...)...)
	if res.err != nil {
		g.t.Errorf("gc: %v: %s", res.err, res.stdout)
	}
	return strings.FieldsFunc(string(res.stdout), func(r rune) bool { return r == '\n' })
}

// sound fails the test if the store of g has any problem.
func (g *gdn) sound() {
	g.t.Helper()
	inspect.Sound(g.t, volumes.New(volumes.Options{Dir: g.store, Driver: overlay.New(overlay.Options{})}).Check)
}

// killed runs a command and kills it after a time at random, or lets it end before.
func (g *gdn) killed(slot []string, most time.Duration, args ...string) (wasKilled bool) {
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(most))
	defer cancel()
	cmd := g.command(ctx, slot, args...)
	return cmd.Run() != nil && ctx.Err() != nil
}

// TestCase22 beside gc: 20 processes make, touch and delete containers, half of them with a cache that they commit, while others collect and look. None of it fails,
// and nothing of it is taken for a leftover.
func TestCase22GCBesideCreates(t *testing.T) {
	images := busybox(t)
	g := newGdn(t, newStore(t), string(images))
	before := warm(t, g, images.url("busybox"))
	deadline := time.Now().Add(gcTime(t))
	var made, collections atomic.Int64
	err := together(20+2, func(worker int) error {
		for round := 0; time.Now().Before(deadline) && !t.Failed(); round++ {
			if worker >= 20 {
				if lines := g.gc(); len(lines) > 0 {
					return fmt.Errorf("gc took for a leftover: %q", lines)
				}
				collections.Add(1)
				g.sound()
				continue
			}
			handle := fmt.Sprintf("beside-%d-%d", worker, round%2)
			url := images.url("busybox")
			if worker%2 == 0 {
				url = withCache(url, fmt.Sprint("key-", round%3), cacheAt, "always")
			}
			spec, err := g.create(handle, rootfs{url: url, privileged: worker%4 < 2})
			if err != nil {
				return err
			}
			dirs := []string{spec.Root.Path}
			for _, m := range spec.Mounts {
				dirs = append(dirs, m.Source)
			}
			for _, dir := range dirs {
				if err := os.WriteFile(filepath.Join(dir, handle), []byte(fmt.Sprint(round)), 0o600); err != nil {
					return fmt.Errorf("touch in a live root: %w", err)
				}
			}
			if err := g.destroy(handle); err != nil {
				return err
			}
			made.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d containers, %d collections", made.Load(), collections.Load())
	if made.Load() < 20 || collections.Load() < 2 {
		t.Error("too little was done to show anything")
	}
	g.asEmpty(before)
}

// asEmpty drops all caches and wants the store as it was before.
func (g *gdn) asEmpty(before tree) {
	g.t.Helper()
	for id := range g.caches() {
		if res := g.call(g.unprivileged, "cache", "drop", id); res.err != nil {
			g.t.Errorf("drop: %v: %s", res.err, res.stdout)
		}
	}
	g.sound()
	now := storeTree(g.t, g.store)
	delete(now, "caches.total") // the sum of all caches there ever were
	same(g.t, "the store in the end", before, now)
	if n := mountCount(g.t, g.store); n > 0 {
		g.t.Errorf("%d mounts are left", n)
	}
}

// TestGCAfterKills: creates, deletes, drops and collections are killed at any moment; then one gc (or two at once) takes away all that they left.
func TestGCAfterKills(t *testing.T) {
	images := busybox(t)
	g := newGdn(t, newStore(t), string(images))
	before := warm(t, g, images.url("busybox"))
	deadline := time.Now().Add(gcTime(t))
	kills := 0
	for round := 0; time.Now().Before(deadline) && !t.Failed(); round++ {
		for step := range 12 {
			handle := fmt.Sprint("killed-", step%4)
			url := withCache(images.url("busybox"), fmt.Sprint("key-", step%2), cacheAt, "always")
			err := together(2, func(i int) error {
				switch {
				case i == 1 && step%3 == 0:
					g.killed(g.unprivileged, 20*time.Millisecond, "gc")
				case i == 1 && step%5 == 0:
					g.killed(g.unprivileged, 20*time.Millisecond, "cache", "drop", imagespec.CacheID("key-0"))
				case i == 0 && rand.N(2) == 0:
					if g.killed(g.slot(step%4 < 2), 20*time.Millisecond, "create", url, handle) {
						kills++
					}
				case i == 0:
					caches, _ := filepath.Glob(g.store + "/mnt/*/cache-0")
					for _, dir := range caches {
						_ = os.WriteFile(filepath.Join(dir, fmt.Sprint(round, step)), nil, 0o600) // it may be going
					}
					if g.killed(g.unprivileged, 20*time.Millisecond, "delete", handle) {
						kills++
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		err := together(1+round%2, func(int) error {
			for _, line := range g.gc() {
				if !strings.HasPrefix(line, "removed") && !strings.HasPrefix(line, "   ") {
					return fmt.Errorf("gc says %q", line)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if lines := g.gc(); len(lines) > 0 {
			t.Errorf("gc left what the next found: %q", lines)
		}
		g.sound()
		for _, st := range []string{"init", "dead"} {
			if left := namesIn(t, g.store+"/volumes/"+st); len(left) > 0 {
				t.Errorf("volumes/%s: %q", st, left)
			}
		}
	}
	for _, handle := range live(t, g.store) {
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d kills", kills)
	if kills < 10 {
		t.Error("too little was killed to show anything")
	}
	g.asEmpty(before)
}

// failingGC runs gc where it cannot do everything: exit code 1, and what it says.
func (g *gdn) failingGC() string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	cmd := g.command(ctx, g.unprivileged, "gc")
	var out bytes.Buffer
	cmd.Stdout = &out
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
		g.t.Errorf("gc: exit %d, want 1: %s", cmd.ProcessState.ExitCode(), &out)
	}
	return out.String()
}

// leftovers makes a leftover of each kind that needs nothing but names.
func leftovers(t *testing.T, g *gdn) {
	t.Helper()
	id := strings.Repeat("0123456789abcdef", 2)
	for _, dir := range []string{"layers/" + id + "/fs/dir", "layers/" + id + "-0/fs/dir", "mnt/" + strings.Repeat("0", 32) + "/rootfs"} {
		if err := os.MkdirAll(filepath.Join(g.store, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(id, g.store+"/volumes/dead/h"); err != nil {
		t.Fatal(err)
	}
}

// A store on a disk that is full is collected like any other; on a read-only one gc says so and changes nothing (case 20, case 21).
func TestGCOnBadDisks(t *testing.T) {
	images := busybox(t)
	g := newGdn(t, filepath.Join(loopFS(t, "ext4", 64), "store"), string(images))
	before := warm(t, g, images.url("busybox"))
	leftovers(t, g)
	fs := filepath.Dir(g.store)
	remount(t, fs, unix.MS_RDONLY, "")
	was := storeTree(t, g.store)
	if out := g.failingGC(); !strings.Contains(out, "left") || !strings.Contains(out, "read-only") {
		t.Errorf("read-only: %s", out)
	}
	if found := g.gc("--dry-run"); len(found) == 0 {
		t.Error("a dry run finds nothing on a read-only disk")
	}
	same(t, "read-only", was, storeTree(t, g.store))
	remount(t, fs, 0, "")

	fills := fillSpace(t, fs)
	if lines := g.gc(); len(lines) < 3 {
		t.Errorf("full: gc says %q", lines)
	}
	if err := os.Remove(fills); err != nil {
		t.Fatal(err)
	}
	g.asEmpty(before)
}

// TestGCDepotLeavesWhatRuns: a container that runs is not collected, whatever the depot says; when it has ended, it is.
func TestGCDepotLeavesWhatRuns(t *testing.T) {
	images := busybox(t)
	g := newGdn(t, newStore(t), string(images))
	before := warm(t, g, images.url("busybox"))
	depot := newDir(t)
	for _, privileged := range []bool{false, true} {
		c := g.mustCreate("runs", withCache(images.url("busybox"), "key", cacheAt, "always"), privileged)
		r := startContainer(t, c.spec, privileged, "echo started > "+cacheAt+"/file; while :; do sleep 0.1; done", c.spec.Mounts...)
		r.waitFor("the container to start", func() bool { _, err := os.Lstat(filepath.Join(c.cache, "file")); return err == nil })
		for range 3 {
			if lines := g.gc("--depot", depot, "--min-age", "1ns"); len(lines) > 0 {
				t.Errorf("gc collects a running container: %q", lines)
			}
		}
		if _, err := g.stats("runs"); err != nil {
			t.Error(err)
		}
		r.kill()
		lines := strings.Join(g.gc("--depot", depot, "--min-age", "1ns"), "\n")
		if !strings.Contains(lines, `removed  "volumes/live/runs"`) || !strings.Contains(lines, "promoted") {
			t.Errorf("gc of an ended container says %q", lines)
		}
		clean(t, g, "runs")
		for id := range g.caches() {
			g.call(g.unprivileged, "cache", "drop", id)
		}
	}
	g.asEmpty(before)
}
