package cachecopy_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// survivor is a process in a mount namespace of its own, where it keeps the mounts that are there now.
type survivor struct {
	t    *testing.T
	in   io.Writer
	out  *bufio.Reader
	stop func()
}

// survive starts a shell that runs script, and waits until it says "ready". Each further line that it reads, it must answer.
func survive(t *testing.T, script string, args ...string) *survivor {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // which makes its mounts private
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	s := &survivor{t: t, in: in, out: bufio.NewReader(out)}
	s.stop = func() {
		_ = in.Close() // it reads to the end
		_ = cmd.Wait()
	}
	t.Cleanup(s.stop)
	s.wants("ready")
	return s
}

func (s *survivor) wants(answer string) {
	s.t.Helper()
	got, err := s.out.ReadString('\n')
	if err != nil || strings.TrimSpace(got) != answer {
		s.t.Fatalf("the process says %q, %v, want %q", got, err, answer)
	}
}

func (s *survivor) ask() {
	s.t.Helper()
	_, err := io.WriteString(s.in, "go on\n")
	check(s.t, err)
}

// TestNobodyWritesToALayer: a process that has the cache in a mount namespace of its own, after the container was deleted, cannot change the layer that its copy became;
// and if it could, the copy does not become one, also when the delete is cut short after nothing is to be seen of it any more.
func TestNobodyWritesToALayer(t *testing.T) {
	inspect.NeedTool(t, "sh")
	d := &faulty{}
	f := newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) { d.Driver, o.Driver = o.Driver, d })
	f.generation("k", func(dir string) { write(t, dir+"/file", "one") })

	dir := f.open("h", "k", privileged, cachecopy.Always)
	write(t, dir+"/file", "two")
	p := survive(t, `exec 4<"$1/file"; cd "$1"; echo ready; read x; if echo three 2>/dev/null >file; then echo written; else echo refused; fi; read x`, dir)
	f.promote("h")
	p.ask()
	p.wants("refused")
	p.stop()
	if got := f.read("k", "file"); got != "two" {
		t.Errorf("the generation holds %q", got)
	}
	if w := f.warned(); len(w) > 0 {
		t.Errorf("warnings: %q", w)
	}

	dir = f.open("h", "k", privileged, cachecopy.Always)
	p = survive(t, `cd "$1"; exec 3>>file; echo ready; read x; echo three >&3 && echo written; read x`, dir)
	e := f.end("h")
	p.ask()
	p.wants("written")
	p.stop()
	if e.Promoted || !strings.Contains(e.Reason, "could go on writing") {
		t.Errorf("%+v", e)
	}
	if w := strings.Join(f.warned(), "\n"); !strings.Contains(w, "file open there for writing") {
		t.Errorf("warnings: %q", w)
	}
	if got := f.read("k", "file"); got != "two" {
		t.Errorf("the generation holds %q", got)
	}
	f.warnings = nil

	for _, step := range []string{"before Unmount", "after Unmount", "before Remove"} {
		dir = f.open("h", "k", privileged, cachecopy.Always)
		p = survive(t, `cd "$1"; exec 3>>file; echo ready; read x; echo three >&3 && echo written; read x`, dir)
		d.at, d.panic = step, true
		die(t, func() { _, _, _ = f.Delete(t.Context(), handle("h")) })
		d.at = ""
		if e := f.end("h"); e.Promoted || !strings.Contains(e.Reason, "could go on writing") {
			t.Errorf("killed %s: %+v", step, e)
		}
		p.ask()
		p.wants("written")
		p.stop()
		if got := f.read("k", "file"); got != "two" {
			t.Errorf("killed %s: the generation holds %q", step, got)
		}
	}
}
