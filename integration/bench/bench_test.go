package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A few rounds of everything: the benchmark still works, and leaves nothing.
func TestQuickRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts file systems")
	}
	for _, tool := range []string{"mkfs.xfs", "runc", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	plugin := filepath.Join(dir, "bc-image-plugin")
	if out, err := exec.Command("go", "build", "-tags", "urfave_cli_no_docs", "-o", plugin, "../../cmd/bc-image-plugin").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	places := func() []string {
		left, err := filepath.Glob("/var/tmp/bc-image-plugin-bench-*")
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	before := places()
	out := filepath.Join(dir, "benchmarks.md")
	if err := run(plugin, ".", "/var/tmp", out, true); err != nil {
		t.Fatal(err)
	}
	if after := places(); len(after) > len(before) {
		t.Errorf("left: %q", after)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| create, unprivileged, no cache, over an empty program |", postUnprivileged, "create on a server", "| delete, unknown handle |", "| library: create |", "| GrootFS: delete |", "runc run"} {
		if !strings.Contains(string(text), want) && !(strings.Contains(want, "GrootFS") && strings.Contains(string(text), "could not be built")) {
			t.Errorf("%q is not in the document", want)
		}
	}
	if strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
		t.Error("a number is missing in the document")
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "benchmarks-commands.svg")); err != nil || !strings.HasPrefix(string(svg), "<svg") {
		t.Errorf("chart: %v", err)
	}
}

func TestQuantiles(t *testing.T) {
	m := newMeter()
	for i := range 100 {
		m.add("a", time.Duration(i+1))
		m.add("b", time.Duration(2*(i+1)))
	}
	if m.median("a") != 51 || m.quantile("a", 0.95) != 96 || m.quantile("a", 1) != 100 || m.ratio("b", "a") != 2 {
		t.Errorf("%d %d %d %g", m.median("a"), m.quantile("a", 0.95), m.quantile("a", 1), m.ratio("b", "a"))
	}
}

func TestPeakIsOfTheProgramAlone(t *testing.T) {
	ballast := make([]byte, 64<<20)
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	kib, err := peakKiB("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if kib <= 0 || kib > 32<<10 {
		t.Errorf("/bin/true took %d KiB beside our %d", kib, len(ballast)>>10)
	}
}
