package garden

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == narrowRuntime {
		fmt.Fprintln(os.Stderr, execNarrowed(os.Args[1:])) // it returns only when it failed
		os.Exit(1)
	}
	code := m.Run()
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// tools are the programs that the tests run; every path is absolute.
type tools struct {
	gdn     string
	gdnArgs []string
	plugin  string
	runc    string
	busybox string
	nothing string // a program that succeeds and prints nothing: gdn's network plugin
}

// needTools finds the tools or skips the test where GDN_BIN does not ask for it. Once it does ask, a missing tool is a
// failure: whoever sets GDN_BIN wants the tests to have run.
func needTools(t testing.TB) tools {
	t.Helper()
	gdn := os.Getenv("GDN_BIN")
	if gdn == "" {
		t.Skip("skipped, because GDN_BIN is not set: this test needs a real gdn (Guardian) binary, with dadoo, init and nstar beside it")
	}
	if os.Geteuid() != 0 {
		t.Fatalf("GDN_BIN is set, but the user id is %d: gdn, runc and mounts need root", os.Geteuid())
	}
	if !filepath.IsAbs(gdn) {
		t.Fatalf("GDN_BIN is %q: go test changes the working directory, so it must be an absolute path", gdn)
	}
	if err := isProgram(gdn); err != nil {
		t.Fatalf("GDN_BIN does not name a program: %v", err)
	}
	plugin, err := pluginBinary()
	if err != nil {
		t.Fatal(err)
	}
	return tools{
		gdn:     gdn,
		gdnArgs: strings.Fields(os.Getenv("GDN_ARGS")),
		plugin:  plugin,
		runc:    needProgram(t, "runc"),
		busybox: needStaticProgram(t, "busybox"),
		nothing: needProgram(t, "true"),
	}
}

func isProgram(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%q is not an executable file", path)
	}
	return nil
}

func needProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("these tests need %s: %v", name, err)
	}
	return path
}

// needStaticProgram is needProgram for one that must run in a root file system which holds nothing else.
func needStaticProgram(t testing.TB, name string) string {
	t.Helper()
	path := needProgram(t, name)
	file, err := elf.Open(path)
	if err != nil {
		t.Fatalf("read %q: %v", path, err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			t.Fatalf("%q is dynamically linked, so it cannot be all there is in a root file system; install the static one (Debian: busybox-static)", path)
		}
	}
	return path
}

var buildDir string // what pluginBinary built, for TestMain to remove

// pluginBinary is PLUGIN_BIN, or else the plugin of this repository, built once for all tests.
var pluginBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("PLUGIN_BIN"); path != "" {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("PLUGIN_BIN is %q: it must be an absolute path", path)
		}
		if err := isProgram(path); err != nil {
			return "", fmt.Errorf("PLUGIN_BIN does not name a program: %w", err)
		}
		return path, nil
	}
	dir, err := os.MkdirTemp("", "bc-image-plugin-build-")
	if err != nil {
		return "", err
	}
	buildDir = dir
	path := filepath.Join(dir, "bc-image-plugin")
	// The tag is the one that the project is built with everywhere.
	build := exec.Command("go", "build", "-C", "../..", "-tags", "urfave_cli_no_docs", "-o", path, "./cmd/bc-image-plugin")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the plugin (set PLUGIN_BIN to use one that is built already): %w\n%s", err, output)
	}
	return path, nil
})
