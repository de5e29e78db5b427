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

// call is a system call of a run's main thread, or of the one that has its network: the n-th of its name.
type call struct {
	name, args string
	n          int
	injected   bool
}

var (
	straceLine = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	result     = regexp.MustCompile(` <unfinished.*|\) += .*`)
	variable   = regexp.MustCompile(`[0-9a-f]{32}|/[^" ]*/torture-[^/" ]*|\b0x[0-9a-f]+\b|\b\d+\b`)
)

// asked is how many arguments of a call say what it is about.
var asked = map[string]int{"read": 1, "write": 1, "pwrite64": 1, "recvfrom": 1, "getdents64": 1, "statfs": 1, "readlinkat": 2, "newfstatat": 2}

// site is a call without what differs from run to run: times that are written, what the kernel answers, which a call that failed does not show.
func (c call) site() string {
	args := result.ReplaceAllString(c.args, "")
	args, _, _ = strings.Cut(args, " HTTP/1.1") // of a request
	if n, ok := asked[c.name]; ok {
		list := strings.SplitN(args, ", ", n+1)
		args = strings.Join(list[:min(n, len(list))], ", ")
	}
	return c.name + "(" + variable.ReplaceAllString(args, "*")
}

// fault is one that is put into a run: an error, or KILL, at the n-th call of a name.
type fault struct {
	what string
	call
}

// faults are put into one run: none, one, or two of different calls. The second is at a call that is made after the first.
type faults []fault

func (f fault) String() string { return fmt.Sprintf("%s %s %d", f.what, f.name, f.n) }

func (f fault) flag() string {
	how := "error=" + f.what
	switch f.what {
	case "KILL":
		how = "signal=KILL"
	case "EOF":
		how = "retval=0"
	}
	return fmt.Sprintf("inject=%s:%s:when=%d", f.name, how, f.n)
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

// after are the faults of calls that the run made after the one that the first fault hit. strace takes one fault for each name of a call.
func (r run) after(first fault) []fault {
	i := slices.IndexFunc(r.calls, func(c call) bool { return c.name == first.name && c.n == first.n })
	return slices.DeleteFunc(possible(r.calls[i+1:]), func(f fault) bool { return f.name == first.name })
}

// ofTheRuntime says whether Go's runtime ended the program: strace counts calls by thread, so an error may have been for another one too.
func (r run) ofTheRuntime() bool {
	return r.code == 2 && (strings.Contains(r.stderr, "netpollBreak write failed") || strings.Contains(r.stderr, "failed to create new OS thread"))
}

// limit is longer than any command may take: it ends itself after 20 s.
const limit = 2 * time.Minute

// String is how a report names them, and BC_TORTURE_ONLY.
func (fs faults) String() string {
	var names []string
	for _, f := range fs {
		names = append(names, f.String())
	}
	return strings.Join(names, then)
}

const then = " then "

func (fs faults) kill() bool {
	return slices.ContainsFunc(fs, func(f fault) bool { return f.what == "KILL" })
}

// strace runs the plugin with faults.
func (p *place) strace(fs faults, args []string) (run, error) {
	log := p.dir + "/strace"
	names := maps.Clone(changing)
	maps.Copy(names, looking)
	if p.server != nil {
		maps.Copy(names, network)
	}
	argv := []string{"-f", "-qq", "-s", "200", "-e", "signal=none", "-o", log, "-e", "trace=?" + strings.Join(slices.Sorted(maps.Keys(names)), ",?")} // ?: if this strace knows it
	for _, f := range fs {
		argv = append(argv, "-e", f.flag())
	}
	if !fs.kill() {
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

// parseLog reads strace's log. The first line is the main thread's; one other makes all calls of the network.
func parseLog(log string) (calls, elsewhere []call) {
	main, count, last := "", map[string]int{}, map[string]int{} // last: by thread
	for line := range strings.Lines(log) {
		m := straceLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			if r := strings.SplitN(line, " <... ", 2); len(r) == 2 && strings.Contains(line, "(INJECTED)") {
				if i, ok := last[strings.TrimSpace(r[0])]; ok {
					calls[i].injected = true
				}
			}
			continue
		}
		if main == "" {
			main = m[1]
		}
		c := call{name: m[2], args: m[3], injected: strings.HasSuffix(m[3], "(INJECTED)")}
		if m[1] != main && network[c.name] == "" {
			if isChange(c) && !ofTheRuntime(c) {
				elsewhere = append(elsewhere, c)
			}
			delete(last, m[1])
			continue
		}
		count[c.name]++
		c.n = count[c.name]
		last[m[1]] = len(calls)
		calls = append(calls, c)
	}
	return calls, elsewhere
}

// possible are all that the calls of a traced run offer.
func possible(calls []call) []fault {
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
