package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"golang.org/x/sys/unix"
)

// TestOnBaggageClaim runs containers and the field cases of the embedded store with a real BaggageClaim server as the backend.
func TestOnBaggageClaim(t *testing.T) {
	requireRoot(t)
	for _, driver := range []string{"overlay", "btrfs", "naive"} {
		t.Run(driver, func(t *testing.T) {
			s, err := bctest.Start(bctest.Options{Dir: newDir(t), Driver: driver})
			if err != nil {
				t.Fatal(err)
			}
			serverFlags = []string{"--baggageclaim-url", s.URL}
			t.Cleanup(func() {
				serverFlags = nil
				if t.Failed() {
					t.Logf("the server's log: %s", s.Log())
				}
				left, err := s.Left()
				if err != nil {
					t.Error(err)
				}
				for _, l := range left {
					if !outlives(t, s, l) {
						t.Errorf("left on the server: %s", l)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			for _, privileged := range []bool{false, true} {
				for _, image := range []string{"debian", "debian-shifted"} {
					t.Run(image+"/"+slotName(privileged), func(t *testing.T) {
						volumes := debian(t)
						containerLife(t, newGdn(t, newStore(t), string(volumes)), volumes, image, privileged, true)
					})
				}
			}
			if driver != "overlay" {
				return // what is left is the same for all of them
			}
			for name, test := range map[string]func(*testing.T){
				"case 1": TestCase1DeleteOfTheUnknown, "case 2": TestCase2DeleteOncePerSlot, "case 10": TestCase10Peas,
				"case 13": TestCase13FailingCreates, "case 14": TestCase14OneLife, "case 17": TestCase17LeftoversDoNotBlock,
				"case 22": TestCase22NobodySweepsALiveVolume, "case 25": TestCase25MovedStore, "case 35": TestCase35OtherFlags, "case 24": TestCase24DeleteEverythingAtOnce,
				"case 28": TestCase28StackedMounts, "case 29": TestCase29AfterReboot, "case 31": TestCase31MountSeenElsewhere,
				"case 36": TestCase36ChainsOfCopies, "case 43": TestCase43ImageRemovedByHand, "case 53": TestCase53DeepTree,
				"case 63": TestCase63ManyChecksOfOneCache, "case 66": TestCase66KeysAreSeparateAndSecret, "case 70": TestCase70CopiesWhilePromoting,
				"case 77": TestCase77NumbersUsersBelieve,
			} {
				t.Run(name, test)
			}
		})
	}
}

// startServer runs a BaggageClaim server until the end of the test, by when nothing may be left on it.
func startServer(t *testing.T, o bctest.Options) *bctest.Server {
	t.Helper()
	requireRoot(t)
	o.Dir = newDir(t)
	s, err := bctest.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log: %s", s.Log())
		}
		if left, err := s.Left(); err != nil || len(left) > 0 {
			t.Errorf("left on the server: %q, %v", left, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Field case 80 on a server: its disk has room for some of those that are asked for at once. The server knows no cause, and we say how much is free.
func TestCase80OnAServer(t *testing.T) {
	images := busybox(t)
	s := startServer(t, bctest.Options{Driver: "overlay", SizeMiB: 32})
	g := newGdn(t, newStore(t), string(images), "--baggageclaim-url", s.URL)
	before := warm(t, g, images.url("busybox"))
	fill := fillInodes(t, filepath.Dir(s.Volumes)) // and give some back
	const count, room = 40, 300
	names := namesIn(t, fill)
	for _, name := range names[:room] {
		if err := os.Remove(filepath.Join(fill, name)); err != nil {
			t.Fatal(err)
		}
	}
	handle := func(i int) string { return fmt.Sprintf("on-a-server-%d", i) }
	var made atomic.Int32
	err := together(count, func(i int) error {
		spec, err := g.create(handle(i), rootfs{url: withCache(images.url("busybox"), "key", cacheAt), privileged: i%2 == 0})
		if err != nil {
			if text := err.Error(); !strings.Contains(text, "no space left on device") && !(strings.Contains(text, "free in its") && strings.Contains(text, " inodes")) {
				return err
			}
			return nil
		}
		made.Add(1)
		_, err = os.Stat(filepath.Join(spec.Root.Path, "bin/busybox"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if n := made.Load(); n == 0 || n == count {
		t.Errorf("%d of %d were made: there has to be room for some", n, count)
	}
	if err := together(count, func(i int) error { return g.destroy(handle(i)) }); err != nil {
		t.Error(err)
	}
	same(t, "the store", before, storeTree(t, g.store))
	if err := os.RemoveAll(fill); err != nil {
		t.Error(err)
	}
}

// Field case 42 on a server: its volumes are on a file system that cannot hold uppers.
func TestCase42ServerOnOverlay(t *testing.T) {
	images := busybox(t)
	dir := newDir(t)
	for _, name := range []string{"lower", "upper", "work", "fs"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := unix.Mount("bcip", filepath.Join(dir, "fs"), "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	s, err := bctest.Start(bctest.Options{Dir: filepath.Join(dir, "fs"), Driver: "naive"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	g := newGdn(t, newStore(t), string(images), "--baggageclaim-url", s.URL)
	for _, privileged := range []bool{false, true} {
		_, err := g.create("on-overlay", rootfs{url: images.url("busybox"), privileged: privileged})
		if err == nil || !strings.Contains(err.Error(), "cannot hold volumes") || !strings.Contains(err.Error(), "in a volume of BaggageClaim server "+s.URL) {
			t.Errorf("create on a server on overlay: %v, want a failure that names the server", err)
		}
		if err := g.destroy("on-overlay"); err != nil {
			t.Error(err)
		}
		clean(t, g, "on-overlay")
	}
	if left, err := s.Left(); err != nil || len(left) > 0 {
		t.Errorf("left on the server: %q, %v", left, err)
	}
}

// outlives says whether what is left at path belongs to a cache, or to a shifted copy of an image: they outlive containers.
func outlives(t *testing.T, s *bctest.Server, path string) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.Volumes, "live", filepath.Base(path), "properties.json"))
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	return strings.Contains(string(b), `"bc-image-plugin-role":"image"`) || strings.Contains(string(b), `"bc-image-plugin-role":"layer"`)
}
