package mnt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// IsBusy says whether the mount at target, in this mount namespace, is in use: by an open file, a working or root directory, a program that runs from it or a
// mount below it. What uses a copy of it in another namespace does not count. Nothing mounted there is not busy. It changes nothing.
//
// MNT_EXPIRE answers EBUSY, or marks an unused mount and answers EAGAIN; a second such call would unmount it, unless the mount was accessed since (umount(2)).
func IsBusy(target string) (bool, error) {
	err := unix.Unmount(target, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
	var st unix.Stat_t
	_ = unix.Lstat(target+"/.", &st) // which takes the mark away
	switch {
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, &os.PathError{Op: "umount", Path: target, Err: err}
}

// Users are what processes of this pid namespace, and their mount namespaces, have of file systems, by device number.
type Users map[uint64]string

// FindUsers looks at all processes and all their mount namespaces: which file systems they have as root or working directory, or have files open of, and which are
// mounted anywhere but below except, where copies are that came by propagation and go with the original. The text names one that does.
//
// Files of an overlay whose layers are on several file systems have device numbers of their own, so a process outside of the container's namespaces that has only such
// a file open is not found.
func FindUsers(except string) (Users, error) {
	users := Users{}
	seen := map[string]bool{}
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, proc := range pids {
		files, _ := filepath.Glob(proc + "/fd/*") // none: it has ended
		for _, file := range append(files, proc+"/root", proc+"/cwd") {
			// A file system that never answers (FUSE, and a container's process may be the one that should) is not asked, and only the device is wanted.
			var st unix.Statx_t
			if unix.Statx(unix.AT_FDCWD, file, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) == nil {
				users[unix.Mkdev(st.Dev_major, st.Dev_minor)] = "process " + filepath.Base(proc)
			}
		}
		ns, err := os.Readlink(proc + "/ns/mnt")
		if err != nil || seen[ns] {
			continue
		}
		switch err := users.addMounts(proc, except); {
		case err == nil:
			seen[ns] = true
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH):
			return nil, err // else it has ended
		}
	}
	return users, nil
}

func (users Users) addMounts(proc, except string) error {
	f, err := os.Open(proc + "/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	table, err := parseTable(f)
	if err != nil {
		return err
	}
	for _, m := range table {
		if strings.HasPrefix(m.point, except+"/") {
			continue
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(m.device, "%d:%d", &major, &minor); err != nil {
			return fmt.Errorf("%s/mountinfo: device %q: %w", proc, m.device, err)
		}
		users[unix.Mkdev(major, minor)] = fmt.Sprintf("a mount on %q in the mount namespace of process %s", m.point, filepath.Base(proc))
	}
	return nil
}
