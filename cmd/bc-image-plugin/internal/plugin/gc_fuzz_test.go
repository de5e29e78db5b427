package plugin

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Arguments of gc are understood or refused in one sentence, and who asks for a dry run gets one.
func FuzzParseGC(f *testing.F) {
	for _, s := range []string{"", "--dry-run", "--depot\x00/tmp\x00--min-age\x001h", "--min-age=5s", "--depot=/tmp\x00--min-age\x00-1s", "--depot\x00--dry-run", "-dry-run=false", "--\x00x", "--help", "--depot=/absent\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x00")
		if joined == "" {
			args = nil
		}
		o, err := parseGC(args)
		named := func(flag string) int {
			n := 0
			for _, a := range args {
				if name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "="); name == flag && strings.HasPrefix(a, "-") {
					n++
				}
			}
			return n
		}
		if err != nil {
			if code, sentence := verdict(err, time.Second); code == exitDone || sentence == "" || strings.ContainsAny(sentence, "\n\r\x00") {
				t.Errorf("%q: %d, %q", args, code, sentence)
			}
			return
		}
		if o.MinAge <= 0 || (o.Known != nil) != (named("depot") > 0) || o.DryRun && named("dry-run") == 0 {
			t.Errorf("%q: %+v", args, o)
		}
		if slices.Contains(args, "--dry-run") && named("dry-run") == 1 && !o.DryRun {
			t.Errorf("%q is no dry run", args)
		}
	})
}
