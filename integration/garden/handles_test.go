package garden

import (
	"strings"
	"testing"

	"code.cloudfoundry.org/garden"
)

// gdn looks at no handle before the plugin has seen it; runc does afterwards. So a handle that runc refuses was created by
// the plugin, and gdn then has it deleted.
//
// Handles that climb out of a directory ("..", "a/../b") are not tried here, though gdn passes them on: on the way to its
// error gdn would itself write to, and remove, DEPOT/<handle>. Their place is the plugin's own tests.
func TestHandles(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		name   string
		handle string
		runc   string // what runc says of it; empty where it takes it
	}{
		{name: "one letter", handle: "h"},
		{name: "like a command", handle: "delete"},
		{name: "like our own words", handle: "live"},
		{name: "all kinds that runc allows", handle: s.handle("A_b-c.9")}, // and "+", which Garden's client does not get across
		{name: "200 bytes", handle: s.handle(strings.Repeat("x", 200-len(s.handle(""))))},
		{name: "255 bytes", handle: s.handle(strings.Repeat("x", 255-len(s.handle(""))))},
		{name: "dash", handle: "-dash", runc: "flag provided but not defined"},
		{name: "like a flag of ours", handle: "--store=nowhere", runc: "flag provided but not defined"},
		{name: "blank", handle: "with blank", runc: "invalid container ID format"},
		{name: "only blanks", handle: "  ", runc: "invalid container ID format"},
		{name: "line end", handle: "two\nlines", runc: "invalid container ID format"},
		{name: "not ASCII", handle: "hände", runc: "invalid container ID format"},
		{name: "percent", handle: "100%41", runc: "invalid container ID format"},
		{name: "for a shell", handle: "$(touch x);*", runc: "invalid container ID format"},
	}
	for _, test := range tests {
		for _, slot := range createdIn {
			t.Run(test.name+"/"+slot.name, func(t *testing.T) {
				spec := garden.ContainerSpec{Handle: test.handle, Privileged: slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image}}
				if test.runc != "" {
					_, err := s.Create(spec)
					if err == nil || !strings.Contains(err.Error(), test.runc) || strings.Contains(err.Error(), "image plugin") {
						t.Errorf("create says %v, want the plugin to succeed and runc to say %q", err, test.runc)
					}
					return // check finds it if it is not deleted
				}
				container := s.create(t, spec)
				run(t, container, `echo x > /root/x`)
				if metrics, err := container.Metrics(); err != nil || metrics.DiskStat.ExclusiveBytesUsed == 0 {
					t.Errorf("metrics are %+v, error %v", metrics.DiskStat, err)
				}
				s.destroy(t, test.handle)
				if err := s.Destroy(test.handle); !isNotFound(err) {
					t.Errorf("a second destroy says %v, want that the handle is unknown", err)
				}
			})
		}
	}

	// One byte more than a file name can have. gdn could not make its own directory for it; the plugin is asked first.
	t.Run("256 bytes", func(t *testing.T) {
		_, err := s.Create(garden.ContainerSpec{Handle: strings.Repeat("x", 256), Image: garden.ImageRef{URI: "file://" + s.image}})
		if err == nil || !pluginSentence.MatchString(err.Error()) {
			t.Errorf("create says %v, want a sentence of the plugin", err)
		}
	})
}
