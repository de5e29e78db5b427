package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/integration/bctest"
)

func idOf(r *resource) string { return cachecopy.ID(r.key) }

// report is what both loads met and left, for people. Every number in it was counted in this run.
func report(o options, ours *result, alone *plainResult) string {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Does it snowball?\n")
	p("`make snowball` on %s: %d checks of %d resources, %d at a time, seed %d. %s.", time.Now().Format(time.DateOnly), o.checks, o.resources, workers, o.seed, machine())
	p("Each check is a container of its own with a copy of its resource's cache, created and deleted by the plugin's command as gdn calls it. One in %d runs in runc, the others are a process", inRunc)
	p("of the container's root on the host. See `integration/snowball`.\n")
	backend := "embedded store"
	if o.url != "" {
		backend = "layers on a BaggageClaim server, whose disk is not counted here"
	}
	p("## The plugin (%s)\n", backend)
	p("What happened, in %s:\n", ours.took.Round(100*time.Millisecond))
	b.WriteString(table([]string{"what", "times"}, happenings(ours.happened)))
	p("\nWhat there was on the way. Each row is taken before a `gc --depot`, of which there are %d between two rows, so it holds what was forgotten since the last one.\nOne container lives through it all:\n", perRow)
	var rows [][]string
	line := func(name string, c counts) {
		rows = append(rows, words(name, c.entries, c.mounts, c.layers, c.inodes, fmt.Sprintf("%.1f", float64(c.fileBytes)/(1<<20))))
	}
	line("none, no cache", ours.before)
	for _, r := range ours.rows {
		line(fmt.Sprint(r.checks), r.counts)
	}
	line("all done", ours.caches)
	line("caches dropped", ours.after)
	b.WriteString(table([]string{"checks", "containers", "mounts", "layers", "inodes", "MiB in files"}, rows))
	p("\nAll done: no container, no mount, and no layer but those of the caches, at %d generations in all. The contents of each cache are those of the model, file by file (SHA-256),", ours.generations)
	p("for both kinds of containers, as they were at each create. `Store.Check` finds nothing; at the rows before, nothing but what the next `gc` removed.")
	if o.url == "" {
		p("Every inode of the store, and every byte in files, is explained by the caches' layers.")
	}
	p("")
	if alone == nil {
		return b.String()
	}
	p("## A BaggageClaim server (%s, driver overlay), without the plugin\n", bctest.Versions[0])
	p("The first %d of the same checks take a copy-on-write volume each, and a collector destroys, from a listing every %s, what no running check owns. The server was killed and restarted %d times.", o.checks/aloneShare, interval, restarts)
	p("It had the same trouble, as far as it exists there: a client that is gone before the answer, a missing image, a process that outlives its container by half a second.\n")
	p("What happened, in %s:\n", alone.took.Round(100*time.Millisecond))
	b.WriteString(table([]string{"what", "times"}, happenings(alone.happened)))
	p("\nWhat there was on the way:\n")
	rows = nil
	other := func(name string, c plainCounts) {
		rows = append(rows, words(name, c.listed, c.onDisk, c.mounts, c.inodes, fmt.Sprintf("%.1f", float64(c.listing.Microseconds())/1000)))
	}
	other("none", alone.before)
	for _, r := range alone.rows {
		other(fmt.Sprint(r.checks), r.plainCounts)
	}
	other("collected", alone.end)
	b.WriteString(table([]string{"checks", "volumes listed", "on disk", "mounts", "inodes", "ms to list"}, rows))
	p("\nCollected: the collector ran until a pass changed nothing. What is left then, the image aside (1 volume), stays, and is in no listing: after a restart the server")
	p("stacks a second mount on each volume, and a destroy that failed once, for that or for a process that still runs, is never tried again (`integration/bctest` pins both).")
	return b.String()
}

// happenings are sorted by name.
func happenings(m map[string]int) (rows [][]string) {
	for _, what := range slices.Sorted(maps.Keys(m)) {
		rows = append(rows, words(what, m[what]))
	}
	return rows
}

func words(all ...any) (list []string) {
	for _, a := range all {
		list = append(list, fmt.Sprint(a))
	}
	return list
}

// table is a table in Markdown that also reads well as text.
func table(head []string, rows [][]string) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 8, 1, ' ', 0)
	for i, r := range append([][]string{head, slices.Repeat([]string{"---"}, len(head))}, rows...) {
		if i == 1 {
			r = append([]string{"---"}, slices.Repeat([]string{"--:"}, len(head)-1)...)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(r, "\t| "))
	}
	w.Flush() // to memory
	return b.String()
}

func machine() string {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		return first
	}
	return fmt.Sprintf("%d cores, Linux %s, load average %s at the end", runtime.NumCPU(), read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"))
}
