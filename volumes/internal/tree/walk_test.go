package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// seen walks dir and returns the events: "+a" for a visit of a, "-" for leaving a directory.
func seen(t *testing.T, dir string, also func(e Entry)) []string {
	t.Helper()
	var events []string
	err := Walk(t.Context(), fd(t, dir), ".", Visitor{
		Visit: func(e Entry) error {
			events = append(events, "+"+e.Name)
			if also != nil {
				also(e)
			}
			return nil
		},
		Leave: func(int) error { events = append(events, "-"); return nil },
	})
	check(t, err)
	return events
}

func TestWalkVisitsBeforeAndLeavesAfter(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/a/b/file", "")
	want := []string{"+.", "+a", "+b", "+file", "-", "-", "-"}
	if got := seen(t, dir, nil); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWalkVisitsEachEntryOnce(t *testing.T) {
	for _, kind := range []string{"", "tmpfs"} {
		t.Run("on "+kind, func(t *testing.T) {
			dir := newDir(t)
			if kind != "" {
				dir = newFS(t, kind, "")
			}
			for i := range 700 { // going down makes the walk read a directory in many pieces
				write(t, fmt.Sprintf("%s/dir-%d/in-%d", dir, i, i), "")
				write(t, fmt.Sprintf("%s/file-%d", dir, i), "")
			}
			count := map[string]int{}
			seen(t, dir, func(e Entry) { count[e.Name]++ })
			if len(count) != 3*700+1 {
				t.Errorf("%d names seen, want %d", len(count), 3*700+1)
			}
			for name, n := range count {
				if n != 1 {
					t.Errorf("%q was visited %d times", name, n)
				}
			}
		})
	}
}

// Stats of a live container failed with ENOENT when the container removed the directory that was just read.
func TestWalkPassesOverWhatVanishes(t *testing.T) {
	for _, vanish := range []string{"a/b/file", "a/b", "a", "a/b/c"} {
		t.Run(vanish, func(t *testing.T) {
			dir := newDir(t)
			write(t, dir+"/a/b/file", "")
			mkdir(t, dir+"/a/b/c/d")
			write(t, dir+"/zz", "")
			visits, leaves := 0, 0
			err := Walk(t.Context(), fd(t, dir), ".", Visitor{
				Visit: func(e Entry) error {
					if e.IsDir() {
						visits++
					}
					if e.Name == path.Base(path.Dir(vanish)) || e.Name == "b" {
						check(t, os.RemoveAll(dir+"/"+vanish))
					}
					return nil
				},
				Leave: func(int) error { leaves++; return nil },
			})
			if err != nil || visits != leaves || visits == 0 {
				t.Errorf("error %v; %d directories visited, %d left", err, visits, leaves)
			}
		})
	}
}

// A directory that vanished between being seen and being opened was visited and never left: a copy then went on in the wrong directory.
func TestWalkVisitsOnlyWhatItCanOpen(t *testing.T) {
	dir := newDir(t)
	for i := range 20 {
		write(t, fmt.Sprintf("%s/%d/file", dir, i), "")
	}
	visits, leaves := 0, 0
	err := Walk(t.Context(), fd(t, dir), ".", Visitor{
		Visit: func(e Entry) error {
			if e.IsDir() {
				visits++
				if e.Name != "." {
					check(t, os.Rename(fmt.Sprintf("%s/%s", dir, e.Name), newDir(t)+"/moved"))
				}
			}
			return nil
		},
		Leave: func(int) error { leaves++; return nil },
	})
	if err != nil || visits != leaves || visits != 21 {
		t.Errorf("error %v; %d directories visited, %d left", err, visits, leaves)
	}
}

func TestWalkEndsWithTheVisitorsError(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/a/file", "")
	stop := errors.New("stop")
	for _, at := range []string{".", "a", "file"} {
		err := Walk(t.Context(), fd(t, dir), ".", Visitor{Visit: func(e Entry) error {
			if e.Name == at {
				return stop
			}
			return nil
		}})
		if !errors.Is(err, stop) {
			t.Errorf("at %q: %v", at, err)
		}
	}
	err := Walk(t.Context(), fd(t, dir), ".", Visitor{Visit: func(Entry) error { return nil }, Leave: func(int) error { return stop }})
	if !errors.Is(err, stop) {
		t.Errorf("leave: %v", err)
	}
}

func TestWalkRefusesAMount(t *testing.T) {
	inspect.NeedRoot(t)
	dir := newDir(t)
	mkdir(t, dir+"/a/m")
	check(t, unix.Mount(newDir(t), dir+"/a/m", "", unix.MS_BIND, ""))
	defer unix.Unmount(dir+"/a/m", unix.MNT_DETACH)
	err := Walk(t.Context(), fd(t, dir), ".", Visitor{Visit: func(Entry) error { return nil }})
	if !errors.Is(err, unix.EXDEV) || !strings.Contains(err.Error(), `"m": something is mounted there`) {
		t.Errorf("error %v", err)
	}
}

func measure(t *testing.T, dir string, maxEntries uint64) Usage {
	t.Helper()
	u, err := Measure(t.Context(), fd(t, dir), ".", maxEntries)
	check(t, err)
	return u
}

func TestMeasure(t *testing.T) {
	const big = 8 << 20
	dir := newDir(t)
	if u := measure(t, dir, 0); u != (Usage{}) {
		t.Errorf("an empty tree: %+v", u)
	}
	check(t, os.WriteFile(dir+"/file", make([]byte, big), 0o600))
	one := measure(t, dir, 0)
	if one.Bytes < big || one.Bytes > big+big/100 || one.Entries != 1 {
		t.Errorf("a file of %d bytes: %+v", big, one)
	}
	mkdir(t, dir+"/d")
	withDir := measure(t, dir, 0)
	check(t, os.Link(dir+"/file", dir+"/link"))
	check(t, os.Link(dir+"/file", dir+"/d/link"))
	if u := measure(t, dir, 0); u.Bytes != withDir.Bytes || u.Entries != 4 {
		t.Errorf("with two more links: %+v, want the %d bytes as before", u, withDir.Bytes)
	}
	check(t, os.WriteFile(dir+"/hole", nil, 0o600))
	check(t, os.Truncate(dir+"/hole", 5<<30))
	if u := measure(t, dir, 0); u.Bytes != withDir.Bytes {
		t.Errorf("with a hole of 5 GiB: %+v, want %d bytes", u, withDir.Bytes)
	}
}

func TestMeasureSaysWhenItWasCut(t *testing.T) {
	dir := newDir(t)
	makeWide(t, dir, 1_000)
	if u := measure(t, dir, 1_000); u.Partial || u.Entries != 1_000 {
		t.Errorf("limit not passed: %+v", u)
	}
	if u := measure(t, dir, 999); !u.Partial || u.Entries != 999 {
		t.Errorf("limit passed: %+v", u)
	}
	u, err := Measure(onLook(func(n int) error {
		if n == 3 {
			return context.DeadlineExceeded
		}
		return nil
	}), fd(t, dir), ".", 0)
	if err != nil || !u.Partial || u.Entries != 2*checkEvery {
		t.Errorf("deadline: %+v, %v", u, err)
	}
	if _, err := Measure(onLook(func(int) error { return context.Canceled }), fd(t, dir), ".", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// A container that moves its directories about must not make its stats fail.
	deep := newDir(t)
	mkdir(t, deep+strings.Repeat("/d", 60))
	makeWide(t, deep+strings.Repeat("/d", 60), 300)
	u, err = Measure(onLook(func(n int) error {
		if n == 2 {
			return os.Rename(deep+"/d/d/d", deep+"/moved")
		}
		return nil
	}), fd(t, deep), ".", 0)
	if err != nil || !u.Partial {
		t.Errorf("moved: %+v, %v", u, err)
	}
}

// fewDescriptors, when set, makes TestFewDescriptors the process with the low limit, and names its directory.
const fewDescriptors = "BC_TEST_TREE_FEW_DESCRIPTORS"

// A tree may be deeper than the process may have open files: its limit is lowered in a process of its own.
func TestFewDescriptors(t *testing.T) {
	if dir := os.Getenv(fewDescriptors); dir != "" {
		withFewDescriptors(t, dir)
		return
	}
	dir := newDir(t)
	mkdir(t, dir+"/x")
	makeDeep(t, dir+"/x", 5_100)
	cmd := exec.Command(os.Args[0], "-test.run=^TestFewDescriptors$", "-test.v")
	cmd.Env = append(os.Environ(), fewDescriptors+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %.2000s", err, out)
	}
	if exists(dir+"/x") || exists(dir+"/copy") {
		t.Error("it is still there")
	}
}

func withFewDescriptors(t *testing.T, dir string) {
	parent := fd(t, dir)
	const limit = 100 // two walks hold maxOpen and a few each
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}))
	before := openFiles(t)
	u, err := Measure(t.Context(), parent, "x", 0)
	if err != nil || u.Entries != 5_101 {
		t.Errorf("measure: %+v, %v", u, err)
	}
	check(t, Copy(t.Context(), open(t, dir+"/x"), parent, "copy", CopyOptions{}))
	if copied, err := Measure(t.Context(), parent, "copy", 0); err != nil || copied.Entries != u.Entries {
		t.Errorf("measure the copy: %+v, %v", copied, err)
	}
	check(t, Remove(t.Context(), parent, "x"))
	check(t, Remove(t.Context(), parent, "copy"))
	if after := openFiles(t) - 1; after != before { // the copy's source is open until the end
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

// openFiles is the number of open descriptors, the one that is needed to count them included.
func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(names)
}
