package mnt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Below returns the mount points of this mount namespace that lie below dir (not dir itself), deepest and latest first: the
// order in which they can be unmounted. It reads the whole of /proc/self/mountinfo, so it is for slow paths only.
func Below(dir string) ([]string, error) {
	prefix := strings.TrimSuffix(dir, "/") + "/"
	table, err := readTable()
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range table {
		if strings.HasPrefix(m.point, prefix) && m.point != dir {
			points = append(points, m.point)
		}
	}
	// mountinfo lists a mount after the one it is mounted on.
	for i, j := 0, len(points)-1; i < j; i, j = i+1, j-1 {
		points[i], points[j] = points[j], points[i]
	}
	return points, nil
}

// unescapeOctal undoes the \040 style that mountinfo uses for blank, tab, newline and backslash (proc_pid_mountinfo(5)).
func unescapeOctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '7' {
			return false
		}
	}
	return true
}

// Source returns another path, in this mount namespace, of the directory that is bind-mounted on point. It reads the whole of
// /proc/self/mountinfo.
func Source(point string) (string, error) {
	table, err := readTable()
	if err != nil {
		return "", err
	}
	var at *mountLine // the last one is on top
	for i := range table {
		if table[i].point == point {
			at = &table[i]
		}
	}
	if at == nil {
		return "", &os.PathError{Op: "find the mount on", Path: point, Err: os.ErrNotExist}
	}
	want, err := os.Stat(point)
	if err != nil {
		return "", err
	}
	cause := errors.New("it has no other path in this mount namespace")
	for _, m := range table {
		rest, ok := strings.CutPrefix(at.root, strings.TrimSuffix(m.root, "/"))
		if !ok || m.device != at.device || m.point == point || (rest != "" && rest[0] != '/') {
			continue
		}
		path := strings.TrimSuffix(m.point, "/") + rest
		switch got, err := os.Lstat(path); {
		case err == nil && os.SameFile(got, want):
			return path, nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			cause = fmt.Errorf("%w that can be looked at: %w", cause, err)
		}
	}
	return "", &os.PathError{Op: "find the directory mounted on", Path: point, Err: cause}
}

// Stacked returns how many mounts are on each mount point, one on the other. It reads the whole of /proc/self/mountinfo.
func Stacked() (map[string]int, error) {
	table, err := readTable()
	on := map[string]int{}
	for _, m := range table {
		on[m.point]++
	}
	return on, err
}

// mountLine is a line of mountinfo: see proc_pid_mountinfo(5).
type mountLine struct{ device, root, point string }

func readTable() ([]mountLine, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseTable(f)
}

// lineBytes is more than the paths of a line can take: two of PATH_MAX, each byte of which may be written as four.
const lineBytes = 64 << 10

// parseTable reads the lines of a mountinfo, and of each no more than its paths: who may mount, in a namespace of its own, can make the options behind them much longer. Fields
// end at a blank and nothing else, since the kernel escapes no other space than blank, tab and newline (fs/proc_namespace.c, show_mountinfo).
func parseTable(r io.Reader) ([]mountLine, error) {
	var all []mountLine
	lines := bufio.NewReaderSize(r, lineBytes)
	for {
		line, more, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if f := strings.SplitN(string(line), " ", 6); len(f) > 5 {
			all = append(all, mountLine{f[2], unescapeOctal(f[3]), unescapeOctal(f[4])})
		}
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
	}
}
