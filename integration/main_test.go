package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	// binary is the plugin, built once for the whole run: what operators get, so never with the race detector.
	binary string

	// runDir belongs to this run of the tests and is gone after it. Images that many tests read stand there.
	runDir string
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "bcip-run-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	runDir, binary = dir, filepath.Join(dir, "bc-image-plugin")

	// The binary and the images are also used by processes in a user namespace, which are not the owner.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("go", "build", "-tags", "urfave_cli_no_docs", "-o", binary,
		"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n%s", build, err, out)
		return 1
	}
	return m.Run()
}
