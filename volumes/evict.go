package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// StackInfo is one stack as Stacks sees it.
type StackInfo struct {
	Name       string
	Generation uint64
	Layers     int
	Bytes      uint64 // of all its layers
	Entries    uint64 // files and directories of all its layers: what it shows, and what newer layers hide
	LastUsed   time.Time
	Users      int // live containers whose copies were made from it
}

// Stacks returns all stacks of the store that have a generation, in no order. It looks at every one of them, so it is for people and for eviction. A
// damaged stack is returned with what is known of it.
func (s *Store) Stacks(ctx context.Context) ([]StackInfo, error) {
	names, err := readNames(s.path("caches"))
	if err != nil {
		return nil, err
	}
	var all []StackInfo
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !ValidStack(name) {
			continue
		}
		i, err := s.stackInfo(name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			s.warn(err)
		}
		all = append(all, i)
	}
	return all, nil
}

func (s *Store) stackInfo(name string) (StackInfo, error) {
	i := StackInfo{Name: name}
	info, err := os.Lstat(s.path("caches", name))
	if errors.Is(err, unix.ENOENT) {
		return i, ErrNotFound
	}
	if err != nil {
		return i, err
	}
	i.LastUsed = info.ModTime()
	t, err := s.top(name)
	if err != nil {
		return i, err
	}
	i.Generation = t.generation
	layers, err := s.chain(t.layer)
	if err != nil {
		return i, fmt.Errorf("stack %s: %w", name, err)
	}
	i.Layers = len(layers)
	for _, l := range layers {
		r := s.layerInfo(l)
		i.Bytes += r.Bytes
		i.Entries += r.Entries
		users, err := readNames(s.path("layers", l, "users"))
		if err != nil {
			return i, err
		}
		for _, u := range users {
			if s.isLiveCopy(u) {
				i.Users++
			}
		}
	}
	return i, nil
}

// isLiveCopy says whether a mark is that of a container's copy, see copyUser, and the container is there. Its directory is made before it marks anything, and
// removed after the mark; only a power cut that left its record empty leaves a mark alone.
func (s *Store) isLiveCopy(user string) bool {
	id, _, ok := strings.Cut(user, ".")
	return ok && exists(s.path("layers", id))
}

// purge takes marks off layer and those below it that nobody will ever take off.
func (s *Store) purge(layer string) error {
	layers, err := s.chain(layer)
	if err != nil {
		layers = []string{layer} // what is below a damaged one cannot be found from here
	}
	for _, l := range layers {
		users, err := readNames(s.path("layers", l, "users"))
		if err != nil {
			return err
		}
		for _, u := range users {
			if strings.Contains(u, ".") && !s.isLiveCopy(u) {
				if err := os.Remove(s.path("layers", l, "users", u)); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
		}
	}
	return nil
}

// DropStack forgets the stack's generation. Containers that have a copy of it keep what they see, and do not promote it. One whose copy began empty may still
// promote it: it has nothing of what is dropped, and to refuse it, each stack that was ever dropped would have to be remembered for ever. [ErrNotFound]: it has none.
func (s *Store) DropStack(ctx context.Context, name string) error {
	if !ValidStack(name) {
		// Not quoted: it may be a key, which may be a secret.
		return fmt.Errorf("%w cache ID: it has to be the 64 hex digits that cache list shows", ErrInvalid)
	}
	_, err := s.dropStack(ctx, name, nil)
	if err != nil {
		return fmt.Errorf("drop cache %s: %w", name, s.hint(err))
	}
	return nil
}

// dropLock names the lock of who removes what a stack's dropped pointers lead to.
func dropLock(stack string) string { return "drop of " + stack }

// dropStack reports whether it dropped the stack: one stays that may, if not nil, does not allow.
func (s *Store) dropStack(ctx context.Context, name string, may func() (bool, error)) (bool, error) {
	lock, err := durable.OpenLock(s.path("lock"))
	if errors.Is(err, unix.ENOENT) {
		return false, ErrNotFound // there is no store yet
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Records, dropLock(name)); err != nil {
		return false, err
	}
	t, err := s.unpublish(ctx, name, may)
	switch {
	case errors.Is(err, errDamaged), err == nil && t.layer != "" && !exists(s.path("layers", t.layer)): // it pointed at nothing that can be read
		err = s.unmarkAll(ctx, name)
	case errors.Is(err, ErrNotFound):
		return false, errors.Join(err, s.finishDrops(ctx, name))
	case err != nil || t.layer == "":
		return false, err
	}
	return true, errors.Join(err, s.finishDrops(ctx, name))
}

// droppedPrefix begins the name of a pointer beside "current" that was the current one: what it leads to is being removed.
const droppedPrefix = "dropped."

// finishDrops removes the layers of generations that were dropped: now, or by somebody who was killed over it. The caller holds dropLock.
func (s *Store) finishDrops(ctx context.Context, name string) error {
	names, err := readNames(s.path("caches", name))
	if err != nil {
		return err
	}
	for _, n := range names {
		layer, ok := strings.CutPrefix(n, droppedPrefix)
		if !ok {
			continue
		}
		if isLayer(layer) {
			if err := s.purge(layer); err != nil {
				return err
			}
			if err := s.unmarkLayer(ctx, layer, name); err != nil {
				return err
			}
		}
		if err := os.Remove(s.path("caches", name, n)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	unlock, err := s.lockStack(ctx, name) // or somebody who publishes would lose the directory
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return notEmpty(os.Remove(s.path("caches", name)))
}

// errDamaged: the pointer that was removed could not be read.
var errDamaged = errors.New("damaged")

func (s *Store) unpublish(ctx context.Context, name string, may func() (bool, error)) (stackTop, error) {
	unlock, err := s.lockStack(ctx, name)
	if err != nil {
		return stackTop{}, err
	}
	defer unlock()
	t, err := s.top(name)
	if errors.Is(err, ErrNotFound) {
		return stackTop{}, err
	}
	var system *os.PathError
	if may != nil && errors.As(err, &system) && !errors.Is(err, unix.EINVAL) { // EINVAL: it is no symlink
		return stackTop{}, err // perhaps passing, and nobody asked for the drop
	}
	if err != nil { // dropping is what helps: nobody can begin to use it
		if err := tree.RemoveIn(ctx, s.path("caches"), name); err != nil {
			return stackTop{}, err
		}
		return stackTop{}, errDamaged
	}
	if may != nil {
		if ok, err := may(); err != nil || !ok {
			return stackTop{}, err
		}
	}
	if err := os.Remove(s.path("caches", name, "next")); err != nil && !errors.Is(err, unix.ENOENT) {
		return t, err
	}
	// Not removed: whoever is killed now is followed through it.
	return t, os.Rename(s.stackPointer(name), s.path("caches", name, droppedPrefix+t.layer))
}

// unmarkAll takes the stack's mark off all layers. It looks at every layer of the store.
func (s *Store) unmarkAll(ctx context.Context, stack string) error {
	layers, err := readNames(s.path("layers"))
	if err != nil {
		return err
	}
	for _, l := range layers {
		if !isLayer(l) {
			continue
		}
		marked, err := durable.Exists(s.path("layers", l, "users", stack))
		if err == nil && marked { // else it may be a container's own
			err = s.unmarkLayer(ctx, l, stack)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Bounds limit all stacks together. Zero values do not limit.
type Bounds struct {
	MaxBytes uint64        // of all layers
	MaxAge   time.Duration // since a container last began to use the stack
}

// Evict drops the stacks that were not used for longer than MaxAge, then the least recently used ones until the rest is within nine tenths of
// MaxBytes, never one with layers that a live container uses. It looks at all stacks only if that may be needed: when as many bytes as
// are allowed were promoted, or an eighth of MaxAge has gone by, since the last time. added is what the caller has promoted
// since it called last.
//
// Trees are removed outside of any lock: others may promote meanwhile.
func (s *Store) Evict(ctx context.Context, b Bounds, added uint64) (dropped []StackInfo, err error) {
	now := time.Now()
	due := false
	var before uint64
	err = s.updateLedger(ctx, func(l *ledger) {
		l.bytes += added
		due = (b.MaxBytes > 0 && l.bytes > max(b.MaxBytes, l.next)) || (b.MaxAge > 0 && now.Sub(l.swept) > max(b.MaxAge/8, time.Second))
		if due { // nobody else begins the same
			l.next, l.swept = l.bytes+b.MaxBytes/10, now // until it is done
		}
		before = l.bytes
	})
	if err != nil || !due {
		return nil, err
	}
	if err := s.finishAllDrops(ctx); err != nil {
		return nil, err
	}
	stacks, err := s.Stacks(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(stacks, func(a, b StackInfo) int { return a.LastUsed.Compare(b.LastUsed) })
	var left uint64
	for _, i := range stacks {
		left += i.Bytes
	}
	goal := b.MaxBytes
	if left > b.MaxBytes {
		goal = b.MaxBytes / 10 * 9
	}
	var errs []error // one that cannot be dropped does not save the others
	for _, i := range stacks {
		old := b.MaxAge > 0 && now.Sub(i.LastUsed) > b.MaxAge
		if !old && (b.MaxBytes == 0 || left <= goal) {
			continue
		}
		ok, err := s.dropStack(ctx, i.Name, func() (bool, error) {
			now, err := s.stackInfo(i.Name)
			return now.Users == 0 && now.LastUsed.Equal(i.LastUsed), err // else used meanwhile, or its time could not be read
		})
		if err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, fmt.Errorf("cache %s: %w", i.Name, err))
		}
		if ok {
			dropped = append(dropped, i)
			left -= i.Bytes
		}
	}
	errs = append(errs, s.updateLedger(ctx, func(l *ledger) {
		// What others noted meanwhile may be counted twice: then the next look comes earlier.
		l.bytes = left + l.bytes - min(before, l.bytes)
		// When those in use alone are more than is allowed, looking again helps only after more has been promoted.
		if l.next = 0; left > b.MaxBytes {
			l.next = l.bytes + b.MaxBytes/10
		}
	}))
	return dropped, errors.Join(errs...)
}

// finishAllDrops removes what is left of stacks whose drop was killed.
func (s *Store) finishAllDrops(ctx context.Context) error {
	names, err := readNames(s.path("caches"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if ValidStack(name) && !exists(s.stackPointer(name)) {
			_, err := s.tryLock(ctx, durable.Records, dropLock(name), func() error { return s.finishDrops(ctx, name) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// updateLedger changes the ledger under its lock.
func (s *Store) updateLedger(ctx context.Context, change func(*ledger)) error {
	lock, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Records, "caches.total"); err != nil {
		return err
	}
	l := s.readLedger()
	change(&l)
	return s.writeLedger(l)
}

// ledger is caches.total: what all stacks take, never less than the truth but for what a killed process did not note, and when it was last
// counted. It is the text of a symlink, like all pointers of the store.
type ledger struct {
	bytes, next uint64
	swept       time.Time
}

func (s *Store) readLedger() ledger {
	text, err := os.Readlink(s.path("caches.total"))
	if err != nil {
		return ledger{}
	}
	return parseLedger(text)
}

// parseLedger returns the zero ledger for what cannot be read: then all stacks are looked at soon.
func parseLedger(text string) ledger {
	f := strings.Split(text, " ")
	if len(f) != 3 {
		return ledger{}
	}
	var n [3]uint64
	for i := range f {
		var err error
		if n[i], err = strconv.ParseUint(f[i], 10, 63); err != nil {
			return ledger{}
		}
	}
	return ledger{bytes: n[0], next: n[1], swept: time.Unix(int64(n[2]), 0)}
}

func (s *Store) writeLedger(l ledger) error {
	return durable.ReplaceLink(s.path("caches.total"), s.path("caches.total.next"), l.String())
}

func (l ledger) String() string {
	return fmt.Sprintf("%d %d %d", l.bytes, l.next, max(l.swept.Unix(), 0))
}
