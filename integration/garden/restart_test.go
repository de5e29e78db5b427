package garden

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.cloudfoundry.org/garden"
)

// A restarted gdn knows its containers from the depot alone. It never creates their volumes again, but it must be able to
// measure and to delete them.
func TestRestart(t *testing.T) {
	for _, slot := range createdIn {
		t.Run(slot.name, func(t *testing.T) {
			s := newServer(t)
			handle := s.handle("restart")
			s.create(t, garden.ContainerSpec{Handle: handle, Privileged: slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image}})
			s.stop(t, syscall.SIGTERM)
			s.start(t)
			container, err := s.Lookup(handle)
			if err != nil {
				t.Fatalf("after the restart: %v", err)
			}
			run(t, container, `echo still writable > /etc/motd`)
			if _, err := container.Metrics(); err != nil {
				t.Errorf("metrics after the restart: %v", err)
			}
			s.destroy(t, handle)
		})
	}
	t.Run("killed and told to destroy all", func(t *testing.T) {
		s := newServer(t)
		for i := range 4 {
			s.create(t, garden.ContainerSpec{Handle: s.handle(fmt.Sprintf("killed-%d", i)), Privileged: i%2 == 1, Image: garden.ImageRef{URI: "file://" + s.image}})
		}
		s.stop(t, syscall.SIGKILL)
		s.start(t, "--destroy-containers-on-startup") // gdn asks for all four at once, and answers when all are gone
		if left, err := s.Containers(garden.Properties{"garden.state": "all"}); err != nil || len(left) > 0 {
			t.Errorf("%d containers are left, error: %v", len(left), err)
		}
	})
	// Nobody asks for the deletion of a volume whose create was never answered: the plugin has to notice that it talks to
	// nobody, and to undo what it did.
	t.Run("killed in the middle of a create", func(t *testing.T) {
		s := newServer(t)
		s.stop(t, syscall.SIGTERM)
		status := filepath.Join(s.dir, "status")
		s.plugin = filepath.Join(s.dir, "slow-plugin")
		writeFile(t, s.plugin, fmt.Sprintf("#!/bin/sh\nsleep 1\n%s \"$@\"\necho $? > %s.part && mv %[2]s.part %[2]s\n", s.tools.plugin, status), 0, 0o755)
		s.start(t)
		spec := garden.ContainerSpec{Handle: s.handle("unheard"), Image: garden.ImageRef{URI: "file://" + s.image}}
		failed := make(chan error)
		go func() {
			_, err := s.Create(spec)
			failed <- err
		}()
		time.Sleep(500 * time.Millisecond) // the plugin is waiting by now
		s.stop(t, syscall.SIGKILL)
		if err := <-failed; err == nil {
			t.Fatal("the create was answered after all")
		}
		var exit []byte
		for deadline := time.Now().Add(20 * time.Second); exit == nil && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			exit, _ = os.ReadFile(status)
		}
		if code := strings.TrimSpace(string(exit)); code == "" || code == "0" {
			t.Errorf("the plugin's exit status is %q, though its answer was not read", code)
		}
		if got := s.tree(t); !slices.Equal(got, s.before) {
			t.Errorf("the store holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(s.before, "\n"))
		}
		s.plugin = s.tools.plugin
		s.start(t)
		s.create(t, spec)
		s.destroy(t, spec.Handle)
	})
}
