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
	// Bottom: nothing will be below the result, so it needs no whiteouts and no opaque marks.
	Bottom bool
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
	m := &merger{o: o, tick: ticker{ctx: ctx}}
	defer m.close()
	for _, l := range layers {
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
	layers []*stack
	dst    *stack
	levels []mergeLevel
	buf    []byte
	tick   ticker
}

// mergeLevel is one directory of the result that is being filled.
type mergeLevel struct {
	from   []int    // layers that take part, top first; the first gives the attributes
	opaque bool     // it hides what is below the last of them, and has to be marked for it
	alone  bool     // nothing below it can be seen: it is opaque, or in such a directory
	todo   []string // names not handled yet
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
	if err := m.enter(all, false, m.o.Bottom); err != nil {
		return err
	}
	for {
		l := &m.levels[len(m.levels)-1]
		if len(l.todo) == 0 {
			if err := m.finish(l); err != nil {
				return err
			}
			for _, i := range l.from {
				if m.layers[i].depth() > 1 {
					if _, err := m.layers[i].pop(); err != nil {
						return err
					}
				}
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

// enter begins a directory that the layers from have in common; they and dst stand in it. An opaque directory hides those of
// the layers below it: they are left again. alone: the directory above hides whatever may be below the result.
func (m *merger) enter(from []int, opaque, alone bool) error {
	for k, i := range from {
		marked, err := m.isOpaque(m.layers[i].fd())
		if err != nil {
			return err
		}
		if !marked {
			continue
		}
		opaque = true
		for _, hidden := range from[k+1:] {
			if m.layers[hidden].depth() > 1 {
				if _, err := m.layers[hidden].pop(); err != nil {
					return err
				}
			}
		}
		from = from[:k+1]
		break
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
	l := mergeLevel{from: from, opaque: opaque && !alone, alone: opaque || alone, todo: make([]string, 0, len(names))}
	for n := range names {
		l.todo = append(l.todo, n)
	}
	slices.Sort(l.todo)
	m.levels = append(m.levels, l)
	return nil
}

// entry brings one name of the current directory into the result: the topmost layer that has it decides what it is.
func (m *merger) entry(l *mergeLevel, name string) error {
	var first Entry
	var dirs []int // layers whose directory of this name is seen
	hidden := false
	for _, i := range l.from {
		e := Entry{Dir: m.layers[i].fd(), Name: name}
		err := unix.Fstatat(e.Dir, name, &e.Stat, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("stat", err)
		}
		if e.IsDir() {
			dirs = append(dirs, i)
			continue
		}
		if len(dirs) == 0 {
			first = e
		}
		hidden = true // a file or whiteout hides what is below it
		break
	}
	if len(dirs) == 0 {
		// A whiteout in a directory of one layer only would be listed, and then not be found: overlayfs does not look for them there.
		if isWhiteout(first.Stat) && l.alone {
			return nil
		}
		return m.link(first)
	}
	for _, i := range dirs {
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
	return m.enter(dirs, hidden, l.alone)
}

// finish gives the current directory of the result its attributes, after its contents.
func (m *merger) finish(l *mergeLevel) error {
	src, dst := m.layers[l.from[0]].fd(), m.dst.fd()
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	c := copier{}
	if l.opaque {
		if err := unix.Fsetxattr(dst, m.o.Opaque, []byte("y"), 0); err != nil {
			return fmt.Errorf("mark as opaque: %w", err)
		}
	}
	return c.attributes(src, ".", dst, ".", st)
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
	e.Stat.Nlink = 1 // on its own from here on
	c := copier{dst: m.dst, buf: m.buf, links: -1}
	return c.file(m.tick.ctx, e)
}
