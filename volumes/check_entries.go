package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"golang.org/x/sys/unix"
)

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// tryLock runs f under a lock if nobody has it. A look has it for a moment, and is not taken for somebody who works.
func (s *Store) tryLock(ctx context.Context, space durable.Space, name string, f func() error) (bool, error) {
	lock, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return false, err
	}
	defer lock.Close()
	wait, cancel := context.WithTimeout(ctx, aMoment)
	defer cancel()
	_, err = lock.Name(wait, space, name)
	switch {
	case err == nil:
		return true, f()
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return false, nil
	}
	return false, err
}

// isFree says whether what seems to be abandoned is: nobody holds its lock, and it is still so under the lock. On a read-only file system nobody can change it.
func (l *look) isFree(space durable.Space, name string, still func() bool) bool {
	free := false
	_, err := l.tryLock(l.ctx, space, name, func() error {
		free = still()
		return nil
	})
	if errors.Is(err, unix.EROFS) {
		return still()
	}
	return free
}

// judgeUnreadable: an entry that is no pointer to an ID. In init and dead it is removed, as it would be by the next Create of its handle. In live it
// may be a damaged one, whose container is running. One that the disk does not give may be anything: in init and dead it is a leftover that cannot be removed now.
func (l *look) judgeUnreadable(st state, h Handle, err error) {
	if st == stateLive || !errors.Is(err, errForeign) {
		l.unknown = true
		var collect func(context.Context) (Deleted, error)
		if st != stateLive {
			collect = func(context.Context) (Deleted, error) { return Deleted{}, err }
		}
		l.add(entryName(st, h), fmt.Sprintf("cannot be read, so nothing is taken for a leftover that it may name; delete %q: %v", h.name, err), collect)
		return
	}
	if l.isFree(durable.Handles, h.name, func() bool { _, err := l.readEntry(st, h); return errors.Is(err, errForeign) }) {
		l.add(entryName(st, h), "was not made by the store", l.collectEntry(st, h, ""))
	}
}

// judgeEntries finds containers whose create or delete died, and what live ones lack.
func (l *look) judgeEntries() error {
	for id, e := range l.entries {
		still := func() bool { now, err := l.readEntry(e.state, e.handle); return err == nil && now == id }
		switch e.state {
		case stateInit, stateDead:
			if l.isFree(durable.Handles, e.handle.name, still) {
				text := map[state]string{stateInit: "its create died", stateDead: "its delete died or failed"}[e.state]
				l.add(entryName(e.state, e.handle), text, l.collectEntry(e.state, e.handle, id))
			}
		case stateLive:
			lacks := l.lacks(id, e)
			if len(lacks) > 0 && l.isFree(durable.Handles, e.handle.name, func() bool { lacks = l.lacks(id, e); return still() }) {
				for _, text := range lacks {
					l.add(entryName(e.state, e.handle), text+fmt.Sprintf("; delete %q removes it all the same", e.handle.name), nil)
				}
			}
		}
	}
	return nil
}

// lacks says what is missing of a live container.
func (l *look) lacks(id string, e entry) (all []string) {
	if e.torn {
		return []string{fmt.Sprintf("the record of its layer %s cannot be read", id)}
	}
	for n, c := range e.record.Copies {
		if c.Base != "" && !exists(l.path("layers", c.Base, "users", copyUser(id, n))) {
			all = append(all, fmt.Sprintf("its layer %s does not know that it is used", c.Base))
		}
	}
	for _, layer := range e.record.Lowers {
		if !exists(l.path("layers", layer, "users", id)) {
			all = append(all, fmt.Sprintf("its layer %s does not know that it is used", layer))
		}
	}
	return all
}

func entryName(st state, h Handle) string { return "volumes/" + string(st) + "/" + h.name }

// collectEntry goes on with a create or delete that died, if nobody else does.
func (l *look) collectEntry(st state, h Handle, id string) func(context.Context) (Deleted, error) {
	return func(ctx context.Context) (d Deleted, err error) {
		err = l.locked(ctx, durable.Handles, h.name, func() error {
			now, found, err := l.findOwn(ctx, h) // which removes what is no entry
			switch {
			case isNotFound(err) && id == "":
				return nil
			case isNotFound(err), err == nil && (now != st || found != id):
				return errTaken
			case err == nil:
				d, err = l.removeFound(ctx, h, st, id, func(string) {})
			}
			return err
		})
		return d, err
	}
}

// judgeMounts finds mount points, and mounts, of containers that have no entry.
func (l *look) judgeMounts() error {
	for _, name := range slices.Sorted(maps.Keys(l.mounts)) {
		switch {
		case name == scratch: // see judgeRecords
		case !ids.Valid(name):
			l.add("mnt/"+name, "was not made by the store", nil)
		case !l.owned(name) && (exists(l.path("mnt", name))):
			l.add("mnt/"+name, "no container has this mount point", l.collectID(name))
		}
	}
	return nil
}

// collectID removes all that is named after a container that has no entry.
func (l *look) collectID(id string) func(context.Context) (Deleted, error) {
	return func(ctx context.Context) (Deleted, error) {
		_, err := l.dismantle(ctx, id, false, func(string) {})
		return Deleted{ID: id}, err
	}
}

// judgeRecords finds what a look at the host left, and halves of records. All of it goes with the next that is written.
func (l *look) judgeRecords() error {
	for _, r := range []struct {
		record, path, text string
		remove             func(context.Context) error
	}{
		{"store.json", "layers/" + scratch, "a look at the host died", l.unprobe},
		{"store.json", "mnt/" + scratch, "a look at the host died", l.unprobe},
		{"store.json", "store.json.tmp", "a command died that wrote it", nil},
		{"caches.total", "caches.total.next", "a command died that wrote it", nil},
	} {
		there := func() bool { return exists(l.path(r.path)) }
		if !there() || !l.isFree(durable.Records, r.record, there) {
			continue
		}
		l.add(r.path, r.text, func(ctx context.Context) (Deleted, error) {
			return Deleted{}, l.locked(ctx, durable.Records, r.record, func() error {
				if r.remove != nil {
					return r.remove(ctx)
				}
				return removeIfThere(l.path(r.path))
			})
		})
	}
	var r hostRecord
	if err := durable.ReadJSON(l.path("store.json"), &r); errors.Is(err, durable.ErrDamaged) {
		l.add("store.json", "cannot be read; the next create writes it anew", nil)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
