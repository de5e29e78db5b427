package power

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// report counts what was seen. It is written by one process and read by another.
type report struct {
	Rows       map[string]*row // by "file system | command | what was brought to the disk"
	Violations []string
}

// row counts snapshots and, of these, what verdict does.
type row struct{ Snapshots, Least, Later, None, Leftovers, Violations int }

func (r *report) add(kind string, s snapshot, v verdict, err error) {
	key := fmt.Sprintf("%s | %s | %s", kind, s.command, s.brought)
	if r.Rows == nil {
		r.Rows = map[string]*row{}
	}
	if r.Rows[key] == nil {
		r.Rows[key] = &row{}
	}
	o := r.Rows[key]
	o.Snapshots++
	if err != nil {
		o.Violations++
		r.Violations = append(r.Violations, fmt.Sprintf("%s: %s: %s", key, s.at, err))
		return
	}
	o.Least, o.Later, o.None = o.Least+v.least, o.Later+v.later, o.None+v.none
	if v.leftovers > 0 {
		o.Leftovers++
	}
}

// merge adds what another has.
func (r *report) merge(other report) {
	r.Violations = append(r.Violations, other.Violations...)
	if r.Rows == nil {
		r.Rows = map[string]*row{}
	}
	for key, o := range other.Rows {
		r.Rows[key] = o // each has file systems of its own
	}
}

// total is how many snapshots there were.
func (r *report) total() (n int) {
	for _, o := range r.Rows {
		n += o.Snapshots
	}
	return n
}

func (r *report) markdown(seed uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Power cuts\n\n%d snapshots, BC_POWER_SEED=%d. How to read it: docs/reliability.md.\n\n## Violations: %d\n\n", r.total(), seed, len(r.Violations))
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "* %s\n", v)
	}
	b.WriteString("\n## By file system, command and what the kernel had brought to the disk\n\n" +
		"| file system | command | brought | snapshots | caches: certain | later | none | snapshots with leftovers | violations |\n|" + strings.Repeat(" --- |", 9) + "\n")
	for _, key := range slices.Sorted(maps.Keys(r.Rows)) {
		o := r.Rows[key]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d |\n", key, o.Snapshots, o.Least, o.Later, o.None, o.Leftovers, o.Violations)
	}
	return b.String()
}
