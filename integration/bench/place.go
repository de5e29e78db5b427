package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// place is where everything is made: an XFS of its own on a loop device, which is what GrootFS needs, so that both stand on the same.
type place struct {
	dir     string // below it everything is
	fs      string // its file system
	kind    string // of the file system below
	plugin  string
	modules string // the directory of the modules of what it is compared with
	empty   string // floor, doing nothing, and with arguments
	groot   string // "" if it cannot be had
	tardis  string
	why     string // there is no groot
	runc    string
	busybox string
}

// diskBytes is the size of the file system; of its file only what is written takes room.
const diskBytes = 12 << 30

func newPlace(plugin, modules, in string) (p *place, err error) {
	dir, err := os.MkdirTemp(in, "bc-image-plugin-bench-")
	if err != nil {
		return nil, err
	}
	p = &place{dir: dir, modules: modules, fs: filepath.Join(dir, "fs"), empty: filepath.Join(dir, "floor"), plugin: filepath.Join(dir, "bc-image-plugin")}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	// Init of an unprivileged container comes as an id without rights.
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(p.fs, 0o755)); err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk")
	for _, c := range [][]string{
		{"truncate", "-s", fmt.Sprint(int64(diskBytes)), disk}, {"mkfs.xfs", "-q", disk}, {"mount", "-o", "loop", disk, p.fs}, {"chmod", "755", p.fs},
		{"go", "build", "-C", modules, "-trimpath", "-ldflags", "-s -w", "-o", p.empty + ".built", "./floor"},
		// Copied, as an installed program is: the page cache of a file that the linker wrote is in smaller pieces, which costs each start 0.1 ms.
		{"cp", p.empty + ".built", p.empty}, {"cp", plugin, p.plugin},
	} {
		if err := command(c[0], c[1:]...); err != nil {
			return nil, err
		}
	}
	if p.runc, err = output("which", "runc"); err != nil {
		return nil, err
	}
	if p.busybox, err = output("which", "busybox"); err != nil {
		return nil, err
	}
	p.buildGroot(filepath.Join(modules, "grootfs"))
	return p, nil
}

// buildGroot builds GrootFS from the module proxy. Without it the rest is measured all the same.
func (p *place) buildGroot(module string) {
	for name, pkg := range map[string]string{"groot": "code.cloudfoundry.org/grootfs", "tardis": "code.cloudfoundry.org/grootfs/store/filesystems/overlayxfs/tardis"} {
		to := filepath.Join(p.dir, name)
		// It needs cgo for the quotas of XFS.
		err := command("env", "CGO_ENABLED=1", "go", "build", "-C", module, "-trimpath", "-ldflags", "-s -w", "-o", to+".built", pkg)
		if err == nil {
			err = command("cp", to+".built", to)
		}
		if err != nil {
			p.groot, p.why = "", err.Error()
			return
		}
	}
	p.groot, p.tardis = filepath.Join(p.dir, "groot"), filepath.Join(p.dir, "tardis")
}

// close takes off all that is mounted here, and removes all.
func (p *place) close() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(mounts), "\n")
	var errs []error
	for i := len(lines) - 1; i >= 0; i-- { // a mount is listed after what it is mounted on
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], p.dir+"/") {
			if err := unix.Unmount(f[4], unix.UMOUNT_NOFOLLOW); err != nil {
				errs = append(errs, &os.PathError{Op: "umount", Path: f[4], Err: err})
			}
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // and nothing is removed that may be mounted
	}
	return os.RemoveAll(p.dir)
}

// image makes a directory of that many files of that size, a thousand to a directory.
func (p *place) image(files, bytes int) (string, error) {
	dir := filepath.Join(p.fs, fmt.Sprintf("image-%d-%d", files, bytes))
	contents := make([]byte, bytes)
	for i := range files {
		d := filepath.Join(dir, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return "", err
			}
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprint(i)), contents, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// settle has the disk written what was made so far, so that it is not written while something is measured.
func (p *place) settle() error { return command("sync", "-f", p.fs, p.dir) }
