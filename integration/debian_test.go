package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// cacheDir keeps what is downloaded, over many runs.
func cacheDir() (string, error) {
	if dir := os.Getenv("BC_TEST_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "bc-image-plugin"), err
}

// debian is the shared volumes directory, with the Debian images in it.
func debian(t *testing.T) volumesDir {
	t.Helper()
	requireRoot(t)
	requireTool(t, "debootstrap", "apt-get")
	if err := debianImages(); err != nil {
		t.Fatal(err)
	}
	return sharedVolumes()
}

// fillDebian makes a copy of the cached Debian root file system, which is made first if this machine has none yet.
func fillDebian(root string) error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	cached := filepath.Join(cache, "debian")
	if out, err := exec.Command("./debian-rootfs.sh", cached).CombinedOutput(); err != nil {
		return fmt.Errorf("debian-rootfs.sh: %w\n%s", err, out)
	}
	if out, err := exec.Command("cp", "-a", "--reflink=auto", cached+"/.", root).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w\n%s", cached, err, out)
	}
	return nil
}

// sudoPackage is the path of Debian's own sudo: a small package that has what makes installing hard (a setuid-root program,
// files of mode 0440, maintainer scripts) and needs nothing beyond the minimal system.
var sudoPackage = sync.OnceValues(func() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	kept := filepath.Join(cache, "sudo.deb")
	if _, err := os.Stat(kept); !errors.Is(err, fs.ErrNotExist) {
		return kept, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	download := exec.Command("apt-get", "-q", "download", "sudo")
	download.Dir = dir
	if out, err := download.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", download, err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "sudo_*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("%s left %q", download, files)
	}
	return kept, os.Rename(files[0], kept)
})
