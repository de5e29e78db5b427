package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cloudfoundry/garden-runc-release#143; grootfs commits 3bb7e947, 6c3a5b67, bcfd3dcf: the unmount fails as a file is open, and
// the removal goes on.
func TestCase26BusyMount(t *testing.T) {
	volumes := busybox(t)
	for _, privileged := range []bool{false, true} {
		t.Run("for a while/"+slotName(privileged), func(t *testing.T) {
			g := newGdn(t, newStore(t), string(volumes))
			before := warm(t, g, volumes.url("busybox"))
			const handle = "busy-for-a-while"
			spec, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(3*time.Second, hold(t, filepath.Join(spec.Root.Path, "etc/motd")))
			if err := g.destroy(handle); err != nil {
				t.Error(err)
			}
			clean(t, g, handle)
			same(t, "the store", before, storeTree(t, g.store))
		})
	}
	t.Run("for too long", func(t *testing.T) {
		g := newGdn(t, newStore(t), string(volumes), "--timeout", "2s")
		before := warm(t, g, volumes.url("busybox"))
		const handle = "busy-for-too-long"
		spec, err := g.create(handle, rootfs{url: volumes.url("busybox")})
		if err != nil {
			t.Fatal(err)
		}
		mine := filepath.Join(spec.Root.Path, "mine")
		if err := os.WriteFile(mine, []byte("still needed"), 0o600); err != nil {
			t.Fatal(err)
		}
		release := hold(t, mine)

		res := g.call(g.unprivileged, "delete", handle)
		if res.code() != 1 || res.took > 10*time.Second || !strings.Contains(string(res.stdout), "busy") {
			t.Errorf("delete: exit %d after %s, want 1 about its --timeout of 2s, saying busy: %s", res.code(), res.took, res.stdout)
		}
		if content, err := os.ReadFile(mine); err != nil || string(content) != "still needed" {
			t.Errorf("delete removed files through the mount: %q, %v", content, err)
		}
		if _, err := os.Stat(filepath.Join(spec.Root.Path, "bin/busybox")); err != nil {
			t.Errorf("delete removed files through the mount: %v", err)
		}

		release()
		if err := g.destroy(handle); err != nil {
			t.Errorf("delete again, nothing is busy now: %v", err)
		}
		clean(t, g, handle)
		same(t, "the store", before, storeTree(t, g.store))
	})
}

// concourse/concourse#4220, helm/charts#2103, concourse/hush-house#94: after its restart Garden deletes everything at once, and
// forgets what fails.
func TestCase24DeleteEverythingAtOnce(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const count, busy = 100, 5
	var releases []func()
	for i := range count {
		spec, err := g.create(fmt.Sprintf("at-once-%d", i), rootfs{url: volumes.url("busybox"), privileged: i%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if i < busy {
			releases = append(releases, hold(t, filepath.Join(spec.Root.Path, "etc/motd")))
		}
	}
	start := time.Now()
	time.AfterFunc(2*time.Second, func() {
		for _, release := range releases {
			release()
		}
	})
	err := together(count, func(i int) error { return g.destroy(fmt.Sprintf("at-once-%d", i)) })
	if err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("%d deletes took %s, want under 15s", count, took)
	}
	same(t, "the store", before, storeTree(t, g.store))
}

// concourse/concourse#9722: every recovery stacked one more mount on each volume, until the kernel's limit.
func TestCase28StackedMounts(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	for _, privileged := range []bool{false, true} {
		const handle = "mounted-over"
		spec, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged})
		if err != nil {
			t.Fatal(err)
		}
		mounts := mountCount(t, g.store)
		for range 10 {
			if _, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged}); err == nil {
				t.Error("create of a live handle succeeds")
			}
			if _, err := g.stats(handle); err != nil {
				t.Error(err)
			}
		}
		if now := mountCount(t, g.store); now != mounts {
			t.Errorf("%d mounts below the store after 10 creates of a live handle, were %d", now, mounts)
		}

		over := newDir(t)
		if err := os.WriteFile(filepath.Join(over, "keep"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, point := range []string{"tmp", "usr/share", "tmp", "", "", ""} { // below the root first, then three times over it
			if err := unix.Mount(over, filepath.Join(spec.Root.Path, point), "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
		clean(t, g, handle)
		same(t, "the store", before, storeTree(t, g.store))
		if _, err := os.Stat(filepath.Join(over, "keep")); err != nil {
			t.Errorf("delete removed files through a bind mount: %v", err)
		}
	}
}

// concourse/concourse#4264, concourse/baggageclaim#30: after a reboot the directories are there and the mounts are not.
func TestCase29AfterReboot(t *testing.T) {
	volumes := busybox(t)
	for _, privileged := range []bool{false, true} {
		t.Run(slotName(privileged), func(t *testing.T) {
			g := newGdn(t, newStore(t), string(volumes))
			before := warm(t, g, volumes.url("busybox"))
			spec, err := g.create("from-before-reboot", rootfs{url: volumes.url("busybox"), privileged: privileged})
			if err != nil {
				t.Fatal(err)
			}
			if err := unmountAll(g.store); err != nil {
				t.Fatal(err)
			}

			if _, err := g.stats("from-before-reboot"); err == nil || !strings.Contains(err.Error(), "reboot") {
				t.Errorf("stats of a container without its mount: %v, want a failure that names the likely cause", err)
			}
			if _, err := g.create("from-before-reboot", rootfs{url: volumes.url("busybox"), privileged: privileged}); err == nil {
				t.Error("create of a handle that is still there succeeds")
			}
			after, err := g.create("from-after-reboot", rootfs{url: volumes.url("busybox"), privileged: privileged})
			if err != nil {
				t.Errorf("create after the reboot: %v", err)
			} else if _, err := os.Lstat(filepath.Join(after.Root.Path, "bin/busybox")); err != nil {
				t.Errorf("create after the reboot returned a root without the image: %v", err)
			}
			for _, handle := range []string{"from-before-reboot", "from-after-reboot"} {
				if err := g.destroy(handle); err != nil {
					t.Error(err)
				}
				clean(t, g, handle)
			}
			if _, err := os.Lstat(spec.Root.Path); !os.IsNotExist(err) {
				t.Errorf("left of the mount point: %v", err)
			}
			same(t, "the store", before, warm(t, g, volumes.url("busybox")))
		})
	}
}

// moby/moby#34672, #37970, #34948, #22260, #17823: another process's mount namespace still holds the mount.
func TestCase31MountSeenElsewhere(t *testing.T) {
	volumes := busybox(t)
	requireTool(t, "unshare")
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const handle = "seen-elsewhere"
	for _, privileged := range []bool{false, true} {
		r := rootfs{url: volumes.url("busybox"), privileged: privileged}
		spec, err := g.create(handle, r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(spec.Root.Path, "first"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		inBackground(t, "unshare -m --propagation private sh -c 'echo ready; read -r line'")
		if err := g.destroy(handle); err != nil {
			t.Fatal(err)
		}
		clean(t, g, handle)
		again, err := g.create(handle, r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(again.Root.Path, "first")); !os.IsNotExist(err) {
			t.Errorf("the second container sees the first one's file: %v", err)
		}
		options := mountOptions(t, again.Root.Path)
		// The kernel does not print an option that equals the module's default, so that it is off shows only as not being on.
		for _, option := range []string{"index=on", "metacopy=on", "redirect_dir=on"} {
			if strings.Contains(options, option) {
				t.Errorf("the overlay is mounted with %s: %s", option, options)
			}
		}
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
		clean(t, g, handle)
	}
	same(t, "the store", before, storeTree(t, g.store))
}

// moby/moby#19625, systemd/systemd#9873, #9153: the mount is made where the process that needs it cannot see it.
func TestCase32WrongMountNamespace(t *testing.T) {
	volumes := busybox(t)
	requireTool(t, "unshare")
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const handle = "mounted-elsewhere"
	spec, err := g.under("unshare", "-m", "--propagation", "slave").create(handle, rootfs{url: volumes.url("busybox")})
	if err != nil {
		t.Fatal(err) // it is a real root file system there: this is the operator's mistake, and documented
	}
	if n := mountCount(t, spec.Root.Path); n != 0 {
		t.Fatalf("the mount is visible here, this test shows nothing: %s", spec.Root.Path)
	}
	if entries, err := os.ReadDir(spec.Root.Path); err == nil && len(entries) != 0 {
		t.Errorf("behind the mount that is not here: %v", entries)
	}
	if _, err := g.stats(handle); err == nil {
		t.Error("stats says that all is well with a root file system that is not mounted here")
	}
	if err := g.destroy(handle); err != nil {
		t.Error(err)
	}
	clean(t, g, handle)
	same(t, "the store", before, storeTree(t, g.store))
}

// mountOptions are the super block's options of the topmost mount at point.
func mountOptions(t *testing.T, point string) string {
	t.Helper()
	options := ""
	for _, line := range mountTable(t) {
		fields := strings.Fields(line)
		if fields[4] == point {
			options = fields[len(fields)-1]
		}
	}
	if options == "" {
		t.Fatalf("nothing is mounted at %s", point)
	}
	return options
}
