package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"golang.org/x/sys/unix"
)

// CopyRequest asks for a private, writable copy of a stack's current generation.
type CopyRequest struct {
	Stack string // see ValidStack

	// At, if not empty, is an absolute path below the root file system at which a directory is made for the copy to be mounted on by
	// the container's runtime. Symlinks of the image are resolved inside the root, never to the host.
	At string

	// Policy is kept with the copy and given to Options.Keep. It must not hold secrets.
	Policy string
}

// Ended is a copy whose container is being deleted: unmounted, and about to become the stack's next generation, or nothing.
type Ended struct {
	Stack     string
	Policy    string // of the CopyRequest
	Committed bool   // by CommitCopies, or by Commit before this end was cut short

	dir    *os.File // the top of what the container changed
	commit string   // the path of the note that Commit makes
}

// Commit notes that the copy is good. It has to be called before what says so is removed from the copy: should this process die, the next delete of the
// container finds the note.
func (e *Ended) Commit() error { return durable.Touch(e.commit) }

// Mode returns the type and permissions of a file at the top of what the container changed, without following a symlink. fs.ErrNotExist: there is none.
func (e *Ended) Mode(name string) (os.FileMode, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(e.dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	mode := os.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		mode |= os.ModeDir
	case unix.S_IFLNK:
		mode |= os.ModeSymlink
	default:
		mode |= os.ModeIrregular
	}
	return mode, nil
}

// Remove removes a name, file or tree, at the top of what the container changed, so that no generation has it. Times of the top stay.
func (e *Ended) Remove(ctx context.Context, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(e.dir.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := tree.Remove(ctx, int(e.dir.Fd()), name); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(int(e.dir.Fd()), ".", times, 0))
}

// CopyEnd says what became of a copy.
type CopyEnd struct {
	Stack      string
	Promoted   bool
	Reason     string // why it was dropped
	Generation uint64 // the new one
	Layers     int    // of the new generation
	Bytes      uint64 // of the new layer
	Entries    uint64 // files and directories of the new layer
	Merged     int    // how many layers were merged into the new one
}

// copyRecord is what a container's record keeps of a copy.
type copyRecord struct {
	Stack      string   `json:"stack"`
	Policy     string   `json:"policy,omitempty"`
	Generation uint64   `json:"generation"`
	Base       string   `json:"base,omitempty"`      // topmost layer of that generation
	BaseBoot   string   `json:"base_boot,omitempty"` // in which it was published
	Layers     []string `json:"layers,omitempty"`    // of it that are served, top first
}

func (c copyRecord) top() stackTop { return stackTop{c.Generation, c.Base, c.BaseBoot} }

// copyName names the copy's mount point below mnt/ID and its upper below layers/ID.
func copyName(n int) string { return fmt.Sprintf("cache-%d", n) }

// spoiltName is copyName of a copy that somebody can go on writing to, so that it must not become a layer.
func spoiltName(n int) string { return fmt.Sprintf("spoilt-%d", n) }

// copyUser is the name by which the container's copy n marks the layers it uses; sealedName that of the layer it may become.
func copyUser(id string, n int) string   { return fmt.Sprintf("%s.%d", id, n) }
func sealedName(id string, n int) string { return fmt.Sprintf("%s-%d", id, n) }

// mergedName is the name of the layer that is made below sealedName of those it replaces.
func mergedName(id string, n int) string { return sealedName(id, n) + "m" }

// useStacks writes the container's record with the current generation of each stack that is asked for, and marks these as used by it. The
// record comes first: whatever happens, the container's delete finds the marks. A stack that gets another generation between the two is looked
// at again.
func (s *Store) useStacks(ctx context.Context, host hostRecord, p *plan, reqs []CopyRequest) error {
	for range 1000 {
		p.copies, p.record.Copies = nil, nil
		for n, req := range reqs {
			if err := s.planCopy(host, p, n, req); err != nil {
				return err
			}
		}
		if err := s.writeLayerRecord(p.id, p.record); err != nil {
			return err
		}
		again, err := s.markCopies(ctx, p)
		if err != nil || !again {
			return err
		}
	}
	return errors.New("a cache is being replaced faster than it can be read")
}

// planCopy looks up the current generation of a stack and describes the view of the container's copy n.
func (s *Store) planCopy(host hostRecord, p *plan, n int, req CopyRequest) error {
	name := req.Stack
	if p.view.Mapped && !p.view.UpperMapped {
		name += shiftedSuffix // uppers belong to the mapped root on disk here, and no other container could read them as its own
	}
	if !ValidStack(name) {
		return fmt.Errorf("%w stack name %q", ErrInvalid, name)
	}
	t, layers, err := s.readStack(name, shortBoot(host.Boot))
	if err != nil {
		return err
	}
	p.record.Copies = append(p.record.Copies, copyRecord{
		Stack: name, Policy: req.Policy, Generation: t.generation, Base: t.layer, BaseBoot: t.boot, Layers: layers,
	})
	v := p.view // ownership and namespace are the container's
	v.Target = filepath.Join(filepath.Dir(p.view.Target), copyName(n))
	v.Upper = p.id + "/" + copyName(n)
	v.Lowers = nil
	for _, l := range layers {
		v.Lowers = append(v.Lowers, Lower{Layer: l})
	}
	p.copies = append(p.copies, v)
	return nil
}

// markCopies marks the layers that p's record names as used. again: one is gone, replaced since it was looked up; no mark is left then.
func (s *Store) markCopies(ctx context.Context, p *plan) (again bool, err error) {
	for n, c := range p.record.Copies {
		if c.Base == "" {
			continue
		}
		err := s.markLayer(c.Base, copyUser(p.id, n))
		if errors.Is(err, unix.ENOENT) {
			for m, other := range p.record.Copies[:n] {
				if err := s.release(ctx, p.id, m, other); err != nil {
					return false, err
				}
			}
			if t, err := s.top(c.Stack); err == nil && t == c.top() {
				return false, fmt.Errorf("cache %s: its layer %s is gone; drop the cache", c.Stack, c.Base)
			}
			return true, nil
		}
		if err != nil {
			return false, err
		}
		s.noteUse(c.Stack)
	}
	return false, nil
}

// mountCopy mounts the view of copy n and looks whether it is right.
func (s *Store) mountCopy(ctx context.Context, host hostRecord, p *plan, v View, n int) error {
	if err := s.opts.Driver.Mount(ctx, host.Features, v); err != nil {
		return fmt.Errorf("cache %s: %w", p.record.Copies[n].Stack, err)
	}
	owner := v.Root()
	if len(v.Lowers) > 0 { // a container may have given the top of its cache to somebody else
		var st unix.Stat_t
		top, err := s.tree(v.Lowers[0].Layer)
		if err != nil {
			return err
		}
		if err := unix.Lstat(top, &st); err != nil {
			return &os.PathError{Op: "stat", Path: top, Err: err}
		}
		if owner = st.Uid; v.UpperMapped {
			owner = userns.Swap(owner, v.MaxID)
		}
	}
	return verifyMount(v.Target, owner, "cache "+p.record.Copies[n].Stack)
}

// endCopies decides what becomes of each copy of container id, and takes its marks off. What cannot be promoted is dropped and said so: it
// never fails a delete. Only what cannot be cleaned up does. Those of a container that was not finished,
// or that is from before a reboot, are dropped.
func (s *Store) endCopies(ctx context.Context, id string, r layerRecord, finished bool) ([]CopyEnd, error) {
	// Half of the time that is left is for promoting, the rest for removing: a promotion that takes too long is dropped, and must not make the
	// delete fail, now and at every retry.
	promoting, cancel := ctx, func() {}
	if end, ok := ctx.Deadline(); ok {
		promoting, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	defer cancel()
	var ends []CopyEnd
	for n, c := range r.Copies {
		foreign := slices.ContainsFunc(c.Layers, func(l string) bool { return !isLayer(l) })
		if !ValidStack(c.Stack) || (c.Base != "" && !isLayer(c.Base)) || foreign {
			continue // a torn or foreign record
		}
		end, err := s.endCopy(promoting, id, n, r, finished)
		if err != nil {
			end = CopyEnd{Stack: c.Stack, Reason: err.Error()}
			s.warn(fmt.Errorf("cache %s is not promoted: %w", c.Stack, err))
			if err := s.dropSealed(ctx, id, n, c); err != nil {
				return ends, err
			}
		}
		if err := s.release(ctx, id, n, c); err != nil {
			return ends, err
		}
		ends = append(ends, end)
	}
	return ends, nil
}

func (s *Store) endCopy(ctx context.Context, id string, n int, r layerRecord, finished bool) (CopyEnd, error) {
	c := r.Copies[n]
	reason := unfinished
	if finished {
		boot, err := bootKey()
		if err != nil {
			return CopyEnd{}, err
		}
		switch {
		case shortBoot(boot) != shortBoot(r.Boot):
			// Its upper was never flushed: names may have survived whose contents did not.
			reason = "the host was restarted while it was used"
		case idsOf(r.Boot) != "" && idsOf(r.Boot) != idsOf(boot):
			reason = "it was made in a user namespace with other ids"
		default:
			return s.promote(ctx, id, n, c)
		}
	}
	return CopyEnd{Stack: c.Stack, Reason: reason}, s.dropSealed(ctx, id, n, c)
}

const (
	unfinished      = "it was never finished"
	ofAnotherDriver = "another driver made it, by other flags, and only that can keep it"
)

// freeze sees to it that nobody can write to the copies any more once they are layers: a process that is in the container's mount namespace still, say. What cannot be frozen
// gets another name before it is unmounted, when that can be seen no more.
func (s *Store) freeze(ctx context.Context, id string, copies []copyRecord) error {
	for n := range copies {
		wait, cancel := context.WithTimeout(ctx, freezeTime)
		err := s.opts.Driver.Freeze(wait, s.path("mnt", id, copyName(n)))
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		s.warn(fmt.Errorf("cache %s will not be promoted: %w", copies[n].Stack, err))
		if err := os.Rename(s.path("layers", id, copyName(n)), s.path("layers", id, spoiltName(n))); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// freezeTime is how long a process may take to close its last file: one that was just killed, or forked and about to execute a program.
const freezeTime = time.Second

const spoilt = "a process could go on writing to it when the container was deleted (see the log)"

// promote makes the copy the stack's next generation, if it is to be, and can. It can be killed at any point and done again.
func (s *Store) promote(ctx context.Context, id string, n int, c copyRecord) (CopyEnd, error) {
	end := CopyEnd{Stack: c.Stack}
	drop := func(reason string) (CopyEnd, error) {
		end.Reason = reason
		return end, s.dropSealed(ctx, id, n, c)
	}
	sealed := sealedName(id, n)
	isSealed, err := durable.Exists(s.path("layers", sealed))
	if err != nil {
		return end, err
	}
	if !isSealed {
		if isSpoilt, err := durable.Exists(s.path("layers", id, spoiltName(n))); err != nil {
			return end, err
		} else if isSpoilt {
			return drop(spoilt)
		}
		// Most of those that are overtaken are so already; publish is what decides.
		if t, err := s.top(c.Stack); err == nil && t != c.top() {
			return drop(overtaken(c, t))
		}
		reason, err := s.prepare(ctx, id, n, c, &end)
		if err != nil {
			return end, err
		}
		if reason != "" {
			return drop(reason)
		}
	}
	t, ok, err := s.publish(ctx, c.Stack, c.top(), sealed)
	if err != nil {
		return end, err
	}
	if !ok {
		return drop(overtaken(c, t))
	}
	layers, err := s.chain(sealed)
	s.warn(err) // it is published all the same
	end.Promoted, end.Generation, end.Layers = true, t.generation, len(layers)
	return end, nil
}

func overtaken(c copyRecord, now stackTop) string {
	return fmt.Sprintf("overtaken: it was made from generation %d, and %d is current", c.Generation, now.generation)
}

// release takes the copy's mark off the layers it was made from. If these are no longer the stack's current ones, the stack's own mark goes
// with it: only now, since whoever put another generation in their place may have been killed before.
func (s *Store) release(ctx context.Context, id string, n int, c copyRecord) error {
	if c.Base == "" {
		return nil
	}
	t, err := s.top(c.Stack)
	var system *os.PathError
	if errors.As(err, &system) && !errors.Is(err, unix.EINVAL) { // EINVAL: it is no symlink
		return err // passing: the next delete goes on
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		// The stack's mark stays: whether it is the current one cannot be read. Dropping the stack finds it.
		s.warn(err)
		return s.unmarkLayer(ctx, c.Base, copyUser(id, n))
	}
	if t.layer != c.Base {
		if err := os.Remove(s.path("layers", c.Base, "users", c.Stack)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return s.unmarkLayer(ctx, c.Base, copyUser(id, n))
}

// prepare makes the layer layers/ID-N of the copy, with its parent and users, ready to be published. A reason instead of an error: the copy
// is not to be kept.
func (s *Store) prepare(ctx context.Context, id string, n int, c copyRecord, end *CopyEnd) (reason string, err error) {
	upper := id + "/" + copyName(n)
	if top, err := s.tree(upper); errors.Is(err, ErrNotFound) || (err == nil && !exists(top)) {
		if there, err := durable.Exists(s.path("layers", upper, "fs")); err != nil || there {
			return ofAnotherDriver, err
		}
		return unfinished, nil
	} else if err != nil {
		return "", err
	}
	if reason, err = s.keep(ctx, upper, c); reason != "" || err != nil {
		return reason, err
	}
	below := ""
	if len(c.Layers) > 0 {
		below = c.Layers[0]
	}
	changed, err := s.opts.Driver.Changed(s.path("layers"), upper, below)
	if err != nil {
		return "", err
	}
	if !changed {
		return "unchanged", nil
	}
	s.makeOldDurable(ctx, c.Layers)

	u, err := s.measureLayer(ctx, upper)
	if err != nil {
		return "", err
	}
	end.Bytes, end.Entries = u.Bytes, u.Entries
	parent, merge, err := s.whatToMerge(c.Layers, u)
	if err != nil {
		return "", err
	}
	sealed := sealedName(id, n)
	switch {
	case merge == nil:
	case s.maxLayers() > 3 && slices.ContainsFunc(merge, s.isDurable):
		// What is durable stays durable: the old layers are merged without the new one, which nothing has written back yet, and it stands on
		// the result. That is flushed at little cost: most of its files are on disk already, only names are new. Where promotions follow each other
		// so fast that the last of the old layers are not, these are waited for, once in so many promotions as there may be layers.
		merged := mergedName(id, n)
		isMerged, err := durable.Exists(s.path("layers", merged))
		if err != nil {
			return "", err
		}
		if !isMerged { // else made before we were killed
			if err := s.merge(ctx, id, n, merge, c.Layers[len(merge):], merged, parent, sealed, c.Stack); err != nil {
				return "", err
			}
		}
		if err := s.makeDurable(ctx, merged); err != nil {
			return "", err
		}
		end.Merged, parent = len(merge), merged
	default:
		all := append([]string{upper}, merge...)
		end.Merged = len(all)
		return "", s.merge(ctx, id, n, all, c.Layers[len(merge):], sealed, parent, c.Stack, c.Stack)
	}
	if err := s.opts.Driver.Seal(ctx, s.path("layers"), upper); err != nil {
		return "", err
	}
	return "", s.seal(upper, sealed, parent, c.Stack, c.Stack, u)
}

// merge makes the layer name, on parent and used by user, of the layers from, below which are those in below.
func (s *Store) merge(ctx context.Context, id string, n int, from, below []string, name, parent, user, stack string) error {
	tmp := id + "/merged-" + copyName(n)
	if err := s.opts.Driver.Remove(ctx, s.path("layers"), tmp); err != nil { // of a try that was killed
		return err
	}
	if err := os.Mkdir(s.path("layers", tmp), 0o700); err != nil {
		return err
	}
	if err := s.opts.Driver.New(ctx, s.path("layers"), []string{tmp}, ""); err != nil {
		return err
	}
	if err := s.opts.Driver.Merge(ctx, s.path("layers"), from, below, tmp); err != nil {
		return err
	}
	u, err := s.measureLayer(ctx, tmp)
	if err != nil {
		return err
	}
	return s.seal(tmp, name, parent, user, stack, u)
}

// seal gives the layer in from its record, parent and its first user, and then its name.
func (s *Store) seal(from, sealed, parent, user, stack string, u LayerUsage) error {
	dir := s.path("layers", from)
	if err := writeRecord(dir+"/layer.json", layerRecord{Kind: kindCache, Driver: s.keeper(), Created: time.Now().UTC(), Stack: stack, Bytes: u.Bytes, Entries: u.Entries}); err != nil {
		return err
	}
	if err := os.Mkdir(dir+"/users", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := durable.Touch(dir + "/users/" + user); err != nil {
		return err
	}
	if parent != "" {
		if err := os.Symlink(parent, dir+"/parent"); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := s.markLayer(parent, sealed); err != nil {
			return err
		}
	}
	if err := os.Rename(dir, s.path("layers", sealed)); err != nil {
		return err
	}
	// The note of the commit has done its work.
	if err := os.Remove(s.path("layers", sealed, "commit")); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// keep asks the owner of the store's policy. It may change the top of the upper, such as take a marker off.
func (s *Store) keep(ctx context.Context, upper string, c copyRecord) (reason string, err error) {
	if s.opts.Keep == nil {
		return "nothing is kept", nil
	}
	top, err := s.tree(upper)
	if err != nil {
		return "", err
	}
	dir, err := os.OpenFile(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	commit := s.path("layers", upper, "commit")
	committed, err := durable.Exists(commit)
	if err != nil {
		return "", err
	}
	return s.opts.Keep(ctx, &Ended{Stack: c.Stack, Policy: c.Policy, Committed: committed, dir: dir, commit: commit})
}

// dropSealed undoes what prepare made outside of the container's own layer.
func (s *Store) dropSealed(ctx context.Context, id string, n int, c copyRecord) error {
	sealed := sealedName(id, n)
	if t, err := s.top(c.Stack); err == nil && t.layer == sealed {
		return nil // it is published
	}
	merged := mergedName(id, n)
	for _, made := range []struct{ layer, user string }{{sealed, c.Stack}, {merged, sealed}} {
		if there, err := durable.Exists(s.path("layers", made.layer)); err != nil {
			return err
		} else if there {
			return s.unmarkLayer(ctx, made.layer, made.user)
		}
	}
	// Sealing may have got as far as the mark in the parent; which one that is depends on what was merged.
	for _, l := range c.Layers {
		for _, user := range []string{sealed, merged} {
			if err := os.Remove(s.path("layers", l, "users", user)); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

// whatToMerge returns the layer that the new one will stand on ("": none), and which layers below the new one are merged into it, top first.
//
// With more than maxLayers, all above the bottom are merged: their cost follows what was changed since the bottom was made. When
// the changes outweigh the bottom it is merged as well, so what hides a large part of the bottom does not stay for ever.
func (s *Store) whatToMerge(layers []string, u LayerUsage) (parent string, merge []string, err error) {
	if len(layers) == 0 {
		return "", nil, nil
	}
	above, bottom := layers[:len(layers)-1], layers[len(layers)-1]
	if len(layers) < s.maxLayers() {
		return layers[0], nil, nil
	}
	changed := u
	for _, l := range above {
		r := s.layerInfo(l)
		changed.Bytes += r.Bytes
		changed.Entries += r.Entries
	}
	b := s.layerInfo(bottom)
	if changed.Bytes > b.Bytes || changed.Entries > b.Entries || len(above) == 0 {
		return "", layers, nil
	}
	return bottom, above, nil
}

// layerInfo is a layer's record; one that a power cut left empty counts as nothing.
func (s *Store) layerInfo(layer string) layerRecord {
	var r layerRecord
	if err := durable.ReadJSON(s.path("layers", layer, "layer.json"), &r); err != nil {
		return layerRecord{}
	}
	return r
}

// tree is the top directory of what the layer shows.
func (s *Store) tree(layer string) (string, error) {
	dir, err := s.opts.Driver.Tree(s.path("layers"), layer)
	return dir + "/fs", err
}

func (s *Store) measureLayer(ctx context.Context, layer string) (LayerUsage, error) {
	u, err := s.opts.Driver.Usage(ctx, s.path("layers"), layer)
	if err == nil && u.Partial {
		err = ctx.Err()
	}
	return u, err
}

const (
	// settled is how old a layer is when the kernel has written it back by itself (vm.dirty_expire_centisecs is 30 s), so that
	// flushing it costs little.
	settled = 40 * time.Second
	// durableEntries bounds how many files one delete flushes.
	durableEntries = 1000
)

// makeOldDurable flushes those of the layers that are not durable yet and settled, within bounds. It is done before a new layer is put on
// them, not for the new one: flushing what was just written waits for the disk, and for the neighbours' journal.
//
// A failure is only told: the layer stays as it is, good until the next reboot.
func (s *Store) makeOldDurable(ctx context.Context, layers []string) {
	budget := uint64(durableEntries)
	for i := len(layers) - 1; i >= 0; i-- { // from the bottom: a mark is worth nothing above one that lacks it
		l := layers[i]
		if s.isDurable(l) {
			continue
		}
		r := s.layerInfo(l)
		full := len(layers)+1 >= s.maxLayers() // merging is about to cost more anyway
		if time.Since(r.Created) < settled || (r.Entries > budget && !full) {
			return
		}
		if err := s.makeDurable(ctx, l); err != nil {
			s.warn(err)
			return
		}
		budget -= min(budget, r.Entries)
	}
}

// exists says whether something is at path. What cannot be looked at counts as there: because of a bad moment of the disk nothing is taken for gone. Where it is
// not enough to do nothing then, durable.Exists says why.
func exists(path string) bool {
	there, err := durable.Exists(path)
	return there || err != nil
}

// CommitCopies says that all copies of the live container h are good, as a person sees it: Options.Keep is told at their end. It
// returns how many there are.
func (s *Store) CommitCopies(ctx context.Context, h Handle) (int, error) {
	st, id, err := s.find(h)
	if err == nil && st != stateLive {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("commit the caches of %q: %w", h.name, err)
	}
	unlock, err := s.lock(ctx, h)
	if err != nil {
		return 0, err
	}
	defer unlock()
	for n := 0; ; n++ {
		err := durable.Touch(s.path("layers", id, copyName(n), "commit"))
		if errors.Is(err, unix.ENOENT) && n > 0 {
			return n, nil
		}
		if errors.Is(err, unix.ENOENT) {
			return 0, fmt.Errorf("commit the caches of %q: %w: it has none", h.name, ErrNotFound)
		}
		if err != nil {
			return n, fmt.Errorf("commit the caches of %q: %w", h.name, s.hint(err))
		}
	}
}
