package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"golang.org/x/sys/unix"
)

// Request says what kind of container a root file system is for.
type Request struct {
	// Image is the lowest layer of the root file system; it stays the caller's to close. nil: there is no root file system, only Copies.
	Image *Image

	// Copies are made beside the root file system, each with a mount point of its own.
	Copies []CopyRequest

	// Privileged containers see ids as they are: root is 0. For others root is the highest id of this user namespace and 0 has no
	// place, as Guardian runs them.
	Privileged bool
}

// Volume is a container's root file system.
type Volume struct {
	ID   string // random; names the container's layers and mounts in the store
	Root string // absolute path of the merged, writable tree; "" without an image

	Copies []string // absolute paths of the copies, in the order of the request
}

// undoTime is how long the clean-up after a failed call may take when the call's own time is over.
const undoTime = 10 * time.Second

// Create makes the root file system of the container h. It is complete, writable, owned by the container's root and verified
// before Create returns.
//
// A live container of that handle is left as it is: [ErrExists]. What a dead process left of one is removed first. After a
// failure nothing is left, or, if that fails too, what is left is removed by Delete or the next Create of h.
//
// The cost does not depend on the number of files in the image, except where the image has to be copied: see
// [Options.NeverCopy]. Nothing is flushed to disk: the volume does not survive a reboot, and need not.
func (s *Store) Create(ctx context.Context, h Handle, req Request) (*Volume, error) {
	v, err := s.create(ctx, h, req, false)
	if errors.Is(err, ErrCannotMap) && !s.opts.NeverCopy {
		v, err = s.create(ctx, h, req, true) // its file system turned out to have no id maps
	}
	if err != nil {
		if errors.Is(err, ErrCannotMap) {
			err = fmt.Errorf("%w; it needs a shifted copy, which --idmap auto and copy make", err)
		}
		return nil, fmt.Errorf("create the root file system of %q: %w", h.name, s.hint(err))
	}
	return v, nil
}

func (s *Store) create(ctx context.Context, h Handle, req Request, copied bool) (*Volume, error) {
	step := s.timer()
	host, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	step("open")
	p, err := s.plan(ctx, host, req, copied)
	if err != nil {
		return nil, err
	}
	defer p.close()
	step("plan")
	return s.build(ctx, h, host, p, req.Copies, step)
}

// plan is all that is known about a container before anything is made for it.
type plan struct {
	id     string
	view   View // of the root file system; without an image only what copies have in common with it
	copies []View
	record layerRecord
	image  *Image     // nil: there is none
	owner  uint32     // that the root file system's root must have
	files  []*os.File // to be closed
}

// uppers are the names of the layers that the container writes to.
func (p *plan) uppers() []string {
	var names []string
	if p.view.Lowers != nil {
		names = append(names, p.view.Upper)
	}
	for _, v := range p.copies {
		names = append(names, v.Upper)
	}
	return names
}

func (p *plan) close() {
	for _, f := range p.files {
		f.Close()
	}
}

// plan decides which layers are shown under which ownership. Only a copy of the image, where one is needed, is made here, outside of
// any lock but the image's own.
func (s *Store) plan(ctx context.Context, host hostRecord, req Request, copied bool) (_ *plan, err error) {
	id, err := ids.New()
	if err != nil {
		return nil, err
	}
	store := s.realDir()
	p := &plan{
		id: id,
		view: View{
			Target: rootPath(store, id), Layers: s.path("layers"), Upper: id,
			Mapped: !req.Privileged, Warn: s.opts.Warn,
		},
		record: layerRecord{Kind: kindRootfs, Driver: s.keeper(), Created: time.Now().UTC(), Boot: host.Boot, Privileged: req.Privileged},
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.view.MaxID, err = userns.MaxOf(idsOf(host.Boot)); err != nil && !req.Privileged {
		return nil, err
	}
	canMap := s.opts.Driver.CanMap(host.Features)
	p.view.UpperMapped = p.view.Mapped && canMap
	needMap := p.view.UpperMapped
	if req.Image != nil {
		lower, err := s.planImage(ctx, host, p, store, req.Image, copied || !canMap)
		if err != nil {
			return nil, err
		}
		p.view.Lowers = []Lower{lower}
		needMap = needMap || lower.Map
	}
	if needMap {
		if p.view.UserNS, err = userns.New(p.view.MaxID); err != nil {
			return nil, err
		}
		p.files = append(p.files, p.view.UserNS)
	}
	return p, nil
}

// planImage decides how the image is shown: as it is, mapped, or by a shifted copy of it. store is the real path of the store.
func (s *Store) planImage(ctx context.Context, host hostRecord, p *plan, store string, img *Image, copied bool) (Lower, error) {
	switch {
	case img.isBelow(store), s.holds(img):
		return Lower{}, fmt.Errorf("%w image %q: it is inside the store %q, where other containers' files are", ErrInvalid, img.path, s.dir)
	case img.contains(store):
		return Lower{}, fmt.Errorf("%w image %q: the store %q is inside it", ErrInvalid, img.path, s.dir)
	}
	p.image = img
	p.record.Image, p.record.Identity = durable.Text(img.path), img.identity()

	// A layer is mapped exactly when its owner on disk is not the one that the container must see.
	lower := Lower{Dir: img.dir, Map: img.isShifted(p.view.MaxID) != p.view.Mapped}
	p.owner = img.stat.Uid
	if !lower.Map {
		return lower, nil
	}
	p.owner = userns.Swap(p.owner, p.view.MaxID)
	if !copied && !img.onOverlay() {
		return lower, nil
	}
	if s.opts.NeverCopy {
		return Lower{}, fmt.Errorf("image %q %w", img.path, ErrCannotMap)
	}
	layer, dir, err := s.shiftedCopy(ctx, host, img, p.view.MaxID)
	if err != nil {
		return Lower{}, err
	}
	p.files = append(p.files, dir)
	p.record.Lowers = []string{layer}
	return Lower{Dir: dir}, nil
}

// holds says whether the image is in a tree of a layer that is not below the store.
func (s *Store) holds(img *Image) bool {
	real, err := img.realPath()
	return err == nil && s.opts.Driver.Holds(s.path("layers"), real)
}

// build makes what p describes and makes it h's. The lock of the handle is held from the first look to the last rename.
func (s *Store) build(ctx context.Context, h Handle, host hostRecord, p *plan, reqs []CopyRequest, step func(string)) (_ *Volume, err error) {
	unlock, err := s.lock(ctx, h)
	if err != nil {
		return nil, err
	}
	defer unlock()
	switch st, old, err := s.findOwn(ctx, h); {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return nil, err
	case st == stateLive:
		return nil, fmt.Errorf("handle %q %w: delete it first", h.name, ErrExists)
	default:
		// We hold the lock, so whoever made this entry is dead.
		if err := s.forget(ctx, st, h, old); err != nil {
			return nil, fmt.Errorf("remove what is left of an earlier %q: %w", h.name, err)
		}
	}
	step("lock")

	// Intent first: from here on whatever is made can be found through the entry.
	if err := s.makeEntry(stateInit, h, p.id); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			err = errors.Join(s.hint(err), s.forget(undo, stateInit, h, p.id)) // before it is undone: then nothing is full any more
		}
	}()
	if err := os.Mkdir(s.path("layers", p.id), 0o700); err != nil {
		return nil, err
	}
	if err := s.useStacks(ctx, host, p, reqs); err != nil {
		return nil, err
	}
	if err := s.use(p.id, p.record.Lowers); err != nil {
		return nil, err
	}
	if err := s.makeMountPoints(p); err != nil {
		return nil, err
	}
	if err := s.opts.Driver.New(ctx, s.path("layers"), p.uppers(), h.name); err != nil {
		return nil, err
	}
	v := &Volume{ID: p.id}
	if p.view.Lowers != nil {
		if err := s.opts.Driver.Mount(ctx, host.Features, p.view); err != nil {
			return nil, err
		}
		if err := verify(p); err != nil {
			return nil, err
		}
		v.Root = p.view.Target
		step("mount")
	}
	for n, view := range p.copies {
		if err := s.mountCopy(ctx, host, p, view, n); err != nil {
			return nil, err
		}
		v.Copies = append(v.Copies, view.Target)
		step("cache")
	}
	taken := map[inode]string{}
	for _, c := range reqs {
		if c.At == "" || v.Root == "" {
			continue
		}
		at, err := makeDestination(v.Root, c.At, p.view.Root())
		if err != nil {
			return nil, err
		}
		if other, ok := taken[at]; ok {
			return nil, fmt.Errorf("%w cache paths %q and %q: in this image they lead to one directory", ErrInvalid, other, c.At)
		}
		taken[at] = c.At
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.moveEntry(stateInit, stateLive, h); err != nil {
		return nil, err
	}
	step("publish")
	return v, nil
}

// lock takes h's lock, and returns what releases it.
func (s *Store) lock(ctx context.Context, h Handle) (unlock func(), err error) {
	l, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return nil, err
	}
	if _, err := l.Name(ctx, durable.Handles, h.name); err != nil {
		l.Close()
		return nil, err
	}
	return func() { l.Close() }, nil
}

func (s *Store) makeLayer(id string, r layerRecord) error {
	if err := os.Mkdir(s.path("layers", id), 0o700); err != nil {
		return err
	}
	return s.writeLayerRecord(id, r)
}

func (s *Store) writeLayerRecord(id string, r layerRecord) error {
	return writeRecord(s.path("layers", id, "layer.json"), r)
}

// keeper is the driver's name, if trees are somewhere else than in layers' directories: no other driver could remove them then.
func (s *Store) keeper() string {
	if s.home() == s.path("layers") {
		return ""
	}
	return s.opts.Driver.Name()
}

// removable refuses to remove a layer whose files this driver would not find.
func (s *Store) removable(layer string, r layerRecord) error {
	if r.Driver == "" || r.Driver == s.opts.Driver.Name() {
		return nil
	}
	return fmt.Errorf("%w: layer %s was made by driver %q, and only that can remove it: use the flags of then (such as --baggageclaim-url)",
		ErrUnsupported, layer, r.Driver)
}

// removeLayer removes a layer that nobody uses.
func (s *Store) removeLayer(ctx context.Context, layer string) error {
	if err := s.removable(layer, s.layerInfo(layer)); err != nil {
		return err
	}
	return s.opts.Driver.Remove(ctx, s.path("layers"), layer)
}

// makeMountPoints makes mnt/ID with a directory for each mount, and the directories of the copies' uppers. An unprivileged container's
// init crosses mnt/ID as the mapped root, so it needs o+x. A privileged one comes as root, and nobody else should reach the setuid-root
// files that it may write.
func (s *Store) makeMountPoints(p *plan) error {
	mode := os.FileMode(0o711)
	if !p.view.Mapped {
		mode = 0o700
	}
	dir := s.path("mnt", p.id)
	if err := os.Mkdir(dir, mode); err != nil {
		return err
	}
	// The mode of mkdir(2) is less the umask, which is the server's.
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	if p.view.Lowers != nil {
		if err := os.Mkdir(dir+"/rootfs", 0o755); err != nil {
			return err
		}
	}
	for _, v := range p.copies {
		if err := errors.Join(os.Mkdir(v.Target, 0o755), os.Mkdir(v.Layers+"/"+v.Upper, 0o700)); err != nil {
			return err
		}
	}
	return nil
}

// verify looks at what was made, as the container will see it: a mount of its own, writable, its root owned as expected and reachable.
// A mount in another mount namespace, an upper that was mounted read-only without an error, an image that changed its owner
// meanwhile: all of these look like success to the calls that made them.
func verify(p *plan) error {
	if err := verifyMount(p.view.Target, p.owner, "image "+strconv.Quote(string(p.record.Image))); err != nil {
		return err
	}
	if err := p.image.isThere(); err != nil {
		return err
	}
	if p.view.Mapped {
		return verifyWay(filepath.Dir(p.view.Target))
	}
	return nil
}

func verifyMount(root string, owner uint32, like string) error {
	var st, above unix.Stat_t
	if err := unix.Lstat(root, &st); err != nil {
		return &os.PathError{Op: "verify", Path: root, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(root), &above); err != nil {
		return &os.PathError{Op: "verify", Path: filepath.Dir(root), Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return &os.PathError{Op: "verify", Path: root, Err: err}
	}
	switch {
	case st.Dev == above.Dev:
		return fmt.Errorf("verify %q: nothing is mounted there; do mounts of this process stay in its mount namespace?", root)
	case fs.Flags&unix.ST_RDONLY != 0:
		return fmt.Errorf("verify %q: it was mounted read-only: %w", root, unix.EROFS)
	case st.Uid != owner:
		return fmt.Errorf("verify %q: it belongs to uid %d, not to %d as %s should", root, st.Uid, owner, like)
	}
	return nil
}

// verifyWay finds a directory on the way to dir that an unprivileged container's init, which comes as an id without rights, cannot cross.
func verifyWay(dir string) error {
	for i := 0; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		d := dir[:max(i, 1)]
		var st unix.Stat_t
		if err := unix.Stat(d, &st); err != nil {
			return &os.PathError{Op: "verify", Path: d, Err: err}
		}
		if st.Mode&0o001 == 0 {
			return fmt.Errorf("directory %q has mode %04o: unprivileged containers cannot cross it to their root file system; chmod o+x it", d, st.Mode&0o7777)
		}
	}
	return nil
}
