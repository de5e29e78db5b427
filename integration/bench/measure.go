package main

import (
	"errors"
	"fmt"
	"math"
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
	p.commandSection(r, m)
	p.onceSection(r, x, once)
	for _, section := range []func(*report, extent, string) error{
		p.liveSection, p.memorySection, p.hostSection, p.dirtySection, p.sizeSection, p.serverSection, p.cycleSection, p.containerSection,
	} {
		if err := errors.Join(p.settle(), section(r, x, image)); err != nil {
			return err
		}
	}
	r.limits = p.limits(m)
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
	fmt.Fprintf(&r.head, "# Benchmarks\n\nWritten by `make bench` on %s: %s, %s, %d processors, %s, load %s\n"+
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

// commandSection is the table of commands.
func (p *place) commandSection(r *report, m *meter) {
	r.goal("create, unprivileged, no cache, over an empty program", 2.0, m.ratio("create", emptyProgram))
	r.goal("create with one cache, over an empty program", 2.3, m.ratio("create, 1 cached", emptyProgram))
	r.goal("delete, over an empty program", 1.8, m.ratio("delete", emptyProgram))
	r.goal("delete of an unknown handle, over an empty program", 1.5, m.ratio("delete, unknown handle", emptyProgram))
	if p.groot != "" {
		r.goalAtLeast("create of GrootFS over ours", 3, m.ratio("GrootFS: create", "create"))
		r.goalAtLeast("delete of GrootFS over ours", 2.8, m.ratio("GrootFS: delete", "delete"))
	}
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
}

// onceSection is the table of commands at once.
func (p *place) onceSection(r *report, x extent, m *meter) {
	r.goal(fmt.Sprintf("%d creates at once, over as many of the bare system calls", x.atOnce), 1.5, m.ratio("create", bareCreate))
	r.printf("## %d at once\n\n", x.atOnce)
	r.table(m, emptyProgram)
}

func (p *place) liveSection(r *report, x extent, image string) error {
	first, last := x.live[0], x.live[len(x.live)-1]
	// The spread of a command over the numbers of live containers, each in units of an empty program of its own time.
	spread := func(m *meter, what string, levels []int) float64 {
		least, most := math.Inf(1), 0.0
		for _, level := range levels {
			ratio := m.ratio(fmt.Sprintf("%s: %d live", what, level), fmt.Sprintf("empty: %d live", level))
			least, most = min(least, ratio), max(most, ratio)
		}
		return most / least
	}
	n := min(x.rounds, 60)
	own, err := p.live(n, x.live, image, true)
	if err != nil {
		return err
	}
	some := []int{first, last}
	plain, err := p.live(n, some, image, false)
	if err != nil {
		return err
	}
	r.goal(fmt.Sprintf("dearest create over cheapest, %d to %d live containers, `STORE/mnt` a mount", first, last), 1.2, spread(own, "create", x.live))
	r.goal(fmt.Sprintf("dearest delete over cheapest, %d to %d live containers, `STORE/mnt` a mount", first, last), 1.2, spread(own, "delete", x.live))
	r.goal(fmt.Sprintf("create at %d live containers over at %d, `STORE/mnt` no mount", last, first), 1.2, spread(plain, "create", some))
	r.printf("## Beside live containers\n\nTo clone a mount (open_tree(2), and overlayfs itself, of each layer), the kernel looks at all mounts that are on that mount (fs/namespace.c, has_locked_children):\n" +
		"0.04 µs each. A host with thousands of containers keeps them off it: `mount --bind STORE/mnt STORE/mnt`, before the first of them.\n\n")
	var growth []bar
	for _, level := range x.live {
		for _, what := range []string{"create", "create --privileged", "delete"} {
			name := fmt.Sprintf("%s: %d live", what, level)
			growth = append(growth, bar{name, own.ratio(name, fmt.Sprintf("empty: %d live", level)), colourOurs})
		}
	}
	r.chart("benchmarks-live.svg", "Beside live containers, in units of an empty program at the same time", "×", growth)
	r.table(own, fmt.Sprintf("empty: %d live", first))
	r.printf("`STORE/mnt` no mount:\n\n")
	r.table(plain, fmt.Sprintf("empty: %d live", first))
	return nil
}

func (p *place) memorySection(r *report, _ extent, image string) error {
	peak, err := p.peak(image)
	if err != nil {
		return err
	}
	r.goal("memory of a create, MiB", 12, float64(peak[0])/1024)
	r.printf("## Memory\n\nThe most that one create had resident is %d KiB, of an empty program it is %d KiB.\n\n", peak[0], peak[1])
	return nil
}

// limits says what the goals stand on.
func (p *place) limits(m *meter) string {
	return fmt.Sprintf(`What bounds them from below:

* The kernel. A small Go program that makes nothing but the system calls of one such volume takes %.2f × for its create and %.2f × for its delete in the same run: a start, the
  mount of an overlay, two detached mounts given back, an unmount that waits for all processors. The user namespace of an unprivileged container is made
  anew each time (0.1 ×), as one that is kept would be a mount that stays.
* The start of a larger program. What is linked in initialises itself before main runs, used or not. gdn's commands come before cli and most of net/http (package first of the command);
  what is still before them, most of it Go's cryptography that net/http brings along, takes 0.2 ×.
* Where more commands run at once than there are processors, what counts is processor time: page faults, threads and system calls, beside the waiting that it no longer has.
* The share of a container's life depends on what else that is: here it is only runc.
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
	r.goal(fmt.Sprintf("delete beside %d MiB of a neighbour's dirty data, over without", x.dirtyMiB), 1.2, m.ratio("delete", "delete, nothing dirty"))
	r.printf("## Delete beside a neighbour's dirty data\n\nA neighbour wrote %d MiB to the same file system just before. Our overlays are mounted volatile, so unmounting them syncs nothing.\n\n", x.dirtyMiB)
	r.table(m, "delete, nothing dirty")
	return nil
}

func (p *place) sizeSection(r *report, x extent, _ string) error {
	m, err := p.sizes(min(x.rounds, 60), x.sizes)
	if err != nil {
		return err
	}
	small, large := "create: "+x.sizes[0].String(), "create: "+x.sizes[len(x.sizes)-1].String()
	r.goal(fmt.Sprintf("create of an image of %s, over %s", x.sizes[len(x.sizes)-1], x.sizes[0]), 1.2, m.ratio(large, small))
	r.printf("## By the image's size\n\nNeither create nor delete looks at an image's files; GrootFS, too, has unpacked its copy before.\n\n")
	r.table(m, small)
	return nil
}

func (p *place) serverSection(r *report, x extent, _ string) error {
	size := x.sizes[1]
	image, err := p.image(size.files, size.bytes)
	if err != nil {
		return err
	}
	m, err := p.onServer(x.fewRounds, image)
	if err != nil {
		return err
	}
	r.goalAtLeast(fmt.Sprintf("unprivileged copy of %s by BaggageClaim over our create", size), 1000, m.ratio(postUnprivileged, "create"))
	r.printf("## BaggageClaim\n\nBaggageClaim v1.11.0 with its overlay driver, on the same XFS; the image has %s. Ours are whole commands, with the start of a process; the server's are requests on a\n"+
		"connection that is kept, and its client library's calls. On a server, ours asks for one empty volume. A copy for an unprivileged container is one whose files the server gives new owners, one by one.\n\n", size)
	r.table(m, "create")
	return nil
}

func (p *place) cycleSection(r *report, x extent, image string) error {
	c, err := p.checks(x.checks, image)
	if err != nil {
		return err
	}
	r.goal(fmt.Sprintf("p99 of %d checks on one cache over the median", x.checks), 5, float64(c.p99)/float64(c.median))
	r.goal("their last tenth over the first", 1.2, float64(c.medians[len(c.medians)-1])/float64(c.medians[0]))
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
	r.goal("our share of a container's life with runc, per cent", 5, 100*float64(ours)/float64(ours+m.median("runc run")))
	r.printf("## Our share of a container's life\n\nAn unprivileged busybox container whose program ends at once: our create and delete are %.0f %% of it.\n\n",
		100*float64(ours)/float64(ours+m.median("runc run")))
	r.table(m, "runc run")
	life, share, ok, err := p.inGdn(x.fewRounds * 2)
	if err != nil {
		return err
	}
	if !ok {
		r.printf("`GDN_BIN` named no gdn.\n")
		return nil
	}
	r.goal("our share of a container's life with gdn, per cent", 5, share)
	r.printf("In a real gdn, where a create and a destroy with nothing run take %.0f ms, one create and two deletes of ours, as gdn calls them, are %.1f %% of it.\n", life, share)
	return nil
}
