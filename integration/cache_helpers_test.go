package integration

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/imagespec"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// cacheAt is where the containers of these tests find their cache.
const cacheAt = "/var/cache/check"

// withCache is a rootfs URL that asks for one more cache. An image's URL has no query yet.
func withCache(image, key, at string, promote ...string) string {
	separator := "?"
	if strings.Contains(image, "?") {
		separator = "&"
	}
	image += separator + "cache=" + url.QueryEscape(key) + "&cache-path=" + url.QueryEscape(at)
	if len(promote) > 0 {
		image += "&cache-promote=" + promote[0]
	}
	return image
}

// cacheInfo is one element of what `cache list --json` prints.
type cacheInfo struct {
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"`
	Layers     int       `json:"layers"`
	Bytes      uint64    `json:"bytes"`
	Files      uint64    `json:"files"`
	LastUsed   time.Time `json:"last_used"`
	Users      int       `json:"users"`
}

// caches are all caches of the store, by key as far as the keys are given.
func (g *gdn) caches(keys ...string) map[string]cacheInfo {
	g.t.Helper()
	res := g.call(g.unprivileged, "cache", "list", "--json")
	if res.err != nil {
		g.t.Fatalf("cache list: %v: %s", res.err, res.stdout)
	}
	var list []cacheInfo
	if err := json.Unmarshal(res.stdout, &list); err != nil {
		g.t.Fatalf("cache list: %v: %s", err, res.stdout)
	}
	names := map[string]string{}
	for _, key := range keys {
		names[imagespec.CacheID(key)] = key
	}
	all := map[string]cacheInfo{}
	for _, info := range list {
		if key, ok := names[info.ID]; ok {
			all[key] = info
		} else {
			all[info.ID] = info
		}
	}
	return all
}

// checked is a container with a cache, and how long its create took.
type checked struct {
	spec   specs.Spec
	cache  string // the copy, as the host sees it
	create time.Duration
}

// mustCreate makes a container, and takes its first cache's path.
func (g *gdn) mustCreate(handle, image string, privileged bool) checked {
	g.t.Helper()
	start := time.Now()
	spec, err := g.create(handle, rootfs{url: image, privileged: privileged})
	if err != nil {
		g.t.Fatalf("create %s: %v", handle, err)
	}
	c := checked{spec: spec, create: time.Since(start)}
	if len(spec.Mounts) > 0 {
		c.cache = spec.Mounts[0].Source
	}
	return c
}

// end deletes a container and returns what the log says of its caches: a sentence each.
func (g *gdn) end(handle string) []string {
	g.t.Helper()
	sentences, _ := g.timedEnd(handle)
	return sentences
}

func (g *gdn) timedEnd(handle string) ([]string, time.Duration) {
	g.t.Helper()
	res := g.call(g.unprivileged, "delete", handle)
	if res.err != nil {
		g.t.Fatalf("delete %s: %v: %s", handle, res.err, res.stdout)
	}
	var sentences []string
	for line := range strings.Lines(string(res.stderr)) {
		var record struct {
			Data struct {
				Caches []string `json:"caches"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			g.t.Fatalf("delete %s: %v: %s", handle, err, line)
		}
		sentences = append(sentences, record.Data.Caches...)
	}
	return sentences, res.took
}

// wantEnd deletes a container with one cache and wants its log to say this of it.
func (g *gdn) wantEnd(handle, want string) string {
	g.t.Helper()
	got := g.end(handle)
	if len(got) != 1 || !strings.Contains(got[0], want) {
		g.t.Errorf("the end of %s: %q, want %q", handle, got, want)
	}
	return strings.Join(got, "; ")
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// noLayers wants an idle store whose caches are all dropped to hold nothing any more.
func noLayers(t testing.TB, g *gdn) {
	t.Helper()
	if left := layers(t, g.store); len(left) != 0 {
		t.Errorf("layers left: %q", left)
	}
	if left := namesIn(t, filepath.Join(g.store, "caches")); len(left) != 0 {
		t.Errorf("caches left: %q", left)
	}
}

// dropAll drops every cache.
func (g *gdn) dropAll() {
	g.t.Helper()
	for id := range g.caches() {
		if res := g.call(g.unprivileged, "cache", "drop", id); res.err != nil {
			g.t.Errorf("cache drop: %v: %s", res.err, res.stdout)
		}
	}
}
