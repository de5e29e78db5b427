package overlay

import (
	"os"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newFS is a new file system of its own: tmpfs, or another kind on a loop device, whose image is sparse. options are for tmpfs's mount, or for mkfs.
func newFS(t testing.TB, kind string, sizeMiB int64, options ...string) string {
	t.Helper()
	inspect.NeedRoot(t)
	dir := inspect.NewDir(t)
	point := dir + "/fs"
	must(t, os.Mkdir(point, 0o755))
	if kind == "tmpfs" {
		must(t, unix.Mount("test", point, kind, 0, strings.Join(append(options, "mode=0755", "size="+size(sizeMiB)), ",")))
	} else {
		inspect.NeedTool(t, "mkfs."+kind, "mount", "losetup")
		must(t, os.WriteFile(dir+"/image", nil, 0o600))
		must(t, os.Truncate(dir+"/image", sizeMiB<<20))
		inspect.Command(t, "mkfs."+kind, append(append([]string{"-q"}, options...), dir+"/image")...)
		inspect.Command(t, "mount", "-o", "loop", "-t", kind, dir+"/image", point)
	}
	t.Cleanup(func() { // lazily: calls that a test killed leave files open
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			t.Errorf("umount %s: %v", kind, err)
		}
	})
	return point
}
