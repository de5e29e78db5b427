package mnt

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is one overlay mount as a value. The zero value mounts nothing.
//
// Every behaviour that a kernel's build or module parameters may default differently is set explicitly, see [Overlay.options].
type Overlay struct {
	Lowers []*os.File // lower layers, top first; O_PATH directories
	Upper  *os.File   // O_PATH directory
	Work   *os.File   // empty O_PATH directory on the upper's mount

	// Volatile skips every sync of the upper (Linux 5.10). Without it unmounting an overlay syncs the upper's whole file
	// system, so it waits for the dirty data of all its neighbours. Such an upper is not usable after a crash.
	Volatile bool

	// UserXattr keeps overlayfs's own attributes in user.overlay.* instead of trusted.overlay.* (Linux 5.11): the only
	// way inside a user namespace, where trusted.* does not exist.
	UserXattr bool
}

// options are the string options of the mount.
//
//   - index=off: an index would refuse an upper that some other mount namespace still holds.
//   - metacopy=off: a layer must hold whole files, or a raw copy of it loses contents silently.
//   - redirect_dir=nofollow: never follow a redirect that a hostile lower layer brings along; renaming a lower directory is
//     EXDEV, which mv(1) and package managers answer by copying.
//   - xino=auto: one st_dev for the whole tree where the inode numbers have room for it, so that du -x and find -xdev work.
//   - nfs_export=off: needs index=on.
//
// Reference: Documentation/filesystems/overlayfs.rst.
func (o Overlay) options() [][2]string {
	return [][2]string{
		{"index", "off"}, {"metacopy", "off"}, {"redirect_dir", "nofollow"}, {"xino", "auto"}, {"nfs_export", "off"},
	}
}

func (o Overlay) flags() []string {
	var f []string
	if o.Volatile {
		f = append(f, "volatile")
	}
	if o.UserXattr {
		f = append(f, "userxattr")
	}
	return f
}

// MountFDs makes the mount with layers given as file descriptors and attaches it at target.
//
// Linux 6.13 takes layers as descriptors, 6.14 takes O_PATH ones, about 6.15 takes directories of detached (and so of
// id-mapped) mounts. Older kernels answer EINVAL. No path is parsed, so there is nothing to escape and no limit of one page.
//
// The mount a layer's descriptor belongs to must stay open until MountFDs returns.
func (o Overlay) MountFDs(target string) error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen overlay", err)
	}
	defer unix.Close(fs)

	// The first column of /proc/mounts. mount(2) has it as its first argument.
	if err := unix.FsconfigSetString(fs, "source", "overlay"); err != nil {
		return explain(fs, "overlay source", err)
	}
	for _, f := range o.flags() {
		if err := unix.FsconfigSetFlag(fs, f); err != nil {
			return explain(fs, "overlay option "+f, err)
		}
	}
	for _, kv := range o.options() {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return explain(fs, "overlay option "+kv[0], err)
		}
	}
	for _, l := range o.Lowers {
		if err := unix.FsconfigSetFd(fs, "lowerdir+", int(l.Fd())); err != nil {
			return explain(fs, fmt.Sprintf("overlay lower layer %q", l.Name()), err)
		}
	}
	for _, d := range []struct {
		key string
		dir *os.File
	}{{"upperdir", o.Upper}, {"workdir", o.Work}} {
		if err := unix.FsconfigSetFd(fs, d.key, int(d.dir.Fd())); err != nil {
			return explain(fs, fmt.Sprintf("overlay %s %q", d.key, d.dir.Name()), err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return explain(fs, "overlay", err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return explain(fs, "fsmount overlay", err)
	}
	defer unix.Close(m)
	return Attach(m, target)
}

// MountPaths makes the mount by mount(2), with each layer named by the path its file was opened with.
//
// mount(2) takes one page of options and silently cuts what is longer (the kernel then reports a misleading ENOENT or ELOOP),
// so MountPaths measures first and refuses. ENOSPC has both meanings here: the upper's file system is full, or the mount namespace is.
func (o Overlay) MountPaths(target string) error {
	data := o.pathOptions()
	if limit := os.Getpagesize() - 1; len(data) > limit {
		return fmt.Errorf("overlay options need %d bytes, mount(2) takes %d: use fewer layers or shorter paths", len(data), limit)
	}
	if err := unix.Mount("overlay", target, "overlay", 0, data); err != nil {
		return &os.PathError{Op: "mount overlay on", Path: target, Err: err}
	}
	return nil
}

// pathOptions is the option string of mount(2).
func (o Overlay) pathOptions() string {
	opts := o.flags()
	for _, kv := range o.options() {
		opts = append(opts, kv[0]+"="+kv[1])
	}
	lowers := make([]string, len(o.Lowers))
	for i, l := range o.Lowers {
		lowers[i] = escape(l.Name())
	}
	opts = append(opts,
		"lowerdir="+strings.Join(lowers, ":"),
		"upperdir="+escape(o.Upper.Name()),
		"workdir="+escape(o.Work.Name()))
	return strings.Join(opts, ",")
}

// escape protects the characters that overlayfs's option parser gives a meaning: `,` ends an option, `:` a lower layer,
// `\` escapes (fs/overlayfs/params.c, ovl_next_opt and ovl_parse_param_split_lowerdirs).
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace(path)
}

// explain joins the kernel's own message to err: a file system context keeps a log that read(2) returns line by line, each
// with a letter for its level in front (fs/fsopen.c, fscontext_read).
func explain(fs int, op string, err error) error {
	var lines []string
	buf := make([]byte, 1024)
	for len(lines) < 4 {
		n, rerr := unix.Read(fs, buf)
		if rerr != nil || n <= 0 {
			break
		}
		line := strings.TrimSpace(string(buf[:n]))
		if len(line) > 2 && line[1] == ' ' {
			line = line[2:]
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return os.NewSyscallError(op, err)
	}
	return fmt.Errorf("%s: %w (kernel: %s)", op, err, strconv.Quote(strings.Join(lines, "; ")))
}

// IsUnsupported reports whether err is what an older kernel, or a file system without the ability, answers.
func IsUnsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOPKG)
}
