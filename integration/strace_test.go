package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// trace runs the plugin once under strace and returns its system calls, one line each, with the paths of descriptors.
func trace(t *testing.T, g *gdn, slot []string, args ...string) ([]string, result) {
	t.Helper()
	requireTool(t, "strace")
	log := filepath.Join(newDir(t), "calls")
	res := g.under("strace", "-f", "-qq", "-y", "-s", "4096", "-o", log, "--").call(slot, args...)
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n"), res
}

// systemCall takes the name out of a line of strace -f. A call that another thread interrupts has two lines, of which the second
// ("<... name resumed>") does not match.
var systemCall = regexp.MustCompile(`^\d+ +(\w+)\(`)

// ofTheRuntime are the calls that Go's runtime makes as its threads, its memory and the moment demand: they come and go between
// two runs of one command. None of them names a file.
var ofTheRuntime = regexp.MustCompile(`^(futex|nanosleep|sched_\w+|madvise|mmap|munmap|mprotect|brk|clone3?|exit|gettid|getpid|tgkill|` +
	`rt_sig\w+|sigaltstack|set_robust_list|rseq|arch_prctl|prctl|exit_group|restart_syscall|timer_\w+|epoll_\w+|eventfd2|prlimit64)$`)

// start matches what Go's runtime (since 1.25, runtime/cgroup_linux.go) does to learn how many processors its cgroup leaves
// it: it reads /proc/self/mountinfo as far as the line of its cgroup's file system. Every Go program does, whatever its settings.
var start = regexp.MustCompile(`"/proc/self/(cgroup|mountinfo)"|"/sys/fs/cgroup/|` +
	`<[^>]*/(proc/\d+/(cgroup|mountinfo)|cpu\.[a-z_]+)>`)

// withoutStart is a trace without that. The runtime opens the mount table once, before anything of the program runs: whoever
// opens it a second time stays in the trace.
func withoutStart(lines []string) []string {
	opened := false
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		if !start.MatchString(line) {
			return false
		}
		if strings.Contains(line, `"/proc/self/mountinfo"`) {
			again := opened
			opened = true
			return !again
		}
		return true
	})
}

// wakeUp is the descriptor by which the runtime wakes its own network poller.
const wakeUp = "<anon_inode:[eventfd]>"

// count is the number of system calls by name, without the runtime's.
func count(lines []string) map[string]int {
	calls := map[string]int{}
	for _, line := range lines {
		if match := systemCall.FindStringSubmatch(line); match != nil && !ofTheRuntime.MatchString(match[1]) && !strings.Contains(line, wakeUp) {
			calls[match[1]]++
		}
	}
	return calls
}

// differentCounts lists the system calls whose counts differ.
func differentCounts(before, after map[string]int) string {
	all := maps.Clone(before)
	maps.Copy(all, after)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if before[name] != after[name] {
			lines = append(lines, fmt.Sprintf("  %s: %d, were %d", name, after[name], before[name]))
		}
	}
	return strings.Join(lines, "\n")
}
