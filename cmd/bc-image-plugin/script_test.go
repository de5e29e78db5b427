package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/lagerline"
	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/plugin"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){plugin.Name: main})
}

// TestScripts runs the real command. What scripts can use beside testscript's own words:
//
//	exits CODE COMMAND…   runs it and wants this exit code
//	sentence              wants stdout to be one sentence, as it is after a failure
//	lager FILE COUNT      wants FILE (or stderr) to be COUNT lines as gdn's relogger takes them
//	snapshot DIR FILE     writes names, modes, owners, times and contents of all below DIR into FILE
//	tmpfs DIR             makes DIR and mounts a tmpfs on it
//	[!] lock FILE         holds all byte locks of FILE, or gives them back
//	[root]                mounts can be made
//
// $NL is a newline, $BYTES are bytes that are not UTF-8, $LONG255 and $LONG256 are names of that length.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Values[heldLocks{}] = map[string]*os.File{}
			env.Setenv("NL", "\n")
			env.Setenv("BYTES", "\xff\xfe")
			env.Setenv("LONG255", strings.Repeat("n", 255))
			env.Setenv("LONG256", strings.Repeat("n", 256))
			env.Setenv("BC_IMAGE_PLUGIN_STORE", env.WorkDir+"/store")
			env.Setenv("GORACE", "atexit_sleep_ms=0") // the plugin is this binary, which with -race would sleep a second at each exit
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "sentence": cmdSentence, "lager": cmdLager, "snapshot": cmdSnapshot, "tmpfs": cmdTmpfs,
			"lock": cmdLock,
		},
	})
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s\nstdout: %s\nstderr: %s", code, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func cmdSentence(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: sentence")
	}
	s, ok := strings.CutSuffix(ts.ReadFile("stdout"), "\n")
	if !ok || s == "" || strings.ContainsAny(s, "\n\r\x00") || len(s) > 4000 {
		ts.Fatalf("stdout is not one sentence: %q", s)
	}
}

func cmdLager(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lager FILE COUNT")
	}
	count := 0
	for line := range bytes.Lines([]byte(ts.ReadFile(args[0]))) {
		if _, err := lagerline.Check(line); err != nil {
			ts.Fatalf("%s: %v", args[0], err)
		}
		count++
	}
	if strconv.Itoa(count) != args[1] {
		ts.Fatalf("%s has %d lines, want %s:\n%s", args[0], count, args[1], ts.ReadFile(args[0]))
	}
}

func cmdSnapshot(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: snapshot DIR FILE")
	}
	var b strings.Builder
	dir := ts.MkAbs(args[0])
	ts.Check(filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		content := ""
		switch d.Type() {
		case 0:
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%x", sha256.Sum256(data))
		case fs.ModeSymlink:
			content, err = os.Readlink(name)
		}
		fmt.Fprintf(&b, "%q %o %d:%d dev %x %d %d %q\n", strings.TrimPrefix(name, dir), st.Mode, st.Uid, st.Gid, st.Dev, st.Mtim.Nano(), st.Ctim.Nano(), content)
		return err
	}))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(b.String()), 0o644))
}

// heldLocks is the key of the files that a script has locked.
type heldLocks struct{}

// cmdLock takes the locks that commands take (F_OFD_SETLK, fcntl(2)), all of them at once.
func cmdLock(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] lock FILE")
	}
	held := ts.Value(heldLocks{}).(map[string]*os.File)
	name := ts.MkAbs(args[0])
	if neg {
		ts.Check(held[name].Close())
		return
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	ts.Check(err)
	ts.Check(unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})) // a length of 0 is the whole file
	held[name] = f
}

// cmdTmpfs gives a script a file system that can hold uppers wherever the tests run: temporary directories often
// are on an overlay. When the script ends, nothing stays mounted on it, whatever failed.
func cmdTmpfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tmpfs DIR")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	// The container's root has to get through to it.
	for above := filepath.Dir(dir); above != "/"; above = filepath.Dir(above) {
		if info, err := os.Stat(above); err == nil && info.Mode().Perm()&0o001 == 0 && strings.HasPrefix(above, os.TempDir()+"/") {
			ts.Check(os.Chmod(above, info.Mode().Perm()|0o001))
		}
	}
	ts.Check(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"))
	ts.Defer(func() {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			ts.Logf("%v", err)
		}
		lines := strings.Split(string(mounts), "\n")
		for i := len(lines) - 1; i >= 0; i-- {
			if fields := strings.Fields(lines[i]); len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
				if err := unix.Unmount(fields[4], unix.MNT_DETACH); err != nil {
					ts.Logf("unmount %s: %v", fields[4], err)
				}
			}
		}
	})
}
