package garden

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"code.cloudfoundry.org/garden"
)

// pluginRefusal is the start of an error that the plugin's create for a pea is to blame for.
var pluginRefusal = regexp.MustCompile(`running image plugin create: .+\n: exit status [12]`)

// A pea is a process with an image of its own. Its volume's handle is the process id, the slot is its container's, and it
// must go when the process ends.
func TestPea(t *testing.T) {
	for _, slot := range createdIn {
		t.Run(slot.name, func(t *testing.T) {
			s := newServer(t)
			container := s.create(t, garden.ContainerSpec{Handle: s.handle("sandbox"), Privileged: slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image}})
			alone := s.tree(t) // the store with the container alone
			pea := garden.ProcessSpec{
				ID:    s.handle("pea"),
				Path:  "/bin/sh",
				Args:  []string{"-c", "set -e; cat /ima-pea; echo more >> /ima-pea; stat -c %u:%g /ima-pea; id -u"},
				User:  "0:0",
				Image: garden.ImageRef{URI: "file://" + s.pea},
			}

			if got := runProcess(t, container, pea); got != "pea\n0:0\n0\n" {
				t.Errorf("the pea prints %q", got)
			}
			s.waitForTree(t, alone)

			// gdn finds out that it knows the id only after the plugin's create.
			t.Run("same id again", func(t *testing.T) {
				if _, err := container.Run(pea, garden.ProcessIO{}); err == nil || !strings.Contains(err.Error(), "already in use") {
					t.Errorf("run with the id of a process that ended says %v, want that it is in use", err)
				}
				s.waitForTree(t, alone)
			})
			// For a name, gdn makes one more pea to look it up in: one more volume, under a random handle.
			t.Run("user by name", func(t *testing.T) {
				named := pea
				named.ID, named.User, named.Args = s.handle("named"), "alice", []string{"-c", "cat /ima-pea; id -u"}
				if got := runProcess(t, container, named); got != "pea\n1000\n" {
					t.Errorf("the pea prints %q", got)
				}
				s.waitForTree(t, alone)
			})
			// gdn deletes nothing when the plugin's create for a pea fails.
			t.Run("no such image", func(t *testing.T) {
				bad := pea
				bad.ID, bad.Image = s.handle("bad"), garden.ImageRef{URI: "file://" + s.dir + "/nowhere"}
				_, err := container.Run(bad, garden.ProcessIO{})
				if err == nil || !strings.Contains(err.Error(), s.dir+"/nowhere") {
					t.Errorf("run says %v, want the plugin's sentence with the path", err)
				}
				s.waitForTree(t, alone)
			})
			t.Run("no such program", func(t *testing.T) {
				bad := pea
				bad.ID, bad.Path = s.handle("no-program"), "/bin/nowhere"
				if _, err := container.Run(bad, garden.ProcessIO{}); err == nil {
					t.Error("a pea ran a program that does not exist")
				}
				s.waitForTree(t, alone)
			})
			// While the first one lives, its volume must not be touched by what the second one comes to.
			t.Run("same id at once", func(t *testing.T) {
				long := pea
				long.ID, long.Args = s.handle("long"), []string{"-c", "while sleep 0.1; do test ! -e /ima-pea || continue; exit 7; done"}
				process, err := container.Run(long, garden.ProcessIO{})
				if err != nil {
					t.Fatal(err)
				}
				running := s.tree(t)
				if _, err := container.Run(long, garden.ProcessIO{}); err == nil || !pluginRefusal.MatchString(err.Error()) {
					t.Errorf("a second pea with the id of a living one: %v, want the plugin to refuse it", err)
				}
				s.waitForTree(t, running)
				time.Sleep(300 * time.Millisecond) // several looks at the file
				process.Signal(garden.SignalKill)
				if status, err := process.Wait(); err != nil || status == 7 {
					t.Errorf("the first pea ended with status %d, error %v: 7 means that its files went", status, err)
				}
				s.waitForTree(t, alone)
			})
			t.Run("container destroyed under it", func(t *testing.T) {
				orphan := pea
				orphan.ID, orphan.Args = s.handle("orphan"), []string{"-c", "sleep 600"}
				process, err := container.Run(orphan, garden.ProcessIO{})
				if err != nil {
					t.Fatal(err)
				}
				s.destroy(t, container.Handle())
				process.Wait() // with whatever status: it was killed
				s.waitForTree(t, s.before)
			})
		})
	}
}

// A pea may have a cache too, which becomes the next pea's when its process has ended.
func TestPeaWithCache(t *testing.T) {
	s := newServer(t)
	s.before = append(s.before, "caches.total") // which comes with the first promotion, and stays
	sandbox := s.create(t, garden.ContainerSpec{Handle: s.handle("sandbox"), Image: garden.ImageRef{URI: "file://" + s.image}})
	for n, prints := range []string{"", "x\n"} {
		image := s.withCaches("", false, "of a pea", "/cache", "").Image
		pea := garden.ProcessSpec{ID: s.handle(fmt.Sprint("pea-", n)), Image: image, User: "0:0", Path: "/bin/sh", Args: []string{"-c", "ls /cache; echo x >> /cache/x" + commit}}
		if got := runProcess(t, sandbox, pea); got != prints {
			t.Errorf("pea %d prints %q, want %q", n, got, prints)
		}
		deadline := time.Now().Add(10 * time.Second)
		for s.caches(t)[cacheID("of a pea")].Generation != uint64(n+1) {
			if time.Now().After(deadline) {
				t.Fatalf("the cache of pea %d was not promoted: %+v", n, s.caches(t))
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	s.destroy(t, sandbox.Handle())
	s.dropCaches(t)
	s.waitForTree(t, slices.Sorted(slices.Values(s.before)))
}

// waitForTree waits until the store is as it was. gdn has a pea's volume deleted after it has told the client of the end of
// the process, so there is nothing else to wait for.
func (s *server) waitForTree(t testing.TB, want []string) {
	t.Helper()
	var got []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = s.tree(t); slices.Equal(got, want) {
			return
		}
	}
	t.Errorf("the pea's volume is still there: the store holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}
