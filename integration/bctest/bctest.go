// Package bctest runs real BaggageClaim servers, built from their module, for tests and the demo.
package bctest

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Versions are those that the tests know. The first is what everything runs on.
var Versions = []string{"v1.11.0", "v1.9.1"}

// Options of a server. Dir and Driver must be set.
type Options struct {
	Dir     string // an empty directory, for everything the server makes; others must be able to cross it
	Driver  string // "overlay", "btrfs" or "naive"
	Version string // of Versions; "": the first

	// SizeMiB, if not 0, puts the volumes on a file system of their own of that size: btrfs for that driver, ext4 for others. btrfs always has one.
	SizeMiB int64

	// Private runs the server in a mount namespace of its own.
	Private bool
}

// Server is a server that runs, or did.
type Server struct {
	URL      string
	Volumes  string // the directory of volumes
	Overlays string // the directory of the overlay driver

	opts    Options
	binary  string
	port    [2]int // of the API, and of the debugger that cannot be switched off
	mounted string

	mu   sync.Mutex // a proxy's fault may kill the server beside the test
	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has ended
}

// Start starts a server and waits until it answers.
func Start(o Options) (*Server, error) {
	if o.Version == "" {
		o.Version = Versions[0]
	}
	binary, err := Build(o.Version)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, binary: binary}
	top := o.Dir
	if o.SizeMiB > 0 || o.Driver == "btrfs" {
		if err := s.mountDisk(); err != nil {
			return nil, err
		}
		top = s.mounted
	}
	s.Volumes, s.Overlays = top+"/volumes", top+"/overlays"
	if err := errors.Join(os.MkdirAll(s.Volumes, 0o755), os.MkdirAll(s.Overlays, 0o755)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for range 5 { // somebody else may take a port before the server does
		err = s.startOnFreePorts()
		if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) startOnFreePorts() (err error) {
	for i := range s.port {
		if s.port[i], err = freePort(); err != nil {
			return err
		}
	}
	s.URL = fmt.Sprintf("http://127.0.0.1:%d", s.port[0])
	return s.Restart()
}

// Build returns the path of the server's binary, which it builds if it is not in the cache of test data.
func Build(version string) (string, error) {
	cache := os.Getenv("BC_TEST_CACHE")
	if cache == "" { // as for the images of package integration's tests
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(dir, "bc-image-plugin")
	}
	path := filepath.Join(cache, "baggageclaim-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	_, here, _, _ := runtime.Caller(0)
	module := filepath.Join(filepath.Dir(filepath.Dir(here)), "baggageclaim")
	if version != Versions[0] {
		module = filepath.Join(module, version)
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid()) // another test may build it, too
	cmd := exec.Command("go", "build", "-C", module, "-o", tmp, "github.com/concourse/baggageclaim/cmd/baggageclaim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the BaggageClaim server: %w: %s", err, out)
	}
	return path, os.Rename(tmp, path)
}

func (s *Server) mountDisk() error {
	kind, size := "ext4", s.opts.SizeMiB
	if s.opts.Driver == "btrfs" {
		kind, size = "btrfs", max(size, 1024)
	}
	image, point := s.opts.Dir+"/disk.img", s.opts.Dir+"/disk"
	if err := os.Mkdir(point, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, size<<20); err != nil {
		return err
	}
	for _, args := range [][]string{{"mkfs." + kind, "-q", image}, {"mount", "-o", "loop", "-t", kind, image, point}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	s.mounted = point
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Restart starts the server again after Stop or Kill, on the same directories and port.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.binary, "--driver", s.opts.Driver, "--volumes", s.Volumes, "--overlays-dir", s.Overlays,
		"--bind-port", fmt.Sprint(s.port[0]), "--debug-bind-port", fmt.Sprint(s.port[1]))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that is killed must not leave it behind
	if s.opts.Private {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	started, gone := make(chan error), make(chan struct{})
	go func() {
		// The death that Pdeathsig means is that of the thread which started it (prctl(2)), and Go ends threads at will: this one waits with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // ProcessState has the result
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.cmd, s.gone = cmd, gone
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		select {
		case <-gone:
			s.cmd = nil
			return fmt.Errorf("%w: %v: %s", errEnded, cmd.ProcessState, s.Log())
		default:
		}
		resp, err := http.Get(s.URL + "/volumes?none=none")
		if err == nil {
			resp.Body.Close()
			return nil
		}
	}
	return errors.Join(fmt.Errorf("the BaggageClaim server does not answer after %s: %s", wait, s.Log()), s.end(syscall.SIGKILL))
}

// wait is how long a server may take to answer, and to end.
const wait = time.Minute

var errEnded = errors.New("the BaggageClaim server ended at once")

// Stop ends the server in an orderly way. Its mounts stay, as those of any BaggageClaim server do.
func (s *Server) Stop() error { return s.signal(syscall.SIGTERM) }

// Kill ends the server wherever it is.
func (s *Server) Kill() error { return s.signal(syscall.SIGKILL) }

// Pause stops the server where it is, so that it takes connections and answers nothing; Continue lets it go on.
func (s *Server) Pause() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue ends a Pause.
func (s *Server) Continue() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// Pid is the process that runs, after Start or Restart.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(sig)
}

// end sends the signal and waits for the end. s.mu is held.
func (s *Server) end(sig syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	if err := errors.Join(s.cmd.Process.Signal(sig), s.cmd.Process.Signal(syscall.SIGCONT)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.gone:
		s.cmd = nil
		return nil
	case <-time.After(wait):
		return fmt.Errorf("the BaggageClaim server (process %d) does not end", s.cmd.Process.Pid)
	}
}

// Close kills the server and takes its mounts off. Its files stay in Options.Dir.
func (s *Server) Close() error {
	err := s.Kill()
	if !s.opts.Private { // those of a private one went with it
		for _, p := range s.mounts() {
			// EINVAL: the mount went with one below that it was in.
			if e := syscall.Unmount(p, syscall.MNT_DETACH); e != nil && !errors.Is(e, syscall.EINVAL) {
				err = errors.Join(err, &os.PathError{Op: "umount", Path: p, Err: e})
			}
		}
	}
	if s.mounted != "" {
		err = errors.Join(err, syscall.Unmount(s.mounted, syscall.MNT_DETACH))
		s.mounted = ""
	}
	return err
}

// mounts are the mount points below the volumes, the latest first.
func (s *Server) mounts() []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], s.Volumes+"/") {
			all = append([]string{f[4]}, all...)
		}
	}
	return all
}

// Log returns what the server has logged.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *Server) logPath() string { return s.opts.Dir + "/baggageclaim.log" }

// Left returns what is on disk of any volume: in the directories of volumes by their state, and of overlays.
func (s *Server) Left() ([]string, error) {
	var all []string
	for _, dir := range []string{s.Volumes + "/init", s.Volumes + "/live", s.Volumes + "/dead", s.Overlays, s.Overlays + "/work"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if dir != s.Overlays || e.Name() != "work" {
				all = append(all, dir+"/"+e.Name())
			}
		}
	}
	return all, nil
}
