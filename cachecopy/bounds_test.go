package cachecopy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

const unit = 64 << 10 // of what each cache of these tests takes

func fill(t testing.TB, dir string) { write(t, dir+"/data", strings.Repeat("x", unit)) }

// usedAgo sets when a cache was last used.
func (f *fixture) usedAgo(key string, ago time.Duration) {
	f.t.Helper()
	at := time.Now().Add(-ago)
	check(f.t, os.Chtimes(f.dir+"/caches/"+cachecopy.ID(key), at, at))
}

// keys returns which of the keys have a generation.
func (f *fixture) keys(of ...string) []string {
	f.t.Helper()
	list, err := f.List(f.t.Context())
	check(f.t, err)
	have := map[string]bool{}
	for _, i := range list {
		have[i.Name] = true
	}
	return slices.DeleteFunc(of, func(k string) bool { return !have[cachecopy.ID(k)] })
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	f := newFixture(t, func(_ *volumes.Options, o *cachecopy.Options) { o.MaxBytes, o.MaxAge = 4*unit, 10000*time.Hour })
	all := []string{"a", "b", "c", "d"}
	for i, key := range all {
		f.generation(key, func(dir string) { fill(t, dir) })
		f.usedAgo(key, time.Duration(10-i)*time.Hour)
	}
	f.read("a", "data") // a use makes it young again
	f.open("user", "b", privileged, cachecopy.Never)
	f.usedAgo("b", 20*time.Hour)
	f.generation("e", func(dir string) { fill(t, dir) })
	// Five units are too many by one, and a tenth is freed beyond the bound: c and d go, as b is used and a and e are young.
	if got, want := f.keys("a", "b", "c", "d", "e"), []string{"a", "b", "e"}; !slices.Equal(got, want) {
		t.Errorf("%q are left, want %q", got, want)
	}
	f.verify()
}

func TestThoseInUseStayBeyondTheBound(t *testing.T) {
	f := newFixture(t, func(_ *volumes.Options, o *cachecopy.Options) { o.MaxBytes = unit })
	for _, key := range []string{"a", "b", "c"} {
		dir := f.open("first", key, privileged, cachecopy.Always)
		fill(t, dir)
		// The next container has it before the first is gone for good, so nothing can be evicted between.
		f.promote("first")
		f.open("user of "+key, key, privileged, cachecopy.Never)
	}
	for _, key := range f.keys("a", "b", "c") {
		check(t, statData(f, "user of "+key))
	}
	f.verify()
}

func statData(f *fixture, h string) error {
	id, err := os.Readlink(f.dir + "/volumes/live/" + h)
	if err != nil {
		return err
	}
	_, err = os.Stat(f.dir + "/mnt/" + id + "/cache-0/data")
	return err
}

func TestMaxAge(t *testing.T) {
	f := newFixture(t, func(_ *volumes.Options, o *cachecopy.Options) { o.MaxAge = 8 * time.Hour })
	for _, key := range []string{"old", "used", "young"} {
		f.generation(key, func(dir string) { fill(t, dir) })
	}
	f.open("user", "used", privileged, cachecopy.Never)
	for _, key := range []string{"old", "used"} {
		f.usedAgo(key, 9*time.Hour)
	}
	f.usedAgo("young", 7*time.Hour)
	// It was looked for old ones just now; two hours later it is due.
	check(t, os.Remove(f.dir+"/caches.total"))
	check(t, os.Symlink(fmt.Sprintf("0 0 %d", time.Now().Add(-2*time.Hour).Unix()), f.dir+"/caches.total"))
	f.generation("new", func(dir string) { fill(t, dir) })
	if got, want := f.keys("old", "used", "young", "new"), []string{"used", "young", "new"}; !slices.Equal(got, want) {
		t.Errorf("%q are left, want %q", got, want)
	}
}

// Case 69: each of many keys is used once.
func TestCase69ManyKeysStayWithinTheBound(t *testing.T) {
	const most = 20
	t.Parallel()
	inspect.NeedRoot(t)
	f := newFixture(t, func(s *volumes.Options, o *cachecopy.Options) { s.Dir, o.MaxBytes = inMemory(t), most*unit })
	for i := range 1000 {
		f.generation(fmt.Sprint("key ", i), func(dir string) { fill(t, dir) })
		if i%50 == 49 {
			list, err := f.List(t.Context())
			check(t, err)
			var bytes uint64
			for _, s := range list {
				bytes += s.Bytes
			}
			if bytes > most*unit || len(list) < most/2 {
				t.Fatalf("after %d keys: %d caches with %d bytes", i+1, len(list), bytes)
			}
			if got := len(readNames(t, f.dir+"/layers")); got != len(list) {
				t.Fatalf("after %d keys: %d layers of %d caches", i+1, got, len(list))
			}
		}
	}
	if len(f.keys("key 999")) != 1 {
		t.Error("the youngest is gone")
	}
}

func TestDamagedLedger(t *testing.T) {
	f := newFixture(t, func(_ *volumes.Options, o *cachecopy.Options) { o.MaxBytes = 3 * unit })
	for i, text := range []string{"", "x", "1 2", "-1 -1 -1", "1 2 3 4", "99999999999999999999999 0 0", "0 0 9223372036854775807", "a b c", "18446744073709551615 0 0"} {
		_ = os.Remove(f.dir + "/caches.total")
		if text != "" {
			check(t, os.MkdirAll(f.dir, 0o711))
			check(t, os.Symlink(text, f.dir+"/caches.total"))
		}
		f.generation(fmt.Sprint(i), func(dir string) { fill(t, dir) })
	}
	for i := range 6 { // and it bounds again
		f.generation(fmt.Sprint("later ", i), func(dir string) { fill(t, dir) })
	}
	list, err := f.List(t.Context())
	if err != nil || len(list) > 3 || len(list) == 0 {
		t.Errorf("%d caches, %v; want up to 3", len(list), err)
	}
}

func TestListNumbers(t *testing.T) {
	f := newFixture(t, nil)
	before := time.Now().Add(-time.Second)
	f.generation("k", func(dir string) { fill(t, dir); check(t, os.Mkdir(dir+"/d", 0o755)) })
	f.generation("k", func(dir string) { write(t, dir+"/d/small", "x") })
	f.open("a", "k", privileged, cachecopy.Never)
	f.open("b", "k", volumes.Request{}, cachecopy.Never)
	list, err := f.List(t.Context())
	check(t, err)
	if len(list) != 1 {
		t.Fatalf("%d caches, want 1", len(list))
	}
	i := list[0]
	if i.Name != cachecopy.ID("k") || i.Generation != 2 || i.Layers != 2 || i.Users != 2 || i.Entries != 4 || i.LastUsed.Before(before) {
		t.Errorf("%+v", i)
	}
	if i.Bytes < unit || i.Bytes > unit+64<<10 {
		t.Errorf("%d bytes, want %d and a little", i.Bytes, unit)
	}
}

// A pointer that cannot be read is told, harms no other cache and no delete, and can be dropped.
func TestDamagedPointer(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"foreign text":   func(t *testing.T, path string) { check(t, os.Symlink("/etc/passwd", path)) },
		"no generation":  func(t *testing.T, path string) { check(t, os.Symlink("x "+strings.Repeat("a", 32)+" y", path)) },
		"layer is gone":  func(t *testing.T, path string) { check(t, os.Symlink("3 "+strings.Repeat("a", 32)+"-0 y", path)) },
		"no symlink":     func(t *testing.T, path string) { check(t, os.WriteFile(path, []byte("x"), 0o600)) },
		"directory":      func(t *testing.T, path string) { check(t, os.MkdirAll(path+"/a/b", 0o700)) },
		"leads out":      func(t *testing.T, path string) { check(t, os.Symlink("3 ../../etc y", path)) },
		"negative count": func(t *testing.T, path string) { check(t, os.Symlink("-3 "+strings.Repeat("a", 32)+" y", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			for range 2 {
				f.generation("k", func(dir string) { check(t, writeGeneration(dir, time.Now().String())) })
			}
			dir := f.open("h", "k", privileged, cachecopy.Always)
			write(t, dir+"/new", "")
			id := cachecopy.ID("k")
			pointer := f.dir + "/caches/" + id + "/current"
			check(t, os.Remove(pointer))
			damage(t, pointer)

			_, err := f.Create(t.Context(), handle("x"), privileged, cachecopy.Cache{Key: "k"})
			if err == nil || !strings.Contains(err.Error(), id) {
				t.Errorf("Create = %v, want an error that names the cache", err)
			}
			if e := f.end("h"); e.Promoted {
				t.Errorf("it ended as %+v", e)
			}
			if _, err := f.List(t.Context()); err != nil {
				t.Errorf("List: %v", err)
			}
			f.generation("another", func(dir string) { fill(t, dir) })
			check(t, f.Drop(t.Context(), id))
			f.verify()
			f.generation("k", func(dir string) { fill(t, dir) })
		})
	}
}

// One cache that cannot be dropped does not save the others.
func TestEvictionGoesOnBehindADamagedCache(t *testing.T) {
	f := newFixture(t, func(_ *volumes.Options, o *cachecopy.Options) { o.MaxBytes = 3 * unit })
	f.generation("bad", func(dir string) { fill(t, dir) })
	pointer := f.dir + "/caches/" + cachecopy.ID("bad") + "/current"
	check(t, os.Remove(pointer))
	check(t, os.Symlink("damaged", pointer))
	f.usedAgo("bad", 100*time.Hour)
	for i := range 8 {
		f.generation(fmt.Sprint(i), func(dir string) { fill(t, dir) })
	}
	list, err := f.List(t.Context())
	check(t, err)
	if len(list) > 4 {
		t.Errorf("%d caches are left", len(list))
	}
}

// 1,000 generations of one cache take no more, in whatever way, than a few.
func TestManyGenerationsStayFlat(t *testing.T) {
	t.Parallel()
	inspect.NeedRoot(t)
	f := newFixture(t, func(s *volumes.Options, _ *cachecopy.Options) { s.Dir = inMemory(t) })
	f.generation("k", func(dir string) {
		for i := range 200 {
			write(t, fmt.Sprintf("%s/%d/file-%d", dir, i%20, i), strings.Repeat("x", 5000))
		}
	})
	seen := map[string]uint64{}
	for i := range 1000 {
		dir := f.open("h", "k", volumes.Request{Privileged: i%2 == 0}, cachecopy.Always)
		n := i % 20
		check(t, os.Remove(fmt.Sprintf("%s/%d/file-%d", dir, n, n)))
		write(t, fmt.Sprintf("%s/%d/file-%d", dir, n, n), strings.Repeat("y", 5000))
		if e := f.promote("h"); e.Layers > 8 || e.Generation != uint64(i+2) {
			t.Fatalf("generation %d is %+v", i+2, e)
		}
		if i%100 == 99 {
			bytes, inodes := diskOf(t, f.dir)
			when := "early"
			if i >= 500 {
				when = "late"
			}
			seen[when+" bytes"] = max(seen[when+" bytes"], bytes)
			seen[when+" inodes"] = max(seen[when+" inodes"], inodes)
		}
	}
	if seen["late bytes"] > seen["early bytes"]*3/2 || seen["late inodes"] > seen["early inodes"]*3/2 || seen["late inodes"] > 2000 {
		t.Errorf("it grows: %v", seen)
	}
}

func diskOf(t testing.TB, dir string) (bytes, inodes uint64) {
	t.Helper()
	seen := map[uint64]bool{}
	var walk func(path string)
	walk = func(path string) {
		var st unix.Stat_t
		check(t, unix.Lstat(path, &st))
		if !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += uint64(st.Blocks) * 512
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			for _, n := range readNames(t, path) {
				walk(path + "/" + n)
			}
		}
	}
	walk(dir)
	return bytes, uint64(len(seen))
}
