package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// changing are the system calls with which the plugin changes the disk or the mount table, each a step that can fail or at
// which it can die. strace makes them do so. (Of write, the runtime's own use could not be told apart: see
// TestCreateUndoesItselfWhenNobodyReads for stdout, and the full disks of case 13 for files.)
var changing = []string{
	"mkdirat", "symlinkat", "linkat", "renameat", "renameat2", "unlinkat", "fchownat", "fchown", "lchown", "chown", "fchmodat", "fchmod",
	"fsetxattr", "lsetxattr", "setxattr", "ftruncate", "fsync", "fdatasync", "pwrite64", "mount", "umount2", "fsopen", "fsconfig", "fsmount",
	"move_mount", "open_tree", "mount_setattr", "openat2",
}

// faults is a store with one handle, on which the steps of create and delete fail one after the other.
type faults struct {
	t      *testing.T
	g      *gdn
	handle string
	rootfs rootfs
	before tree
	mounts int
}

func newFaults(t *testing.T, handle string, privileged bool) *faults {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	return &faults{
		t: t, g: g, handle: handle,
		rootfs: rootfs{url: volumes.url("busybox"), privileged: privileged},
		before: before, mounts: mountCount(t, g.store),
	}
}

func (f *faults) create() {
	f.t.Helper()
	if _, err := f.g.create(f.handle, f.rootfs); err != nil {
		f.t.Fatal(err)
	}
}

func (f *faults) destroy() {
	f.t.Helper()
	if err := f.g.destroy(f.handle); err != nil {
		f.t.Fatal(err)
	}
}

// asBefore wants the store as it was before the handle was ever used. What is left once is told once.
func (f *faults) asBefore(what string) {
	f.t.Helper()
	now, mounts := storeTree(f.t, f.g.store), mountCount(f.t, f.g.store)
	same(f.t, what, f.before, now)
	if mounts != f.mounts {
		f.t.Errorf("%s: %d mounts, were %d", what, mounts, f.mounts)
	}
	f.before, f.mounts = now, mounts
}

// usable wants that the handle can be created, at the latest after a delete of it, and goes without a trace.
func (f *faults) usable(what string) {
	f.t.Helper()
	if _, err := f.g.create(f.handle, f.rootfs); err != nil {
		f.destroy()
		if _, err := f.g.create(f.handle, f.rootfs); err != nil {
			f.t.Errorf("%s: create fails even after a delete: %v", what, err)
		}
	}
	f.destroy()
	clean(f.t, f.g, f.handle)
	f.asBefore(what + ", then create and delete")
}

// creating and deleting are the two commands under test.
func (f *faults) creating() []string { return []string{"create", f.rootfs.url, f.handle} }
func (f *faults) deleting() []string { return []string{"delete", f.handle} }

// each makes every one of the changing calls of a command fail, in turn. effect is what strace does to the call, such as "error=EIO"
// or "signal=KILL". prepare comes before each try; then attempt gets the name of the fault and a function that runs the command
// with it.
//
// strace counts calls by thread and Go's work moves between threads, so a fault may miss: on one processor few do.
func (f *faults) each(effect string, command []string, prepare func(), attempt func(fault string, run func() result)) {
	f.t.Helper()
	slot := f.g.slot(f.rootfs.privileged)
	prepare()
	lines, res := trace(f.t, f.g, slot, command...)
	if res.err != nil {
		f.t.Fatalf("%q: %v: %s", command, res.err, res.stdout)
	}
	f.destroy()

	single := *f.g
	single.env = append(slices.Clone(f.g.env), "GOMAXPROCS=1")
	log := filepath.Join(newDir(f.t), "calls")
	mark := map[string]string{
		"error=ENOSPC": "(INJECTED)", "error=EIO": "(INJECTED)", "signal=KILL": "+++ killed by SIGKILL", "signal=TERM": "--- SIGTERM",
	}[effect]
	tried, hit := 0, 0
	counts := count(lines)
	for _, call := range changing {
		for n := 1; n <= counts[call]; n++ {
			inject := fmt.Sprintf("inject=%s:%s:when=%d", call, effect, n)
			faulty := single.under("strace", "-f", "-qq", "-o", log, "-e", "trace="+call, "-e", inject, "--")
			prepare()
			attempt(command[0]+" with "+inject, func() result {
				res := faulty.call(slot, command...)
				content, err := os.ReadFile(log)
				if err != nil {
					f.t.Fatal(err)
				}
				tried++
				if strings.Contains(string(content), mark) {
					hit++
				}
				return res
			})
		}
	}
	f.t.Logf("%s: %d of %d faults hit", command[0], hit, tried)
	if hit < 5 || hit < tried/2 {
		f.t.Errorf("%s: only %d of %d faults hit, this test shows little", command[0], hit, tried)
	}
}

// concourse/concourse#8159, #9274, #9451, #9458: error paths that remove only the directory they know. Each step of a create and of
// a delete fails once.
func TestCase15EachStepFails(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		t.Run("create/"+slotName(privileged), func(t *testing.T) {
			f := newFaults(t, "each-step-of-create", privileged)
			f.each("error=ENOSPC", f.creating(), func() {}, func(fault string, run func() result) {
				res := run()
				// From a mount call ENOSPC means the limit on mounts (case 34, concourse/concourse#9722), and this disk has room.
				if strings.Contains(string(res.stdout), "is full") {
					t.Errorf("%s: a disk with room is called full: %s", fault, res.stdout)
				}
				switch cleaningUp := strings.Contains(fault, "unlinkat") || strings.Contains(fault, "umount2"); {
				case res.err == nil && mountCount(t, f.g.store) != f.mounts+1:
					t.Errorf("%s succeeds without its mount", fault)
				case res.err != nil && !cleaningUp:
					f.asBefore(fault)
				}
				f.destroy()
				f.asBefore(fault + ", then delete")
			})
		})
		t.Run("delete/"+slotName(privileged), func(t *testing.T) {
			f := newFaults(t, "each-step-of-delete", privileged)
			f.each("error=EIO", f.deleting(), f.create, func(fault string, run func() result) {
				if res := run(); res.err == nil {
					f.asBefore(fault + " succeeds")
				}
				f.destroy()
				f.asBefore(fault + ", then delete")
			})
		})
	}
}

// The first create on a host finds out what the kernel can do, and the store remembers. A step that fails once while it does
// must not be taken for something that the kernel cannot do: every unprivileged container would then cost a copy of its image.
func TestCase15FirstCreateFails(t *testing.T) {
	volumes := busybox(t)
	requireTool(t, "strace")
	log := filepath.Join(newDir(t), "calls")
	reference := newGdn(t, newStore(t), string(volumes))
	warm(t, reference, volumes.url("busybox"))
	for _, call := range []string{"mkdirat", "open_tree", "mount_setattr", "fsopen", "fsconfig", "fsmount", "move_mount"} {
		g := newGdn(t, newStore(t), string(volumes))
		inject := "inject=" + call + ":error=ENOSPC:when=1"
		faulty := g.under("strace", "-f", "-qq", "-o", log, "-e", "trace="+call, "-e", inject, "--")
		faulty.env = append(slices.Clone(g.env), "GOMAXPROCS=1")
		faulty.call(g.unprivileged, "create", volumes.url("busybox"), "the-first")
		if err := g.destroy("the-first"); err != nil {
			t.Errorf("%s: %v", inject, err)
		}
		if _, err := g.create("the-second", rootfs{url: volumes.url("busybox")}); err != nil {
			t.Errorf("%s: then create: %v", inject, err)
		}
		if got := layers(t, g.store); len(got) != 1 {
			t.Errorf("%s in the first create: the second container has %d layers, want its own only and no copy of its image", inject, len(got))
		}
		if got, want := remembered(t, g), remembered(t, reference); got != want {
			t.Errorf("%s in the first create: the store remembers\n%s, and one that was made in peace\n%s", inject, got, want)
		}
	}
}

// remembered is what a store knows about its host.
func remembered(t *testing.T, g *gdn) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.store, "store.json"))
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// A plugin that dies in mid-create must not block the handle, nor leave anything that a delete of it does not find; the same for
// one that dies in mid-delete. Leftovers that no crash of ours makes are in TestCase17LeftoversDoNotBlock.
func TestCase17KilledAtEachStep(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		t.Run("create/"+slotName(privileged), func(t *testing.T) {
			f := newFaults(t, "killed-in-create", privileged)
			f.each("signal=KILL", f.creating(), func() {}, func(fault string, run func() result) {
				run()
				f.usable(fault)
				run()
				f.destroy() // all that gdn does when it saw the failure
				f.asBefore(fault + ", then delete")
			})
		})
		t.Run("delete/"+slotName(privileged), func(t *testing.T) {
			f := newFaults(t, "killed-in-delete", privileged)
			f.each("signal=KILL", f.deleting(), f.create, func(fault string, run func() result) {
				run()
				f.destroy()
				f.asBefore(fault + ", then delete")
				f.usable(fault)
			})
		})
	}
}

// A create that is told to end, as when its server is stopped, ends whole or, if it says that it failed, leaves nothing. A
// signal that ends it before it can listen is a kill (TestCase17KilledAtEachStep); either way a delete finds what there is.
func TestTerminatedAtEachStep(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		t.Run("create/"+slotName(privileged), func(t *testing.T) {
			f := newFaults(t, "terminated-in-create", privileged)
			f.each("signal=TERM", f.creating(), func() {}, func(fault string, run func() result) {
				switch res := run(); {
				case res.code() > 0:
					f.asBefore(fault)
				case res.err == nil && mountCount(t, f.g.store) != f.mounts+1:
					t.Errorf("%s succeeds without its mount", fault)
				}
				f.destroy()
				f.asBefore(fault + ", then delete")
			})
		})
		t.Run("delete/"+slotName(privileged), func(t *testing.T) {
			f := newFaults(t, "terminated-in-delete", privileged)
			f.each("signal=TERM", f.deleting(), f.create, func(fault string, run func() result) {
				if res := run(); res.err == nil {
					f.asBefore(fault + " succeeds")
				}
				f.destroy()
				f.asBefore(fault + ", then delete")
			})
		})
	}
}
