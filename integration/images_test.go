package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// guardianRoot is the host id of an unprivileged container's root: the highest id there is.
const guardianRoot = 4294967294

// volumesDir is the volumes directory of a worker's BaggageClaim, as its server leaves it on disk.
type volumesDir string

// newVolumes is a volumes directory for one test, which may do to its images what it likes.
func newVolumes(t testing.TB) volumesDir {
	t.Helper()
	return volumesDir(filepath.Join(newDir(t), "volumes"))
}

// add makes a live volume and returns the directory of its content. privileged is what its privileged.json says.
func (v volumesDir) add(handle string, privileged bool) (string, error) {
	for _, state := range []string{"init", "live", "dead"} {
		if err := os.MkdirAll(filepath.Join(string(v), state), 0o755); err != nil {
			return "", err
		}
	}
	content := v.content(handle)
	if err := os.MkdirAll(content, 0o755); err != nil {
		return "", err
	}
	for name, value := range map[string]any{"privileged.json": privileged, "properties.json": map[string]string{}} {
		text, err := json.Marshal(value)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(content), name), text, 0o644); err != nil {
			return "", err
		}
	}
	return content, nil
}

// addImage makes a volume as Concourse's image resources leave it: the tree in rootfs, made by fill, and metadata.json beside
// it. Shifted is a volume that BaggageClaim prepared for unprivileged containers.
func (v volumesDir) addImage(handle string, shifted bool, fill func(root string) error) error {
	content, err := v.add(handle, !shifted)
	if err != nil {
		return err
	}
	root := filepath.Join(content, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := fill(root); err != nil {
		return fmt.Errorf("filling the image %s: %w", handle, err)
	}
	metadata := fmt.Sprintf(`{"env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","IMAGE=%s"],"user":"root"}`, handle)
	if err := os.WriteFile(filepath.Join(content, "metadata.json"), []byte(metadata), 0o644); err != nil {
		return err
	}
	if shifted {
		return shift(content)
	}
	return nil
}

// content is the directory of a live volume's content.
func (v volumesDir) content(handle string) string {
	return filepath.Join(string(v), "live", handle, "volume")
}

// url is the rootfs URL of an image that addImage made.
func (volumesDir) url(handle string) string { return "baggageclaim://" + handle + "/rootfs" }

// shift gives everything of root's to Guardian's mapped root and keeps the modes, which chown would strip of setuid bits. It
// is what BaggageClaim does to the volumes of unprivileged containers.
func shift(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		uid, gid := int(st.Uid), int(st.Gid)
		if uid == 0 {
			uid = guardianRoot
		}
		if gid == 0 {
			gid = guardianRoot
		}
		if err := os.Lchown(path, uid, gid); err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink {
			return nil
		}
		return syscall.Chmod(path, st.Mode&0o7777)
	})
}

// fillBusybox makes a small root file system of Debian's static busybox.
func fillBusybox(root string) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	for dir, mode := range map[string]os.FileMode{
		"bin": 0o755, "etc": 0o755, "home": 0o755, "root": 0o700, "tmp": 0o777 | os.ModeSticky, "usr/share": 0o755,
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(root, dir), mode); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755); err != nil {
		return err
	}
	applets, err := exec.Command(path, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", path, err)
	}
	for _, applet := range strings.Fields(string(applets)) {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\n",
		"etc/group":  "root:x:0:\ndaemon:x:1:\n",
		"etc/motd":   "from the image\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.Lchown(filepath.Join(root, "home"), 1, 1)
}

// The images that tests share and only read: busybox and busybox-shifted, debian and debian-shifted.
var (
	busyboxImages = sync.OnceValue(func() error { return addBoth("busybox", fillBusybox) })
	debianImages  = sync.OnceValue(func() error { return addBoth("debian", fillDebian) })
)

func sharedVolumes() volumesDir { return volumesDir(filepath.Join(runDir, "volumes")) }

func addBoth(name string, fill func(root string) error) error {
	return errors.Join(
		sharedVolumes().addImage(name, false, fill),
		sharedVolumes().addImage(name+"-shifted", true, fill))
}

// busybox is the shared volumes directory, with the busybox images in it.
func busybox(t *testing.T) volumesDir {
	t.Helper()
	requireRoot(t)
	requireTool(t, "busybox")
	if err := busyboxImages(); err != nil {
		t.Fatal(err)
	}
	return sharedVolumes()
}
