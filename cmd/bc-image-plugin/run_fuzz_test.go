package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/plugin"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// elsewhere finds in an argument a path of this host that is not the test's own. The command may well read there, or copy it.
var elsewhere = regexp.MustCompile(`(^|=|//|[^m]:)/|\.\.|%2[fFeE]|%5[cC]`)

// mayLeave says whether a command line leads to other places than dir: another store, a server, an image of the host.
func mayLeave(args []string, dir string) bool {
	for _, a := range args {
		rest := strings.ReplaceAll(a, "cache-path=/", "")
		for _, own := range []string{"file://" + dir + "/", dir + "/", dir} {
			rest = strings.ReplaceAll(rest, own, "")
		}
		if strings.Contains(rest, "store") || strings.Contains(rest, "baggageclaim-url") || elsewhere.MatchString(rest) {
			return true
		}
	}
	return false
}

// The whole program, whatever it is told: it does not panic, it ends with an exit code and, if that is not 0, with one sentence, and touches nothing but its store. DIR
// in the arguments is the test's own directory, which has an image.
func FuzzRun(f *testing.F) {
	for _, s := range []string{
		"", "create\x00file://DIR/image\x00h", "--privileged\x00create\x00--username\x00u\x00--password\x00p\x00DIR/image?cache=k&cache-path=/c\x00h", "delete\x00--\x00-dash", "delete\x00\xff\n",
		"stats\x00h", "capacity", "list\x00--json", "cache\x00list", "cache\x00drop\x00" + strings.Repeat("0", 64), "cache\x00commit\x00h", "gc\x00--depot\x00DIR", "gc\x00--dry-run",
		"doctor", "version", "help", "--help", "-h", "--log-format=text\x00create", "--idmap\x00none\x00capacity", "--timeout=-1s\x00delete\x00h", "create\x00baggageclaim://v/sub\x00h",
		"--baggageclaim-volumes\x00DIR\x00create\x00baggageclaim://v?cache=%00&cache-path=%zz\x00h", "--cache-max-bytes=18446744073709551616\x00list", "--log-level\x00debug\x00create\x00--disk-limit-size-bytes\x001\x00file://DIR/image\x00h",
		"create\x00file://DIR/image?cache=k&cache-path=/a&cache=l&cache-path=/b/c\x00h", "--\x00delete\x00h", "--generate-bash-completion", "delete\x00--generate-bash-completion",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, joined string) {
		inspect.NeedRoot(t)
		dir, err := os.MkdirTemp("", "run-") // in a URL, the name of a t.TempDir would be something else
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"/image/d", "/outside", "/store"} {
			if err := os.MkdirAll(dir+name, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		args := strings.Split(strings.ReplaceAll(joined, "DIR", dir), "\x00")
		if joined == "" {
			args = nil
		}
		if mayLeave(args, dir) {
			t.Skip("it would work elsewhere")
		}
		before := map[string]map[string]string{}
		for _, name := range []string{"/image", "/outside"} {
			before[name] = inspect.Tree(t, dir+name, inspect.Keep)
		}

		call := func(args ...string) (code int, stdout, stderr string) {
			var out, log bytes.Buffer
			code = run(t.Context(), append([]string{plugin.Name, "--store", dir + "/store", "--timeout", "20s"}, args...), &out, &log)
			return code, out.String(), log.String()
		}
		code, stdout, stderr := call(args...)
		if code < 0 || code > 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
		if report := slices.Contains(args, "gc") || slices.Contains(args, "doctor"); code != 0 && !report || code == 2 {
			s, ok := strings.CutSuffix(stdout, "\n")
			if !ok || s == "" || strings.ContainsAny(s, "\n\r\x00\x1b") || len(s) > 4000 || !utf8.ValidString(s) {
				t.Errorf("%q: exit code %d, and stdout is not one sentence: %q", args, code, stdout)
			}
			if strings.Contains(s, "internal error") {
				t.Errorf("%q: %s\n%s", args, s, stderr)
			}
		}
		for line := range strings.Lines(stderr) {
			if !json.Valid([]byte(line)) && !strings.Contains(joined, "log-format") {
				t.Errorf("%q: stderr has %q", args, line)
			}
		}

		// What was made is deleted like anything else, whatever its name.
		handles, err := os.ReadDir(dir + "/store/volumes/live")
		if err == nil {
			for _, h := range handles {
				if code, stdout, _ := call("delete", "--", h.Name()); code != 0 {
					t.Errorf("delete %q: %d, %s", h.Name(), code, stdout)
				}
			}
		}
		for left := inspect.Mounts(t, dir); len(left) > 0; left = left[:len(left)-1] {
			t.Errorf("%q left the mount %q", args, left[len(left)-1])
			_ = unix.Unmount(left[len(left)-1], unix.MNT_DETACH)
		}
		for name, want := range before {
			inspect.Same(t, inspect.Tree(t, dir+name, inspect.Keep), want)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != len(before)+1 {
			t.Errorf("%q: beside the store: %v, %v", args, names, err)
		}
	})
}
