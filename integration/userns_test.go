package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The worker of these tests is itself in a user namespace, as one in a container is. Its ids come in two pieces, as they may where
// subordinate ids were given out twice. Guardian takes its highest id, workerMax, for an unprivileged container's root.
var workerMap = []syscall.SysProcIDMap{
	{ContainerID: 0, HostID: workerRoot, Size: 32768},
	{ContainerID: 32768, HostID: 200000, Size: 32768},
}

const (
	workerRoot    = 100000 // on the host
	workerMax     = 65535
	workerMaxHost = 232767 // workerMax on the host
)

// startWorker starts a process that holds a user and a mount namespace open, and returns the command that enters them as root.
func startWorker(t *testing.T, ids []syscall.SysProcIDMap) (enter []string) {
	t.Helper()
	requireTool(t, "nsenter")
	holder := exec.Command("/bin/sh", "-euc", "echo ready; read -r line")
	holder.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: ids,
		GidMappings: ids,
		Credential:  &syscall.Credential{},
	}
	background(t, holder)
	return []string{"nsenter", "--target", fmt.Sprint(holder.Process.Pid), "--user", "--mount", "--setuid", "0", "--setgid", "0", "--"}
}

func TestWorkerInUserNamespace(t *testing.T) {
	requireRoot(t)
	requireTool(t, "busybox")
	enter := startWorker(t, workerMap)
	inside := func(script string, args ...string) string {
		t.Helper()
		return strings.TrimSpace(command(t, enter[0], append(append(enter[1:len(enter):len(enter)], "/bin/sh", "-euc", script), args...)...))
	}

	// The worker's own images: one of its root's, and one that its BaggageClaim gave to its highest id.
	volumes := newVolumes(t)
	for image, owner := range map[string]int{"image": workerRoot, "image-shifted": workerMaxHost} {
		if err := volumes.addImage(image, false, fillBusybox); err != nil {
			t.Fatal(err)
		}
		if err := giveTo(volumes.content(image), owner); err != nil {
			t.Fatal(err)
		}
		privileged := fmt.Sprint(image == "image")
		if err := os.WriteFile(filepath.Join(filepath.Dir(volumes.content(image)), "privileged.json"), []byte(privileged), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	home := newDir(t)
	if err := os.Chown(home, workerRoot, workerRoot); err != nil {
		t.Fatal(err)
	}
	g := newGdn(t, filepath.Join(home, "store"), string(volumes)).under(enter...)

	for _, privileged := range []bool{false, true} {
		for _, image := range []string{"image", "image-shifted"} {
			t.Run(image+"/"+slotName(privileged), func(t *testing.T) {
				const handle = "in-a-worker"
				spec, err := g.create(handle, rootfs{url: volumes.url(image), privileged: privileged})
				if err != nil {
					t.Fatal(err)
				}
				owner := "0:0"
				if !privileged {
					owner = fmt.Sprintf("%[1]d:%[1]d", workerMax)
				}
				if got := inside(`stat -c %u:%g "$0" "$0/bin/busybox"`, spec.Root.Path); got != owner+"\n"+owner {
					t.Errorf("the root and a file of the image belong to %q in the worker, want %s", got, owner)
				}
				if got := inside(`stat -c %u:%g "$0/home"`, spec.Root.Path); got != "1:1" {
					t.Errorf("a file of daemon's in the image belongs to %q in the worker", got)
				}

				// Written, and replaced: an opaque directory in a user namespace is marked by another attribute.
				inside(`cd "$0"; echo x > written; rm etc/motd; rm -r usr; mkdir usr; test -z "$(ls -A usr)"; test ! -e etc/motd`, spec.Root.Path)
				if used, err := g.stats(handle); err != nil || used.exclusiveBytes == 0 || used.totalBytes <= used.exclusiveBytes {
					t.Errorf("stats: %+v, %v", used, err)
				}
				if err := g.destroy(handle); err != nil {
					t.Error(err)
				}
				clean(t, g, handle)
				if left := namesIn(t, filepath.Join(g.store, "volumes", "live")); len(left) != 0 {
					t.Errorf("left: %q", left)
				}
			})
		}
	}
}

// giveTo adds an offset to the owner of everything that is root's or daemon's, as a worker's namespace shows its files to the
// host: owner becomes root's, daemon keeps its place in the worker.
func giveTo(dir string, owner int) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		if st.Uid != 0 {
			return os.Lchown(path, workerRoot+int(st.Uid), workerRoot+int(st.Gid))
		}
		return os.Lchown(path, owner, owner)
	})
}
