package garden

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"code.cloudfoundry.org/garden"
)

// pluginSentence takes from a client's error what the plugin said on stdout, and its exit code.
var pluginSentence = regexp.MustCompile(`(?s)^running image plugin create: (.*): exit status ([0-9]+)$`)

// A create that fails is shown to the client by the plugin's own sentence, and leaves its handle free.
func TestFailingCreate(t *testing.T) {
	s := newServer(t)
	const secret = "s3cr3t-cache-key"
	tests := []struct {
		name   string
		uri    string
		limits garden.DiskLimits
		exit   string
		says   string // what a person needs to read in the sentence to act on it
	}{
		{name: "no such directory", uri: "file://" + s.dir + "/nowhere", exit: "1", says: s.dir + "/nowhere"},
		{name: "not a directory", uri: "file://" + s.image + "/etc/motd", exit: "1", says: s.image + "/etc/motd"},
		{name: "relative directory", uri: "file://nowhere", exit: "2", says: "nowhere"},
		{name: "unknown scheme", uri: "gopher:///image", exit: "2", says: "gopher"},
		{name: "no image at all", uri: "", exit: "2"},
		{name: "unknown parameter", uri: "file://" + s.image + "?cash=1", exit: "2", says: "cash"},
		{name: "cache without a path", uri: "file://" + s.image + "?cache=" + secret, exit: "2", says: "cache-path"},
		{name: "unknown volume", uri: "baggageclaim://nowhere", exit: "1", says: "nowhere"},
		{name: "volume that climbs out", uri: "baggageclaim://nowhere/../../..", exit: "2"},
		{name: "disk limit that nobody enforces", uri: "file://" + s.image, limits: garden.DiskLimits{ByteHard: 10 * mib}, says: "limit"},
	}
	for i, test := range tests {
		for _, slot := range createdIn {
			t.Run(test.name+"/"+slot.name, func(t *testing.T) {
				handle := s.handle(fmt.Sprintf("failing-%d", i))
				_, err := s.Create(garden.ContainerSpec{
					Handle:     handle,
					Privileged: slot.privileged,
					Image:      garden.ImageRef{URI: test.uri},
					Limits:     garden.Limits{Disk: test.limits},
				})
				if err == nil {
					s.Destroy(handle)
					t.Fatal("the create went well")
				}
				match := pluginSentence.FindStringSubmatch(err.Error())
				if match == nil {
					t.Fatalf("the client is told %q, which is not about the image plugin", err)
				}
				sentence, exit := match[1], match[2]
				t.Logf("exit status %s: %s", exit, strings.TrimSuffix(sentence, "\n"))
				if !strings.HasSuffix(sentence, "\n") || strings.Count(sentence, "\n") != 1 || len(sentence) < 10 {
					t.Errorf("the plugin said %q, want one sentence and the end of its line", sentence)
				}
				if !strings.Contains(sentence, test.says) {
					t.Errorf("the plugin said %q, want it to name %q", sentence, test.says)
				}
				if strings.Contains(sentence, secret) {
					t.Errorf("the plugin gave a cache key away: %q", sentence)
				}
				if test.exit != "" && exit != test.exit {
					t.Errorf("the plugin's exit status is %s, want %s", exit, test.exit)
				}
				if err := s.Destroy(handle); !isNotFound(err) {
					t.Errorf("a destroy after the failed create says %v, want that the handle is unknown", err)
				}
				// What stood in the way is named; the handle is not used up.
				s.create(t, garden.ContainerSpec{Handle: handle, Privileged: slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image}})
				s.destroy(t, handle)
			})
		}
	}
}

// A process that fails in the middle of a create, after the plugin has done its part, makes gdn delete what it made.
func TestRuntimeRefuses(t *testing.T) {
	s := newServer(t)
	for _, slot := range createdIn {
		t.Run(slot.name, func(t *testing.T) {
			handle := s.handle("refused")
			_, err := s.Create(garden.ContainerSpec{
				Handle:     handle,
				Privileged: slot.privileged,
				Image:      garden.ImageRef{URI: "file://" + s.image},
				BindMounts: []garden.BindMount{{SrcPath: s.dir + "/nowhere", DstPath: "/mnt"}},
			})
			if err == nil || !strings.Contains(err.Error(), "runc run") {
				t.Errorf("create with a bind mount of nothing: %v, want an error of runc", err)
			}
			if err := s.Destroy(handle); !isNotFound(err) {
				t.Errorf("a destroy after the failed create says %v, want that the handle is unknown", err)
			}
		})
	}
}
