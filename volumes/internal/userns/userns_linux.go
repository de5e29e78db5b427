// Package userns makes the user namespace whose id map shows a layer under the other ownership.
//
// Guardian runs an unprivileged container with the map 0→max, 1→1, 2→2 …, where max is the highest id that gdn itself has. On
// disk our layers are canonical: root's files belong to 0. The namespace's map is the swap 0↔max with every other id kept:
//
//	inside  outside  length
//	0       max      1
//	1       1        max-1
//	max     0        1
//
// The last line matters: without it host root has no id on an id-mapped mount, overlayfs cannot make its work directory there
// and mounts read-only without an error. The swap is its own inverse, so the same namespace also shows a tree that was already
// shifted to max to a container that wants it canonical.
package userns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"golang.org/x/sys/unix"
)

// IDs returns which ids this user namespace has, and what they are in its parent: the words of /proc/self/uid_map in one line, three for each range
// (user_namespaces(7)).
func IDs() (string, error) {
	b, err := durable.ReadFile("/proc/self/uid_map")
	return strings.Join(strings.Fields(string(b)), " "), err
}

// MaxID returns the host id that is root in an unprivileged container: see [MaxOf].
func MaxID() (uint32, error) {
	ids, err := IDs()
	if err != nil {
		return 0, err
	}
	return MaxOf(ids)
}

// MaxOf returns, of ids as from [IDs], the one that is root in an unprivileged container: the highest of all its ranges. In the initial user namespace that is
// 4294967294. Guardian takes it for groups as well, and never reads gid_map (code.cloudfoundry.org/idmapper, max_valid_uid.go; guardiancmd/command.go).
func MaxOf(ids string) (uint32, error) {
	words := strings.Fields(ids)
	var highest uint64
	for ; len(words) >= 3; words = words[3:] {
		first, err1 := strconv.ParseUint(words[0], 10, 32)
		length, err2 := strconv.ParseUint(words[2], 10, 32)
		if err := errors.Join(err1, err2); err != nil || length == 0 {
			return 0, fmt.Errorf("/proc/self/uid_map has the unexpected range %q", words[:3])
		}
		highest = max(highest, first+length-1)
	}
	switch {
	case len(words) > 0:
		return 0, fmt.Errorf("/proc/self/uid_map ends with the unexpected %q", words)
	case highest < 2:
		return 0, fmt.Errorf("this user namespace has only ids up to %d: no room for unprivileged containers", highest)
	}
	return uint32(highest), nil
}

// Swap maps an owner id as the namespace does: 0↔max, all others kept.
func Swap(id, max uint32) uint32 {
	switch id {
	case 0:
		return max
	case max:
		return 0
	}
	return id
}

// New makes a user namespace with the swap map and returns a descriptor of it. The namespace lives as long as the descriptor
// or a mount that uses it.
//
// A namespace is made together with a process. The process here ends at once, in its first instruction, and is not waited for
// until its namespace was opened and mapped: a zombie still has its credentials and its /proc/PID/{ns/user,uid_map,gid_map}.
// So nothing is executed, no second program is needed, and no tracer is in the way. It costs 0.08 ms; a namespace pinned by a bind mount would
// cost nothing, but is a mount that stays.
func New(max uint32) (*os.File, error) {
	pid, errno := forkZombie(unix.CLONE_NEWUSER)
	if errno != 0 {
		return nil, fmt.Errorf("make a user namespace: %w (see sysctl user.max_user_namespaces)", errno)
	}
	// Its exit signal is 0, so only a wait with __WALL or __WCLONE sees it: a program's own wait for any child cannot steal it.
	defer func() {
		for {
			if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	proc := "/proc/" + strconv.Itoa(pid)
	swap := fmt.Sprintf("0 %d 1\n1 1 %d\n%d 0 1\n", max, max-1, max)
	for _, name := range []string{"uid_map", "gid_map"} {
		if err := durable.WriteFile(proc+"/"+name, []byte(swap)); err != nil {
			return nil, fmt.Errorf("map a user namespace: %w", err)
		}
	}
	fd, err := unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: proc + "/ns/user", Err: err}
	}
	return os.NewFile(uintptr(fd), proc+"/ns/user"), nil
}

// IsForbidden says whether err of [New] is this host's rule and not a passing lack: no such namespaces in the kernel, none for this process, or
// a limit of none at all (user_namespaces(7)).
func IsForbidden(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EUSERS) {
		limit, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
		return err == nil && strings.TrimSpace(string(limit)) == "0"
	}
	// EACCES: inside a user namespace a zombie's files in /proc belong to the host's root.
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
}
