package integration

import (
	"os"
	"os/exec"
	"testing"
)

// requireRoot skips a test that mounts, makes loop devices or starts containers where the tests do not run as root.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		cannotRun(t, "needs root: it mounts file systems")
	}
}

// requireTool skips a test whose program from outside is not installed.
func requireTool(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			cannotRun(t, "needs the program "+name)
		}
	}
}

// cannotRun skips, or fails where skipping would hide that nothing was tested.
func cannotRun(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("BC_TEST_REQUIRE_ROOT") == "1" {
		t.Fatalf("%s, and BC_TEST_REQUIRE_ROOT=1 forbids skipping", reason)
	}
	t.Skip(reason)
}
