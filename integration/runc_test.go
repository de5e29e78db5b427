package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bundle"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var containers atomic.Int64

// inContainer runs a program in a container that runc starts from what create printed. mounts stand for the client's. It
// returns what the program wrote.
func inContainer(t *testing.T, spec specs.Spec, privileged bool, mounts []specs.Mount, argv ...string) (string, error) {
	t.Helper()
	requireTool(t, "runc")
	config, err := bundle.Config(spec, bundle.Container{Privileged: privileged, Argv: argv, Mounts: mounts, MaxID: guardianRoot})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := newDir(t)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("bcip-%d-%d", os.Getpid(), containers.Add(1))
	runc := []string{"--root", filepath.Join(dir, "state")}
	t.Cleanup(func() { // after a failure it may still be there; runc run removes it otherwise
		exec.Command("runc", append(runc, "delete", "--force", id)...).Run()
	})
	out, err := exec.Command("runc", append(runc, "run", "--bundle", dir, id)...).CombinedOutput()
	return string(out), err
}

// mustRun is inContainer for a shell script that has to succeed. It is traced (-x), so that a failure shows the line.
func mustRun(t *testing.T, spec specs.Spec, privileged bool, script string, mounts ...specs.Mount) string {
	t.Helper()
	out, err := inContainer(t, spec, privileged, mounts, "/bin/sh", "-eux", "-c", script)
	if err != nil {
		t.Fatalf("in the container: %v\n%s", err, out)
	}
	return out
}
