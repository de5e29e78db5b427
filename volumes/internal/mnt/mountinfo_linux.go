package mnt

import (
	"bufio"
	"os"
	"strings"
)

// Below returns the mount points of this mount namespace that lie below dir (not dir itself), deepest and latest first: the
// order in which they can be unmounted. It reads the whole of /proc/self/mountinfo, so it is for slow paths only.
func Below(dir string) ([]string, error) {
	prefix := strings.TrimSuffix(dir, "/") + "/"
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if p := unescapeOctal(fields[4]); strings.HasPrefix(p, prefix) && p != dir {
			points = append(points, p)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
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
