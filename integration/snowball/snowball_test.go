package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// plugin is the plugin as operators get it, built once.
var plugin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "snowball-plugin-")
	if err == nil {
		plugin = dir + "/bc-image-plugin"
		err = run(exec.Command("go", "build", "-tags", "urfave_cli_no_docs", "-o", plugin, "github.com/concourse/bc-image-plugin/cmd/bc-image-plugin"))
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func needs(t *testing.T) {
	t.Helper()
	inspect.NeedRoot(t)
	inspect.NeedTool(t, "busybox", "runc")
}

// TestSnowball is what `make snowball` does, for as long as a test may take. The run itself fails on whatever is not as it must be; what is left to look at is
// that enough has happened.
func TestSnowball(t *testing.T) {
	needs(t)
	text, err := options{checks: 200, resources: 8, seed: 20, plugin: plugin, compare: true}.run()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
	ours, alone, _ := strings.Cut(text, "without the plugin")
	for _, list := range [][]chance{creates, works, destroys} {
		for _, c := range list {
			if !regexp.MustCompile(`(?m)^\| ` + c.name + `( *|, too late *)\| [1-9]`).MatchString(ours) {
				t.Errorf("%q never happened", c.name)
			}
		}
	}
	for _, what := range []string{"in runc", "found by gc in volumes/live"} {
		if !strings.Contains(ours, "| "+what+" ") {
			t.Errorf("nothing was %s", what)
		}
	}
	if !strings.Contains(alone, "| volume for a check ") {
		t.Error("the BaggageClaim server was not loaded")
	}
}

// The same with the layers in volumes of a server, which at the end has none left.
func TestSnowballOnServer(t *testing.T) {
	needs(t)
	dir, err := os.MkdirTemp("", "snowball-server-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	server, err := bctest.Start(bctest.Options{Dir: dir, Driver: "overlay"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	text, err := options{checks: 100, resources: 8, seed: 20, plugin: plugin, url: server.URL}.run()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
	if left, err := server.Left(); err != nil || len(left) > 0 {
		t.Errorf("the server has %q left, %v", left, err)
	}
}

// TestAuditFinds damages a store in each way that the audit says it would find.
func TestAuditFinds(t *testing.T) {
	needs(t)
	work := t.TempDir()
	t.Cleanup(func() { must(t, unmountAll(work)) })
	for dir := work; dir != os.TempDir(); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o711)) // containers' roots have to cross it
	}
	o := options{checks: 12, resources: 2, seed: 1, plugin: plugin, dir: work + "/store"}
	_, err := makeImage(work+"/volumes", "image")
	must(t, err)
	s, err := o.newSnow(work)
	must(t, err)
	before, err := s.warm()
	must(t, err)
	must(t, s.startBuild())
	for n := range o.checks {
		must(t, s.check(n))
	}
	must(t, s.gc(time.Nanosecond))
	must(t, s.endBuild())

	id := idOf(s.resources[0])
	pointer := o.dir + "/caches/" + id + "/current"
	current, err := os.Readlink(pointer)
	must(t, err)
	generation, rest, _ := strings.Cut(current, " ")
	point := func(to string) error { return errors.Join(os.Remove(pointer), os.Symlink(to, pointer)) }
	latest := o.dir + "/layers/" + strings.Fields(rest)[0] + "/fs/latest"
	text, err := os.ReadFile(latest)
	must(t, err)
	for _, damage := range []struct {
		name, want string
		do, undo   func() error
	}{
		{
			"a file of a cache", "not one of",
			func() error { return os.WriteFile(latest, append([]byte("x"), text...), 0o644) },
			func() error { return os.WriteFile(latest, text, 0o644) },
		},
		{
			"another generation", "want generation " + generation,
			func() error { return point("7" + current) },
			func() error { return point(current) },
		},
		{
			"a layer of nobody", "a second gc: ",
			func() error { return os.Mkdir(o.dir+"/layers/"+strings.Repeat("a", 32), 0o700) },
			func() error { return nil }, // gc removed it
		},
		{
			"a file that nothing explains", "inodes",
			func() error { return os.WriteFile(o.dir+"/layers/"+strings.Fields(rest)[0]+"/stray", nil, 0o600) },
			func() error { return os.Remove(o.dir + "/layers/" + strings.Fields(rest)[0] + "/stray") },
		},
		{
			"a mount", "mounts",
			func() error {
				return syscall.Mount("none", o.dir+"/images", "tmpfs", 0, "")
			},
			func() error { return syscall.Unmount(o.dir+"/images", 0) },
		},
	} {
		must(t, damage.do())
		_, _, err := s.audit(before)
		if err == nil || !strings.Contains(err.Error(), damage.want) {
			t.Errorf("%s: the audit says %v, want %q", damage.name, err, damage.want)
		}
		must(t, damage.undo())
	}
	if _, _, err := s.audit(before); err != nil {
		t.Error(err)
	}
}

// TestModel holds the model's rule: one state follows another only if it was made from it, and what certainly happened is not forgotten.
func TestModel(t *testing.T) {
	at := func(n int) tree { return tree{"latest": fmt.Sprint(n)} }
	r := newResource("r")
	see := func(ok bool, tr tree) state {
		t.Helper()
		s, err := r.observe(tr)
		if (err == nil) != ok {
			t.Errorf("observe(%v) = %v", tr, err)
		}
		return s
	}
	empty := see(true, tree{})
	r.committed(1, empty, at(1), true)
	see(false, tree{}) // it is not lost
	r.committed(2, empty, at(2), true)
	see(false, at(2)) // the first wins
	one := see(true, at(1))
	r.committed(3, empty, at(3), true)
	see(false, at(3)) // it was overtaken

	r.committed(4, one, at(4), false)
	see(true, at(1)) // not yet
	r.committed(5, one, at(5), true)
	see(false, at(1))
	four := see(true, at(4)) // it was before the fifth
	see(false, at(5))
	r.committed(6, four, at(6), false)
	r.gone(map[int]bool{6: true})
	see(false, at(4))
	if six := see(true, at(6)); six.generation != 3 {
		t.Errorf("generation %d, want 3", six.generation)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
