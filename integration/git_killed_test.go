package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/integration/bundle"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// running is a container that was started and not waited for.
type running struct {
	t     *testing.T
	runc  []string
	id    string
	out   *os.File
	ended chan error
}

// startContainer is inContainer for a shell script, without the waiting.
func startContainer(t *testing.T, spec specs.Spec, privileged bool, script string, mounts ...specs.Mount) *running {
	t.Helper()
	requireTool(t, "runc")
	config, err := bundle.Config(spec, bundle.Container{
		Privileged: privileged, Argv: []string{"/bin/sh", "-eu", "-c", script}, Mounts: mounts, MaxID: guardianRoot,
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := newDir(t)
	writeFile(t, filepath.Join(dir, "config.json"), string(text))
	r := &running{
		t: t, runc: []string{"--root", filepath.Join(dir, "state")}, ended: make(chan error, 1),
		id: fmt.Sprintf("bcip-%d-%d", os.Getpid(), containers.Add(1)),
	}
	if r.out, err = os.Create(filepath.Join(dir, "output")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("runc", append(r.runc, "run", "--bundle", dir, r.id)...)
	cmd.Stdout, cmd.Stderr = r.out, r.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		exec.Command("runc", append(r.runc, "delete", "--force", r.id)...).Run()
		r.out.Close()
	})
	return r
}

// kill ends all of the container's processes at once, as a worker does at a check's time limit.
func (r *running) kill() {
	r.t.Helper()
	command(r.t, "runc", append(r.runc, "kill", r.id, "KILL")...)
	if err := <-r.ended; err == nil {
		r.t.Error("a killed container ended well")
	}
}

// waitFor waits until something is true, and fails the test with the container's output if that takes too long.
func (r *running) waitFor(what string, is func() bool) {
	r.t.Helper()
	for range 3000 {
		if is() {
			return
		}
		select {
		case err := <-r.ended:
			out, _ := os.ReadFile(r.out.Name())
			r.t.Fatalf("waiting for %s: the container ended: %v\n%s", what, err, out)
		case <-time.After(10 * time.Millisecond):
		}
	}
	out, _ := os.ReadFile(r.out.Name())
	r.t.Fatalf("waiting for %s: timed out\n%s", what, out)
}

// actions/checkout#2117, cockpit-project/cockpit#15900, openclaw/gitcrawl#128, concourse/git-resource#133 (checks killed with 137): what a killed
// check leaves, a lock of git's and half a pack, breaks every later check until somebody clears the cache. Here the next check gets the last
// generation that a check committed.
func TestCase64KilledCheck(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		t.Run(slotName(privileged), func(t *testing.T) {
			image := requireGit(t)
			g := newGdn(t, newStore(t), "")
			url := withCache(image, "killed", cacheAt)
			up := newUpstream(t)
			runGitCheck(t, g, up, url, "clones", privileged)
			committed := g.caches("killed")["killed"]

			// 20 MiB are to be fetched; after some of them nothing more comes, and the container is killed.
			up.commit(20 << 10)
			c := g.mustCreate("is-killed", url, privileged)
			// A lock of git's as a killed reset leaves it. So small a number of objects would be unpacked in memory, and not come to the disk as a pack.
			script := ": > " + cacheAt + "/repository/.git/index.lock\n" +
				gitCheck(t, "STALL_AFTER=8000000", "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=fetch.unpackLimit GIT_CONFIG_VALUE_0=1")
			r := startContainer(t, c.spec, privileged, script, up.mount(privileged))
			packs := filepath.Join(c.cache, "repository/.git/objects/pack/tmp_pack_*")
			r.waitFor("a part of a pack", func() bool {
				found, err := filepath.Glob(packs)
				if err != nil || len(found) == 0 {
					return false
				}
				info, err := os.Stat(found[0])
				return err == nil && info.Size() > 1<<20
			})
			r.kill()
			g.wantEnd("is-killed", "dropped: not committed")
			clean(t, g, "is-killed")
			if now := g.caches("killed")["killed"]; now.Generation != committed.Generation || now.Bytes != committed.Bytes {
				t.Errorf("the cache is %+v, was %+v", now, committed)
			}

			want := up.commit(16)
			got := runGitCheck(t, g, up, url, "comes-after", privileged)
			if got.head != want || got.received < 20<<20 {
				t.Errorf("the next check: %+v, want commit %s and all that was not fetched", got, want)
			}
			verifyRepository(t, g, url, privileged)

			// Should a check commit what is broken, a person can drop the cache by its ID.
			g.dropAll()
			if len(g.caches()) != 0 {
				t.Error("a dropped cache is still listed")
			}
			c = g.mustCreate("after-the-drop", url, privileged)
			if names := namesIn(t, c.cache); len(names) != 0 {
				t.Errorf("after a drop the cache holds %q", names)
			}
			g.wantEnd("after-the-drop", "not committed")
			noLayers(t, g)
		})
	}
}

// concourse/concourse#366: a check leaves hooks and settings in its cache that run as the next check. That is so by design, and documented: a cache is
// as trusted as its key. What must not be: that they get to a cache of another key, or that a setuid program of the cache gives anything.
func TestCase67HooksStayWithTheirKey(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		t.Run(slotName(privileged), func(t *testing.T) {
			image := requireGit(t)
			g := newGdn(t, newStore(t), "")
			hostile, other := withCache(image, "pull-request", cacheAt), withCache(image, "main", cacheAt)
			c := g.mustCreate("leaves-a-hook", hostile, privileged)
			mustRun(t, c.spec, privileged, `
				cd `+cacheAt+`
				git init -q -b main repository
				printf '#!/bin/sh\necho hooked as $(id -u) > `+cacheAt+`/hooked\n' > repository/.git/hooks/post-checkout
				chmod 755 repository/.git/hooks/post-checkout
				git -C repository -c user.name=x -c user.email=x commit -q --allow-empty -m one
				cp /usr/bin/id id
				chmod 6755 id
				: > .bc-cache-commit`)
			g.wantEnd("leaves-a-hook", "promoted: generation 1")

			c = g.mustCreate("runs-the-hook", hostile, privileged)
			out := mustRun(t, c.spec, privileged, `
				cd `+cacheAt+`
				git -C repository checkout -q -b other
				cat hooked
				stat -c 'the program is %u:%g %a' id
				cp /usr/bin/setpriv /tmp/
				echo "as somebody else: $(/tmp/setpriv --reuid 1000 --regid 1000 --clear-groups ./id -u):$(/tmp/setpriv --reuid 1000 --regid 1000 --clear-groups ./id -g)"`)
			for _, want := range []string{"hooked as 0", "the program is 0:0 6755", "as somebody else: 1000:1000"} {
				if !strings.Contains(out, want) {
					t.Errorf("not in the output: %q\n%s", want, out)
				}
			}
			g.wantEnd("runs-the-hook", "not committed")

			c = g.mustCreate("is-another-key", other, privileged)
			if names := namesIn(t, c.cache); len(names) != 0 {
				t.Errorf("a cache of another key holds %q", names)
			}
			g.wantEnd("is-another-key", "not committed")
		})
	}
}
