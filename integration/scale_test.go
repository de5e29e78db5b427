package integration

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"golang.org/x/sys/unix"
)

// moby/moby#20851, opencontainers/runc#2255, containerd/containerd#5113, systemd/systemd#16728, #8703: mounts make everything slow
// for everybody. concourse/concourse#1297, #2833, #4465, #3495: a delete looks at all volumes, falls behind, and the backlog feeds
// itself. So: beside 1,000 live volumes a create and a delete make the same system calls as beside 10, list no volumes, read no
// mount table. What that costs is shown by `make bench`.
func TestCase33And75FlatCost(t *testing.T) {
	volumes := busybox(t)
	image := volumes.url("busybox")
	many := &population{g: newGdn(t, newStore(t), string(volumes)), image: image}
	warm(t, many.g, image)
	idle := mountCount(t, many.g.store)

	calls := map[string]map[string]int{}
	for _, live := range []int{10, 1000} {
		many.grow(t, live)
		if mounts := mountCount(t, many.g.store); mounts != idle+live {
			t.Fatalf("%d mounts for %d containers, want one each besides the %d of an idle store", mounts, live, idle)
		}
		many.wantCalls(t, calls)
	}
	many.end(t)
}

// The same on a BaggageClaim server: beside 150 live volumes the plugin lists none, and what the server does with files for one container is the same as beside 10.
func TestCase33And75OnAServer(t *testing.T) {
	images := busybox(t)
	requireTool(t, "strace")
	s := startServer(t, bctest.Options{Driver: "overlay"})
	many := &population{g: newGdn(t, newStore(t), string(images), "--baggageclaim-url", s.URL), image: images.url("busybox")}
	warm(t, many.g, many.image)
	listing := regexp.MustCompile(`getdents64\(\d+<[^>]*/(volumes/live|layers|mnt|caches|images|overlays)>|/mountinfo"|/mounts"`)
	var before map[string]int
	for _, live := range []int{10, 150} {
		many.grow(t, live)
		served := traceProcess(t, s.Pid(), func() {
			for _, args := range [][]string{{"create", many.image, "traced"}, {"delete", "traced"}} {
				lines, res := trace(t, many.g, many.g.unprivileged, args...)
				if res.err != nil {
					t.Errorf("%q: %v: %s", args, res.err, res.stdout)
				}
				for _, line := range withoutStart(lines) {
					if listing.MatchString(line) {
						t.Errorf("%s looks at more than its own volume: %s", args[0], line)
					}
				}
			}
		})
		for _, line := range served {
			if listing.MatchString(line) {
				t.Errorf("the server looks at more than one volume: %s", line)
			}
		}
		now := count(served)
		if now["mkdirat"]+now["unlinkat"] == 0 {
			t.Fatalf("the trace of the server shows none of its work: %v", now)
		}
		if before == nil {
			before = now
		} else if diff := differentCounts(before, now); diff != "" {
			t.Errorf("beside %d volumes the server makes other system calls than beside 10:\n%s", live, diff)
		}
	}
	t.Logf("the server's calls for one container: %v", before)
	many.end(t)
}

// traceProcess returns the system calls with paths that a process makes while f runs.
func traceProcess(t *testing.T, pid int, f func()) []string {
	t.Helper()
	log := filepath.Join(newDir(t), "calls")
	cmd := exec.Command("strace", "-f", "-y", "-o", log, "-e", "trace=%file,getdents64", "-p", fmt.Sprint(pid))
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(stderr)
	if line, err := said.ReadString('\n'); err != nil || !strings.Contains(line, "attached") {
		t.Fatalf("strace: %q, %v", line, err)
	}
	f()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, said); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // of the signal
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

// population is a store with many live volumes of one image.
type population struct {
	g     *gdn
	image string
	live  int
}

func (p *population) end(t *testing.T) {
	t.Helper()
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

// The directory of mount points may be a mount of its own, which keeps the mounts of thousands of containers off the one that layers are cloned from.
func TestMountPointsOnAMountOfTheirOwn(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	url := volumes.url("busybox") + "?cache=key&cache-path=/cache&cache-promote=always"
	warm(t, g, volumes.url("busybox"))
	points := filepath.Join(g.store, "mnt")
	if err := unix.Mount(points, points, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	for _, privileged := range []bool{false, true, false} {
		spec, err := g.create("h", rootfs{url: url, privileged: privileged})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(spec.Mounts[0].Source, "file"), []byte("x"), 0o644); err != nil {
			t.Error(err)
		}
		if lines := g.gc(); len(lines) > 0 {
			t.Errorf("gc beside a live container: %q", lines)
		}
		if err := g.destroy("h"); err != nil {
			t.Error(err)
		}
		clean(t, g, "h")
	}
	if lines := g.gc(); len(lines) > 0 || mountCount(t, g.store) != 1 {
		t.Errorf("gc has %q, %d mounts are left, and one is ours", lines, mountCount(t, g.store))
	}
	g.sound()
}
