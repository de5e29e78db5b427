package integration

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// moby/moby#9939, #18624, coreos/bugs#235: a container made btrfs subvolumes, and nobody could remove it. Through its overlay it can make none. What somebody put into a layer on the
// host is removed with it, but for a read-only one, which the sentence names.
func TestCase46Subvolumes(t *testing.T) {
	requireTool(t, "btrfs")
	images := busybox(t)
	disk := loopFS(t, "btrfs", 256)
	g := newGdn(t, filepath.Join(disk, "store"), string(images))
	subvolumes := func() string { return command(t, "btrfs", "subvolume", "list", disk) }
	for _, privileged := range []bool{false, true} {
		const handle = "subvolumes"
		spec, err := g.create(handle, rootfs{url: images.url("busybox"), privileged: privileged})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("btrfs", "subvolume", "create", spec.Root.Path+"/a").CombinedOutput(); err == nil || !strings.Contains(string(out), "not a btrfs") {
			t.Errorf("a subvolume in the container: %v: %s", err, out)
		}
		upper := onLayer(t, g.store, "")
		command(t, "btrfs", "subvolume", "create", upper+"/a")
		command(t, "btrfs", "subvolume", "create", upper+"/a/b")
		writeFile(t, upper+"/a/b/held", "")
		command(t, "btrfs", "property", "set", "-ts", upper+"/a/b", "ro", "true")
		if err := g.destroy(handle); err == nil || !strings.Contains(err.Error(), `remove "held": read-only file system`) {
			t.Errorf("delete of a read-only subvolume: %v", err)
		}
		command(t, "btrfs", "property", "set", "-ts", upper+"/a/b", "ro", "false")
		if err := g.destroy(handle); err != nil {
			t.Error(err)
		}
		clean(t, g, handle)
		if left := subvolumes(); left != "" {
			t.Errorf("subvolumes are left: %s", left)
		}
	}
}
