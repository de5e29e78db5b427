package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// MergeOptions says how [Merge] merges.
type MergeOptions struct {
	// Opaque is the extended attribute that marks a directory which hides what is below it, with the value "y".
	Opaque string
	// Below are the layers that the result will stand on, top first. They are only looked at: where they have nothing, the result needs no
	// whiteout and no opaque mark, and must not have one (see entry).
	Below []*os.File
	// Link, if not nil, makes a hard link instead of linkat(2); for tests.
	Link func(fromDir int, from string, toDir int, to string) error
}

// Merge makes one overlay layer of several, in a new directory name below dstDir: layers are given top first, each a directory.
//
// The result, put in the layers' place, shows the same tree. Files are hard links, so no data is copied and the cost follows the number of
// entries; an inode with no room for another link (EMLINK), or on another file system (EXDEV), is copied, which also separates
// it from its other names. The layers must be immutable, since they share inodes with the result.
//
// A failed merge leaves what it had made: remove it.
func Merge(ctx context.Context, layers []*os.File, dstDir int, name string, o MergeOptions) error {
	if o.Link == nil {
		o.Link = func(fromDir int, from string, toDir int, to string) error {
			return unix.Linkat(fromDir, from, toDir, to, 0)
		}
	}
	m := &merger{o: o, merged: len(layers), tick: ticker{ctx: ctx}}
	defer m.close()
	for _, l := range slices.Concat(layers, o.Below) {
		s, err := openRoot(int(l.Fd()), ".")
		if err != nil {
			return fmt.Errorf("merge layer %q: %w", l.Name(), err)
		}
		m.layers = append(m.layers, s)
	}
	if err := unix.Mkdirat(dstDir, name, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	var err error
	if m.dst, err = openRoot(dstDir, name); err != nil {
		return err
	}
	if err := m.run(); err != nil {
		return fmt.Errorf("merge layers: %w", err)
	}
	return nil
}

// merger walks all layers at once. Each layer has a stack of its own that is as deep as the layer takes part in the current directory.
type merger struct {
	o      MergeOptions
	layers []*stack // those to be merged, then those below
	merged int      // how many are merged
	dst    *stack
	levels []mergeLevel
	buf    []byte
	tick   ticker
}

// mergeLevel is one directory of the result that is being filled.
type mergeLevel struct {
	from  []int    // layers that take part, top first; the first gives the attributes
	below []int    // layers below the result whose directory of this name is seen through it
	mark  bool     // it hides a directory below
	todo  []string // names not handled yet
}

func (m *merger) close() {
	for _, s := range m.layers {
		s.close()
	}
	if m.dst != nil {
		m.dst.close()
	}
}

func (m *merger) run() error {
	m.buf = make([]byte, 128<<10)
	all := make([]int, len(m.layers))
	for i := range all {
		all[i] = i
	}
	if err := m.enter(all[:m.merged], all[m.merged:], false); err != nil {
		return err
	}
	for {
		l := &m.levels[len(m.levels)-1]
		if len(l.todo) == 0 {
			if err := m.finish(l); err != nil {
				return err
			}
			if err := errors.Join(m.leave(l.from), m.leave(l.below)); err != nil {
				return err
			}
			m.levels = m.levels[:len(m.levels)-1]
			if len(m.levels) == 0 {
				return nil
			}
			if _, err := m.dst.pop(); err != nil {
				return err
			}
			continue
		}
		name := l.todo[len(l.todo)-1]
		l.todo = l.todo[:len(l.todo)-1]
		if err := m.tick.tick(); err != nil {
			return err
		}
		if err := m.entry(l, name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
}

// enter begins a directory that the layers from and below have in common; they and dst stand in it. An opaque directory hides those of
// the layers below it: they are left again. opaque: what is below from is hidden anyway.
func (m *merger) enter(from, below []int, opaque bool) error {
	from, hidden, err := m.seen(from)
	if err != nil {
		return err
	}
	opaque = opaque || hidden
	l := mergeLevel{from: from, mark: opaque && len(below) > 0}
	if opaque {
		err = m.leave(below)
	} else {
		l.below, _, err = m.seen(below)
	}
	if err != nil {
		return err
	}
	names := map[string]struct{}{}
	buf := make([]byte, direntBytes)
	for _, i := range from {
		for {
			entries, err := readEntries(m.layers[i].fd(), buf)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for _, e := range entries {
				names[e.name] = struct{}{}
			}
		}
	}
	l.todo = make([]string, 0, len(names))
	for n := range names {
		l.todo = append(l.todo, n)
	}
	slices.Sort(l.todo)
	m.levels = append(m.levels, l)
	return nil
}

// seen returns those of the layers that stand in the current directory, top first, which can be seen: up to one that is marked as opaque. The
// others are left.
func (m *merger) seen(layers []int) (visible []int, opaque bool, err error) {
	for k, i := range layers {
		opaque, err := m.isOpaque(m.layers[i].fd())
		if err != nil {
			return nil, false, err
		}
		if opaque {
			return layers[:k+1], true, m.leave(layers[k+1:])
		}
	}
	return layers, false, nil
}

// leave goes back to the parent directory in layers. Their roots are not left.
func (m *merger) leave(layers []int) error {
	for _, i := range layers {
		if m.layers[i].depth() > 1 {
			if _, err := m.layers[i].pop(); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry brings one name of the current directory into the result: the topmost layer that has it decides what it is.
func (m *merger) entry(l *mergeLevel, name string) error {
	first, dirs, hidden, err := m.look(l.from, name)
	if err != nil {
		return err
	}
	isDir := len(dirs) > 0
	lower, below, _, err := m.look(l.below, name)
	if err != nil {
		return err
	}
	if !isDir {
		// A whiteout where nothing is to be hidden would be listed if no layer below has this directory: overlayfs looks for them
		// only in directories that it merges. The kernel marks a new directory as opaque only with options that we do not use, so
		// the layers below have to be asked.
		if isWhiteout(first.Stat) && len(below) == 0 && (lower.Name == "" || isWhiteout(lower.Stat)) {
			return nil
		}
		return m.link(first)
	}
	for _, i := range slices.Concat(dirs, below) {
		if err := m.layers[i].push(name); err != nil {
			return err
		}
	}
	if err := unix.Mkdirat(m.dst.fd(), name, 0o700); err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	if err := m.dst.push(name); err != nil {
		return err
	}
	return m.enter(dirs, below, hidden)
}

// look finds a name in layers, top first: either what is not a directory at the top of all (first), or the layers whose directories are
// merged to one, and whether something that is not a directory ends them. Neither: no layer has it.
func (m *merger) look(layers []int, name string) (first Entry, dirs []int, ended bool, err error) {
	for _, i := range layers {
		e := Entry{Dir: m.layers[i].fd(), Name: name}
		err := unix.Fstatat(e.Dir, name, &e.Stat, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return Entry{}, nil, false, os.NewSyscallError("stat", err)
		case e.IsDir():
			dirs = append(dirs, i)
		case len(dirs) == 0:
			return e, nil, true, nil
		default:
			return Entry{}, dirs, true, nil
		}
	}
	return Entry{}, dirs, false, nil
}

// finish gives the current directory of the result its attributes, after its contents.
func (m *merger) finish(l *mergeLevel) error {
	src, dst := m.layers[l.from[0]].fd(), m.dst.fd()
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	c := copier{}
	if l.mark {
		if err := unix.Fsetxattr(dst, m.o.Opaque, []byte("y"), 0); err != nil {
			return fmt.Errorf("mark as opaque: %w", err)
		}
	}
	return c.attributes(src, dst, ".", st)
}

func (m *merger) isOpaque(fd int) (bool, error) {
	var v [4]byte
	n, err := unix.Fgetxattr(fd, m.o.Opaque, v[:])
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case errors.Is(err, unix.ERANGE):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read attribute %q: %w", m.o.Opaque, err)
	}
	return n == 1 && v[0] == 'y', nil
}

// isWhiteout: a character device 0/0 is how overlayfs hides a name (Documentation/filesystems/overlayfs.rst).
func isWhiteout(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

func (m *merger) link(e Entry) error {
	err := m.o.Link(e.Dir, e.Name, m.dst.fd(), e.Name)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EPERM):
		return os.NewSyscallError("link", err)
	}
	c := copier{dst: m.dst, buf: m.buf, links: -1, alone: true}
	return c.file(m.tick.ctx, e)
}
