package cachecopy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// reboot makes the cache look as if it was published in another boot.
func (f *fixture) reboot(key string) {
	f.t.Helper()
	pointer := f.dir + "/caches/" + cachecopy.ID(key) + "/current"
	text, err := os.Readlink(pointer)
	check(f.t, err)
	fields := strings.Fields(text)
	fields[2] = strings.Repeat("0", len(fields[2]))
	check(f.t, os.Remove(pointer))
	check(f.t, os.Symlink(strings.Join(fields, " "), pointer))
}

// durable marks layers of key, counted from the bottom, as makeDurable does, and no others.
func (f *fixture) durable(key string, which ...int) {
	f.t.Helper()
	layers := f.chain(key)
	slices.Reverse(layers)
	for i, l := range layers {
		mark := f.dir + "/layers/" + l + "/durable"
		if slices.Contains(which, i) {
			check(f.t, os.WriteFile(mark, nil, 0o600))
		} else if err := os.Remove(mark); err != nil && !os.IsNotExist(err) {
			f.t.Fatal(err)
		}
	}
}

func TestOnlyDurableLayersAreServedAfterAReboot(t *testing.T) {
	for _, test := range []struct {
		name    string
		durable []int // layers, from the bottom
		want    []string
	}{
		{"none", nil, nil},
		{"bottom", []int{0}, []string{"gen-0"}},
		{"two", []int{0, 1}, []string{"gen-0", "gen-1"}},
		{"all", []int{0, 1, 2, 3}, []string{"gen-0", "gen-1", "gen-2", "gen-3"}},
		{"a hole", []int{0, 2, 3}, []string{"gen-0"}},
		{"all but the bottom", []int{1, 2, 3}, nil},
	} {
		for _, maxLayers := range []int{3, 8} {
			t.Run(fmt.Sprintf("%s, %d layers", test.name, maxLayers), func(t *testing.T) {
				f := newFixture(t, nil)
				for i := range 4 {
					f.generation("k", func(dir string) { write(t, fmt.Sprintf("%s/gen-%d", dir, i), "") })
				}
				f.durable("k", test.durable...)
				f.reboot("k")
				if got := f.names("k"); !slices.Equal(got, test.want) {
					t.Errorf("the copy holds %q, want %q", got, test.want)
				}
				f.verify()
				// The next generation stands on what is served, and the rest goes.
				o := f.opts
				o.MaxLayers = maxLayers
				f.Caches = cachecopy.New(o, f.keep)
				e := f.generation("k", func(dir string) { write(t, dir+"/next", "") })
				if e.Generation != 5 {
					t.Errorf("it is %+v", e)
				}
				if got, want := f.names("k"), append(slices.Clone(test.want), "next"); !slices.Equal(got, want) {
					t.Errorf("the next copy holds %q, want %q", got, want)
				}
				f.verify()
			})
		}
	}
}

// A container from before the reboot is deleted after it. Nothing of its copy was ever flushed, so it is not promoted, however good it looks.
func TestContainerFromBeforeTheReboot(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprint("durable base ", durable), func(t *testing.T) {
			f := newFixture(t, nil)
			f.generation("k", func(dir string) { write(t, dir+"/gen-0", "") })
			var want []string
			if durable {
				f.durable("k", 0)
				want = []string{"gen-0"}
			}
			f.reboot("k")
			for _, h := range []string{"h", "other key"} {
				dir := f.open(h, map[string]string{"h": "k", "other key": "x"}[h], privileged, cachecopy.Always)
				write(t, dir+"/unsafe", "")
				container, err := os.Readlink(f.dir + "/volumes/live/" + h)
				check(t, err)
				record := f.dir + "/layers/" + container + "/layer.json"
				b, err := os.ReadFile(record)
				check(t, err)
				boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
				check(t, err)
				other := strings.ReplaceAll(string(b), strings.TrimSpace(string(boot)), "00000000-0000-4000-8000-000000000000")
				check(t, os.WriteFile(record, []byte(other), 0o600))
				if e := f.end(h); e.Promoted || !strings.Contains(e.Reason, "restarted") {
					t.Errorf("%s ended as %+v", h, e)
				}
			}
			if got := f.names("k"); !slices.Equal(got, want) {
				t.Errorf("the next copy holds %q, want %q", got, want)
			}
			if got := f.names("x"); len(got) > 0 {
				t.Errorf("the next copy of the other holds %q", got)
			}
		})
	}
}

// settle makes the records of all layers look old enough for the kernel to have written them back.
func (f *fixture) settle(key string) {
	f.t.Helper()
	for _, l := range f.chain(key) {
		path := f.dir + "/layers/" + l + "/layer.json"
		b, err := os.ReadFile(path)
		check(f.t, err)
		i := strings.Index(string(b), `"created":"`)
		if i < 0 {
			f.t.Fatalf("record %q", b)
		}
		i += len(`"created":"`)
		end := i + strings.IndexByte(string(b[i:]), '"')
		check(f.t, os.WriteFile(path, []byte(string(b[:i])+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)+string(b[end:])), 0o600))
	}
}

// isDurable says for each layer of key, from the bottom, whether it is marked.
func (f *fixture) isDurable(key string) []bool {
	f.t.Helper()
	var all []bool
	for _, l := range slices.Backward(f.chain(key)) {
		_, err := os.Lstat(f.dir + "/layers/" + l + "/durable")
		all = append(all, err == nil)
	}
	return all
}

func TestOldLayersAreMadeDurableByTheNextPromotion(t *testing.T) {
	f := newFixture(t, nil)
	next := func(files int) {
		f.generation("k", func(dir string) {
			for i := range files {
				write(t, fmt.Sprintf("%s/%d", dir, i), time.Now().String())
			}
		})
	}
	next(1)
	next(1)
	if got := f.isDurable("k"); !slices.Equal(got, []bool{false, false}) {
		t.Errorf("young layers: %v", got)
	}
	f.settle("k")
	next(2000)
	if got := f.isDurable("k"); !slices.Equal(got, []bool{true, true, false}) {
		t.Errorf("two settled, one new: %v", got)
	}
	f.settle("k")
	next(1)
	if got := f.isDurable("k"); !slices.Equal(got, []bool{true, true, false, false}) {
		t.Errorf("one too large to be flushed by a delete: %v", got)
	}
	for range 4 {
		f.settle("k")
		next(1)
	}
	if got := f.isDurable("k"); len(got) != 8 || slices.Index(got, false) < 2 {
		t.Errorf("a full stack: %v", got)
	}
	if w := f.warned(); len(w) > 0 {
		t.Errorf("warnings: %q", w)
	}
}

func TestNothingIsFlushedForWhatIsNotPromoted(t *testing.T) {
	f := newFixture(t, nil)
	f.generation("k", func(dir string) { write(t, dir+"/a", "") })
	f.settle("k")
	f.open("h", "k", volumes.Request{}, cachecopy.Always)
	f.end("h")
	if got := f.isDurable("k"); !slices.Equal(got, []bool{false}) {
		t.Errorf("unchanged: %v", got)
	}
}
