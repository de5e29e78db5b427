package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// This is what check caches are for, with real git in real containers. concourse/concourse#2923 (4 GB per hour and pipeline), #2988, #3030,
// #3079: fresh containers that clone again and again (field case 68). Check 1 clones 200 MB; before each of checks 2 … 20 upstream gains a commit,
// and a fresh container on a fresh copy of the cache fetches it.
func TestCase68Git(t *testing.T) {
	for _, mode := range []struct {
		name       string
		privileged func(check int) bool
	}{
		{"unprivileged", func(int) bool { return false }},
		{"privileged", func(int) bool { return true }},
		{"alternating", func(check int) bool { return check%2 == 0 }},
	} {
		t.Run(mode.name, func(t *testing.T) {
			image := requireGit(t)
			g := newGdn(t, newStore(t), "")
			url := withCache(image, "team\x00secret-token", cacheAt)
			up := newUpstream(t)
			before := warm(t, g, image)

			t.Log("check        received   create     check    delete  layers  disk of the store")
			var first int64
			for check := 1; check <= 20; check++ {
				want := up.commit(16)
				r := runGitCheck(t, g, up, url, fmt.Sprintf("git-check-%d", check), mode.privileged(check))
				if r.head != want {
					t.Errorf("check %d sees commit %s, want %s", check, r.head, want)
				}
				info := g.caches()
				if len(info) != 1 {
					t.Fatalf("check %d: %d caches, want 1", check, len(info))
				}
				for _, i := range info {
					if int(i.Generation) != check || i.Layers > 8 || i.Users != 0 {
						t.Errorf("after check %d: %+v", check, i)
					}
					t.Logf("%5d %15d %5d ms %6d ms %6d ms %7d %8.1f MiB", check, r.received, r.create.Milliseconds(), r.check.Milliseconds(),
						r.remove.Milliseconds(), i.Layers, float64(diskBytes(t, g.store))/(1<<20))
				}
				if check == 1 {
					first = r.received
					if first < 200e6 {
						t.Fatalf("check 1 received %d bytes, and was to clone 200 MB", first)
					}
				} else if r.received <= 16<<10 || r.received >= first/100 {
					t.Errorf("check %d received %d bytes, want more than the 16 KiB that are new and less than 1%% of check 1's %d", check, r.received, first)
				}
			}
			verifyRepository(t, g, url, mode.privileged(20))
			g.dropAll()
			same(t, "the store after all", without(before, "caches.total"), without(storeTree(t, g.store), "caches.total"))
		})
	}
}

// gitRun is one check: what it got, and what it took.
type gitRun struct {
	checkResult
	create, check, remove time.Duration
}

// runGitCheck runs one check that has to succeed, and to become the next generation.
func runGitCheck(t *testing.T, g *gdn, up *upstream, url, handle string, privileged bool) gitRun {
	t.Helper()
	c := g.mustCreate(handle, url, privileged)
	start := time.Now()
	out, err := inContainer(t, c.spec, privileged, []specs.Mount{up.mount(privileged)}, "/bin/sh", "-eu", "-c", gitCheck(t))
	took := time.Since(start)
	if err != nil {
		t.Fatalf("%s: %v\n%s", handle, err, out)
	}
	if strings.Contains(out, "dubious") || strings.Contains(out, "warning") {
		t.Errorf("%s: git complains:\n%s", handle, out)
	}
	r, err := parseCheck(out)
	if err != nil {
		t.Fatalf("%s: %v\n%s", handle, err, out)
	}
	ends, remove := g.timedEnd(handle)
	if len(ends) != 1 || !strings.Contains(ends[0], "promoted: generation") {
		t.Errorf("%s: %q, want it promoted", handle, ends)
	}
	clean(t, g, handle)
	return gitRun{r, c.create, took, remove}
}

// verifyRepository has git look at every object that the cache holds.
func verifyRepository(t *testing.T, g *gdn, url string, privileged bool) {
	t.Helper()
	const handle = "git-fsck"
	c := g.mustCreate(handle, url, privileged)
	out := mustRun(t, c.spec, privileged, "git -C "+cacheAt+"/repository fsck --full --strict --no-dangling; test ! -e "+cacheAt+"/.bc-cache-commit")
	for _, word := range []string{"missing", "corrupt", "error", "dubious", "broken"} {
		if strings.Contains(out, word) {
			t.Errorf("git fsck:\n%s", out)
			break
		}
	}
	g.wantEnd(handle, "dropped: not committed")
}

// without is a tree less some names.
func without(t tree, names ...string) tree {
	less := tree{}
	for name, n := range t {
		less[name] = n
	}
	for _, name := range names {
		delete(less, name)
	}
	return less
}
