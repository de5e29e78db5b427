package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"golang.org/x/sys/unix"
)

// Probe implements [volumes.Driver]: it mounts scratch overlays, the best way first, until one is right. A mount that the kernel
// takes and makes read-only is wrong.
func (d *Driver) Probe(ctx context.Context, scratch volumes.View) (volumes.Features, error) {
	inNamespace, err := insideUserNamespace()
	if err != nil {
		return volumes.Features{}, err
	}
	lower := filepath.Join(scratch.Layers, scratch.Upper, "lower")
	if err := os.Mkdir(lower, 0o755); err != nil {
		return volumes.Features{}, err
	}
	dir, err := os.OpenFile(lower, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return volumes.Features{}, err
	}
	defer dir.Close()
	// A host without user namespaces has no id maps, and the store still works.
	var userNS *os.File
	maxID, err := userns.MaxID()
	var unread *os.PathError
	switch {
	case err == nil:
		userNS, err = userns.New(maxID)
		switch {
		case err == nil:
			defer userNS.Close()
		case !userns.IsForbidden(err):
			return volumes.Features{}, err
		}
	case errors.As(err, &unread) && !errors.Is(err, os.ErrNotExist):
		return volumes.Features{}, err
	}
	var last error
	for _, f := range candidates(userNS != nil, inNamespace) {
		v := scratch
		v.Lowers = []volumes.Lower{{Dir: dir, Map: f.IDMap}}
		v.Mapped, v.UpperMapped, v.MaxID, v.UserNS = f.IDMap, f.IDMap, maxID, userNS
		last = d.try(ctx, f, v)
		switch {
		case last == nil:
			return f, nil
		case !mnt.IsUnsupported(last) && !errors.Is(last, errWrong):
			// A passing lack of memory or descriptors says nothing about the host, and the answer holds for a whole boot.
			return volumes.Features{}, last
		}
	}
	return volumes.Features{}, fmt.Errorf("no kind of overlay mount works here (Linux %s): %w", kernelVersion(), last)
}

// candidates are the combinations of features worth trying, best first.
func candidates(idMap, inNamespace bool) []volumes.Features {
	var all []volumes.Features
	for _, f := range []volumes.Features{
		{LayerFDs: true, IDMap: true, Volatile: true},
		{IDMap: true, Volatile: true},
		{LayerFDs: true, Volatile: true},
		{Volatile: true},
		{},
	} {
		if f.IDMap && !idMap {
			continue
		}
		f.UserXattr = inNamespace
		all = append(all, f)
	}
	return all
}

// try mounts v, looks whether it is right, and takes it all away again.
func (d *Driver) try(ctx context.Context, f volumes.Features, v volumes.View) error {
	err := (&Driver{}).Mount(ctx, f, v)
	if err == nil {
		err = check(v)
	}
	return errors.Join(err, d.Unmount(ctx, filepath.Dir(v.Target)),
		removeAll(ctx, filepath.Join(v.Layers, v.Upper), "fs", "work"))
}

// check looks whether v is mounted, belongs to whom it should and can be written to: a file is made.
func check(v volumes.View) error {
	var st unix.Stat_t
	if err := unix.Stat(v.Target, &st); err != nil {
		return err
	}
	if st.Uid != v.Root() {
		return fmt.Errorf("%w: the root belongs to %d instead of %d", errWrong, st.Uid, v.Root())
	}
	return os.WriteFile(filepath.Join(v.Target, "probe"), nil, 0o600)
}

// errWrong: the kernel made the mount, and not as it was asked to.
var errWrong = errors.New("the mount is not as it should be")

func removeAll(ctx context.Context, dir string, names ...string) error {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	var errs []error
	for _, n := range names {
		errs = append(errs, tree.Remove(ctx, int(d.Fd()), n))
	}
	return errors.Join(errs...)
}

// initUserNS is the inode of the initial user namespace (PROC_USER_INIT_INO, include/linux/proc_ns.h).
const initUserNS = 0xEFFFFFFD

func insideUserNamespace() (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/user", &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: "/proc/self/ns/user", Err: err}
	}
	return st.Ino != initUserNS, nil
}
