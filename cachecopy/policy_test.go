package cachecopy_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func TestPromotion(t *testing.T) {
	tests := []struct {
		name   string
		policy cachecopy.Promote
		leave  func(t *testing.T, dir string)
		commit bool   // by Commit
		reason string // "": it is promoted
	}{
		{"marker", "", func(t *testing.T, dir string) { commit(t, dir) }, false, ""},
		{"no marker", "", func(*testing.T, string) {}, false, "not committed"},
		{"on-commit, no marker", cachecopy.OnCommit, func(*testing.T, string) {}, false, "not committed"},
		{"marker with contents", cachecopy.OnCommit, func(t *testing.T, dir string) {
			write(t, dir+"/"+cachecopy.Marker, strings.Repeat("x", 1<<20))
		}, false, ""},
		{"by Commit", cachecopy.OnCommit, func(*testing.T, string) {}, true, ""},
		{"always", cachecopy.Always, func(*testing.T, string) {}, false, ""},
		{"always with a marker", cachecopy.Always, func(t *testing.T, dir string) { commit(t, dir) }, false, ""},
		{"never", cachecopy.Never, func(t *testing.T, dir string) { commit(t, dir) }, true, "it is never promoted"},
		{"marker is a directory", cachecopy.OnCommit, func(t *testing.T, dir string) {
			write(t, dir+"/"+cachecopy.Marker+"/a/b/c", "not empty")
		}, false, "no regular file"},
		{"marker is a directory, committed", cachecopy.OnCommit, func(t *testing.T, dir string) {
			write(t, dir+"/"+cachecopy.Marker+"/a/b/c", "not empty")
		}, true, ""},
		{"marker is a symlink to a file", cachecopy.OnCommit, func(t *testing.T, dir string) {
			check(t, os.Symlink("/etc/passwd", dir+"/"+cachecopy.Marker))
		}, false, "no regular file"},
		{"marker is a FIFO", cachecopy.OnCommit, func(t *testing.T, dir string) {
			check(t, unix.Mkfifo(dir+"/"+cachecopy.Marker, 0o644))
		}, false, "no regular file"},
		{"marker is a device, always", cachecopy.Always, func(t *testing.T, dir string) {
			check(t, unix.Mknod(dir+"/"+cachecopy.Marker, unix.S_IFCHR, int(unix.Mkdev(1, 5))))
		}, false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.generation("k", func(dir string) { write(t, dir+"/file", "old") })

			dir := f.open("h", "k", privileged, test.policy)
			write(t, dir+"/file", "new")
			test.leave(t, dir)
			if test.commit {
				if n, err := f.Commit(t.Context(), handle("h")); n != 1 || err != nil {
					t.Fatalf("Commit = %d, %v; want 1, nil", n, err)
				}
			}
			e := f.end("h")
			want, generation := "new", uint64(2)
			if test.reason != "" {
				want, generation = "old", 0
			}
			if e.Promoted != (test.reason == "") || !strings.Contains(e.Reason, test.reason) || e.Generation != generation {
				t.Errorf("it ended as %+v, want reason %q", e, test.reason)
			}
			if got := f.read("k", "file"); got != want {
				t.Errorf("the next copy has %q, want %q", got, want)
			}
			if names := f.names("k"); !slices.Equal(names, []string{"file"}) {
				t.Errorf("the next copy holds %q", names)
			}
			if w := f.warned(); len(w) > 0 {
				t.Errorf("warnings: %q", w)
			}
		})
	}
}

func TestUnknownKeyBeginsEmpty(t *testing.T) {
	f := newFixture(t, nil)
	for name, req := range map[string]volumes.Request{"privileged": privileged, "unprivileged": {}} {
		dir := f.open("h", "nobody made "+name, req, cachecopy.Always)
		got := describe(t, dir, id(req.Privileged))
		if len(got) != 1 || !strings.HasPrefix(got["."], "mode 40755 owner 0:0") {
			t.Errorf("%s: %q", name, got)
		}
		if e := f.end("h"); e.Promoted || e.Reason != "unchanged" {
			t.Errorf("%s: it ended as %+v, want unchanged", name, e)
		}
	}
	if list, err := f.List(t.Context()); len(list) > 0 || err != nil {
		t.Errorf("List = %v, %v; want none", list, err)
	}
}

func TestUnchangedIsNoGeneration(t *testing.T) {
	tests := []struct {
		name    string
		change  func(t *testing.T, dir string)
		changed bool
	}{
		{"nothing", func(*testing.T, string) {}, false},
		{"only the marker", func(t *testing.T, dir string) { commit(t, dir) }, false},
		{"only read", func(t *testing.T, dir string) { describe(t, dir, inspect.Keep) }, false},
		{"file made and removed", func(t *testing.T, dir string) { write(t, dir+"/x", ""); check(t, os.Remove(dir+"/x")) }, false},
		{"mode of the top", func(t *testing.T, dir string) { check(t, os.Chmod(dir, 0o700)) }, true},
		{"owner of the top", func(t *testing.T, dir string) { check(t, os.Chown(dir, 7, 8)) }, true},
		{"attribute of the top", func(t *testing.T, dir string) { check(t, unix.Setxattr(dir, "user.a", []byte("b"), 0)) }, true},
		{"file removed", func(t *testing.T, dir string) { check(t, os.Remove(dir+"/file")) }, true},
		{"empty file", func(t *testing.T, dir string) { write(t, dir+"/empty", "") }, true},
		{"mode of a file", func(t *testing.T, dir string) { check(t, os.Chmod(dir+"/file", 0o600)) }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.generation("k", func(dir string) { write(t, dir+"/file", "old") })
			dir := f.open("h", "k", privileged, cachecopy.Always)
			test.change(t, dir)
			want := describe(t, dir, inspect.Keep)
			delete(want, cachecopy.Marker)
			if e := f.end("h"); e.Promoted != test.changed {
				t.Errorf("it ended as %+v, want promoted %v", e, test.changed)
			}
			dir = f.open("next", "k", privileged, cachecopy.Never)
			inspect.Same(t, describe(t, dir, inspect.Keep), want)
		})
	}
}

// Case 63: two checks work on one cache.
func TestCase63SecondToCommitIsDropped(t *testing.T) {
	f := newFixture(t, nil)
	for generation := range uint64(3) { // also where there is none yet
		a, b := f.open("a", "k", privileged, ""), f.open("b", "k", volumes.Request{}, "")
		write(t, a+"/a", "")
		write(t, b+"/b", string(rune('0'+generation)))
		commit(t, a)
		commit(t, b)
		if e := f.promote("b"); e.Generation != generation+1 {
			t.Errorf("the first ended as %+v", e)
		}
		if e := f.end("a"); e.Promoted || !strings.HasPrefix(e.Reason, "overtaken") {
			t.Errorf("the second ended as %+v", e)
		}
		f.verify()
		if names := f.names("k"); !slices.Equal(names, []string{"b"}) {
			t.Errorf("the next copy holds %q", names)
		}
	}
}

func TestTwoCachesOfOneContainer(t *testing.T) {
	f := newFixture(t, nil)
	v, err := f.Create(t.Context(), handle("h"), privileged,
		cachecopy.Cache{Key: "a"}, cachecopy.Cache{Key: "b", Promote: cachecopy.Always}, cachecopy.Cache{Key: "a"})
	check(t, err)
	for i, dir := range v.Copies {
		write(t, dir+"/file", string(rune('0'+i)))
	}
	commit(t, v.Copies[2])
	d, _, err := f.Delete(t.Context(), handle("h"))
	check(t, err)
	var got []bool
	for _, e := range d.Copies {
		got = append(got, e.Promoted)
	}
	if !slices.Equal(got, []bool{false, true, true}) {
		t.Errorf("they ended as %+v", d.Copies)
	}
	if a, b := f.read("a", "file"), f.read("b", "file"); a != "2" || b != "1" {
		t.Errorf("the next copies have %q and %q", a, b)
	}
}

func TestCommitNeedsALiveContainerWithCaches(t *testing.T) {
	f := newFixture(t, nil)
	if _, err := f.Commit(t.Context(), handle("unknown")); !errors.Is(err, volumes.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	img := newDir(t)
	image, err := volumes.OpenImage(img)
	check(t, err)
	defer image.Close()
	_, err = f.Create(t.Context(), handle("h"), volumes.Request{Image: image, Privileged: true})
	check(t, err)
	if _, err := f.Commit(t.Context(), handle("h")); !errors.Is(err, volumes.ErrNotFound) {
		t.Errorf("without caches: %v", err)
	}
}

func TestCreateRefuses(t *testing.T) {
	f := newFixture(t, nil)
	for name, caches := range map[string][]cachecopy.Cache{
		"empty key":        {{Path: "/c"}},
		"unknown policy":   {{Key: "k", Path: "/c", Promote: "sometimes"}},
		"relative path":    {{Key: "k", Path: "c"}},
		"path with dots":   {{Key: "k", Path: "/a/../c"}},
		"the root itself":  {{Key: "k", Path: "/"}},
		"two on one path":  {{Key: "a", Path: "/c"}, {Key: "b", Path: "/c"}},
		"NUL in the path":  {{Key: "k", Path: "/a\x00b"}},
		"two, spelled two": {{Key: "a", Path: "/c"}, {Key: "b", Path: "/c/"}},
	} {
		_, err := f.Create(t.Context(), handle("h"), privileged, caches...)
		if !errors.Is(err, volumes.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if err == nil {
			f.end("h")
		}
	}
}

// A create that failed, or was killed, has nothing to promote, whatever its policy.
func TestNeverFinishedIsNeverPromoted(t *testing.T) {
	f := newFixture(t, nil)
	f.generation("k", func(dir string) { write(t, dir+"/file", "old"); check(t, os.Chmod(dir, 0o700)) })
	for _, left := range []string{"nothing", "a half-made upper"} {
		f.open("h", "k", privileged, cachecopy.Always)
		id, err := os.Readlink(f.dir + "/volumes/live/h")
		check(t, err)
		check(t, unix.Unmount(f.dir+"/mnt/"+id+"/cache-0", 0))
		upper := f.dir + "/layers/" + id + "/cache-0"
		check(t, os.RemoveAll(upper+"/fs"))
		if left != "nothing" {
			check(t, os.Mkdir(upper+"/fs", 0o755)) // its top has not got mode and owner yet
		}
		check(t, os.Rename(f.dir+"/volumes/live/h", f.dir+"/volumes/init/h"))
		if e := f.end("h"); e.Promoted || e.Reason != "it was never finished" {
			t.Errorf("%s: it ended as %+v", left, e)
		}
		if got := f.read("k", "file"); got != "old" {
			t.Errorf("%s: the next copy has %q", left, got)
		}
	}
}

func TestPathIsMadeInTheRoot(t *testing.T) {
	f := newFixture(t, nil)
	img := newDir(t)
	check(t, os.Chmod(img, 0o755))
	image, err := volumes.OpenImage(img)
	check(t, err)
	defer image.Close()
	for _, priv := range []bool{true, false} {
		v, err := f.Create(t.Context(), handle("h"), volumes.Request{Image: image, Privileged: priv}, cachecopy.Cache{Key: "k", Path: "/var/lib/cache"})
		check(t, err)
		got := describe(t, v.Root, id(priv))
		for _, dir := range []string{"var", "var/lib", "var/lib/cache"} {
			if !strings.HasPrefix(got[dir], "mode 40755 owner 0:0 ") {
				t.Errorf("%q is %q", dir, got[dir])
			}
		}
		if names := readNames(t, img); len(names) > 0 {
			t.Errorf("the image holds %q now", names)
		}
		if filepath.Base(v.Copies[0]) != "cache-0" || v.Copies[0] == v.Root {
			t.Errorf("copy %q, root %q", v.Copies[0], v.Root)
		}
		f.end("h")
	}
}

func TestDropWithoutAStore(t *testing.T) {
	f := newFixture(t, nil)
	if err := f.Drop(t.Context(), cachecopy.ID("k")); !errors.Is(err, volumes.ErrNotFound) {
		t.Errorf("Drop = %v, want ErrNotFound", err)
	}
	if err := f.Drop(t.Context(), "../../etc"); !errors.Is(err, volumes.ErrInvalid) {
		t.Errorf("Drop of no ID = %v, want ErrInvalid", err)
	}
}

// A copy that began empty has nothing of what was dropped.
func TestDropKeepsNothingOfWhatWasDropped(t *testing.T) {
	f := newFixture(t, nil)
	empty := f.open("empty", "k", privileged, cachecopy.Always)
	write(t, empty+"/own", "")
	f.generation("k", func(dir string) { write(t, dir+"/bad", "") })
	from := f.open("from", "k", privileged, cachecopy.Always)
	write(t, from+"/more", "")
	check(t, f.Drop(t.Context(), cachecopy.ID("k")))
	if e := f.end("from"); e.Promoted {
		t.Errorf("a copy of what was dropped: %+v", e)
	}
	f.promote("empty")
	if got := f.names("k"); !slices.Equal(got, []string{"own"}) {
		t.Errorf("the cache holds %q", got)
	}
}
