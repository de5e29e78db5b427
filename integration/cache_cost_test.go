package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// A create with a cache of 100,000 files makes the same system calls as with one of 10, and so does the delete that promotes a small change.
// (That the number of generations does not matter either is tested in cachecopy.)
func TestCacheCostIsFlat(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, filepath.Join(tmpFS(t, "size=512m"), "store"), string(volumes)) // 100,000 files, made and removed quickly
	warm(t, g, volumes.url("busybox"))
	var createBefore, deleteBefore map[string]int
	for _, files := range []int{10, 100_000} {
		url := withCache(volumes.url("busybox"), fmt.Sprint(files), cacheAt, "always")
		c := g.mustCreate("fills", url, false)
		for i := range files {
			dir := filepath.Join(c.cache, fmt.Sprint(i/1000))
			if i%1000 == 0 {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			writeFile(t, filepath.Join(dir, fmt.Sprint(i)), "")
		}
		g.wantEnd("fills", "promoted: generation 1")
		if info := g.caches(fmt.Sprint(files))[fmt.Sprint(files)]; info.Files < uint64(files) {
			t.Fatalf("the cache is %+v", info)
		}

		for _, privileged := range []bool{false, true} {
			handle := "small-change"
			lines, res := trace(t, g, g.slot(privileged), "create", url, handle)
			if res.err != nil {
				t.Fatalf("create: %v: %s", res.err, res.stdout)
			}
			created := count(withoutStart(lines))
			copies, err := filepath.Glob(filepath.Join(g.store, "mnt/*/cache-0"))
			if err != nil || len(copies) != 1 {
				t.Fatalf("%q, %v", copies, err)
			}
			writeFile(t, filepath.Join(copies[0], "changed"), "a little")
			lines, res = trace(t, g, g.slot(privileged), "delete", handle)
			if res.err != nil {
				t.Fatalf("delete: %v: %s", res.err, res.stdout)
			}
			deleted := count(withoutStart(lines))
			if privileged {
				continue // the second slot has another layer below it: only the first is compared
			}
			if files == 10 {
				t.Logf("create: %v", created)
				t.Logf("delete: %v", deleted)
				createBefore, deleteBefore = maps.Clone(created), maps.Clone(deleted)
				continue
			}
			if diff := differentCounts(createBefore, created); diff != "" {
				t.Errorf("create with %d files in the cache makes other system calls than with 10:\n%s", files, diff)
			}
			if diff := differentCounts(deleteBefore, deleted); diff != "" {
				t.Errorf("delete with a small change of %d files makes other system calls than of 10:\n%s", files, diff)
			}
		}
	}
}
