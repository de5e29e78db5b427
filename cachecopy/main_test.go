package cachecopy_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/attack"
)

// inNamespace is set in the process that runs the tests: it has a mount namespace of its own, so whatever a failed test leaves mounted is gone
// with it.
const inNamespace = "CACHECOPY_TEST_IN_NAMESPACE"

func TestMain(m *testing.M) {
	attack.Serve()
	if worker := os.Getenv(workerEnv); worker != "" {
		os.Exit(work(worker))
	}
	if os.Geteuid() != 0 || os.Getenv(inNamespace) != "" {
		os.Exit(m.Run())
	}
	os.Exit(again())
}

// again runs this program once more, in a new mount namespace.
func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		fmt.Fprintln(os.Stderr, "run the tests in a mount namespace:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}
