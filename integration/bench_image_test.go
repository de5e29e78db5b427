package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkImage measures whole commands, as gdn starts them, beside an empty static Go program started in turn with them: the ratios say what
// our work costs over a process that does nothing. An image of 100,000 files must cost what one of 100 does.
func BenchmarkImage(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: it mounts file systems")
	}
	floor := emptyProgram(b)
	for _, files := range []int{100, 100_000} {
		image := imageOf(b, files)
		for _, privileged := range []bool{false, true} {
			b.Run(fmt.Sprintf("files=%d/%s", files, slotName(privileged)), func(b *testing.B) {
				store := filepath.Join(b.TempDir(), "store")
				if err := os.Chmod(filepath.Dir(filepath.Dir(store)), 0o711); err != nil {
					b.Fatal(err)
				}
				if err := os.Chmod(filepath.Dir(store), 0o711); err != nil {
					b.Fatal(err)
				}
				flags := []string{"--store", store, "--log-level", "error"}
				if privileged {
					flags = append(flags, "--privileged")
				}
				timed := func(name string, args ...string) time.Duration {
					start := time.Now()
					if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
						b.Fatalf("%v: %v\n%s", args, err, out)
					}
					return time.Since(start)
				}
				plugin := func(args ...string) time.Duration { return timed(binary, append(slices.Clone(flags), args...)...) }
				plugin("create", image, "warm")
				plugin("delete", "warm")
				var empty, create, remove, unknown []time.Duration
				for b.Loop() {
					empty = append(empty, timed(floor))
					create = append(create, plugin("create", image, "h"))
					remove = append(remove, plugin("delete", "h"))
					unknown = append(unknown, plugin("delete", "h"))
				}
				base := float64(median(empty))
				b.ReportMetric(base/1e6, "ms/empty")
				b.ReportMetric(float64(median(create))/base, "create/empty")
				b.ReportMetric(float64(median(remove))/base, "delete/empty")
				b.ReportMetric(float64(median(unknown))/base, "unknown/empty")
			})
		}
	}
}

// emptyProgram builds a static Go program that does nothing.
func emptyProgram(tb testing.TB) string {
	dir := tb.TempDir()
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	out := filepath.Join(dir, "empty")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, src)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, msg)
	}
	return out
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
