package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/mnt"
	"golang.org/x/sys/unix"
)

// Image is a directory tree that containers see as the lowest layer of their root file system. It is only ever read. Whoever owns
// it must not change or remove it while containers use it: they would see the change, or lose files.
type Image struct {
	dir     *os.File // O_PATH
	parent  *os.File // O_PATH directory that holds it; nil if metadata is not looked for
	path    string
	real    string // see realPath
	shifted *bool  // what its keeper's own record says of the ownership; nil: nothing
	stat    unix.Stat_t
}

// OpenImage opens a directory of the host as an image. Symlinks on the way are followed: the path is the host's.
func OpenImage(dir string) (*Image, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w image path %q: it must be absolute", ErrInvalid, dir)
	}
	f, err := durable.OpenDir(dir, 0)
	if err != nil {
		return nil, err
	}
	return newImage(f, nil, nil)
}

// OpenVolumeImage opens the directory sub ("" is the top) of a live volume of a BaggageClaim whose volumes are below volumesDir, laid
// out as volumesDir/live/VOLUME/volume. sub is resolved beneath the volume: "..", absolute symlinks and symlinks that lead out are
// refused, whoever put them there.
func OpenVolumeImage(volumesDir, volume, sub string) (*Image, error) {
	if _, err := ParseHandle(volume); err != nil {
		return nil, fmt.Errorf("%w BaggageClaim volume %q: it cannot be a name of a directory", ErrInvalid, volume)
	}
	live, err := durable.OpenDir(filepath.Join(volumesDir, "live"), 0)
	if err != nil {
		return nil, fmt.Errorf("open the live volumes of BaggageClaim: %w", err)
	}
	defer live.Close()
	base := filepath.Join(volumesDir, "live", volume)
	top, err := openBeneath(live, volume+"/volume", filepath.Join(base, "volume"), unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("parent missing: BaggageClaim volume %q is not, or no longer, in %q: %w", volume, live.Name(), unix.ENOENT)
	}
	if err != nil {
		return nil, fmt.Errorf("open BaggageClaim volume %q: %w", volume, err)
	}
	shifted, err := readPrivileged(base)
	if err == nil {
		err = refuseEmpty(top, volume)
	}
	if err != nil {
		top.Close()
		return nil, err
	}
	if sub == "" {
		return newImage(top, nil, shifted)
	}
	defer top.Close()
	dir, err := openBeneath(top, sub, filepath.Join(top.Name(), sub), 0)
	if err != nil {
		return nil, subError(volume, sub, err)
	}
	parent, err := openBeneath(top, path.Dir(sub), filepath.Join(top.Name(), path.Dir(sub)), 0)
	if err != nil {
		dir.Close()
		return nil, subError(volume, sub, err)
	}
	return newImage(dir, parent, shifted)
}

// refuseEmpty refuses a volume without files: after a reboot a BaggageClaim server mounts its volumes when it starts, and until then there
// is only the empty directory of each.
func refuseEmpty(top *os.File, volume string) error {
	fd, err := unix.Openat(int(top.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: top.Name(), Err: err}
	}
	dir := os.NewFile(uintptr(fd), top.Name())
	defer dir.Close()
	if _, err := dir.Readdirnames(1); errors.Is(err, io.EOF) {
		return fmt.Errorf("BaggageClaim volume %q is empty in %q: is its server running, and is this its mount namespace?", volume, top.Name())
	} else if err != nil {
		return err
	}
	return nil
}

func subError(volume, sub string, err error) error {
	switch {
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w sub-path %q: it leads out of BaggageClaim volume %q", ErrInvalid, sub, volume)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("there is no directory %q in BaggageClaim volume %q: %w", sub, volume, unix.ENOENT)
	}
	return fmt.Errorf("open %q in BaggageClaim volume %q: %w", sub, volume, err)
}

// openBeneath opens the directory rel beneath dir as O_PATH (openat2(2), Linux 5.6). display is its name in messages and for mount(2).
func openBeneath(dir *os.File, rel, display string, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), rel, &how)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // a rename or mount raced with the look-up
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: display, Err: err}
		}
		return os.NewFile(uintptr(fd), display), nil
	}
}

// readPrivileged reads BaggageClaim's privileged.json of a volume: true means its files are owned as they are in the image, false
// that root's files belong to the highest id.
func readPrivileged(volumeDir string) (shifted *bool, err error) {
	f := filepath.Join(volumeDir, "privileged.json")
	b, err := durable.ReadFile(f)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var privileged *bool // null is damage
	if err := json.Unmarshal(b, &privileged); err != nil {
		return nil, fmt.Errorf("read %q: %w", f, err)
	}
	if privileged == nil {
		return nil, fmt.Errorf("read %q: it says neither true nor false", f)
	}
	shifted = new(bool)
	*shifted = !*privileged
	return shifted, nil
}

func newImage(dir, parent *os.File, shifted *bool) (*Image, error) {
	img := &Image{dir: dir, parent: parent, path: dir.Name(), shifted: shifted}
	if err := unix.Fstat(int(dir.Fd()), &img.stat); err != nil {
		img.Close()
		return nil, &os.PathError{Op: "stat", Path: img.path, Err: err}
	}
	return img, nil
}

// Path is where the image is, for messages.
func (i *Image) Path() string { return i.path }

// Close releases the image's descriptors. Volumes made from it go on.
func (i *Image) Close() error {
	err := i.dir.Close()
	if i.parent != nil {
		err = errors.Join(err, i.parent.Close())
	}
	return err
}

// metadataFile stands beside the rootfs directory of an image that Concourse fetched.
const metadataFile = "metadata.json"

// Metadata returns the contents of metadata.json beside the image, if the image is a directory "rootfs" below the top of a BaggageClaim
// volume; nil if there is none. More than maxBytes, or anything but a regular file, is refused: the volume's contents are a stranger's.
func (i *Image) Metadata(maxBytes int64) ([]byte, error) {
	if i.parent == nil || path.Base(i.path) != "rootfs" {
		return nil, nil
	}
	name := path.Join(path.Dir(i.path), metadataFile)
	// O_PATH opens nothing: a device would notice, a FIFO make us wait.
	fd, err := unix.Openat2(int(i.parent.Fd()), metadataFile, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%w image metadata %q: it is no regular file", ErrInvalid, name)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // that very file
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > maxBytes {
		return nil, fmt.Errorf("%w image metadata %q: it is larger than %d bytes", ErrInvalid, name, maxBytes)
	}
	return b, nil
}

// isShifted says whether the files of the container's root belong to maxID on disk, not to 0.
//
// The owner of the top directory decides, where it is one of the two: it is what is really there. BaggageClaim's own record decides
// the rest: a top directory may belong to anybody.
func (i *Image) isShifted(maxID uint32) bool {
	switch {
	case i.stat.Uid == 0:
		return false
	case maxID != 0 && i.stat.Uid == maxID:
		return true
	}
	return i.shifted != nil && *i.shifted
}

// identity names the image's directory and its state: a directory put in its place, or changed at its top, is another image. What
// changes deeper inside is not noticed.
func (i *Image) identity() string {
	return fmt.Sprintf("%x-%x-%x", i.stat.Dev, i.stat.Ino, i.stat.Ctim.Nano())
}

// isThere says whether the image's path still leads to it. A BaggageClaim server that destroys a volume moves it away before it removes the
// first file, so a volume that is there has not lost any.
func (i *Image) isThere() error {
	var st unix.Stat_t
	if err := unix.Stat(i.path, &st); err != nil {
		return fmt.Errorf("image %q was removed meanwhile: %w", i.path, err)
	}
	if st.Ino != i.stat.Ino || st.Dev != i.stat.Dev {
		return fmt.Errorf("image %q was replaced meanwhile: try again", i.path)
	}
	return nil
}

// onOverlay says whether the image is itself inside an overlay mount. Such a directory can be a lower layer, but it can never be id-mapped.
func (i *Image) onOverlay() bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(i.dir.Fd()), &fs) == nil && int64(fs.Type) == unix.OVERLAYFS_SUPER_MAGIC
}

// isBelow says whether the image's real path is dir or below it.
func (i *Image) isBelow(dir string) bool {
	real, err := i.realPath()
	return err == nil && (real == dir || strings.HasPrefix(real, dir+"/"))
}

// contains says whether dir, a real path, is part of the image: below it, and not on another mount.
func (i *Image) contains(dir string) bool {
	real, err := i.realPath()
	if err != nil {
		return false
	}
	below, ok := strings.CutPrefix(dir, strings.TrimSuffix(real, "/")+"/")
	if !ok {
		return false
	}
	f, err := openBeneath(i.dir, below, dir, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// realPath is where the image was when it was first asked for.
func (i *Image) realPath() (string, error) {
	if i.real != "" {
		return i.real, nil
	}
	var err error
	i.real, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", i.dir.Fd()))
	return i.real, err
}

// withoutMounts returns the image's directory with nothing mounted on the directories in it, as overlayfs sees it too, and what closes it.
func (i *Image) withoutMounts() (dir *os.File, done func()) {
	clone, err := mnt.Clone(i.dir)
	if err != nil {
		return i.dir, func() {} // then a mount in it is an error
	}
	return clone, func() { clone.Close() }
}
