package garden

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.cloudfoundry.org/garden"
	"code.cloudfoundry.org/garden/client"
	"code.cloudfoundry.org/garden/client/connection"
)

// A server is a gdn process with the plugin in both slots, and the directory where it, the plugin's store and the images
// live.
type server struct {
	garden.Client

	tools   tools
	dir     string // short, because unix socket paths end at 108 bytes
	store   string
	socket  string
	log     string
	image   string // a busybox root file system
	pea     string // another one, with /ima-pea in it
	volumes string // laid out like BaggageClaim's volumes directory, see baggageclaim_test.go

	runtime string // what gdn runs as runc
	plugin  string // and as the image plugin
	process *exec.Cmd
	exited  chan struct{} // closed when process is gone
	before  []string      // the store before the test
}

// newServer starts gdn for one test. When the test ends, the server is asked what it left behind (see check), stopped and
// removed with everything below its directory.
func newServer(t testing.TB) *server {
	t.Helper()
	tools := needTools(t)
	dir, err := os.MkdirTemp("", "gdn-")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{
		tools:   tools,
		plugin:  tools.plugin,
		dir:     dir,
		store:   filepath.Join(dir, "store"),
		socket:  filepath.Join(dir, "gdn.sock"),
		log:     filepath.Join(dir, "gdn.log"),
		image:   filepath.Join(dir, "image"),
		pea:     filepath.Join(dir, "pea"),
		volumes: filepath.Join(dir, "volumes"),
	}
	t.Cleanup(func() { s.remove(t) })
	// The container's init enters its root file system as an id that owns nothing here, so it must get through.
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"depot", "tmp", "consoles", "volumes/live"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeImage(t, tools.busybox, s.image)
	writeImage(t, tools.busybox, s.pea)
	writeFile(t, filepath.Join(s.pea, "ima-pea"), "pea\n", 0, 0o644)
	s.runtime = runtimePlugin(t, tools.runc, dir)
	s.start(t)

	// What a store holds for good (its format record, locks, what it knows of an image) is there after one container in each
	// slot was made and measured. All that comes later must go again.
	for _, image := range []string{s.image, s.pea} {
		for _, privileged := range []bool{false, true} {
			handle := fmt.Sprintf("%s-warm-up-%t", filepath.Base(dir), privileged)
			container := s.create(t, garden.ContainerSpec{Handle: handle, Privileged: privileged, Image: garden.ImageRef{URI: "file://" + image}})
			if _, err := container.Metrics(); err != nil {
				t.Fatalf("metrics of %q: %v", handle, err)
			}
			s.destroy(t, handle)
		}
	}
	s.before = s.tree(t)
	for _, path := range s.before {
		// The layout of the store is documented in package volumes: these directories hold one entry per living container.
		if dir := filepath.Dir(path); dir == "layers" || filepath.Dir(dir) == "volumes" {
			t.Errorf("the store still has %q after every container was destroyed", path)
		}
	}
	t.Cleanup(func() { s.check(t) })
	return s
}

// start runs `gdn server`, with further arguments after its own, and waits until it answers.
func (s *server) start(t testing.TB, args ...string) {
	t.Helper()
	command := []string{
		"server", "--log-level=debug",
		"--bind-socket=" + s.socket,
		"--depot=" + filepath.Join(s.dir, "depot"),
		"--properties-path=" + filepath.Join(s.dir, "properties.json"), // what containers gdn knows after a restart
		"--console-sockets-path=" + filepath.Join(s.dir, "consoles"),
		"--skip-setup",
		"--network-plugin=" + s.tools.nothing,
		"--external-ip=127.0.0.1", "--dns-server=127.0.0.1", // or gdn would look for the host's own
		"--runtime-plugin=" + s.runtime,
		"--image-plugin=" + s.plugin,
		"--privileged-image-plugin=" + s.plugin,
		"--privileged-image-plugin-extra-arg=--privileged",
	}
	for _, argument := range []string{"--store=" + s.store, "--baggageclaim-volumes=" + s.volumes, "--log-level=debug"} {
		command = append(command, "--image-plugin-extra-arg="+argument, "--privileged-image-plugin-extra-arg="+argument)
	}
	// A gdn that was built with its helpers inside has none beside it, and takes its own.
	for _, helper := range []string{"dadoo", "init", "nstar"} {
		if path := filepath.Join(filepath.Dir(s.tools.gdn), helper); isProgram(path) == nil {
			command = append(command, "--"+helper+"-bin="+path)
		}
	}
	if tar, err := exec.LookPath("tar"); err == nil {
		command = append(command, "--tar-bin="+tar)
	}
	command = append(append(command, s.tools.gdnArgs...), args...)

	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	process := exec.Command(s.tools.gdn, command...)
	process.Stdout, process.Stderr = log, log
	// gdn's temporary files go away with the test.
	process.Env = append(os.Environ(), "TMPDIR="+filepath.Join(s.dir, "tmp"), realRuncEnv+"="+s.tools.runc)
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		process.Wait()
		close(exited)
	}()
	s.process, s.exited = process, exited
	s.Client = client.New(connection.New("unix", s.socket))

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if s.Ping() == nil {
			return
		}
		select {
		case <-exited:
			t.Fatalf("gdn ended at once:\n%s", s.complaints())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("gdn does not answer on %s after a minute:\n%s", s.socket, s.complaints())
		}
	}
}

// stop ends gdn with a signal and waits for it. Containers live on.
func (s *server) stop(t testing.TB, signal os.Signal) {
	t.Helper()
	if s.process == nil {
		return
	}
	if err := s.process.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal gdn: %v", err)
	}
	select {
	case <-s.exited:
	case <-time.After(30 * time.Second):
		t.Errorf("gdn did not end within 30 s of %v", signal)
		s.process.Process.Kill()
		<-s.exited
	}
	s.process = nil
}

// remove leaves nothing of a server on the machine, however its test went.
func (s *server) remove(t testing.TB) {
	if t.Failed() {
		t.Logf("gdn complained of:\n%s", s.complaints())
	}
	if s.process != nil {
		containers, _ := s.Containers(garden.Properties{"garden.state": "all"})
		for _, container := range containers {
			s.Destroy(container.Handle())
		}
	}
	s.stop(t, syscall.SIGTERM)
	// A container that gdn could not or would not destroy still has an init process.
	handles, _ := os.ReadDir(filepath.Join(s.dir, "depot"))
	for _, handle := range handles {
		exec.Command(s.tools.runc, "delete", "--force", handle.Name()).Run()
	}
	// Never remove a tree with something mounted in it: what was a mount of the store may show somebody's image.
	mounts, err := mountPoints(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range slices.Backward(mounts) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			t.Fatalf("%q stays behind, as it has mounts: unmount %q: %v", s.dir, point, err)
		}
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Error(err)
	}
}

// check is what every test ends with: all containers of the test are destroyed by now.
func (s *server) check(t testing.TB) {
	if t.Failed() {
		return // the first failure is the one to look at
	}
	if err := s.Ping(); err != nil {
		t.Errorf("gdn no longer answers, a plugin's log line can do that to it: %v", err)
	}
	after := s.tree(t)
	for _, path := range after {
		if !slices.Contains(s.before, path) {
			t.Errorf("left in the store: %q", path)
		}
	}
	for _, path := range s.before {
		if !slices.Contains(after, path) {
			t.Errorf("gone from the store, though it was no container's: %q", path)
		}
	}
	s.checkMounts(t)
	for _, line := range s.foreignLogLines() {
		t.Errorf("gdn could not read what the plugin wrote on stderr: %s", line)
	}
}

// checkMounts asks whether a mount is left, once all containers are destroyed.
func (s *server) checkMounts(t testing.TB) {
	t.Helper()
	mounts, err := mountPoints(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range mounts {
		if !s.isPin(point) {
			t.Errorf("left mounted: %q", point)
		}
	}
}

// isPin tells the one mount that a store may keep while no container lives: the user namespace for its id-mapped mounts.
func (s *server) isPin(point string) bool {
	name, found := strings.CutPrefix(point, filepath.Join(s.store, "mnt")+"/userns-")
	return found && !strings.Contains(name, "/")
}

// tree lists all paths in the store, without following mounts: there are none while it matters.
func (s *server) tree(t testing.TB) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(s.store, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == s.store {
			return err
		}
		relative, err := filepath.Rel(s.store, path)
		paths = append(paths, relative)
		return err
	})
	if err != nil {
		t.Fatalf("look at what is in the store: %v", err)
	}
	return paths
}

// mountPoints lists the mounts below dir in the order of their making, so a mount on a mount comes later.
func mountPoints(dir string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(table)) {
		// proc_pid_mountinfo(5): the fifth field is the mount point. Nothing below our directories needs its octal escapes.
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, fields[4])
		}
	}
	return points, nil
}

// A logLine is what gdn writes for each event.
type logLine struct {
	Level   string          `json:"level"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// logLines gives f each line of gdn's log. What is no JSON (a panic) comes with its text as Message and the level "fatal".
func (s *server) logLines(f func(logLine)) {
	content, err := os.ReadFile(s.log)
	if err != nil {
		return // gdn never started
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, len(content)+1)
	for lines.Scan() {
		var line logLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			line = logLine{Level: "fatal", Message: lines.Text()}
		}
		f(line)
	}
}

// complaints is the end of what gdn logged as errors, as far as a person wants to read it.
func (s *server) complaints() string {
	const lines, lineBytes, panicLines = 20, 1000, 5
	var last []string
	panicked := 0
	s.logLines(func(line logLine) {
		if line.Level == "fatal" {
			panicked++
		}
		if line.Level == "error" || line.Level == "fatal" && panicked <= panicLines {
			text := fmt.Sprintf("%s %s", line.Message, line.Data)
			last = append(last, text[:min(len(text), lineBytes)])
		}
	})
	return strings.Join(last[max(0, len(last)-lines):], "\n")
}

// foreignLogLines are lines on the plugin's stderr that are not in gdn's own log format. gdn logs those under this name.
func (s *server) foreignLogLines() []string {
	var foreign []string
	s.logLines(func(line logLine) {
		if strings.Contains(line.Message, ".image-plugin-") && strings.HasSuffix(line.Message, ".error") {
			foreign = append(foreign, string(line.Data))
		}
	})
	return foreign
}
