package bcserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"golang.org/x/sys/unix"
)

// server is what was found out about the server by looking at a volume that it made. It is kept in STORE/server.json, and found out again with the
// host's features: once per boot.
type server struct {
	URL     string `json:"url"`
	Volumes string `json:"volumes"` // its directory of volumes, on this host

	// Driver is the server's: "overlay", "btrfs" or "naive".
	Driver string `json:"driver"`

	// Overlays is where the overlay driver keeps what its mounts show, and work beside it. It cannot be asked for.
	Overlays string `json:"overlays,omitempty"`
}

const (
	driverOverlay = "overlay" // a volume is a mount: of a directory beside, or an overlay
	driverBtrfs   = "btrfs"   // a volume is a subvolume
	driverNaive   = "naive"   // a volume is a directory
)

func recordPath(layers string) string { return filepath.Join(filepath.Dir(layers), "server.json") }

// readServer returns what is known; the zero value if nothing is, or no more can be read.
func readServer(layers string) (server, error) {
	var s server
	err := durable.ReadJSON(recordPath(layers), &s)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, durable.ErrDamaged) {
		return server{}, nil
	}
	return s, err
}

// look finds out what there is to know from an empty volume that the server has just made at p.
func look(url string, p place) (server, error) {
	s := server{URL: url, Volumes: p.volumes, Driver: driverNaive}
	st, err := statTree(p)
	if err != nil {
		return s, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p.tree(), &fs); err != nil {
		return s, &os.PathError{Op: "statfs", Path: p.tree(), Err: err}
	}
	const subvolumeIno = 256 // BTRFS_FIRST_FREE_OBJECTID, the root of every subvolume
	switch {
	case isMount(st):
		s.Driver = driverOverlay
		source, err := mnt.Source(p.tree())
		if err != nil {
			return s, fmt.Errorf("find what is mounted on volume %q: %w", p.tree(), err)
		}
		if filepath.Base(source) != p.handle {
			return s, fmt.Errorf("volume %q shows %q: this is not how BaggageClaim's overlay driver works", p.tree(), source)
		}
		s.Overlays = filepath.Dir(source)
	case int64(fs.Type) == unix.BTRFS_SUPER_MAGIC && st.Ino == subvolumeIno:
		s.Driver = driverBtrfs
	}
	return s, nil
}

// check says whether the volume at p is there as this process sees it, and not only its mount point: a server in another mount namespace, or on
// another host, says the same as one here.
func (s server) check(p place) error {
	st, err := statTree(p)
	if err != nil {
		return err
	}
	if s.Driver == driverOverlay && !isMount(st) {
		return fmt.Errorf("nothing is mounted on volume %q: is the server in another mount namespace, or was its mount taken off?", p.tree())
	}
	return nil
}

func statTree(p place) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p.tree(), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return st, fmt.Errorf("the server's volume cannot be seen: %w: does it run on this host, in this mount namespace?",
			&os.PathError{Op: "stat", Path: p.tree(), Err: err})
	}
	return st, nil
}

// isMount says whether the directory is the root of a mount (statx(2), Linux 5.8).
func isMount(st unix.Statx_t) bool {
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
