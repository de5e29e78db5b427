package bcserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/concourse/baggageclaim"
	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

var drivers = []string{"overlay", "btrfs", "naive"}

// treeOf is the volume of the container's root file system.
func treeOf(t testing.TB, store string, v *volumes.Volume) string {
	t.Helper()
	p, err := readPlace(store + "/layers/" + v.ID)
	check(t, err)
	return p.tree()
}

// newStore is a store on s, and its directory.
func newStore(t testing.TB, s *bctest.Server) (*cachecopy.Caches, string) {
	t.Helper()
	return storeAt(t, s.URL)
}

// A cache is carried from container to container, whatever the server's driver and the containers' kind are, with a bounded number of layers;
// generations are whole, and those that nobody uses any more are gone from the server. Field case 36.
func TestCacheOnEachDriver(t *testing.T) {
	for _, o := range []bctest.Options{{Driver: "overlay"}, {Driver: "btrfs"}, {Driver: "naive"}, {Driver: "overlay", Version: "v1.9.1"}} {
		t.Run(o.Driver+o.Version, func(t *testing.T) {
			s := start(t, o)
			caches, _ := newStore(t, s)
			img := image(t)
			key := cachecopy.Cache{Key: "key", Path: "/c", Promote: cachecopy.Always}
			for i := range 20 {
				v, err := caches.Create(t.Context(), handle(t, "h"), volumes.Request{Image: img, Privileged: i%2 == 1}, key)
				check(t, err)
				c := v.Copies[0]
				for n := range i {
					if b, err := os.ReadFile(fmt.Sprintf("%s/%d", c, n)); err != nil || string(b) != fmt.Sprint(n) {
						t.Fatalf("generation %d: file %d is %q, %v", i, n, b, err)
					}
				}
				root := int(inspect.MaxID)
				if i%2 == 1 {
					root = 0
				}
				check(t, os.WriteFile(fmt.Sprintf("%s/%d", c, i), []byte(fmt.Sprint(i)), 0o644))
				check(t, os.Chown(fmt.Sprintf("%s/%d", c, i), root, root))
				d := remove(t, caches, "h")
				if len(d.Copies) != 1 || !d.Copies[0].Promoted || d.Copies[0].Layers > 8 {
					t.Fatalf("generation %d: %+v", i, d)
				}
			}
			left, err := s.Left()
			check(t, err)
			live := 0
			for _, l := range left {
				if strings.Contains(l, "/live/") {
					live++
				}
			}
			if infos, err := caches.List(t.Context()); err != nil || len(infos) != 1 || infos[0].Layers != live {
				t.Errorf("%d volumes for %+v, %v", live, infos, err)
			}
			all, err := NewClient(s.URL).List(t.Context(), map[string]string{propRole: roleLayer})
			if err != nil || len(all) != live {
				t.Errorf("%d volumes say that they are layers, of %d: %v", len(all), live, err)
			}
			check(t, caches.Drop(t.Context(), cachecopy.ID("key")))
			wantClean(t, s)
		})
	}
}

// A restart with the mounts in place stacks a second one on each volume, and the server cannot destroy any of them. Field case 28.
func TestRestartWithMountsInPlace(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	v := create(t, caches, "h")
	check(t, os.WriteFile(v.Copies[0]+"/data", []byte("good"), 0o644))
	remove(t, caches, "h")
	v = create(t, caches, "h")
	for range 3 {
		check(t, s.Kill())
		check(t, s.Restart())
	}
	if n := len(inspect.Mounts(t, treeOf(t, dir, v))); n != 4 {
		t.Fatalf("%d mounts on the volume, want the server's own and one of each restart", n)
	}
	if out := doctorText(t, caches); !strings.Contains(out, "mounts are stacked on") {
		t.Errorf("doctor: %s", out)
	}
	check(t, os.WriteFile(v.Copies[0]+"/more", nil, 0o644))
	if d := remove(t, caches, "h"); !d.Copies[0].Promoted {
		t.Errorf("%+v", d)
	}
	v = create(t, caches, "k")
	for _, name := range []string{"data", "more"} {
		if _, err := os.Stat(v.Copies[0] + "/" + name); err != nil {
			t.Error(err)
		}
	}
	remove(t, caches, "k")
	check(t, caches.Drop(t.Context(), cachecopy.ID("k")))
	wantClean(t, s)
}

// After a reboot there are no mounts. The server makes its own again when it starts, and until then nothing is lost and nothing is taken for success. Field case 29.
func TestReboot(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	create(t, caches, "h")
	check(t, s.Kill())
	for _, top := range []string{dir, s.Volumes} {
		m := inspect.Mounts(t, top)
		for i := len(m) - 1; i >= 0; i-- {
			check(t, unix.Unmount(m[i], unix.MNT_DETACH))
		}
	}
	_, _, err := caches.Delete(t.Context(), handle(t, "h"))
	inspect.WantError(t, err, ErrRefused)
	check(t, s.Restart())
	remove(t, caches, "h")
	wantClean(t, s)
}

// A volume whose mount somebody took off cannot be destroyed by the server: it says 500, then 404, and its files stay.
func TestMountTakenOffByHand(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	v := create(t, caches, "h")
	check(t, unix.Unmount(treeOf(t, dir, v), 0))
	remove(t, caches, "h")
	wantClean(t, s)
}

// A volume in use is not destroyed; the error says who to look for, and the next delete goes on. The server says 500 once and "not found" from then on.
func TestBusyVolume(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	v := create(t, caches, "h")
	held, err := os.Create(treeOf(t, dir, v) + "/fs/held")
	check(t, err)
	defer held.Close()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, _, err = caches.Delete(ctx, handle(t, "h"))
		cancel()
		inspect.WantError(t, err, volumes.ErrBusy, "fuser -vm", s.Volumes)
	}
	check(t, held.Close())
	remove(t, caches, "h")
	wantClean(t, s)
}

// An image may be a volume of the same server, of either ownership, but not one that a plugin made. Destroying it under a create is noticed. Field case 43.
func TestImageOnTheServer(t *testing.T) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			s := start(t, bctest.Options{Driver: driver})
			caches, dir := newStore(t, s)
			d, c := New(Options{URL: s.URL}), NewClient(s.URL)
			src := inspect.NewDir(t)
			check(t, os.MkdirAll(src+"/rootfs", 0o755))
			check(t, os.WriteFile(src+"/rootfs/file", []byte("lower"), 0o644))
			for _, privileged := range []bool{true, false} {
				name := fmt.Sprintf("image-%v", privileged)
				r := baggageclaim.VolumeRequest{Handle: name, Privileged: privileged, Strategy: baggageclaim.ImportStrategy{Path: src}.Encode()}
				check(t, c.Start(t.Context(), r))
				_, err := c.Wait(t.Context(), name)
				check(t, err)
				vols, err := d.VolumesOf(t.Context(), name)
				if err != nil || vols != s.Volumes {
					t.Fatalf("%q, %v", vols, err)
				}
				for _, slot := range []bool{true, false} {
					img, err := volumes.OpenVolumeImage(vols, name, "rootfs")
					check(t, err)
					v, err := caches.Create(t.Context(), handle(t, "h"), volumes.Request{Image: img, Privileged: slot})
					check(t, err)
					want := inspect.MaxID
					if slot {
						want = 0
					}
					for _, f := range []string{"", "/file"} {
						var st unix.Stat_t
						check(t, unix.Lstat(v.Root+f, &st))
						if int(st.Uid) != int(want) || int(st.Gid) != int(want) {
							t.Errorf("image privileged %v, container privileged %v: %q belongs to %d:%d", privileged, slot, f, st.Uid, st.Gid)
						}
					}
					if slot { // a volume of ours is no image
						own, err := readPlace(dir + "/layers/" + v.ID)
						check(t, err)
						img, err := volumes.OpenVolumeImage(vols, own.handle, "")
						check(t, err)
						_, err = caches.Create(t.Context(), handle(t, "k"), volumes.Request{Image: img, Privileged: slot})
						inspect.WantError(t, err, volumes.ErrInvalid, "other containers' files")
						check(t, img.Close())
					}
					check(t, img.Close())
					remove(t, caches, "h")
				}
				img, err := volumes.OpenVolumeImage(vols, name, "rootfs")
				check(t, err)
				during := cachecopy.New(volumes.Options{Dir: dir, Driver: d, Trace: func(step string, _ time.Duration) {
					if step == "lock" { // on overlay the open image is in its way, and it has moved it to dead/ all the same
						if err := c.Destroy(t.Context(), name); err != nil && driver != "overlay" {
							t.Error(err)
						}
					}
				}}, cachecopy.Options{})
				_, err = during.Create(t.Context(), handle(t, "h"), volumes.Request{Image: img})
				if err == nil || !strings.Contains(err.Error(), "removed meanwhile") {
					t.Errorf("the image was destroyed during create: %v", err)
				}
				check(t, img.Close())
				check(t, d.destroy(t.Context(), dir+"/layers", place{vols, name}))
				_, err = d.VolumesOf(t.Context(), name)
				inspect.WantError(t, err, ErrNoVolume, "parent missing")
				_, err = volumes.OpenVolumeImage(vols, name, "rootfs")
				inspect.WantError(t, err, unix.ENOENT, "parent missing")
			}
			wantClean(t, s)
		})
	}
}

// A volume of the overlay driver whose mount is not there yet looks like an empty image. Field case 29.
func TestUnmountedImageIsRefused(t *testing.T) {
	vols := inspect.NewDir(t)
	check(t, os.MkdirAll(vols+"/live/image/volume", 0o755))
	_, err := volumes.OpenVolumeImage(vols, "image", "")
	if err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("error %v", err)
	}
}

// Field cases 20 and 41: the server says no more than that it failed; we say how much room it has. Deleting works.
func TestFullDisk(t *testing.T) {
	for _, driver := range []string{"overlay", "naive"} {
		t.Run(driver, func(t *testing.T) {
			s := start(t, bctest.Options{Driver: driver, SizeMiB: 32})
			caches, _ := newStore(t, s)
			v := create(t, caches, "h")
			f, err := os.Create(v.Root + "/big")
			check(t, err)
			for err = nil; err == nil; {
				_, err = f.Write(make([]byte, 1<<16))
			}
			f.Close()
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			for i := 0; err == nil || i == 0; i++ { // inodes' blocks of directories as well
				err = os.MkdirAll(fmt.Sprintf("%s/d/%d", v.Root, i), 0o755)
			}
			_, err = caches.Create(t.Context(), handle(t, "k"), volumes.Request{Image: image(t)})
			if err == nil {
				t.Error("create on a full disk succeeded")
			} else if !strings.Contains(err.Error(), "MiB") || !strings.Contains(err.Error(), `"k"`) {
				t.Errorf("error %v", err)
			}
			remove(t, caches, "k")
			remove(t, caches, "h")
			wantClean(t, s)
		})
	}
}

// What the store's directory knew is found by the volumes' properties.
func TestStoreIsLost(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	other, _ := newStore(t, s)
	create(t, other, "other")
	lose := func() {
		m := inspect.Mounts(t, dir)
		for i := len(m) - 1; i >= 0; i-- {
			check(t, unix.Unmount(m[i], 0))
		}
		check(t, os.RemoveAll(dir))
	}
	for _, odd := range []string{"h", "-\xff%41 é"} {
		create(t, caches, odd)
		lose()
		remove(t, caches, "never")
		if _, err := os.Stat(dir); err == nil {
			t.Error("the delete of an unknown handle made the store anew")
		}
		remove(t, caches, odd)
	}
	create(t, caches, "h")
	lose()
	create(t, caches, "k") // makes the store anew, with what was in it
	list, err := caches.Store().List(t.Context())
	if err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	remove(t, caches, "h")
	remove(t, caches, "k")
	remove(t, other, "other")
	wantClean(t, s)
}

// Field case 35: a driver that cannot find a layer's files does not remove it, and one that can does.
func TestAnotherDriver(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	create(t, caches, "h")
	embedded := cachecopy.New(volumes.Options{Dir: dir, Driver: overlay.New(overlay.Options{})}, cachecopy.Options{})
	_, _, err := embedded.Delete(t.Context(), handle(t, "h"))
	inspect.WantError(t, err, volumes.ErrUnsupported, `driver "baggageclaim"`, "--baggageclaim-url")
	_, err = embedded.Create(t.Context(), handle(t, "k"), volumes.Request{Image: image(t)})
	inspect.WantError(t, err, volumes.ErrUnsupported, `"baggageclaim"`, `"overlay"`)
	if d := remove(t, caches, "h"); len(d.Copies) != 1 {
		t.Errorf("%+v", d)
	}
	wantClean(t, s)

	old := inspect.NewDir(t) + "/store"
	embedded = cachecopy.New(volumes.Options{Dir: old, Driver: overlay.New(overlay.Options{})}, cachecopy.Options{})
	create(t, embedded, "h")
	remove(t, cachesIn(old, s.URL), "h")
	if left, err := os.ReadDir(old + "/layers"); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A layer without its pointer is an error, of whichever call.
func TestWithoutAPointer(t *testing.T) {
	d, layers := New(Options{URL: "http://127.0.0.1:1"}), t.TempDir()
	for _, below := range []string{"", "below"} {
		_, err := d.Changed(layers, "upper", below)
		inspect.WantError(t, err, volumes.ErrNotFound, "upper")
	}
	inspect.WantError(t, d.Merge(t.Context(), layers, []string{"upper"}, nil, "into"), volumes.ErrNotFound, "upper")
	inspect.WantError(t, d.Seal(t.Context(), layers, "upper"), volumes.ErrNotFound, "upper")
}

// Field case 32: a server in another mount namespace says the same as one here, and its volumes are empty directories to us.
func TestServerInAnotherMountNamespace(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay", Private: true})
	caches, _ := newStore(t, s)
	_, err := caches.Create(t.Context(), handle(t, "h"), volumes.Request{Image: image(t)})
	if err == nil || !strings.Contains(err.Error(), "mount namespace") {
		t.Errorf("error %v", err)
	}
	remove(t, caches, "h")
	wantClean(t, s)
}

// doctorText is what doctor says, a line each.
func doctorText(t testing.TB, c *cachecopy.Caches) string {
	var all []string
	for _, f := range c.Store().Doctor(t.Context()) {
		all = append(all, string(f.Level)+" "+f.Text)
	}
	return strings.Join(all, "\n")
}

func TestDoctor(t *testing.T) {
	s := start(t, bctest.Options{Driver: "naive"})
	caches, _ := newStore(t, s)
	good := doctorText(t, caches)
	if !strings.Contains(good, "ok BaggageClaim server "+s.URL+" answers (v1.10 or newer): driver naive") || strings.Contains(good, "ATC") || strings.Contains(good, "fail") {
		t.Errorf("of a good server: %s", good)
	}
	c := NewClient(s.URL)
	check(t, c.Start(t.Context(), baggageclaim.VolumeRequest{Handle: "foreign", Strategy: baggageclaim.EmptyStrategy{}.Encode()}))
	_, err := c.Wait(t.Context(), "foreign")
	check(t, err)
	if out := doctorText(t, caches); !strings.Contains(out, "warn it has 1 volumes that no plugin made") || !strings.Contains(out, "ATC") {
		t.Errorf("of a server with volumes of somebody else: %s", out)
	}
	check(t, s.Stop())
	if out := doctorText(t, caches); !strings.Contains(out, "fail ") || !strings.Contains(out, "is it running?") {
		t.Errorf("of a server that is down: %s", out)
	}
	check(t, s.Restart())
	if out := doctorText(t, caches); strings.Contains(out, "fail") { // and takes away what its last look had to leave
		t.Errorf("of a server that is back: %s", out)
	}
}

// Properties are never null: nobody has to ask what the server makes of that.
func TestPropertiesAreNeverNull(t *testing.T) {
	s := start(t, bctest.Options{Driver: "naive"})
	c := NewClient(s.URL)
	check(t, c.Start(t.Context(), baggageclaim.VolumeRequest{Handle: "h", Strategy: baggageclaim.EmptyStrategy{}.Encode()}))
	_, err := c.Wait(t.Context(), "h")
	check(t, err)
	check(t, c.SetProperty(t.Context(), "h", "a", "b"))
	resp, err := http.Get(s.URL + "/volumes/h")
	check(t, err)
	defer resp.Body.Close()
	var v baggageclaim.VolumeResponse
	check(t, json.NewDecoder(resp.Body).Decode(&v))
	if v.Properties["a"] != "b" {
		t.Errorf("%+v", v)
	}
	check(t, c.Destroy(t.Context(), "h"))
	wantClean(t, s)
}

// gc finds volumes that no layer has any more, and leaves those of others alone.
func TestStrays(t *testing.T) {
	s := start(t, bctest.Options{Driver: "overlay"})
	caches, dir := newStore(t, s)
	other, _ := newStore(t, s)
	create(t, other, "other")
	v := create(t, caches, "stray")
	create(t, caches, "live")
	check(t, unix.Unmount(v.Root, 0))
	check(t, unix.Unmount(v.Copies[0], 0))
	check(t, os.RemoveAll(dir+"/layers/"+v.ID)) // with its pointers: it is a bug or an accident that does so

	problems, err := caches.Store().Check(t.Context())
	n := 0
	for _, p := range problems {
		if strings.Contains(p.String(), "volume ") && strings.Contains(p.String(), "no layer has it") {
			n++
		}
	}
	if err != nil || n != 2 {
		t.Errorf("%q, %v, want 2 volumes", problems, err)
	}
	all, err := caches.GC(t.Context(), volumes.GCOptions{})
	check(t, err)
	for _, c := range all {
		if c.Err != nil {
			t.Errorf("left: %v: %v", c, c.Err)
		}
	}
	remove(t, caches, "stray")
	if problems, err := caches.Store().Check(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("after gc: %q, %v", problems, err)
	}
	remove(t, caches, "live")
	remove(t, other, "other")
	wantClean(t, s)
}

// The flag names another server in the middle of a boot: what was found out about the first one is not taken for it.
func TestAnotherServer(t *testing.T) {
	first, second := start(t, bctest.Options{Driver: "naive"}), start(t, bctest.Options{Driver: "overlay"})
	old, dir := newStore(t, first)
	create(t, old, "old")
	caches := cachesIn(dir, second.URL)
	v := create(t, caches, "new")
	if s, err := readServer(dir + "/layers"); err != nil || s.URL != second.URL || s.Volumes != second.Volumes || s.Overlays != second.Overlays || s.Driver != "overlay" {
		t.Errorf("known of the server: %+v, %v", s, err)
	}
	check(t, unix.Unmount(treeOf(t, dir, v), 0)) // so that only who knows where overlays are finds the rest
	remove(t, caches, "new")
	wantClean(t, second)

	_, _, err := caches.Delete(t.Context(), handle(t, "old"))
	if err == nil || !strings.Contains(err.Error(), "is it another server?") {
		t.Errorf("deleted by the wrong server: %v", err)
	}
	remove(t, old, "old")
	wantClean(t, first)
}

// Properties say where a lost container's layers were, and anybody can write properties.
func TestHostileProperties(t *testing.T) {
	s := start(t, bctest.Options{Driver: "naive"})
	caches, dir := newStore(t, s)
	c := NewClient(s.URL)
	id := strings.Repeat("ab", 16)
	for i, name := range []string{id + "/..", id + "/../..", "../../evil", id + "/users", "probe"} {
		h := fmt.Sprintf("%032d", i)
		check(t, c.Start(t.Context(), baggageclaim.VolumeRequest{Handle: h, Strategy: baggageclaim.EmptyStrategy{}.Encode(), Properties: baggageclaim.VolumeProperties{
			propStore: dir, propContainer: "evil", propLayer: name, propRole: roleRoot,
		}}))
		_, err := c.Wait(t.Context(), h)
		check(t, err)
	}
	create(t, caches, "h") // makes the store, with what was in it
	for _, path := range []string{dir + "/volume", dir + "/layers/volume", dir + "/evil", dir + "/../evil", dir + "/layers/" + id} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%q was made", path)
		}
	}
	remove(t, caches, "h")
	remove(t, caches, "evil")
	_, err := caches.GC(t.Context(), volumes.GCOptions{}) // they are strays
	check(t, err)
	wantClean(t, s)
}
