package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// moby/moby#20851, opencontainers/runc#2255, containerd/containerd#5113, systemd/systemd#16728, #8703: mounts make everything slow
// for everybody. concourse/concourse#1297, #2833, #4465, #3495: a delete looks at all volumes, falls behind, and the backlog feeds
// itself. So: beside 1,000 live volumes a create and a delete make the same system calls as beside 10, list no volumes, read no
// mount table, and take about the same time.
func TestCase33And75FlatCost(t *testing.T) {
	volumes := busybox(t)
	requireTool(t, "unshare", "nsenter")
	image := volumes.url("busybox")
	// In memory: what a disk's file system spends on a directory depends on where it puts it.
	stores := tmpFS(t, "size=512m")

	// The few have a mount namespace of their own, in which there are never more mounts than theirs.
	away := exec.Command("unshare", "-m", "--propagation", "private", "/bin/sh", "-euc", "echo ready; read -r line")
	background(t, away)
	few := &population{g: newGdn(t, filepath.Join(stores, "few"), string(volumes)).under(enterMounts(away.Process.Pid)...), image: image}
	few.timed = few.g
	few.grow(t, 10)

	many := &population{g: newGdn(t, filepath.Join(stores, "many"), string(volumes)), image: image}
	many.timed = many.g.under(enterMounts(os.Getpid())...) // the same way, for a fair comparison
	warm(t, many.g, image)
	idle := mountCount(t, many.g.store)

	calls := map[string]map[string]int{}
	for _, step := range []struct {
		live  int
		bound float64 // of the time, in times that beside 10
	}{{10, 1.2}, {100, 1.2}, {500, 1.2}, {1000, 1.5}} {
		many.grow(t, step.live)
		if mounts := mountCount(t, many.g.store); mounts != idle+step.live {
			t.Fatalf("%d mounts for %d containers, want one each besides the %d of an idle store", mounts, step.live, idle)
		}
		wantCost(t, few, many, step.bound)
		if step.live == 10 || step.live == 1000 {
			many.wantCalls(t, calls)
		}
	}
	if err := together(2, func(worker int) error {
		for i := worker; i < many.live; i += 2 {
			if err := many.g.destroy(fmt.Sprintf("flat-%d", i)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// enterMounts is the command that runs another in a process's mount namespace.
func enterMounts(pid int) []string {
	return []string{"nsenter", "--target", fmt.Sprint(pid), "--mount", "--"}
}

// population is a store with many live volumes of one image.
type population struct {
	g     *gdn
	timed *gdn // the same server, as it is to be called for a measurement
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

// cost is what the plugin took for a container, in processor time: what waits for a processor, or for the other one to wake up, does
// not cost more for it, and the machine does other things.
type cost struct{ create, remove []time.Duration }

// add makes and deletes one unprivileged container.
func (c *cost) add(t *testing.T, p *population) {
	t.Helper()
	made := p.timed.call(p.timed.unprivileged, "create", p.image, "measured")
	gone := p.timed.call(p.timed.unprivileged, "delete", "measured")
	if made.err != nil || gone.err != nil {
		t.Fatalf("create: %v: %s, delete: %v: %s", made.err, made.stdout, gone.err, gone.stdout)
	}
	c.create, c.remove = append(c.create, made.cpu), append(c.remove, gone.cpu)
}

// wantCost measures two populations in turn, so that what else the machine does meets both, and more often before it believes
// that a cost is out of bound.
func wantCost(t *testing.T, few, many *population, bound float64) {
	t.Helper()
	const samples, tries = 16, 5
	var base, now cost
	text := ""
	for range tries {
		for range samples {
			base.add(t, few)
			now.add(t, many)
		}
		create, remove, createBase, removeBase := median(now.create), median(now.remove), median(base.create), median(base.remove)
		text = fmt.Sprintf("beside %d: create %s, delete %s; beside %d: %s, %s", many.live, create, remove, few.live, createBase, removeBase)
		if float64(create) <= bound*float64(createBase) && float64(remove) <= bound*float64(removeBase) && remove < 100*time.Millisecond {
			t.Log(text)
			return
		}
	}
	t.Errorf("over %.1f times, or delete over 100ms: %s", bound, text)
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
