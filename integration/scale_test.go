package integration

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"
)

// moby/moby#20851, opencontainers/runc#2255, containerd/containerd#5113, systemd/systemd#16728, #8703: mounts make everything slow
// for everybody. concourse/concourse#1297, #2833, #4465, #3495: a delete looks at all volumes, falls behind, and the backlog feeds
// itself. So: beside 1,000 live volumes a create and a delete make the same system calls as beside 10, list no volumes, read no
// mount table, and take about the same time.
func TestCase33And75FlatCost(t *testing.T) {
	volumes := busybox(t)
	p := &population{g: newGdn(t, newStore(t), string(volumes)), image: volumes.url("busybox")}
	warm(t, p.g, p.image)
	idle := mountCount(t, p.g.store)

	var base cost
	calls := map[string]map[string]int{}
	for _, step := range []struct {
		live  int
		bound float64 // of the time, in times that beside 10
	}{{10, 0}, {100, 1.2}, {500, 1.2}, {1000, 1.5}} {
		p.grow(t, step.live)
		if mounts := mountCount(t, p.g.store); mounts != idle+step.live {
			t.Fatalf("%d mounts for %d containers, want one each besides the %d of an idle store", mounts, step.live, idle)
		}
		if step.bound == 0 {
			base = p.measure(t)
		} else {
			p.wantCost(t, base, step.bound)
		}
		if step.live == 10 || step.live == 1000 {
			p.wantCalls(t, calls)
		}
	}
	if err := together(2, func(worker int) error {
		for i := worker; i < p.live; i += 2 {
			if err := p.g.destroy(fmt.Sprintf("flat-%d", i)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// population is a store with many live volumes of one image.
type population struct {
	g     *gdn
	image string
	live  int
}

func (p *population) grow(t *testing.T, to int) {
	t.Helper()
	first := p.live
	if err := together(2, func(worker int) error {
		for i := first + worker; i < to; i += 2 {
			if _, err := p.g.create(fmt.Sprintf("flat-%d", i), rootfs{url: p.image, privileged: i%4 == 0}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p.live = to
}

// cost is how long the plugin runs for one container.
type cost struct{ create, remove time.Duration }

// measure makes and deletes some unprivileged containers, and returns the lower quartiles.
func (p *population) measure(t *testing.T) cost {
	t.Helper()
	const samples = 16
	var create, remove []time.Duration
	for range samples {
		made := p.g.call(p.g.unprivileged, "create", p.image, "measured")
		gone := p.g.call(p.g.unprivileged, "delete", "measured")
		if made.err != nil || gone.err != nil {
			t.Fatalf("create: %v, delete: %v", made.err, gone.err)
		}
		create, remove = append(create, made.took), append(remove, gone.took)
	}
	slices.Sort(create)
	slices.Sort(remove)
	return cost{create[samples/4], remove[samples/4]}
}

// wantCost measures until the cost is within bound, a few times: what else the machine does only ever adds.
func (p *population) wantCost(t *testing.T, base cost, bound float64) {
	t.Helper()
	within := func(now, base time.Duration) bool { return float64(now) <= bound*float64(base) }
	var now cost
	for range 5 {
		now = p.measure(t)
		if within(now.create, base.create) && within(now.remove, base.remove) && now.remove < 100*time.Millisecond {
			t.Logf("beside %d: create %s, delete %s; beside 10: %s, %s", p.live, now.create, now.remove, base.create, base.remove)
			return
		}
	}
	t.Errorf("beside %d volumes create takes %s and delete %s, beside 10 %s and %s: over %.1f times, or delete over 100ms",
		p.live, now.create, now.remove, base.create, base.remove, bound)
}

// wantCalls wants the same system calls as earlier, and keeps the first counts.
func (p *population) wantCalls(t *testing.T, earlier map[string]map[string]int) {
	t.Helper()
	listing := regexp.MustCompile(`getdents64\(\d+<` + regexp.QuoteMeta(p.g.store) + `/(volumes/live|layers|mnt|caches|images)>`)
	mountTable := regexp.MustCompile(`/mountinfo"|/mounts"|listmount\(|statmount\(`)
	for _, privileged := range []bool{false, true} {
		for _, args := range [][]string{{"create", p.image, "traced"}, {"delete", "traced"}} {
			name := slotName(privileged) + " " + args[0]
			lines, res := trace(t, p.g, p.g.slot(privileged), args...)
			if res.err != nil {
				t.Fatalf("%s: %v: %s", name, res.err, res.stdout)
			}
			for _, line := range withoutStart(lines) {
				if listing.MatchString(line) || mountTable.MatchString(line) {
					t.Errorf("%s looks at more than its own volume: %s", name, line)
				}
			}
			now := count(withoutStart(lines))
			if now["unlinkat"]+now["mkdirat"] == 0 {
				t.Fatalf("%s: the trace shows none of its work: %v", name, now)
			}
			before, ok := earlier[name]
			if !ok {
				earlier[name] = now
				t.Logf("%s: %v", name, now)
			} else if diff := differentCounts(before, now); diff != "" {
				t.Errorf("%s beside %d volumes makes other system calls than beside 10:\n%s", name, p.live, diff)
			}
		}
	}
}
