package integration

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"
)

// hold keeps a file open in another process until release, or until the test ends.
func hold(t testing.TB, path string) (release func()) {
	t.Helper()
	return inBackground(t, `exec 3<"$0"; echo ready; read -r line`, path)
}

// inBackground starts a shell script, waits until it has said that it is ready, and lets it run until release, or until the
// test ends. The script has to end when its stdin does.
func inBackground(t testing.TB, script string, args ...string) (release func()) {
	t.Helper()
	return background(t, exec.Command("/bin/sh", append([]string{"-euc", script}, args...)...))
}

// background is inBackground for any command.
func background(t testing.TB, cmd *exec.Cmd) (release func()) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		in.Close()
		<-ended
	})
	ready := make(chan error, 1)
	go func() {
		defer close(ended)
		lines := bufio.NewReader(out)
		_, err := lines.ReadString('\n')
		ready <- err
		cmd.Wait() // its end is what counts, not how
	}()
	if err := <-ready; err != nil {
		t.Fatalf("%s: not ready: %v", cmd, err)
	}
	return func() { in.Close() }
}
