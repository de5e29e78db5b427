package integration

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkPromoteBesideDirtyData measures the delete that promotes, on a file system of its own, alone and beside 1 GiB that a neighbour wrote to
// it and that is not on disk yet: whoever flushes the file system, or waits for its journal, waits for that.
func BenchmarkPromoteBesideDirtyData(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: it mounts file systems")
	}
	for _, neighbourMiB := range []int{0, 1024} {
		b.Run(fmt.Sprintf("neighbour=%dMiB", neighbourMiB), func(b *testing.B) {
			dir := newDir(b)
			device, point := filepath.Join(dir, "device"), filepath.Join(dir, "fs")
			command(b, "truncate", "-s", "4G", device)
			command(b, "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
			command(b, "mkdir", point)
			command(b, "mount", "-o", "loop", device, point)
			p := newBenchPlugin(b, filepath.Join(point, "store"), false)
			image := withCache(imageOf(b, 100), "key", "/cache", "always")
			container := func(n int) time.Duration {
				p.run("create", image, "h")
				p.writeToCopies(n)
				return p.run("delete", "h")
			}
			container(1)
			command(b, "sync", "-f", point)
			var took []time.Duration
			least := int64(-1)
			for n := 2; b.Loop(); n++ {
				// The kernel begins to write after 30 s, or when there is much: so the neighbour goes on writing.
				if dirty := dirtyMiB(b); neighbourMiB > 0 && dirty < int64(neighbourMiB)*9/10 {
					b.StopTimer()
					command(b, "dd", "if=/dev/zero", "of="+filepath.Join(point, "neighbour"), "bs=1M", fmt.Sprintf("count=%d", neighbourMiB), "conv=notrunc", "status=none")
					b.StartTimer()
				}
				if dirty := dirtyMiB(b); least < 0 || dirty < least {
					least = dirty
				}
				took = append(took, container(n))
			}
			slices.Sort(took)
			b.ReportMetric(float64(median(took))/1e6, "ms/promote")
			b.ReportMetric(float64(took[len(took)*9/10])/1e6, "ms/promote-p90")
			b.ReportMetric(float64(least), "MiB-dirty")
		})
	}
}

// benchPlugin runs commands of the plugin on one store.
type benchPlugin struct {
	b     *testing.B
	store string
	flags []string
}

func newBenchPlugin(b *testing.B, store string, privileged bool) *benchPlugin {
	flags := []string{"--store", store, "--log-level", "error"}
	if privileged {
		flags = append(flags, "--privileged")
	}
	return &benchPlugin{b, store, flags}
}

func (p *benchPlugin) run(args ...string) time.Duration {
	p.b.Helper()
	return timeCommand(p.b, binary, append(slices.Clone(p.flags), args...)...)
}

// writeToCopies changes one file in each copy of the one container there is.
func (p *benchPlugin) writeToCopies(n int) {
	p.b.Helper()
	copies, err := filepath.Glob(filepath.Join(p.store, "mnt/*/cache-*"))
	if err != nil {
		p.b.Fatal(err)
	}
	for _, c := range copies {
		writeFile(p.b, filepath.Join(c, "file"), fmt.Sprint(n))
	}
}

func timeCommand(b *testing.B, name string, args ...string) time.Duration {
	b.Helper()
	start := time.Now()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		b.Fatalf("%v: %v\n%s", args, err, out)
	}
	return time.Since(start)
}

// dirtyMiB is what the kernel holds that is not on any disk yet.
func dirtyMiB(b *testing.B) int64 {
	b.Helper()
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); fields[0] == "Dirty:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib >> 10
		}
	}
	b.Fatal("no Dirty in /proc/meminfo")
	return 0
}

// imageOf makes an image of that many small files, a thousand to a directory.
func imageOf(tb testing.TB, files int) string {
	dir := filepath.Join(tb.TempDir(), "image")
	for i := range files {
		d := filepath.Join(dir, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(d, 0o755); err != nil {
				tb.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprint(i)), []byte("x"), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}
