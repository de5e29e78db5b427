package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// concourse/concourse#1045, #1171, #1333, #6475, #6620, #6643, containerd/containerd#4734, #5890, #8329, #9068,
// podman-container-tools/podman#16541: the ownership of an image is changed file by file, for every container.
func TestCase60NoWorkPerFile(t *testing.T) {
	for _, test := range []struct {
		idmap string
		files int
		bound float64 // of the store's bytes, in images
	}{
		{"auto", 100_000, 0.1},
		{"copy", 10_000, 1.1}, // one shared copy; the limit for the first create is the operator's patience
	} {
		t.Run(test.idmap, func(t *testing.T) {
			requireRoot(t)
			volumes := volumesDir(filepath.Join(tmpFS(t, "size=1g"), "volumes"))
			fill := func(root string) error { return fillFiles(root, test.files, 4096) }
			if err := volumes.addImage("many-files", false, fill); err != nil {
				t.Fatal(err)
			}
			g := newGdn(t, newStore(t), string(volumes), "--idmap", test.idmap)
			for i := range 5 {
				handle := fmt.Sprintf("no-work-%d", i)
				if _, err := g.create(handle, rootfs{url: volumes.url("many-files")}); err != nil {
					t.Fatal(err)
				}
			}
			image := diskBytes(t, volumes.content("many-files"))
			if used := diskBytes(t, g.store); float64(used) > test.bound*float64(image) {
				t.Errorf("5 containers use %d bytes, want under %.1f of the image's %d", used, test.bound, image)
			}
			for i := range 5 {
				if err := g.destroy(fmt.Sprintf("no-work-%d", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// fillFiles makes files of some bytes each, a thousand to a directory.
func fillFiles(root string, files, fileBytes int) error {
	content := make([]byte, fileBytes)
	for i := range files {
		dir := filepath.Join(root, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// cloudfoundry/garden-runc-release#81, #84, cloudfoundry/cloud_controller_ng#1106: usage without the image, or with it twice.
func TestCase77NumbersUsersBelieve(t *testing.T) {
	requireRoot(t)
	const mib = 1 << 20
	volumes := newVolumes(t)
	fill := func(root string) error {
		return errors.Join(
			os.WriteFile(filepath.Join(root, "big"), make([]byte, 30*mib), 0o644),
			os.WriteFile(filepath.Join(root, "deleted"), make([]byte, 20*mib), 0o644))
	}
	for _, image := range []string{"sized", "sized-shifted"} {
		if err := volumes.addImage(image, image != "sized", fill); err != nil {
			t.Fatal(err)
		}
	}
	for _, privileged := range []bool{false, true} {
		for _, image := range []string{"sized", "sized-shifted"} {
			g := newGdn(t, newStore(t), string(volumes))
			spec, err := g.create("sized-container", rootfs{url: volumes.url(image), privileged: privileged})
			if err != nil {
				t.Fatal(err)
			}
			wantUsage(t, g, "sized-container", 50*mib, 0)
			in := func(name string) string { return filepath.Join(spec.Root.Path, name) }
			if err := errors.Join(
				os.WriteFile(in("written"), make([]byte, 10*mib), 0o644),
				os.Link(in("written"), in("linked")),
				os.Link(in("written"), in("linked-again")),
				os.Remove(in("deleted")),
				os.WriteFile(in("sparse"), nil, 0o644),
				os.Truncate(in("sparse"), 1024*mib),
			); err != nil {
				t.Fatal(err)
			}
			wantUsage(t, g, "sized-container", 60*mib, 10*mib)
			if err := g.destroy("sized-container"); err != nil {
				t.Error(err)
			}
		}
	}
}

// wantUsage wants the numbers within 1 %, or within the few blocks of an empty container's own.
func wantUsage(t *testing.T, g *gdn, handle string, total, exclusive uint64) {
	t.Helper()
	used, err := g.stats(handle)
	if err != nil {
		t.Error(err)
		return
	}
	near := func(got, want uint64) bool {
		slack := max(want/100, 64<<10)
		return got+slack >= want && got <= want+slack
	}
	if !near(used.totalBytes, total) || !near(used.exclusiveBytes, exclusive) {
		t.Errorf("stats: %+v, want total %d and exclusive %d within 1%%", used, total, exclusive)
	}
}

// concourse/concourse#682, containerd/containerd#4217: dozens of size queries at once, each a walk over everything. A walk ends in a part of the time that the command has,
// and what it has counted by then is the answer, which the log says. So is that of 50 at once.
func TestCase47StatsOfALargeTree(t *testing.T) {
	images := busybox(t)
	const files, blocks = 100_000, 4096
	disk := tmpFS(t, fmt.Sprintf("size=1g,nr_inodes=%d", files+20_000))
	g := newGdn(t, filepath.Join(disk, "store"), string(images))
	spec, err := g.create("many-files", rootfs{url: images.url("busybox")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		dir := fmt.Sprintf("%s/%d", spec.Root.Path, i/1000)
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	most := uint64(files * blocks)
	ask := func(timeout string) (partial bool, err error) {
		res := g.call(append([]string{"--timeout", timeout}, g.unprivileged...), "stats", "many-files")
		var answer struct {
			DiskUsage struct {
				Exclusive uint64 `json:"exclusive_bytes_used"`
			} `json:"disk_usage"`
		}
		if err := errors.Join(res.err, json.Unmarshal(res.stdout, &answer)); err != nil {
			return false, fmt.Errorf("stats: %w: %s", err, res.stdout)
		}
		partial = strings.Contains(string(res.stderr), `"partial":true`)
		got := answer.DiskUsage.Exclusive
		if got == 0 || got > most+most/10 || !partial && got < most {
			return partial, fmt.Errorf("stats: %d bytes, partial: %v; there are %d", got, partial, most)
		}
		return partial, nil
	}
	if partial, err := ask("10ms"); err != nil || !partial { // no machine looks at so many in this time
		t.Errorf("partial: %v, %v", partial, err)
	}
	if err := together(50, func(int) error { _, err := ask("30s"); return err }); err != nil {
		t.Error(err)
	}
	if err := g.destroy("many-files"); err != nil {
		t.Error(err)
	}
	clean(t, g, "many-files")
}

// cloudfoundry/garden-runc-release#84, concourse/concourse#1751: a disk limit is asked for and nobody enforces it.
func TestCase78DiskLimitIsRefused(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	for _, privileged := range []bool{false, true} {
		for _, exclusive := range []bool{false, true} {
			r := rootfs{url: volumes.url("busybox"), privileged: privileged, limitBytes: 10 << 20, exclusive: exclusive}
			_, err := g.create("limited", r)
			if err == nil || !strings.Contains(err.Error(), "limit") || !strings.Contains(err.Error(), "--ignore-disk-limit") {
				t.Errorf("create with a disk limit: %v, want a refusal that names --ignore-disk-limit", err)
			}
			clean(t, g, "limited")
			same(t, "the store after a refused create", before, storeTree(t, g.store))

			ignoring := newGdn(t, g.store, string(volumes), "--ignore-disk-limit")
			res := ignoring.call(ignoring.slot(privileged), "create", "--disk-limit-size-bytes", "10485760", r.url, "limited")
			if res.err != nil || !bytes.Contains(res.stderr, []byte("limit")) {
				t.Errorf("create with --ignore-disk-limit: %v, want success and a line in the log: %s%s", res.err, res.stdout, res.stderr)
			}
			if err := g.destroy("limited"); err != nil {
				t.Error(err)
			}
		}
	}
}
