package power

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kinds are the file systems that a store may be on and that survive a power cut.
var kinds = []string{"ext4", "xfs", "btrfs"}

// machine is a computer with one disk, in a mount namespace of its own (see TestPower). The disk is a file on an xfs, of which a snapshot is one call (FICLONE), behind a
// loop device; that xfs is in memory, so nothing here waits for a real disk.
//
// A snapshot is what the disk holds when the power goes: FICLONE takes the lock of the file's inode, which each write of the loop device holds, and waits for direct ones
// (fs/xfs/xfs_file.c xfs_file_remap_range, fs/remap_range.c). So it has every write that the disk has said is done, and none that came after; what was in the
// page cache of the file system on the disk only is not in it. TestSnapshotIsOneMoment looks whether that is so.
type machine struct {
	kind   string
	dir    string
	copies int // snapshots so far
}

func (m *machine) disk() string     { return m.dir + "/outer/disk" }
func (m *machine) point() string    { return m.dir + "/mnt" }
func (m *machine) image() string    { return m.dir + "/image" }
func (m *machine) template() string { return m.dir + "/outer/template" }
func (m *machine) lost() string     { return m.dir + "/lost" } // where a power cut cannot reach: logs

// newMachine makes one in dir, switched off, with a disk that has nothing on it. An image is at hand that no power cut touches: it is not the plugin's.
func newMachine(kind, dir string) (*machine, error) {
	m := &machine{kind: kind, dir: dir + "/m"}
	if err := os.Mkdir(m.dir, 0o711); err != nil {
		return nil, err
	}
	if err := unix.Mount("power", m.dir, "tmpfs", 0, "mode=0711"); err != nil {
		return nil, os.NewSyscallError("mount", err)
	}
	for _, d := range []string{m.dir + "/outer", m.point(), m.lost()} {
		if err := os.Mkdir(d, 0o711); err != nil {
			return nil, err
		}
	}
	for name, text := range imageFiles {
		if err := errors.Join(os.MkdirAll(filepath.Dir(m.image()+"/"+name), 0o755), os.WriteFile(m.image()+"/"+name, []byte(text), 0o755)); err != nil {
			return nil, err
		}
	}
	for _, id := range []string{before, after} {
		if err := os.WriteFile(m.dir+"/"+id, []byte(id+"\n"), 0o444); err != nil {
			return nil, err
		}
	}
	if err := sparse(m.dir+"/outer.img", 8<<30); err != nil {
		return nil, err
	}
	if err := command("mkfs.xfs", "-q", "-m", "reflink=1", m.dir+"/outer.img"); err != nil {
		return nil, err
	}
	if err := command("mount", "-o", "loop", m.dir+"/outer.img", m.dir+"/outer"); err != nil {
		return nil, err
	}
	return m, nil
}

// format puts an empty file system on the disk.
func (m *machine) format() error {
	if err := sparse(m.disk(), 512<<20); err != nil {
		return err
	}
	args := map[string][]string{
		"ext4": {"-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"}, // else a thread of the kernel does it while we look
		"xfs":  {"-q"}, "btrfs": {"-q"},
	}[m.kind]
	return command("mkfs."+m.kind, append(args, m.disk())...)
}

// The ids of boots: that of the boot in which there are commands and the power goes, and another one for after it.
const (
	before = "b0000000-0000-4000-8000-000000000001"
	after  = "a0000000-0000-4000-8000-000000000002"
)

// bootID is where the kernel says it, and so the plugin reads it.
const bootID = "/proc/sys/kernel/random/boot_id"

// on puts a disk into the machine, which is off, and switches it on. Mounting does what is to be repaired of the file system, as at a boot.
func (m *machine) on(disk, boot string) error {
	if err := unix.Mount(m.dir+"/"+boot, bootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", bootID, err)
	}
	options := "loop"
	if m.kind == "xfs" {
		options += ",nouuid" // it looks like the disk that it was copied from
	}
	if err := command("mount", "-t", m.kind, "-o", options, disk, m.point()); err != nil {
		return errors.Join(err, unix.Unmount(bootID, unix.UMOUNT_NOFOLLOW))
	}
	return nil
}

// off takes away all that the disk holds. A btrfs can be mounted again only when it is gone (before Linux 6.7, also another copy of it), so it is waited for.
func (m *machine) off() error {
	points, err := mountsBelow(m.point())
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		for tries := 0; ; tries++ { // a mount that was just taken off holds what it stood on for a moment
			err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || tries == 1000 {
				return &os.PathError{Op: "umount", Path: p, Err: err}
			}
			time.Sleep(time.Millisecond)
		}
	}
	return os.NewSyscallError("umount", unix.Unmount(bootID, unix.UMOUNT_NOFOLLOW))
}

// away is off, whatever is still in use.
func (m *machine) away() error {
	points, err := mountsBelow(m.point())
	for _, p := range slices.Backward(points) {
		err = errors.Join(err, unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	if len(points) > 0 {
		err = errors.Join(err, unix.Unmount(bootID, unix.UMOUNT_NOFOLLOW))
	}
	return err
}

// snapshot copies the disk as it is, and returns the copy's path.
func (m *machine) snapshot() (string, error) {
	m.copies++
	to := fmt.Sprintf("%s/outer/copy-%d", m.dir, m.copies)
	return to, reflink(m.disk(), to)
}

func reflink(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		return errors.Join(fmt.Errorf("clone %q: %w", from, err), dst.Close())
	}
	return dst.Close()
}

// written is how many sectors the disk has been given since it is in.
func (m *machine) written() (uint64, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(table)) {
		before, after, _ := strings.Cut(line, " - ")
		if strings.Fields(before)[4] != m.point() {
			continue
		}
		stat, err := os.ReadFile("/sys/block/" + filepath.Base(strings.Fields(after)[1]) + "/stat")
		if err != nil {
			return 0, err
		}
		return strconv.ParseUint(strings.Fields(string(stat))[6], 10, 64) // Documentation/block/stat.rst
	}
	return 0, errors.New("no disk is in")
}

// writeback is how much of what was written, and not flushed by who wrote it, the kernel has brought to the disk before the power goes. It may do so with any of it at any
// time; these are the ends of what is possible.
type writeback string

const (
	// nothing: only what was flushed.
	nothing writeback = "nothing"
	// names: all directories, links and inodes, but not the contents of files. The journal is committed every few seconds; contents follow up to 30 s later. This is what
	// leaves files of the right name with nothing in them.
	names writeback = "names"
	// everything, as by sync(1).
	everything writeback = "everything"
)

var writebacks = []writeback{nothing, names, everything}

// bring does it. names: the flush of any file commits the whole journal of ext4 and xfs, and writes contents of that file only (ext4's data=ordered adds those whose
// place is chosen, which delayed allocation has not). A flush on btrfs writes a log of that file alone; its ioctl START_SYNC commits the transaction.
func (m *machine) bring(w writeback) error {
	if w == nothing {
		return nil
	}
	d, err := os.Open(m.point())
	if err != nil {
		return err
	}
	defer d.Close()
	if w == everything {
		return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
	}
	if m.kind == "btrfs" {
		const startSync, waitSync = 0x80089418, 0x40089416 // include/uapi/linux/btrfs.h: _IOR(0x94, 24, __u64), _IOW(0x94, 22, __u64)
		var transaction uint64
		if err := ioctl(d, startSync, &transaction); err != nil {
			return fmt.Errorf("BTRFS_IOC_START_SYNC: %w", err)
		}
		if err := ioctl(d, waitSync, &transaction); err != nil {
			return fmt.Errorf("BTRFS_IOC_WAIT_SYNC: %w", err)
		}
		return nil
	}
	f, err := os.OpenFile(m.point()+"/neighbour", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("x")
	return errors.Join(err, f.Sync(), f.Close())
}

func sparse(path string, size int64) error {
	return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size))
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return nil
}

// mountsBelow are the mount points at dir and below it, in the order in which they were made.
func mountsBelow(dir string) (points []string, err error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if p := strings.Fields(line)[4]; p == dir || strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	return points, err
}
