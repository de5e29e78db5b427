package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// measure does all of it, in the order of the document.
func (p *place) measure(r *report, x extent) error {
	if err := p.head(r); err != nil {
		return err
	}
	image, err := p.image(100, 25)
	if err != nil {
		return err
	}
	sides, err := p.commandSides(image)
	if err != nil {
		return err
	}
	if err := p.settle(); err != nil {
		return err
	}
	m := newMeter()
	if err := rounds(m, x.rounds, sides); err != nil {
		return err
	}
	once, err := p.atOnce(x.fewRounds, x.atOnce, image)
	if err != nil {
		return err
	}
	live, err := p.live(min(x.rounds, 60), x.live, image)
	if err != nil {
		return err
	}
	peak, err := p.peak(image)
	if err != nil {
		return err
	}
	p.summary(r, x, m, once, live, peak)

	for _, section := range []func(*report, extent, string) error{p.hostSection, p.dirtySection, p.sizeSection, p.cycleSection, p.containerSection} {
		if err := errors.Join(p.settle(), section(r, x, image)); err != nil {
			return err
		}
	}
	return nil
}

// head says on what it was measured.
func (p *place) head(r *report) error {
	kernel, err := output("uname", "-srm")
	if err != nil {
		return err
	}
	version, err := output(p.plugin, "version")
	if err != nil {
		return err
	}
	if p.kind, err = fileSystem(p.dir); err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	r.printf("# Benchmarks\n\nWritten by `make bench` on %s: %s, %s, %d processors, %s, load %s\n"+
		"at the beginning. Everything is on one XFS on a loop device, its file on %s. What stands in one table was\n"+
		"run in turn, round by round, in one run; × is the ratio of medians, and what another machine will find alike;\n"+
		"quiet × that of the times that nine of ten are above, which what else the machine does changes less.\n\n",
		time.Now().UTC().Format(time.DateOnly), version, kernel, runtime.NumCPU(), runtime.Version(), strings.Fields(string(load))[0], p.kind)
	return nil
}

// fileSystem is the type of the file system of dir.
func fileSystem(dir string) (string, error) {
	kinds, err := output("findmnt", "-n", "-o", "FSTYPE", "--target", dir)
	all := strings.Fields(kinds) // of all that is mounted there, the topmost last
	if err != nil || len(all) == 0 {
		return "", fmt.Errorf("find the file system of %q: %q, %w", dir, kinds, err)
	}
	return all[len(all)-1], nil
}

// peak is the memory that a create takes, in KiB, and an empty program.
func (p *place) peak(image string) (kib [2]int64, err error) {
	o := p.ours("store")
	if kib[0], err = peakKiB(p.plugin, "--store", o.store, "create", image, "peak"); err != nil {
		return kib, err
	}
	if err := o.run("delete", "peak"); err != nil {
		return kib, err
	}
	kib[1], err = peakKiB(p.empty)
	return kib, err
}

// summary is the goals and the table of commands.
func (p *place) summary(r *report, x extent, m, once, live *meter, peak [2]int64) {
	// The spread of create over the numbers of live containers, each in units of an empty program of its own time.
	least, most := 1e9, 0.0
	for _, level := range x.live {
		ratio := live.ratio(fmt.Sprintf("create: %d live", level), fmt.Sprintf("empty: %d live", level))
		least, most = min(least, ratio), max(most, ratio)
	}
	r.printf("## Goals\n\nIn units of an empty static Go program, but for memory, and for the last.\n\n")
	r.goals([]goal{
		{"create, unprivileged, no cache", 2.0, m.ratio("create", emptyProgram)},
		{"create, one cache", 2.3, m.ratio("create, 1 cached", emptyProgram)},
		{"delete", 1.8, m.ratio("delete", emptyProgram)},
		{"delete of an unknown handle", 1.5, m.ratio("delete, unknown handle", emptyProgram)},
		{fmt.Sprintf("%d creates at once, beside as many empty programs", x.atOnce), 1.5, once.ratio("create", emptyProgram)},
		{"memory of a create, MiB", 12, float64(peak[0]) / 1024},
		{fmt.Sprintf("most expensive create over cheapest, %d to %d live containers", x.live[0], x.live[len(x.live)-1]), 1.2, most / least},
	})
	r.printf("%s\n", p.limits(m))

	r.printf("## Commands\n\nWhole commands, as gdn starts them, warm.\n\n")
	var bars []bar
	for _, name := range m.names {
		colour := colourOurs
		switch {
		case name == emptyProgram || strings.HasPrefix(name, "its bare"):
			colour = colourFloor
		case strings.HasPrefix(name, "GrootFS"):
			colour = colourOthers
		}
		bars = append(bars, bar{name, m.ratio(name, emptyProgram), colour})
	}
	r.chart("benchmarks-commands.svg", "Whole commands, in units of an empty static Go program", "×", bars)
	r.table(m, emptyProgram)
	if p.groot == "" {
		r.printf("GrootFS could not be built here: %s\n\n", strings.ReplaceAll(p.why, "\n", " "))
	} else {
		r.printf("GrootFS is v0.30.0, built from the module proxy, on the same XFS, its image unpacked before; mapped means with `init-store --uid-mapping`.\n\n")
	}
	r.printf("## %d at once\n\n", x.atOnce)
	r.table(once, emptyProgram)
	r.printf("## Beside live containers\n\n")
	var growth []bar
	for _, level := range x.live {
		for _, what := range []string{"create", "create --privileged", "delete"} {
			name := fmt.Sprintf("%s: %d live", what, level)
			growth = append(growth, bar{name, live.ratio(name, fmt.Sprintf("empty: %d live", level)), colourOurs})
		}
	}
	r.chart("benchmarks-live.svg", "Beside live containers, in units of an empty program at the same time", "×", growth)
	r.table(live, fmt.Sprintf("empty: %d live", x.live[0]))
	r.printf("## Memory\n\nThe most that one create had resident is %d KiB, of an empty program it is %d KiB.\n\n", peak[0], peak[1])
}

// limits says what the goals stand on.
func (p *place) limits(m *meter) string {
	return fmt.Sprintf(`What bounds them from below:

* The kernel. A small Go program that makes nothing but the system calls of one such volume takes %.2f × for its create and %.2f × for its delete in the same run: a start, the
  mount of an overlay, two detached mounts given back, an unmount that waits for all processors. The user namespace of an unprivileged container is made
  anew each time (0.1 ×), as one that is kept would be a mount that stays.
* The start of a larger program. What is linked in initialises itself before main runs, used or not. Measured alone, as an import of an empty program: os, fmt and x/sys
  0.07 ×; encoding/json, crypto/sha256, logrus and net/url together 0.07 ×; urfave/cli with text/template and regexp 0.15 ×, although gdn's command lines never get there.
  net/http, which the BaggageClaim driver needs, 0.23 ×.
* Where more commands run at once than there are processors, what counts is processor time, and of that a create takes what its threads, page faults and system
  calls in the kernel take, beside the waiting that it no longer has.
* To clone a mount (open_tree(2)), which each unprivileged create does twice, the kernel looks at all mounts on the same file system's mount (fs/namespace.c,
  has_locked_children), 0.04 µs each: nothing at 1,000 live containers, 0.8 ms at 10,000. Privileged creates and all deletes stay flat.
`, m.ratio(bareCreate, emptyProgram), m.ratio(bareDelete, emptyProgram))
}

// hostSection compares the commands on the file system that holds the loop device's file.
func (p *place) hostSection(r *report, x extent, _ string) error {
	q := *p
	q.fs = p.dir + "/host"
	if err := os.Mkdir(q.fs, 0o711); err != nil {
		return err
	}
	image, err := q.image(100, 25)
	if err != nil {
		return err
	}
	floor, err := q.floorSides(image)
	if err != nil {
		return err
	}
	ours, err := q.oursSides(image)
	if err != nil {
		return err
	}
	m := newMeter()
	if err := rounds(m, x.rounds/2, append(floor, ours...)); err != nil {
		return err
	}
	r.printf("## On %s\n\nThe same commands on the file system that holds the XFS's file.\n\n", p.kind)
	if p.kind == "ext4" {
		r.printf("ext4 takes 0.05 to 0.1 ms to remove each directory of an upper, of which there are eight.\n\n")
	}
	r.table(m, emptyProgram)
	return nil
}

func (p *place) dirtySection(r *report, x extent, image string) error {
	m, err := p.besideDirtyData(x.fewRounds, x.dirtyMiB, image)
	if err != nil {
		return err
	}
	r.printf("## Delete beside a neighbour's dirty data\n\nA neighbour wrote %d MiB to the same file system just before. Our overlays are mounted volatile, so unmounting them syncs nothing.\n\n", x.dirtyMiB)
	r.table(m, "delete")
	return nil
}

func (p *place) sizeSection(r *report, x extent, _ string) error {
	m, err := p.sizes(min(x.rounds, 60), x.sizes)
	if err != nil {
		return err
	}
	r.printf("## By the image's size\n\nNeither create nor delete looks at an image's files; GrootFS, too, has unpacked its copy before.\n\n")
	r.table(m, "create: "+x.sizes[0].String())
	return nil
}

func (p *place) cycleSection(r *report, x extent, image string) error {
	c, err := p.checks(x.checks, image)
	if err != nil {
		return err
	}
	r.printf("## %d checks on one cache\n\nEach creates a container with the cache, changes a file in it and deletes it, which makes the change the next generation. Median %s ms, p99 %s ms (%.1f ×).\n"+
		"The store takes %d KiB after the first tenth and %d KiB at the end.\n\n",
		x.checks, ms(c.median), ms(c.p99), float64(c.p99)/float64(c.median), c.diskStart>>10, c.diskEnd>>10)
	var bars []bar
	for i, d := range c.medians {
		bars = append(bars, bar{fmt.Sprintf("checks %d to %d", i*x.checks/10+1, (i+1)*x.checks/10), float64(d) / float64(time.Millisecond), colourOurs})
	}
	r.chart("benchmarks-checks.svg", "Median of a check, by tenths", "ms", bars)
	return nil
}

func (p *place) containerSection(r *report, x extent, _ string) error {
	m, err := p.container(x.fewRounds * 2)
	if err != nil {
		return err
	}
	ours := m.median("create") + m.median("delete")
	r.printf("## Our share of a container's life\n\nAn unprivileged busybox container whose program ends at once: our create and delete are %.0f %% of it.\n\n",
		100*float64(ours)/float64(ours+m.median("runc run")))
	r.table(m, "runc run")
	return nil
}
