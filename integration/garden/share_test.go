package garden

import (
	"os/exec"
	"testing"
	"time"

	"code.cloudfoundry.org/garden"
)

// BenchmarkContainer is a container's whole life in gdn, create and destroy with nothing run in it, and beside it the plugin's calls that are a part of it: gdn makes one create, and
// deletes in both slots.
//
//	GDN_BIN=/path/gdn go test -run '^$' -bench Container -benchtime 30x
func BenchmarkContainer(b *testing.B) {
	s := newServer(b)
	spec := garden.ContainerSpec{Handle: s.handle("life"), Image: garden.ImageRef{URI: "file://" + s.image}}
	call := func(args ...string) {
		if out, err := exec.Command(s.plugin, append([]string{"--store", s.store}, args...)...).CombinedOutput(); err != nil {
			b.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	var life, ours time.Duration
	for b.Loop() {
		start := time.Now()
		s.create(b, spec)
		s.destroy(b, spec.Handle)
		life += time.Since(start)

		start = time.Now()
		call("create", spec.Image.URI, spec.Handle)
		call("delete", spec.Handle)
		call("--privileged", "delete", spec.Handle)
		ours += time.Since(start)
	}
	b.ReportMetric(float64(life.Microseconds())/1000/float64(b.N), "ms/life")
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "ms/ours")
	b.ReportMetric(100*float64(ours)/float64(life), "%ours")
}
