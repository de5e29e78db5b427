package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"golang.org/x/sys/unix"
)

// Finding is one thing that Doctor looked at.
type Finding struct {
	Level Level
	Text  string // one sentence
}

// Level says how a finding stands.
type Level string

// The levels of a finding.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, and not as well as it could
	Fail Level = "fail" // containers cannot be made
)

// Doctor looks whether this host can hold volumes in this store, and how well. It makes the store if it does not exist and tries the mounts anew. It
// may be slow.
func (s *Store) Doctor(ctx context.Context) []Finding {
	var all []Finding
	add := func(l Level, format string, args ...any) { all = append(all, Finding{l, fmt.Sprintf(format, args...)}) }

	if os.Geteuid() != 0 {
		add(Fail, "running as uid %d: mounts need root", os.Geteuid())
		return all
	}
	host, err := s.open(ctx)
	if err != nil {
		add(Fail, "%v", s.hint(err))
		return all
	}
	add(OK, "store %q on %s, driver %s", s.dir, host.FS, host.Driver)
	f, err := s.probeAnew(ctx)
	if err != nil {
		add(Fail, "mounting: %v", s.hint(err))
		return all
	}
	if f != host.Features {
		add(Warn, "the host can do %+v now and could do %+v when the store was first used in this boot; remove %q to have it looked at again",
			f, host.Features, s.path("store.json"))
	}
	s.doctorOwners(f, add)
	if err := verifyWay(s.path("mnt")); err != nil {
		add(Fail, "%v", err)
	} else {
		add(OK, "unprivileged containers can reach %q", s.path("mnt"))
	}
	s.doctorNamespace(add)
	if e, ok := s.opts.Driver.(Examiner); ok {
		all = append(all, e.Examine(ctx, s.path("layers"))...)
	}
	s.doctorRoom(add)
	s.doctorLeftovers(ctx, add)
	return all
}

// probeAnew probes a store that is set up.
func (s *Store) probeAnew(ctx context.Context) (Features, error) {
	lock, err := durable.OpenLock(s.path("lock"))
	if err != nil {
		return Features{}, err
	}
	defer lock.Close()
	if _, err := lock.Name(ctx, durable.Records, "store.json"); err != nil {
		return Features{}, err
	}
	return s.probe(ctx)
}

func (s *Store) doctorOwners(f Features, add func(Level, string, ...any)) {
	maxID, err := userns.MaxID()
	switch {
	case err != nil:
		add(Warn, "unprivileged containers: %v", err)
	case s.opts.Driver.CanMap(f):
		add(OK, "unprivileged containers: root is host id %d, made by id-mapped layers, without work per file", maxID)
	case s.opts.NeverCopy:
		add(Fail, "unprivileged containers: layers cannot be id-mapped here and copies are not allowed")
	default:
		add(Warn, "unprivileged containers: root is host id %d, made by one shifted copy per image, as layers are not id-mapped", maxID)
	}
	if f.LayerFDs {
		add(OK, "layers are given to the kernel as descriptors")
	} else {
		add(Warn, "layers are given to the kernel by path: their number is limited by one page of options")
	}
	if !f.Volatile {
		add(Warn, "no volatile overlays (Linux 5.10): each delete waits until the store's whole file system is flushed")
	}
}

func (s *Store) doctorNamespace(add func(Level, string, ...any)) {
	own, err1 := os.Readlink("/proc/self/ns/mnt")
	first, err2 := os.Readlink("/proc/1/ns/mnt")
	switch {
	case errors.Join(err1, err2) != nil:
		add(Warn, "cannot tell in which mount namespace this is: %v", errors.Join(err1, err2))
	case own != first:
		add(Warn, "this is not the mount namespace of process 1: gdn must run in the same one as the plugin, or it sees no root file systems")
	default:
		add(OK, "in the mount namespace of process 1; gdn must be there too")
	}
}

func (s *Store) doctorRoom(add func(Level, string, ...any)) {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		add(Fail, "statfs %q: %v", s.dir, err)
		return
	}
	level := OK
	if fs.Bavail < fs.Blocks/20 || (fs.Files > 0 && fs.Ffree < fs.Files/20) {
		level = Warn
	}
	inodes := "inodes as needed"
	if fs.Files > 0 {
		inodes = fmt.Sprintf("%d of %d inodes", fs.Ffree, fs.Files)
	}
	add(level, "free: %d of %d MiB, %s", fs.Bavail*uint64(fs.Frsize)>>20, fs.Blocks*uint64(fs.Frsize)>>20, inodes)

	if limit, err := os.ReadFile("/proc/sys/fs/mount-max"); err == nil {
		mounts, err := mnt.Below("/")
		if err != nil {
			add(Warn, "count mounts: %v", err)
			return
		}
		add(OK, "%d mounts in this mount namespace, the limit fs.mount-max is %s", len(mounts)+1, strings.TrimSpace(string(limit)))
	}
}

func (s *Store) doctorLeftovers(ctx context.Context, add func(Level, string, ...any)) {
	list, err := s.List(ctx)
	if err != nil {
		add(Fail, "list the containers: %v", err)
		return
	}
	count := map[state]int{}
	gone := 0
	for _, e := range list {
		count[state(e.State)]++
		if state(e.State) == stateLive && !e.Mounted {
			gone++
		}
	}
	add(OK, "%d live containers", count[stateLive])
	if gone > 0 {
		add(Warn, "%d of them have lost their mount (was the host rebooted?): delete them", gone)
	}
	if n := count[stateInit] + count[stateDead]; n > 0 {
		add(Warn, "%d containers are being made or removed, or were when their process died: delete of their handle removes what is left", n)
	}
}
