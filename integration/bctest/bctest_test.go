package bctest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// A server of each kind comes up, is killed and started again with what it had, and leaves nothing running, mounted or looped.
func TestServer(t *testing.T) {
	inspect.NeedRoot(t)
	for _, private := range []bool{false, true} {
		for _, o := range kinds {
			o.Private = private
			name := strings.TrimSpace(o.Driver + " " + o.Version)
			if private {
				name += " private"
			}
			t.Run(name, func(t *testing.T) {
				o.Dir = t.TempDir()
				s, err := Start(o)
				must(t, err)
				t.Cleanup(func() { must(t, s.Close()) })
				a := &asked{s, t, o.Driver}
				a.empty("a")
				before := s.cmd.Process.Pid
				must(t, s.Kill())
				if err := syscall.Kill(before, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("the process after Kill: %v", err)
				}
				if private && o.Driver == "overlay" { // its mounts went with its namespace
					if m := inspect.Mounts(t, s.Volumes); len(m) > 0 {
						t.Errorf("mounts of a private server: %q", m)
					}
				}
				must(t, s.Restart())
				a.answers("200 "+volume("a"), "GET", "/volumes/a", "")
				if !strings.Contains(s.Log(), `"driver":"`+o.Driver+`"`) {
					t.Errorf("its log: %s", s.Log())
				}
				must(t, s.Pause())
				must(t, s.Continue())
				pid := s.cmd.Process.Pid
				must(t, s.Close())
				if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("the process after Close: %v", err)
				}
				if m := inspect.Mounts(t, o.Dir); len(m) > 0 {
					t.Errorf("mounts after Close: %q", m)
				}
				noLoops(t, o.Dir)
			})
		}
	}
}

// A server that cannot start is an error with its own words in it, and leaves nothing.
func TestServerFails(t *testing.T) {
	inspect.NeedRoot(t)
	for _, o := range []Options{{Driver: "magic"}, {Driver: "magic", SizeMiB: 64}} {
		o.Dir = t.TempDir()
		s, err := Start(o)
		if err == nil {
			must(t, s.Close())
			t.Fatal("a server without a driver runs")
		}
		if !strings.Contains(err.Error(), "magic") {
			t.Errorf("it does not say why: %v", err)
		}
		if m := inspect.Mounts(t, o.Dir); len(m) > 0 {
			t.Errorf("mounts are left: %q", m)
		}
		noLoops(t, o.Dir)
	}
}

// A server that is missing is built, from the versions that are pinned.
func TestBuild(t *testing.T) {
	t.Setenv("BC_TEST_CACHE", t.TempDir()+"/new")
	for _, v := range Versions {
		path, err := Build(v)
		must(t, err)
		info, err := os.Stat(path)
		must(t, err)
		again, err := Build(v)
		must(t, err)
		if i, err := os.Stat(again); err != nil || !os.SameFile(i, info) {
			t.Errorf("%s is built again: %v", v, err)
		}
	}
	if _, err := Build("v0.0.0"); err == nil {
		t.Error("a version that is not pinned is built")
	}
}

// noLoops fails the test if a loop device keeps a file below dir (Documentation/ABI/testing/sysfs-block, loop/backing_file). It waits for a while: a process of a test beside
// this one that has just made a mount namespace of its own has a copy of the mount, and holds the device until it ends.
func noLoops(t *testing.T, dir string) {
	t.Helper()
	var held []string
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		must(t, err)
		held = held[:0]
		for _, l := range loops {
			if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), dir+"/") {
				held = append(held, l+": "+string(b))
			}
		}
		if len(held) == 0 {
			return
		}
	}
	t.Errorf("loop devices are left: %q", held)
}
