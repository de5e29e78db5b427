package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// call is a system call of a run's main thread: the n-th of its name.
type call struct {
	name, args string
	n          int
	injected   bool
}

var (
	straceLine = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	variable   = regexp.MustCompile(`[0-9a-f]{32}|/[^" ]*/torture-[^/" ]*|\b0x[0-9a-f]+\b|\b\d+\b`)
)

// site is a call without what differs from run to run.
func (c call) site() string {
	args, _, _ := strings.Cut(c.args, ") = ")
	args, _, _ = strings.Cut(args, " <unfinished")
	if c.name == "write" {
		args, _, _ = strings.Cut(args, ",") // the rest is what is written: times
	}
	return c.name + "(" + variable.ReplaceAllString(args, "*")
}

// fault is one that is put into a run: an error, or KILL, at the n-th call of a name.
type fault struct {
	what string
	call
}

func (f fault) String() string { return fmt.Sprintf("%s %s %d", f.what, f.name, f.n) }

func (f fault) flag() string {
	if f.what == "KILL" {
		return fmt.Sprintf("inject=%s:signal=KILL:when=%d", f.name, f.n)
	}
	return fmt.Sprintf("inject=%s:error=%s:when=%d", f.name, f.what, f.n)
}

// run is how one run ended.
type run struct {
	stdout, stderr string
	code           int // -1: killed
	calls          []call
	elsewhere      []call // changing calls of other threads: nobody reaches them by counting
}

// hit is the call that the fault hit.
func (r run) hit(f fault) (call, bool) {
	for _, c := range r.calls {
		if c.name == f.name && c.n == f.n && (c.injected || (f.what == "KILL" && r.code == -1)) {
			return c, true
		}
	}
	return call{}, false
}

// limit is longer than any command may take: it ends itself after 20 s.
const limit = 2 * time.Minute

// strace runs the plugin with a fault, or with none.
func (p *place) strace(f *fault, args []string) (run, error) {
	log := p.dir + "/strace"
	names := maps.Clone(changing)
	maps.Copy(names, looking)
	argv := []string{"-f", "-qq", "-s", "200", "-e", "signal=none", "-o", log, "-e", "trace=?" + strings.Join(slices.Sorted(maps.Keys(names)), ",?")} // ?: if this strace knows it
	if f != nil {
		argv = append(argv, "-e", f.flag())
	}
	if f == nil || f.what != "KILL" {
		argv = append(argv, "--seccomp-bpf") // strace 6.1 delivers no signal from a stop that seccomp made, and says nothing
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "strace", slices.Concat(argv, []string{"--", binary}, p.flags(args))...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return run{}, err
	}
	if ctx.Err() != nil {
		return run{}, fmt.Errorf("it did not end within %s", limit)
	}
	r := run{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	text, err := os.ReadFile(log)
	if err != nil {
		return run{}, fmt.Errorf("%w: %s", err, r.stderr)
	}
	r.calls, r.elsewhere = parseLog(string(text))
	return r, nil
}

// parseLog reads strace's log. The first line is the main thread's.
func parseLog(log string) (calls, elsewhere []call) {
	main, count := "", map[string]int{}
	for line := range strings.Lines(log) {
		m := straceLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			if r := strings.SplitN(line, " <... ", 2); len(r) == 2 && strings.TrimSpace(r[0]) == main && strings.Contains(line, "(INJECTED)") && len(calls) > 0 {
				calls[len(calls)-1].injected = true
			}
			continue
		}
		if main == "" {
			main = m[1]
		}
		c := call{name: m[2], args: m[3], injected: strings.HasSuffix(m[3], "(INJECTED)")}
		if m[1] != main {
			if isChange(c) && !ofTheRuntime(c) {
				elsewhere = append(elsewhere, c)
			}
			continue
		}
		count[c.name]++
		c.n = count[c.name]
		calls = append(calls, c)
	}
	return calls, elsewhere
}

// faults are all that a traced run offers.
func faults(calls []call) []fault {
	var list []fault
	for _, c := range calls {
		if ofTheRuntime(c) {
			continue
		}
		if isChange(c) {
			list = append(list, fault{"KILL", c})
		}
		for _, e := range errorsOf(c) {
			list = append(list, fault{e, c})
		}
	}
	return list
}
