package garden

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"code.cloudfoundry.org/garden"
)

// gc runs the plugin's gc with gdn's depot, for containers of any age.
func (s *server) gc(t testing.TB, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(s.tools.plugin, append([]string{"--store=" + s.store, "gc", "--depot=" + filepath.Join(s.dir, "depot"), "--min-age=1ns"}, args...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Errorf("gc: %v: %s", err, &out)
	}
	return out.String(), log.String()
}

// What a real gdn has, containers and peas, gc finds in its depot, also when gdn is gone or was started again. What it does not have goes, unless it is in use.
func TestGC(t *testing.T) {
	s := newServer(t)
	var containers []garden.Container
	for _, slot := range createdIn {
		containers = append(containers, s.create(t, garden.ContainerSpec{
			Handle: s.handle("known-" + slot.name), Privileged: slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image},
		}))
	}
	pea, err := containers[0].Run(garden.ProcessSpec{
		ID: s.handle("pea"), Path: "/bin/sh", Args: []string{"-c", "sleep 600"}, User: "0:0", Image: garden.ImageRef{URI: "file://" + s.pea},
	}, garden.ProcessIO{})
	if err != nil {
		t.Fatal(err)
	}
	forget := func() {
		t.Helper()
		// As by a gdn that is killed after the plugin's create and before it makes a directory in the depot.
		if out, err := exec.Command(s.tools.plugin, "--store="+s.store, "create", "file://"+s.image, s.handle("forgotten")).CombinedOutput(); err != nil {
			t.Fatalf("create: %v: %s", err, out)
		}
	}
	tree := s.tree(t)
	look := func(when string) {
		t.Helper()
		forget()
		stdout, stderr := s.gc(t)
		want := fmt.Sprintf("removed  %q  ", "volumes/live/"+s.handle("forgotten"))
		if strings.Count(stdout, "\n") != 1 || !strings.HasPrefix(stdout, want) {
			t.Errorf("%s: gc says %q, want %q", when, stdout, want)
		}
		if strings.Contains(stderr, "not known to its owner") {
			t.Errorf("%s: gc does not find in the depot what gdn has: %s", when, stderr)
		}
		if now := s.tree(t); strings.Join(now, "\n") != strings.Join(tree, "\n") {
			t.Errorf("%s: the store was\n%s\nand is\n%s", when, strings.Join(tree, "\n"), strings.Join(now, "\n"))
		}
	}
	look("beside gdn")
	s.stop(t, syscall.SIGTERM) // a kill would lose its list of containers
	look("gdn is gone")
	s.start(t)
	look("gdn was started again")
	for _, c := range containers {
		if c, err := s.Lookup(c.Handle()); err != nil {
			t.Error(err)
		} else {
			run(t, c, "echo still writable > /etc/motd")
		}
		s.destroy(t, c.Handle())
	}
	pea.Wait() // with whatever status: it was killed
	s.waitForTree(t, s.before)
}
