// Command bench measures the plugin beside what it can be compared with, and writes docs/benchmarks.md. Everything in one table was run in turn, in one
// run, so the ratios hold where the milliseconds do not. See side for how to add something to compare with.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	plugin := flag.String("plugin", "bin/bc-image-plugin", "the built plugin")
	modules := flag.String("modules", "integration/bench", "where the modules of what it is compared with are")
	out := flag.String("out", "docs/benchmarks.md", "write the document to `FILE`, charts beside it")
	dir := flag.String("dir", "/var/tmp", "work in `DIR`, which needs 3 GB and may not be below a directory without o+x")
	quick := flag.Bool("quick", false, "a few rounds of everything, to see that it works; the numbers say little")
	flag.Parse()
	if err := run(*plugin, *modules, *dir, *out, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// extent is how much is measured.
type extent struct {
	rounds, fewRounds, dirtyMiB, atOnce, checks int
	sizes                                       []size
	live                                        []int
}

var (
	whole = extent{200, 15, 200, 50, 1000, []size{{100, 0}, {20_000, 25_000}, {1_000_000, 0}}, []int{10, 250, 1000, 10_000}}
	taste = extent{4, 2, 8, 4, 20, []size{{10, 0}, {20, 1000}}, []int{2, 4}}
)

func run(plugin, modules, dir, out string, quick bool) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it mounts file systems: run it as root")
	}
	extent := whole
	if quick {
		extent = taste
	}
	p, err := newPlace(plugin, modules, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	r := &report{}
	if err := p.measure(r, extent); err != nil {
		return err
	}
	fmt.Print(r.String())
	err = os.WriteFile(out, []byte(r.String()), 0o644)
	for name, svg := range r.charts {
		err = errors.Join(err, os.WriteFile(filepath.Join(filepath.Dir(out), name), []byte(svg), 0o644))
	}
	return err
}
