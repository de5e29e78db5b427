package garden

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.cloudfoundry.org/garden"
)

// commit is what a container does to say that its cache is good.
const commit = "; > /cache/.bc-cache-commit"

func TestCache(t *testing.T) {
	s := newServer(t)
	// What the store keeps for all caches together is there once one was promoted and dropped.
	container := s.create(t, s.withCaches("warm-up", false, "warm-up", "/cache", "always"))
	run(t, container, `> /cache/x`)
	s.destroy(t, container.Handle())
	s.dropCaches(t)
	s.before = append(s.before, "caches.total")
	for _, test := range []func(*testing.T, *server){testCacheGenerations, testTwoCaches, testCacheOfTwoContainers} {
		test(t, s)
		s.dropCaches(t) // after which no layer may be left: check sees to that
	}
}

// A container finds in its cache what the last one that committed left there, whichever slot that one was made in, and all that
// was root's is its root's.
func testCacheGenerations(t *testing.T, s *server) {
	// The key has all that gdn's way with URLs could spoil: a cache is found again only by the very same bytes.
	const key = `{"uri":"git@host:a b/c#main","x":"100%25&é+?"}`
	const look = `cd /cache; ls -A; cat *; stat -c %u:%g . *; `
	for _, step := range []struct {
		name       string
		privileged bool
		promote    string
		script     string
		prints     string
		generation uint64 // afterwards
	}{
		{"begins empty", false, "", `ls -A /cache; stat -c %u:%g /cache; echo one > /cache/a` + commit, "0:0\n", 1},
		{"privileged finds it", true, "", look + `echo two > b` + commit, "a\none\n0:0\n0:0\n", 2},
		{"unprivileged finds both", false, "", look + `rm a; echo more >> b; > c; chown 1000 c` + commit, "a\nb\none\ntwo\n0:0\n0:0\n0:0\n", 3},
		{"removed is removed", true, "", look + `rm c` + commit, "b\nc\ntwo\nmore\n0:0\n0:0\n1000:0\n", 4},
		{"not committed", false, "", look + `echo bad > b; > c`, "b\ntwo\nmore\n0:0\n0:0\n", 4},
		{"never", true, "never", look + `echo bad > b; > c` + commit, "b\ntwo\nmore\n0:0\n0:0\n", 4},
		{"always", false, "always", look + `> c`, "b\ntwo\nmore\n0:0\n0:0\n", 5},
		{"always, with a marker", true, "always", look + `> d` + commit, "b\nc\ntwo\nmore\n0:0\n0:0\n0:0\n", 6},
		{"said in full", false, "on-commit", look + `> e`, "b\nc\nd\ntwo\nmore\n0:0\n0:0\n0:0\n0:0\n", 6},
	} {
		container := s.create(t, s.withCaches("generations", step.privileged, key, "/cache", step.promote))
		if got := run(t, container, step.script); got != step.prints {
			t.Errorf("%s: the container prints %q, want %q", step.name, got, step.prints)
		}
		checkCacheMount(t, container, "/cache")
		if list := s.caches(t); step.generation > 1 && list[cacheID(key)].Users != 1 {
			t.Errorf("%s: of a cache that one container uses the list says %+v", step.name, list)
		}
		s.destroy(t, container.Handle())
		s.checkCaches(t, step.name, map[string]uint64{key: step.generation})
	}
}

// Each cache of a container is kept or dropped for itself, and where it is mounted is no part of it.
func testTwoCaches(t *testing.T, s *server) {
	container := s.create(t, s.withCaches("two", true, "one", "/cache", "", "two", "/var/a blank", ""))
	checkCacheMount(t, container, "/cache")
	checkCacheMount(t, container, `/var/a\040blank`)
	run(t, container, `echo 1 > /cache/n; echo 2 > "/var/a blank/n"`+commit)
	s.destroy(t, container.Handle())
	s.checkCaches(t, "one committed", map[string]uint64{"one": 1})

	container = s.create(t, s.withCaches("two", false, "two", "/cache", "always", "one", "/one", "never"))
	if got := run(t, container, `ls -A /cache; cat /one/n; echo 2 > /cache/n`); got != "1\n" {
		t.Errorf("with its caches swapped a container prints %q", got)
	}
	s.destroy(t, container.Handle())
	s.checkCaches(t, "swapped", map[string]uint64{"one": 1, "two": 1})
}

// Containers of one key that live at the same time do not see each other, and one of them makes the next generation: also where
// gdn ends both in parallel.
func testCacheOfTwoContainers(t *testing.T, s *server) {
	failures := make(chan error)
	var handles []string
	for _, slot := range createdIn {
		container := s.create(t, s.withCaches(slot.name, slot.privileged, "shared", "/cache", ""))
		if got := run(t, container, `ls -A /cache; echo `+slot.name+` > /cache/`+slot.name+commit); got != "" {
			t.Errorf("the %s container sees %q", slot.name, got)
		}
		handles = append(handles, container.Handle())
	}
	for _, handle := range handles {
		go func() { failures <- s.Destroy(handle) }()
	}
	for range handles {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
	// One layer with one file: not a mix of both.
	s.checkCaches(t, "both destroyed", map[string]uint64{"shared": 1})
}

// withCaches describes a container with caches, each of which is a key, a path and when to promote it.
func (s *server) withCaches(name string, privileged bool, caches ...string) garden.ContainerSpec {
	var query []string
	for cache := range slices.Chunk(caches, 3) {
		query = append(query, "cache="+url.QueryEscape(cache[0]), "cache-path="+url.QueryEscape(cache[1]))
		if cache[2] != "" {
			query = append(query, "cache-promote="+cache[2])
		}
	}
	return garden.ContainerSpec{Handle: s.handle(name), Privileged: privileged, Image: garden.ImageRef{URI: "file://" + s.image + "?" + strings.Join(query, "&")}}
}

// cacheID is written out, not taken from the plugin's packages: operators compute it too.
func cacheID(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

type cacheInfo struct {
	ID                                      string
	Generation, Layers, Bytes, Files, Users uint64
	LastUsed                                time.Time `json:"last_used"`
}

// caches is what `cache list` says, by ID.
func (s *server) caches(t testing.TB) map[string]cacheInfo {
	t.Helper()
	var list []cacheInfo
	output, err := exec.Command(s.tools.plugin, "--store="+s.store, "cache", "list", "--json").Output()
	if err != nil || json.Unmarshal(output, &list) != nil {
		t.Fatalf("cache list: %v: %s", err, output)
	}
	caches := map[string]cacheInfo{}
	for _, cache := range list {
		caches[cache.ID] = cache
	}
	return caches
}

func (s *server) dropCaches(t testing.TB) {
	t.Helper()
	for id := range s.caches(t) {
		if output, err := exec.Command(s.tools.plugin, "--store="+s.store, "cache", "drop", id).Output(); err != nil {
			t.Errorf("drop cache %s: %v: %s", id, err, output)
		}
	}
}

// checkCaches asks, with all containers destroyed, whether the store has these generations, and beside what it had before only
// what they need.
func (s *server) checkCaches(t testing.TB, when string, generations map[string]uint64) {
	t.Helper()
	list, layers, want := s.caches(t), uint64(0), slices.Clone(s.before)
	for key, generation := range generations {
		cache := list[cacheID(key)]
		first := generation == 1 && cache.Layers == 1 && cache.Files == 1 // which is what the tests here put into a first one
		later := generation > 1 && cache.Layers > 1 && cache.Layers <= 8 && cache.Files > 1
		if cache.Generation != generation || !first && !later || cache.Bytes == 0 || cache.Users != 0 || time.Since(cache.LastUsed).Abs() > time.Minute {
			t.Errorf("%s: want generation %d of the cache %q, the list says %+v", when, generation, key, cache)
		}
		layers += cache.Layers
		want = append(want, "caches/"+cache.ID, "caches/"+cache.ID+"/current")
	}
	if len(list) != len(generations) {
		t.Errorf("%s: %d caches, want %d", when, len(list), len(generations))
	}
	for _, path := range s.tree(t) {
		// Package volumes calls a layer of a cache ID-N, and a living container's own ID.
		layer, below, _ := strings.Cut(strings.TrimPrefix(path, "layers/"), "/")
		switch ofCache := strings.HasPrefix(path, "layers/") && strings.Contains(layer, "-"); {
		case ofCache && below == "":
			layers--
		case !ofCache && !slices.Contains(want, path), filepath.Base(path) == ".bc-cache-commit":
			t.Errorf("%s: left in the store: %q", when, path)
		}
	}
	if layers != 0 {
		t.Errorf("%s: %d layers are missing from the store", when, int64(layers))
	}
	s.checkMounts(t)
}

// checkCacheMount looks at the container's own mount table, as runc made it of what gdn made of our answer: a cache must give the
// next container neither another user's rights nor a device.
func checkCacheMount(t testing.TB, container garden.Container, point string) {
	t.Helper()
	if table := run(t, container, `cat /proc/self/mountinfo`); !strings.Contains(table, " "+point+" rw,nosuid,nodev") {
		t.Errorf("%s is not mounted rw,nosuid,nodev:\n%s", point, table)
	}
}
