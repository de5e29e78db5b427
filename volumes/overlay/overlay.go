// Package overlay is the driver that makes volumes with overlayfs.
//
// # Layers
//
// A layer of this driver is layers/ID/fs, and layers/ID/work beside it while it is an upper. What overlayfs writes there is canonical: the
// files of the container's root belong to 0 on disk, whichever container wrote them, as long as the kernel can id-map layers (Linux 5.19). Where it
// cannot, an unprivileged container's upper belongs to its root's host id.
//
// # How layers are given to the kernel
//
// Three ways, the first that works is taken, [Options.IDMap] forces one:
//
//   - as descriptors, those to be mapped from a detached id-mapped clone of the layers directory (about Linux 6.15);
//   - by path through mount(2): the id-mapped clones are attached beside the mount point, and detached again after the mount, which
//     keeps its own reference (Linux 5.19);
//   - by path without id maps. The store then makes one shifted copy per image.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// IDMap says how unprivileged ownership is made.
type IDMap string

// The ways of IDMap.
const (
	Auto  IDMap = "auto"  // what the host can do best
	Mount IDMap = "mount" // id-mapped mounts attached for a moment, and mount(2): what Linux 5.19 can do
	Copy  IDMap = "copy"  // no id maps: shifted copies
)

// Options of the driver. The zero value is Auto.
type Options struct {
	IDMap IDMap
}

// Driver implements [volumes.Driver]. It has no state.
type Driver struct {
	opts Options
}

// New returns the driver.
func New(opts Options) *Driver { return &Driver{opts} }

// Name is "overlay".
func (d *Driver) Name() string { return "overlay" }

// CanMap says whether layers can be id-mapped here, and may be.
func (d *Driver) CanMap(f volumes.Features) bool { return f.IDMap && d.opts.IDMap != Copy }

// byPath says whether layers are given by path.
func (d *Driver) byPath(f volumes.Features) bool {
	return !f.LayerFDs || d.opts.IDMap == Mount || d.opts.IDMap == Copy
}

// New implements [volumes.Driver]: trees are in the layers' own directories.
func (d *Driver) New(context.Context, string, []string, string) error { return nil }

// Tree implements [volumes.Driver].
func (d *Driver) Tree(layers, name string) (string, error) { return layers + "/" + name, nil }

// Home implements [volumes.Driver].
func (d *Driver) Home(layers string) string { return layers }

// Holds implements [volumes.Driver]: all trees are in the store, which knows what is below it.
func (d *Driver) Holds(string, string) bool { return false }

// Mount implements [volumes.Driver].
func (d *Driver) Mount(ctx context.Context, f volumes.Features, v volumes.View) (err error) {
	m := &mounter{view: v, byPath: d.byPath(f)}
	defer func() { err = errors.Join(err, m.close()) }()

	layers, err := m.open(v.Layers)
	if err != nil {
		return err
	}
	if v.UpperMapped {
		if layers, err = m.mapped(layers, "layers"); err != nil {
			return err
		}
	}
	o := mnt.Overlay{Volatile: f.Volatile, UserXattr: f.UserXattr}
	for i, l := range v.Lowers {
		dir := l.Dir
		switch {
		case l.Layer != "":
			if dir, err = m.openAt(layers, l.Layer+"/fs"); err != nil {
				return err
			}
		case l.Map:
			dir, err = m.mapped(dir, fmt.Sprintf("lower-%d", i))
			// Only what this file system can never do: a passing lack of something is no reason to copy an image.
			if mnt.IsUnsupported(err) {
				return fmt.Errorf("layer %q %w: %w", l.Dir.Name(), volumes.ErrCannotMap, err)
			}
			if err != nil {
				return err
			}
		}
		o.Lowers = append(o.Lowers, dir)
	}
	if len(o.Lowers) == 0 {
		empty, err := m.makeEmpty(layers)
		if err != nil {
			return err
		}
		o.Lowers = []*os.File{empty}
	}
	if o.Upper, o.Work, err = m.makeUpper(layers, o.Lowers[0]); err != nil {
		return err
	}
	mount := o.MountFDs
	if m.byPath {
		mount = o.MountPaths
	}
	if err := mount(v.Target); err != nil {
		return err
	}
	return writable(v.Target, o.Work)
}

// writable says why an overlay was mounted read-only, if it was: where the kernel cannot make its directory below work, it gives no error
// (fs/overlayfs/super.c, ovl_make_workdir). Trying the same gives the reason, unless it has passed: where many creates find no room, those that fail give theirs back.
func writable(target string, work *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: target, Err: err}
	}
	if fs.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	err := unix.Mkdirat(int(work.Fd()), "reason", 0o700)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EROFS):
		return &os.PathError{Op: "mkdir", Path: work.Name() + "/work", Err: err}
	case err == nil:
		err = errors.New("there was no room for a moment, or the kernel log says why: try again")
	}
	return fmt.Errorf("%w: %q was mounted read-only: %w", errWrong, target, err)
}

// mounter holds what must stay open, or attached, until the overlay is mounted.
type mounter struct {
	view     volumes.View
	byPath   bool
	files    []*os.File
	attached []string
}

func (m *mounter) close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	for _, dir := range m.attached {
		errs = append(errs, mnt.Detach(dir), os.Remove(dir))
	}
	return errors.Join(errs...)
}

func (m *mounter) open(path string) (*os.File, error) {
	f, err := durable.OpenDir(path, unix.O_NOFOLLOW)
	if err == nil {
		m.files = append(m.files, f)
	}
	return f, err
}

// openAt opens a directory below dir, through dir's own mount.
func (m *mounter) openAt(dir *os.File, name string) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	m.files = append(m.files, f)
	return f, nil
}

// mapped returns dir on an id-mapped clone of its mount. With paths, the clone is attached as name beside the target.
func (m *mounter) mapped(dir *os.File, name string) (*os.File, error) {
	clone, err := mnt.Clone(dir)
	if err != nil {
		return nil, err
	}
	m.files = append(m.files, clone)
	if err := mnt.SetIDMap(clone, m.view.UserNS); err != nil {
		return nil, err
	}
	if !m.byPath {
		return clone, nil
	}
	at := filepath.Join(filepath.Dir(m.view.Target), name)
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	if err := mnt.Attach(int(clone.Fd()), at); err != nil {
		return nil, errors.Join(err, os.Remove(at))
	}
	m.attached = append(m.attached, at)
	return m.open(at)
}

// makeUpper makes the upper's directories through layers, the mount that overlayfs will write through. Modes, owners and ACLs of the
// image's top directory are read and written through the same mounts that the overlay uses, so the kernel translates all of them.
func (m *mounter) makeUpper(layers, top *os.File) (upper, work *os.File, err error) {
	for _, d := range []struct {
		name string
		mode uint32
	}{{"fs", 0o755}, {"work", 0o700}} {
		if err := unix.Mkdirat(int(layers.Fd()), m.view.Upper+"/"+d.name, d.mode); err != nil {
			return nil, nil, &os.PathError{Op: "mkdir", Path: filepath.Join(layers.Name(), m.view.Upper, d.name), Err: err}
		}
	}
	if upper, err = m.openAt(layers, m.view.Upper+"/fs"); err != nil {
		return nil, nil, err
	}
	if work, err = m.openAt(layers, m.view.Upper+"/work"); err != nil {
		return nil, nil, err
	}
	return upper, work, tree.CopyTop(top, upper, m.view.Warn)
}

// makeEmpty makes the lower layer of a view that has none: overlayfs wants at least one.
func (m *mounter) makeEmpty(layers *os.File) (*os.File, error) {
	name := m.view.Upper + "/empty"
	if err := unix.Mkdirat(int(layers.Fd()), name, 0o755); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: filepath.Join(layers.Name(), name), Err: err}
	}
	if err := unix.Fchmodat(int(layers.Fd()), name, 0o755, 0); err != nil { // whatever the umask
		return nil, &os.PathError{Op: "chmod", Path: filepath.Join(layers.Name(), name), Err: err}
	}
	// Through the mapped mount, this host's root is not the container's.
	root := int(m.view.Root())
	if err := unix.Fchownat(int(layers.Fd()), name, root, root, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &os.PathError{Op: "chown", Path: filepath.Join(layers.Name(), name), Err: err}
	}
	return m.openAt(layers, name)
}

// Freeze implements [volumes.Driver]. The superblock is remounted, not only this mount: that is refused while a file is open for writing through any mount of it
// (fs/namespace.c, sb_prepare_remount_readonly), and leaves none that could be.
func (d *Driver) Freeze(ctx context.Context, target string) error {
	err := mnt.RemountReadOnly(ctx, target)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w: a process has a file open there for writing", volumes.ErrBusy, err)
	}
	return err
}

// Unmount implements [volumes.Driver]. It reads the mount table only if something is busy: mounts below the container's root may be
// the reason, and nobody else will take them off.
func (d *Driver) Unmount(ctx context.Context, dir string) error {
	if err := unmountPoint(ctx, dir); err != nil {
		return err
	}
	points, err := os.ReadDir(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unmountPoint(ctx, filepath.Join(dir, p.Name())); err != nil {
			return err
		}
	}
	return nil
}

// unmountPoint takes everything off point and off what is below it.
func unmountPoint(ctx context.Context, point string) error {
	err := mnt.Unmount(ctx, point, func() error { return unmountBelow(ctx, point) })
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w: something still uses it; find out with: fuser -vm %q (a process in another mount namespace may be one)",
			volumes.ErrBusy, err, point)
	}
	return err
}

// unmountBelow takes off what is mounted on directories below point.
func unmountBelow(ctx context.Context, point string) error {
	// mountinfo has real paths, and the way to the store may lead through symlinks.
	real, err := filepath.EvalSymlinks(point)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	below, err := mnt.Below(real)
	if err != nil {
		return err
	}
	for _, b := range below {
		if err := mnt.Unmount(ctx, b, nil); err != nil {
			return err
		}
	}
	return nil
}

// Usage implements [volumes.Driver].
func (d *Driver) Usage(ctx context.Context, layers, name string) (volumes.LayerUsage, error) {
	dir, err := durable.OpenDir(filepath.Join(layers, name), unix.O_NOFOLLOW)
	if err != nil {
		return volumes.LayerUsage{}, err
	}
	defer dir.Close()
	u, err := tree.Measure(ctx, int(dir.Fd()), "fs", 0)
	return volumes.LayerUsage{Bytes: u.Bytes, Entries: u.Entries, Partial: u.Partial}, err
}

// Remove implements [volumes.Driver].
func (d *Driver) Remove(ctx context.Context, layers, name string) error {
	return tree.RemoveIn(ctx, layers, name)
}

// kernelVersion is for messages: nothing is decided by it.
func kernelVersion() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return strings.TrimRight(unix.ByteSliceToString(u.Release[:]), "\x00")
}
