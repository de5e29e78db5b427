package volumes

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"golang.org/x/sys/unix"
)

// makeDestination makes the directory at below root, with those above it, owned by the container's root: the runtime mounts a cache on it.
// What is there already is used. Every look-up happens inside root: an absolute symlink of the image, or one with "..", leads to
// where it leads for the container (openat2(2) RESOLVE_IN_ROOT).
func makeDestination(root, at string, owner uint32) (inode, error) {
	top, err := durable.OpenDir(root, unix.O_NOFOLLOW)
	if err != nil {
		return inode{}, err
	}
	defer top.Close()
	parent := top
	names := strings.Split(strings.TrimPrefix(path.Clean("/"+at), "/"), "/")
	for i, name := range names {
		here := "/" + strings.Join(names[:i+1], "/")
		dir, err := openInRoot(top, here)
		if errors.Is(err, unix.ENOENT) {
			dir, err = makeDirectory(parent, name, owner)
		}
		if parent != top {
			parent.Close()
		}
		if errors.Is(err, unix.EEXIST) {
			return inode{}, fmt.Errorf("%w cache path %q: %q is a symlink to nowhere in the image", ErrInvalid, at, here)
		}
		if err != nil {
			return inode{}, fmt.Errorf("make the cache path %q in the root file system: %q: %w", at, here, err)
		}
		parent = dir
	}
	var here, above unix.Stat_t
	err = errors.Join(unix.Fstat(int(parent.Fd()), &here), unix.Fstat(int(top.Fd()), &above))
	if parent != top {
		err = errors.Join(err, parent.Close())
	}
	if err != nil {
		return inode{}, err
	}
	if here.Ino == above.Ino && here.Dev == above.Dev {
		return inode{}, fmt.Errorf("%w cache path %q: in this image it leads to the root directory", ErrInvalid, at)
	}
	return inode{here.Dev, here.Ino}, nil
}

// makeDirectory makes a directory of mode 0755, whatever the umask. Owner and mode are set by a descriptor: a symlink that comes to its name is not followed, as
// chmod(2) would.
func makeDirectory(parent *os.File, name string, owner uint32) (*os.File, error) {
	if err := unix.Mkdirat(int(parent.Fd()), name, 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unix.Fchown(fd, int(owner), int(owner)), unix.Fchmod(fd, 0o755)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// inode names a directory, whatever path leads to it.
type inode struct{ dev, ino uint64 }

func openInRoot(root *os.File, name string) (*os.File, error) {
	for {
		fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}
