package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"golang.org/x/sys/unix"
)

// defaultMinAge is much longer than whoever had a container made takes to note that it has it.
const defaultMinAge = time.Hour

// judgeUnowned finds live containers that GCOptions.Known does not know. That alone proves nothing: their owner may be about to note them, or
// have lost its notes. So they must be old, and nobody may use what they have mounted.
func (l *look) judgeUnowned(o GCOptions) error {
	minAge := o.MinAge
	if minAge == 0 {
		minAge = defaultMinAge
	}
	unowned := map[string]entry{}
	running, known := 0, 0
	for id, e := range l.entries {
		if e.state != stateLive {
			continue
		}
		is, err := o.Known(e.handle)
		if err != nil {
			return err
		}
		if !is {
			unowned[id] = e
		}
		if l.mayRun(id) {
			running++
			if is {
				known++
			}
		}
	}
	if running > 1 && known == 0 {
		return fmt.Errorf("%w: none of the %d live containers is known to their owner: is this its directory?", ErrInvalid, running)
	}
	var users mnt.Users
	for id, e := range unowned {
		if !l.isOlder(e.handle, minAge) {
			continue
		}
		if users == nil {
			var err error
			if users, err = mnt.FindUsers(l.realDir() + "/mnt"); err != nil {
				return err
			}
		}
		still := func() bool { now, err := l.readEntry(stateLive, e.handle); return err == nil && now == id }
		if !l.isFree(durable.Handles, e.handle.name, still) {
			continue
		}
		user, err := l.userOf(id, users)
		if err != nil {
			return err
		}
		if user != "" {
			l.warn(fmt.Errorf("container %q is not known to its owner, and stays, as it is used by %s", e.handle.name, user))
			continue
		}
		l.add(entryName(stateLive, e.handle), "its owner does not know it, and nobody uses it", l.collectUnowned(e.handle, id, o))
	}
	return nil
}

// isOlder says whether an entry was made longer ago than age. Moving it does not change its time.
func (l *look) isOlder(h Handle, age time.Duration) bool {
	info, err := os.Lstat(l.entryPath(stateLive, h))
	return err == nil && time.Since(info.ModTime()) > age
}

// userOf names somebody who uses what the container id has mounted. "": nobody.
func (l *look) userOf(id string, users mnt.Users) (string, error) {
	if l.mayRun(id) && !l.mounted(id, "rootfs") && !l.mounted(id, copyName(0)) {
		return "whoever may have its mount in another mount namespace: here it is gone", nil
	}
	names, err := readNames(l.path("mnt", id))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		point := l.path("mnt", id, name)
		if !l.mounted(id, name) {
			continue
		}
		busy, err := mnt.IsBusy(point)
		if err != nil {
			return "", err
		}
		var st unix.Stat_t
		if err := unix.Lstat(point, &st); err != nil {
			return "", &os.PathError{Op: "stat", Path: point, Err: err}
		}
		if user, ok := users[st.Dev]; ok {
			return user, nil
		}
		if busy {
			return fmt.Sprintf("somebody (fuser -vm %q)", point), nil
		}
	}
	return "", nil
}

// collectUnowned deletes a live container, if all that was found out about it still holds under its lock.
func (l *look) collectUnowned(h Handle, id string, o GCOptions) func(context.Context) (Deleted, error) {
	return func(ctx context.Context) (d Deleted, err error) {
		err = l.locked(ctx, durable.Handles, h.name, func() error {
			if now, err := l.readEntry(stateLive, h); err != nil || now != id {
				return errTaken
			}
			known, err := o.Known(h)
			users, err2 := mnt.FindUsers(l.realDir() + "/mnt")
			user, err3 := l.userOf(id, users)
			if err := errors.Join(err, err2, err3); err != nil {
				return err
			}
			if known || user != "" {
				return errTaken
			}
			d, err = l.removeFound(ctx, h, stateLive, id, func(string) {})
			return err
		})
		return d, err
	}
}
