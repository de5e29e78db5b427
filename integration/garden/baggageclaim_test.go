package garden

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"code.cloudfoundry.org/garden"
)

// An image that Concourse fetched is a BaggageClaim volume with the root file system in rootfs/ and what the image says about
// processes in metadata.json. BaggageClaim keeps the volume's files as the container that fetched it saw them: with the ids
// shifted, unless that was a privileged one. Any of the two must serve both slots.
func TestBaggageClaimVolume(t *testing.T) {
	for _, fetched := range createdIn {
		for _, slot := range createdIn {
			t.Run(fmt.Sprintf("fetched %s, used %s", fetched.name, slot.name), func(t *testing.T) {
				s := newServer(t)
				const volume = "5b1e4b92-1c5e-4f3a-6d5c-3f6a5a6d0c11"
				top := filepath.Join(s.volumes, "live", volume, "volume")
				writeImage(t, s.tools.busybox, filepath.Join(top, "rootfs"))
				writeFile(t, filepath.Join(top, "metadata.json"), `{"env":["FROM_IMAGE=yes","WHO=image"],"user":"alice"}`, 0, 0o644)
				writeFile(t, filepath.Join(top, "../privileged.json"), strconv.FormatBool(fetched.privileged)+"\n", 0, 0o644)
				writeFile(t, filepath.Join(top, "../properties.json"), "{}\n", 0, 0o644)
				if !fetched.privileged {
					shiftOwners(t, top)
				}
				before := snapshot(t, filepath.Dir(top))

				for i, uri := range []string{"baggageclaim://" + volume + "/rootfs", "file://" + top + "/rootfs", top + "/rootfs"} {
					handle := s.handle(fmt.Sprintf("volume-%d", i))
					container := s.create(t, garden.ContainerSpec{
						Handle:     handle,
						Privileged: slot.privileged,
						Image:      garden.ImageRef{URI: uri},
						Env:        []string{"WHO=client"},
					})
					if got := run(t, container, `echo $FROM_IMAGE $WHO; stat -c %u:%g / /bin/busybox /home/alice`); got != "yes client\n0:0\n0:0\n1000:1000\n" {
						t.Errorf("a container of %s prints %q", uri, got)
					}
					run(t, container, `rm -r /home /etc/motd && echo mine > /etc/passwd`)
					s.destroy(t, handle)
				}
				if after := snapshot(t, filepath.Dir(top)); after != before {
					t.Errorf("the volume was\n%sand is now\n%s", before, after)
				}
			})
		}
	}
}

// shiftOwners gives what root owns to the id that is root in an unprivileged container, as BaggageClaim does.
func shiftOwners(t testing.TB, dir string) {
	t.Helper()
	root := unprivilegedRoot(t)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			return err
		}
		return os.Lchown(path, root, root)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// unprivilegedRoot is the id that gdn maps root to: the highest that exists here, which it takes from the first and the third
// column of uid_map, for users and groups alike (idmapper's MaxValid).
func unprivilegedRoot(t testing.TB) int {
	t.Helper()
	file, err := os.Open("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	highest := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var inside, outside, size int
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &size); err != nil {
			t.Fatalf("read %q from uid_map: %v", strings.TrimSpace(lines.Text()), err)
		}
		highest = max(highest, inside+size-1)
	}
	return highest
}
