package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"golang.org/x/sys/unix"
)

// Options says where a store is and how it works. Dir and Driver must be set.
type Options struct {
	Dir    string // absolute path of the store; made by the first Create
	Driver Driver

	// NeverCopy refuses a container whose image would have to be copied to get the right owners, instead of making one shifted copy
	// per image.
	NeverCopy bool

	// Keep, if not nil, is asked at the end of each copy whether it shall become its stack's next generation. A reason: it shall not.
	// Without it nothing is kept.
	Keep func(ctx context.Context, e *Ended) (reason string, err error)
	// MaxLayers is how many layers a stack may have before they are merged; 0 is 8.
	MaxLayers int

	// Warn, if not nil, is told of what went less than well and did not fail the call. It may be called from the goroutine of the call only.
	Warn func(error)
	// Trace, if not nil, is told after each step of a call how long it took.
	Trace func(step string, took time.Duration)
}

// Store is the embedded store: volumes on a local disk, kept by nobody but the processes that use them. See the package comment
// for its layout and its promises. It holds no descriptor and no state between calls, so any number of Stores, in any number of
// processes, can work on one directory at once.
type Store struct {
	dir  string
	opts Options
}

// New returns the store of opts. It touches nothing; the first Create makes the directory.
func New(opts Options) *Store {
	return &Store{dir: filepath.Clean(opts.Dir), opts: opts}
}

// format is the version of the layout on disk.
const format = 1

// directories of the store and their modes. The container's init crosses the store, mnt and mnt/ID as an unprivileged id; layers
// holds real setuid-root files and belongs to root alone.
var directories = []struct {
	name string
	mode os.FileMode
}{
	{"", 0o711}, {"layers", 0o700}, {"volumes", 0o700}, {"volumes/init", 0o700}, {"volumes/live", 0o700}, {"volumes/dead", 0o700},
	{"caches", 0o700}, {"images", 0o700}, {"mnt", 0o711},
}

// home is a directory of the file system that holds the containers' files.
func (s *Store) home() string { return s.opts.Driver.Home(s.path("layers")) }

func (s *Store) path(elem ...string) string { return s.dir + "/" + strings.Join(elem, "/") }

// realDir is the store's path without symlinks: mountinfo shows mount points so, and runc refuses a root file system whose path has any.
func (s *Store) realDir() string {
	if dir, err := filepath.EvalSymlinks(s.dir); err == nil {
		return dir
	}
	return s.dir
}

// rootPath is where the merged root file system of the container id is mounted, in the store at the real path dir.
func rootPath(dir, id string) string { return dir + "/mnt/" + id + "/rootfs" }

// open reads the store's record, and first makes the store, or looks at the host anew, where that has not been done in this boot.
func (s *Store) open(ctx context.Context) (hostRecord, error) {
	var r hostRecord
	boot, err := bootKey()
	if err != nil {
		return r, err
	}
	if r, err = readHost(s.path("store.json")); err != nil || r.Boot != boot {
		if r, err = s.setUp(ctx, boot); err != nil {
			return r, err
		}
	}
	return r, s.check(r)
}

// check refuses a store that this program cannot write to safely. Delete does without it: what is there can always be removed.
func (s *Store) check(r hostRecord) error {
	fs, err := fileSystem(s.dir)
	switch {
	case err != nil:
		return err
	case r.Format != format:
		return fmt.Errorf("%w: store %q has format %d, this program writes %d; use another directory or the program that made it",
			ErrUnsupported, s.dir, r.Format, format)
	case r.Driver != s.opts.Driver.Name():
		return fmt.Errorf("%w: store %q was made by driver %q, not %q; its volumes can be deleted, new ones need another directory",
			ErrUnsupported, s.dir, r.Driver, s.opts.Driver.Name())
	case r.FS != fs:
		return fmt.Errorf("%w: store %q was made on %s and is on %s now: is the right file system mounted? To start afresh, empty it (see the operator's guide)",
			ErrUnsupported, s.dir, r.FS, fs)
	}
	return nil
}

// setUp makes the directories, probes the host and writes the record, once: who comes second waits for the first.
func (s *Store) setUp(ctx context.Context, boot string) (hostRecord, error) {
	var r hostRecord
	if !filepath.IsAbs(s.dir) {
		return r, fmt.Errorf("%w store path %q: it must be absolute", ErrInvalid, s.dir)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return r, fmt.Errorf("make the store: %w", err)
	}
	fs, err := fileSystem(s.dir)
	if err != nil {
		return r, err
	}
	if fs == "overlay" {
		return r, fmt.Errorf("%w: store %q is on an overlay file system, which cannot hold the upper layer of another; put it on ext4, xfs, btrfs or tmpfs, for example on a volume of its own",
			ErrUnsupported, s.dir)
	}
	if err := s.refuseForeign(); err != nil {
		return r, err
	}
	for _, d := range directories {
		// Chmod as well: the mode of mkdir(2) is less the umask, which is the server's.
		err := os.Mkdir(s.path(d.name), d.mode)
		if err == nil || errors.Is(err, os.ErrExist) {
			err = os.Chmod(s.path(d.name), d.mode)
		}
		if err != nil {
			return r, fmt.Errorf("make the store: %w", err)
		}
	}
	lock, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return r, fmt.Errorf("make the store: %w", err)
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Records, "store.json"); err != nil {
		return r, err
	}
	err = durable.ReadJSON(s.path("store.json"), &r)
	if err == nil && r.Boot == boot {
		return r, nil
	}
	// A damaged record is written anew: everything in it can be found out again. One that only a later format can read is not damaged.
	known := err == nil && r.Format > 0
	if r.Format > format || known {
		if err := s.check(r); err != nil {
			return r, err
		}
	}
	before := r
	if known && idsOf(before.Boot) != "" && idsOf(before.Boot) != idsOf(boot) {
		return r, s.otherIDs(before.Boot, boot)
	}
	r = hostRecord{Format: format, Driver: s.opts.Driver.Name(), FS: fs, Boot: boot}
	if err := s.adopt(ctx); err != nil {
		return r, fmt.Errorf("look for containers of an earlier store in this place: %w", err)
	}
	if r.Features, err = s.probe(ctx); err != nil {
		return r, fmt.Errorf("%w: store %q on %s cannot hold volumes: %w", ErrUnsupported, s.dir, fs, err)
	}
	if known && before.Features.UserXattr != r.Features.UserXattr { // marks in layers have other names
		return r, s.otherIDs(before.Boot, boot)
	}
	return r, durable.WriteJSON(s.path("store.json"), r)
}

// refuseForeign refuses to make a store of a directory that is used for something else: its mode would be changed, /tmp's for example.
func (s *Store) refuseForeign() error {
	names, err := readNames(s.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		top, _, _ := strings.Cut(n, ".")
		switch top {
		case "layers", "volumes", "caches", "images", "mnt", "lock", "store", "server", "lost+found":
		default:
			return fmt.Errorf("%w store %q: it is no store and holds %q; use an empty directory, or one that does not exist", ErrInvalid, s.dir, n)
		}
	}
	return nil
}

// scratch is the name of the layer and the mount point in which a driver probes. There is one for all, so that what a kill leaves of it goes
// with the next probe.
const scratch = "probe"

// probe lets the driver try what it needs in a scratch layer and mount point. The caller holds the lock of store.json.
func (s *Store) probe(ctx context.Context) (f Features, err error) {
	if err := s.unprobe(ctx); err != nil {
		return f, err
	}
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, s.unprobe(undo))
	}()
	v := View{Target: s.path("mnt", scratch, "rootfs"), Layers: s.path("layers"), Upper: scratch, Warn: s.opts.Warn}
	if err := errors.Join(os.MkdirAll(v.Target, 0o711), os.Mkdir(s.path("layers", scratch), 0o700)); err != nil {
		return f, err
	}
	if err := s.opts.Driver.New(ctx, v.Layers, []string{scratch}, ""); err != nil {
		return f, err
	}
	return s.opts.Driver.Probe(ctx, v)
}

func (s *Store) unprobe(ctx context.Context) error {
	_, err := s.dismantle(ctx, scratch, false, func(string) {})
	return err
}

// otherIDs: a layer's files belong to ids, and its marks are attributes, that mean something else in another user namespace. One with the same ids, of a worker
// that was restarted, is no other.
func (s *Store) otherIDs(before, now string) error {
	return fmt.Errorf("%w: store %q was made in a user namespace with the ids %q, and here they are %q: its volumes can be deleted, new ones need another directory, or this one emptied (see the operator's guide)",
		ErrUnsupported, s.dir, idsOf(before), idsOf(now))
}

// bootKey names this boot and this user namespace, also by its ids: what was found out in one need not hold in another. The kernel gives the number of a namespace
// that is gone to another one.
func bootKey() (string, error) {
	id, err := bootID()
	if err != nil {
		return "", err
	}
	ns, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return "", err
	}
	ids, err := userns.IDs()
	return id + " " + ns + " " + ids, err
}

func bootID() (string, error) {
	id, err := durable.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// idsOf is the part of a bootKey that says which ids of its parent a user namespace has: uid_map in one line. "": an older program wrote it.
func idsOf(bootKey string) string {
	_, rest, _ := strings.Cut(bootKey, " ")
	_, ids, _ := strings.Cut(rest, " ")
	return ids
}

// thisBoot says whether key, an earlier bootKey, is of this boot, in whichever namespace. If in doubt it is.
func thisBoot(key string) bool {
	now, err := bootID()
	if err != nil {
		return true
	}
	then, _, _ := strings.Cut(key, " ")
	return then == now
}

// Capacity returns the size in bytes of the file system that holds the containers' files, or will hold them: the store need not exist.
func (s *Store) Capacity() (uint64, error) {
	for dir := s.home(); ; dir = filepath.Dir(dir) {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			continue
		}
		if err != nil {
			return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return fs.Blocks * uint64(fs.Frsize), nil
	}
}

// fsNames are the names of the file systems people use, by statfs(2)'s magic number.
var fsNames = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", 0x2fc12fc1: "zfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.FUSE_SUPER_MAGIC: "fuse", 0xca451a4e: "bcachefs", unix.RAMFS_MAGIC: "ramfs", unix.SMB2_SUPER_MAGIC: "smb", unix.V9FS_MAGIC: "9p",
}

func fileSystem(dir string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if name, ok := fsNames[int64(fs.Type)]; ok {
		return name, nil
	}
	return fmt.Sprintf("file system 0x%x", fs.Type), nil
}

// timer reports to Options.Trace how long each step took.
func (s *Store) timer() func(step string) {
	if s.opts.Trace == nil {
		return func(string) {}
	}
	last := time.Now()
	return func(step string) {
		now := time.Now()
		s.opts.Trace(step, now.Sub(last))
		last = now
	}
}

func (s *Store) warn(err error) {
	if err != nil && s.opts.Warn != nil {
		s.opts.Warn(err)
	}
}
