package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// report counts what the runs showed.
type report struct {
	mu         sync.Mutex
	counts     map[[2]string]map[string]int // scenario or call, fault; outcome
	scenarios  map[string]map[string]int    // outcome
	pairs      map[string]map[string]int    // the same of runs with two faults
	sites      map[string]map[string]bool   // by scenario: sites of changing calls, and whether one died or failed there
	elsewhere  map[string]int               // changing calls of other threads, by scenario
	violations []string
	runs       int // with one fault
	pairRuns   int
}

func newReport() *report {
	return &report{counts: map[[2]string]map[string]int{}, scenarios: map[string]map[string]int{}, pairs: map[string]map[string]int{}, sites: map[string]map[string]bool{}, elsewhere: map[string]int{}}
}

// planned notes what a traced run showed.
func (r *report) planned(s scenario, traced run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sites[s.name], r.scenarios[s.name], r.pairs[s.name] = map[string]bool{}, map[string]int{}, map[string]int{}
	for _, f := range possible(traced.calls) {
		r.sites[s.name][f.site()] = false
	}
	r.elsewhere[s.name] = len(traced.elsewhere)
}

func (r *report) add(t *testing.T, s scenario, fs faults, hit call, outcome string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		outcome = violated
		v := fmt.Sprintf("%s: %s\n  at %s\n  BC_TORTURE_ONLY='%s %s' go test -tags urfave_cli_no_docs -count=1 ./integration/torture",
			s.name, brief(err.Error()), hit.site(), s.name, fs)
		r.violations = append(r.violations, v)
		t.Error(v) // a long run shows it at once
	}
	if len(fs) > 1 {
		r.pairRuns++
		r.pairs[s.name][outcome]++
		return
	}
	r.runs++
	f := fs[0]
	key := [2]string{f.name, f.what}
	if r.counts[key] == nil {
		r.counts[key] = map[string]int{}
	}
	r.counts[key][outcome]++
	r.scenarios[s.name][outcome]++
	if outcome != missed {
		r.sites[s.name][hit.site()] = true
	}
}

var outcomes = []string{killed, said, worked, kept, missed, violated}

// markdown is the whole report.
func (r *report) markdown(seed uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Torture\n\n%d runs with one fault, %d with two, BC_TORTURE_SEED=%d. How to read it: docs/reliability.md.\n\n## Violations: %d\n\n", r.runs, r.pairRuns, seed, len(r.violations))
	for _, v := range r.violations {
		fmt.Fprintf(&b, "* %s\n", v)
	}
	head := func(columns string) {
		fmt.Fprintf(&b, "\n| %s | %s |\n|%s\n", columns, strings.Join(outcomes, " | "), strings.Repeat(" --- |", len(outcomes)+strings.Count(columns, "|")+1))
	}
	row := func(name string, counts map[string]int) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, o := range outcomes {
			fmt.Fprintf(&b, " %d |", counts[o])
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n## By command\n")
	head("command | sites hit")
	for _, name := range slices.Sorted(maps.Keys(r.scenarios)) {
		hit := 0
		for _, h := range r.sites[name] {
			if h {
				hit++
			}
		}
		row(fmt.Sprintf("%s | %d of %d", name, hit, len(r.sites[name])), r.scenarios[name])
	}
	b.WriteString("\n## Two faults, by command\n")
	head("command")
	for _, name := range slices.Sorted(maps.Keys(r.pairs)) {
		row(name, r.pairs[name])
	}
	b.WriteString("\n## By call and fault\n")
	head("call | fault")
	keys := slices.SortedFunc(maps.Keys(r.counts), func(x, y [2]string) int { return strings.Compare(x[0]+" "+x[1], y[0]+" "+y[1]) })
	for _, key := range keys {
		row(key[0]+" | "+key[1], r.counts[key])
	}
	b.WriteString("\n## Not hit\n\n")
	for _, name := range slices.Sorted(maps.Keys(r.sites)) {
		if n := r.elsewhere[name]; n > 0 {
			fmt.Fprintf(&b, "* %s: %d changing calls on other threads\n", name, n)
		}
		for _, site := range slices.Sorted(maps.Keys(r.sites[name])) {
			if !r.sites[name][site] {
				fmt.Fprintf(&b, "* %s: `%s`\n", name, site)
			}
		}
	}
	return b.String()
}

// brief keeps a stack trace out of the report.
func brief(text string) string {
	const most = 600
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
