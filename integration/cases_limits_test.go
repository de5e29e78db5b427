package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// concourse/concourse-chart#361: a disk comes back with what was on it. The two lines of the operator's guide empty a store, with its mounts or without, and nothing beside it.
func TestCase25EmptyTheStore(t *testing.T) {
	requireRoot(t)
	guide, err := os.ReadFile("../docs/operator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(guide), "## Empty the store")
	var lines []string
	for line := range strings.Lines(section) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, code)
		} else if len(lines) > 0 {
			break
		}
	}
	if len(lines) != 2 {
		t.Fatalf("the guide has %q, want two lines", lines)
	}
	volumes := busybox(t)
	for _, rebooted := range []bool{false, true} {
		store := newStore(t)
		beside := filepath.Dir(store) + "/store-beside"
		if err := os.WriteFile(beside, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		g := newGdn(t, store, string(volumes))
		for i := range 10 {
			if _, err := g.create(fmt.Sprint("old-", i), rootfs{url: withCache(volumes.url("busybox"), "key", cacheAt, "always"), privileged: i%2 == 0}); err != nil {
				t.Fatal(err)
			}
		}
		if rebooted {
			if err := unmountAll(store); err != nil {
				t.Fatal(err)
			}
		}
		script := strings.ReplaceAll(strings.Join(lines, ""), "/var/lib/bc-image-plugin", store)
		command(t, "sh", "-euc", script)
		if _, err := os.Lstat(store); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("rebooted %v: the store is there: %v", rebooted, err)
		}
		if n := mountCount(t, store); n > 0 {
			t.Errorf("rebooted %v: %d mounts are left", rebooted, n)
		}
		if _, err := os.Stat(beside); err != nil {
			t.Errorf("rebooted %v: what is beside the store: %v", rebooted, err)
		}
		if _, err := os.Stat(volumes.content("busybox") + "/rootfs/bin/busybox"); err != nil {
			t.Errorf("rebooted %v: the image: %v", rebooted, err)
		}
	}
}

// cloudfoundry/garden-runc-release#109: one create that is stuck over an image stops nobody else but those who want the same copy of it, and these for a limited time. When it is killed,
// they go on at once.
func TestCase72StuckCreate(t *testing.T) {
	requireRoot(t)
	volumes := newVolumes(t)
	big := func(root string) error {
		for i := range 3000 {
			dir := fmt.Sprintf("%s/%d", root, i/100)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(fmt.Sprintf("%s/%d", dir, i), []byte("data"), 0o644)); err != nil {
				return err
			}
		}
		return fillBusybox(root)
	}
	if err := errors.Join(volumes.addImage("big", false, big), volumes.addImage("other", false, fillBusybox)); err != nil {
		t.Fatal(err)
	}
	g := newGdn(t, newStore(t), string(volumes), "--idmap", "copy")
	if _, err := g.create("third", rootfs{url: volumes.url("other")}); err != nil {
		t.Fatal(err)
	}
	stuck := g.command(context.Background(), g.slot(false), "create", volumes.url("big"), "stuck")
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	defer stuck.Wait()
	defer stuck.Process.Kill()
	for end := time.Now().Add(20 * time.Second); len(namesMatching(t, g.store+"/images", ".making")) == 0; {
		if time.Now().After(end) {
			t.Fatal("it does not begin to copy")
		}
	}
	if err := stuck.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if len(namesMatching(t, g.store+"/images", ".making")) == 0 {
		t.Skip("the copy was quicker than the signal")
	}

	if _, err := g.create("another image", rootfs{url: volumes.url("other")}); err != nil {
		t.Errorf("a create from another image: %v", err)
	}
	if err := g.destroy("third"); err != nil {
		t.Errorf("a delete: %v", err)
	}
	impatient := *g
	impatient.unprivileged = append([]string{"--timeout", "1s"}, g.unprivileged...)
	if _, err := impatient.create("same image", rootfs{url: volumes.url("big")}); err == nil || !strings.Contains(err.Error(), "wait for the lock of image") {
		t.Errorf("a create from the same image: %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := g.create("waiter", rootfs{url: volumes.url("big")})
		waiting <- err
	}()
	if err := stuck.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("who waited for the one that was killed: %v", err)
	}
	for _, h := range []string{"stuck", "another image", "same image", "waiter"} {
		if err := g.destroy(h); err != nil {
			t.Error(err)
		}
	}
}

func namesMatching(t testing.TB, dir, suffix string) []string {
	t.Helper()
	var all []string
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n.Name(), suffix) {
			all = append(all, n.Name())
		}
	}
	return all
}

// concourse/concourse#3251: more containers are asked for at once than there is room for. Those that do not fit fail with the reason, those that are made are whole, and
// when all are deleted the store is as before.
func TestCase80MoreThanThereIsRoomFor(t *testing.T) {
	requireRoot(t)
	volumes := busybox(t)
	g := newGdn(t, filepath.Join(tmpFS(t, "size=64m,nr_inodes=700"), "store"), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	const count = 100
	handle := func(i int) string { return fmt.Sprintf("many-%d", i) }
	var mu sync.Mutex
	made := 0
	err := together(count, func(i int) error {
		spec, err := g.create(handle(i), rootfs{url: volumes.url("busybox"), privileged: i%2 == 0})
		if err != nil {
			// Others that fail give back theirs, so there may be some again when the reason is looked for.
			if !strings.Contains(err.Error(), "out of inodes") && !strings.Contains(err.Error(), "no space left on device: the file system of the store") &&
				!strings.Contains(err.Error(), "there was no room for a moment") {
				return err
			}
			if strings.Contains(err.Error(), "is full") {
				return err
			}
			return nil
		}
		mu.Lock()
		made++
		mu.Unlock()
		_, err = os.Stat(filepath.Join(spec.Root.Path, "bin/busybox"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if made == 0 || made == count {
		t.Errorf("%d of %d were made: there has to be room for some", made, count)
	}
	if err := together(count, func(i int) error { return g.destroy(handle(i)) }); err != nil {
		t.Error(err)
	}
	same(t, "the store", before, storeTree(t, g.store))
}
