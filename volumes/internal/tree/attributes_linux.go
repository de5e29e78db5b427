package tree

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// attributes gives the file dstName in dst what the one has that the descriptor src leads to: owner, extended attributes with ACLs and capabilities,
// mode, times, in this order: chown drops capabilities and set-id bits, an ACL changes the mode, everything changes times.
func (c *copier) attributes(src int, dst int, dstName string, st unix.Stat_t) error {
	uid, gid := st.Uid, st.Gid
	if c.o.MapID != nil {
		uid, gid = c.o.MapID(uid), c.o.MapID(gid)
	}
	if err := unix.Fchownat(dst, dstName, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("chown", err)
	}
	if err := copyXattrs(src, dst, dstName, c.o); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK { // a symlink has no mode of its own
		// By the descriptor of the directory: the name is ours and no symlink, so nothing can be followed.
		if err := unix.Fchmodat(dst, dstName, st.Mode&0o7777, 0); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(dst, dstName, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("utimensat", err)
	}
	return nil
}

// CopyTop gives the directory dst mode, owner, times, extended attributes and ACL of the directory src: an overlay shows those of its
// upper's top directory for the merged root, not the image's. Overlayfs's own attributes stay behind.
func CopyTop(src, dst *os.File, warn func(error)) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: src.Name(), Err: err}
	}
	if err := unix.Fchownat(int(dst.Fd()), "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "chown", Path: dst.Name(), Err: err}
	}
	if err := dropACLs(int(dst.Fd())); err != nil {
		return fmt.Errorf("ACL of %q: %w", dst.Name(), err)
	}
	if err := copyXattrs(int(src.Fd()), int(dst.Fd()), ".", CopyOptions{Warn: warn}); err != nil {
		return fmt.Errorf("attributes of %q: %w", src.Name(), err)
	}
	if err := unix.Fchmodat(int(dst.Fd()), ".", st.Mode&0o7777, 0); err != nil {
		return &os.PathError{Op: "chmod", Path: dst.Name(), Err: err}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(int(dst.Fd()), ".", times, 0); err != nil {
		return &os.PathError{Op: "utimensat", Path: dst.Name(), Err: err}
	}
	return nil
}

// SameTop says whether two directories have the same mode, owner and extended attributes, overlayfs's own not counted.
func SameTop(a, b *os.File) (bool, error) {
	var sa, sb unix.Stat_t
	if err := errors.Join(unix.Fstat(int(a.Fd()), &sa), unix.Fstat(int(b.Fd()), &sb)); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if sa.Mode != sb.Mode || sa.Uid != sb.Uid || sa.Gid != sb.Gid {
		return false, nil
	}
	xa, err := readXattrs(a)
	if err != nil {
		return false, err
	}
	xb, err := readXattrs(b)
	return maps.Equal(xa, xb), err
}

func readXattrs(f *os.File) (map[string]string, error) {
	path := pinned(int(f.Fd()))
	names, err := listXattrs(path)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, name := range names {
		if isOverlays(name) {
			continue
		}
		v, err := getXattr(path, name)
		if err != nil {
			return nil, fmt.Errorf("read attribute %q: %w", name, err)
		}
		all[name] = string(v)
	}
	return all, nil
}

// isOverlays says whether an attribute is overlayfs's own. One that a container set under such a name is not: overlayfs keeps it as
// trusted.overlay.overlay.NAME (Documentation/filesystems/overlayfs.rst, Nesting overlayfs mounts; Linux 6.7).
func isOverlays(name string) bool {
	for _, prefix := range []string{"trusted.overlay.", "user.overlay."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return !strings.HasPrefix(rest, "overlay.")
		}
	}
	return false
}

// isRawACL says whether an attribute is an ACL as xfs keeps it on disk (SGI_ACL_FILE in fs/xfs/libxfs/xfs_format.h). xfs lists it beside
// system.posix_acl_*, which is the same with the ids mapped; setting it again would bring back the ids that are not.
func isRawACL(name string) bool {
	return name == "trusted.SGI_ACL_FILE" || name == "trusted.SGI_ACL_DEFAULT"
}

// dropACLs takes off the ACLs that a new directory inherited from the default ACL of the one it was made in (acl(5)): what is made below it
// would go on inheriting them.
func dropACLs(dir int) error {
	for _, name := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		err := unix.Lremovexattr(procPath(dir, "."), name)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return os.NewSyscallError("removexattr", err)
		}
	}
	return nil
}

// copyXattrs copies every extended attribute except overlayfs's own.
//
// There is no *at form of these calls that old kernels have, and none for O_PATH descriptors, so they go through /proc/self/fd. The target's directory is a
// descriptor, and the l… calls follow no symlink at the end.
func copyXattrs(src int, dst int, dstName string, o CopyOptions) error {
	from, to := pinned(src), procPath(dst, dstName)
	names, err := listXattrs(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if isOverlays(name) || isRawACL(name) {
			continue
		}
		value, err := getXattr(from, name)
		if errors.Is(err, unix.ENODATA) {
			continue // removed since it was listed
		}
		if err != nil {
			return fmt.Errorf("read attribute %q: %w", name, err)
		}
		if o.MapID != nil {
			if value, err = mapXattr(name, value, o.MapID); err != nil {
				return fmt.Errorf("attribute %q: %w", name, err)
			}
		}
		err = unix.Lsetxattr(to, name, value, 0)
		switch {
		case err == nil:
		case isLabel(name) && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM)):
			if o.Warn != nil {
				o.Warn(fmt.Errorf("attribute %q left out: %w", name, err))
			}
		default:
			return fmt.Errorf("set attribute %q: %w", name, err)
		}
	}
	return nil
}

// isLabel: a security label describes the place a file is at, and the target's policy may refuse it. Losing it costs no data and
// grants nothing. security.capability is different: without it programs stop working.
func isLabel(name string) bool {
	return name == "security.selinux" || name == "security.SMACK64" || name == "security.apparmor" || name == "security.ima" ||
		name == "security.evm"
}

func procPath(dirfd int, name string) string {
	p := pinned(dirfd)
	if name == "." {
		return p + "/." // the slash makes the l… calls go through the magic link
	}
	return p + "/" + name
}

func listXattrs(path string) ([]string, error) {
	buf := make([]byte, 1024)
	for {
		n, err := unix.Listxattr(path, buf)
		switch {
		case errors.Is(err, unix.ERANGE):
			buf = make([]byte, 64<<10) // XATTR_LIST_MAX
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case err != nil:
			return nil, os.NewSyscallError("listxattr", err)
		}
		var names []string
		for _, b := range bytes.Split(buf[:n], []byte{0}) {
			if len(b) > 0 {
				names = append(names, string(b))
			}
		}
		return names, nil
	}
}

func getXattr(path, name string) ([]byte, error) {
	buf := make([]byte, 256)
	n, err := unix.Getxattr(path, name, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err = unix.Getxattr(path, name, buf)
	}
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
