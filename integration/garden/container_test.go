package garden

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.cloudfoundry.org/garden"
)

const mib = 1 << 20

// createdIn says in which of gdn's slots the plugin is asked for a root file system.
var createdIn = []struct {
	name       string
	privileged bool
}{
	{"unprivileged", false},
	{"privileged", true},
}

func TestContainer(t *testing.T) {
	for _, slot := range createdIn {
		t.Run(slot.name, func(t *testing.T) {
			s := newServer(t)
			image := snapshot(t, s.image)
			handle := s.handle("container")
			spec := garden.ContainerSpec{Handle: handle, Privileged: slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image}}
			container := s.create(t, spec)

			// Container root owns what it must own, and so does everybody else.
			owners := run(t, container, `stat -c %u:%g / /bin/busybox /etc/motd /home/alice /tmp`)
			if want := "0:0\n0:0\n0:0\n1000:1000\n0:0\n"; owners != want {
				t.Errorf("owners seen by the container's root are\n%swant\n%s", owners, want)
			}
			ids := strings.Fields(run(t, container, `cat /proc/self/uid_map`))
			if mapped := ids[1] != "0"; mapped == slot.privileged {
				t.Errorf("the container's root has host id %s in the %s slot", ids[1], slot.name)
			}

			// The copy can be written, by root and by another user, and an image file can be changed and removed.
			run(t, container, `echo new > /etc/new && echo changed >> /etc/motd && rm /etc/group && mkdir /etc/dir && head -c `+strconv.Itoa(3*mib)+` /dev/urandom > /root/three-mib`)
			runAs(t, container, "alice", `id -u > /home/alice/id && chmod 600 /home/alice/id && test ! -w /etc/motd`)
			if got := run(t, container, `cat /etc/new /etc/motd /home/alice/id; ls -d /etc/dir; test -e /etc/group || echo no group`); got != "new\nhello\nchanged\n1000\n/etc/dir\nno group\n" {
				t.Errorf("the container reads back %q", got)
			}

			metrics, err := container.Metrics()
			if err != nil {
				t.Fatalf("metrics: %v", err)
			}
			disk := metrics.DiskStat
			if disk.ExclusiveBytesUsed < 3*mib || disk.ExclusiveBytesUsed > 4*mib {
				t.Errorf("the container wrote 3 MiB and a few small files; its metrics say %d bytes are its own", disk.ExclusiveBytesUsed)
			}
			if busybox := fileSize(t, s.tools.busybox); disk.TotalBytesUsed < disk.ExclusiveBytesUsed+busybox || disk.TotalBytesUsed > disk.ExclusiveBytesUsed+busybox+mib {
				t.Errorf("with an image of little more than %d bytes, of which %d are its own the metrics say %d in total", busybox, disk.ExclusiveBytesUsed, disk.TotalBytesUsed)
			}

			// Neither a container of the other slot nor the image has changed.
			other := s.create(t, garden.ContainerSpec{Handle: s.handle("other"), Privileged: !slot.privileged, Image: garden.ImageRef{URI: "file://" + s.image}})
			if got := run(t, other, `cat /etc/motd; ls /etc /root /home/alice`); got != "hello\n/etc:\ngroup\nhosts\nmotd\npasswd\nresolv.conf\n\n/home/alice:\n\n/root:\n" {
				t.Errorf("another container of the same image sees %q", got)
			}
			s.destroy(t, other.Handle())
			if after := snapshot(t, s.image); after != image {
				t.Errorf("the image was\n%sand is now\n%s", image, after)
			}

			s.destroy(t, handle)
			if err := s.Destroy(handle); !isNotFound(err) {
				t.Errorf("a second destroy says %v, want that the handle is unknown", err)
			}

			// The handle is free, and nothing of its first container is left in its second.
			container = s.create(t, spec)
			if got := run(t, container, `cat /etc/motd; ls /root`); got != "hello\n" {
				t.Errorf("a new container with the handle of an old one sees %q", got)
			}
			s.destroy(t, handle)
		})
	}
}

func TestCapacity(t *testing.T) {
	s := newServer(t)
	// The Garden client of 2018 does not know the field that carries the plugin's answer.
	var capacity struct {
		Schedulable uint64 `json:"schedulable_disk_in_bytes"`
	}
	s.get(t, "/capacity", &capacity)
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.store, &disk); err != nil {
		t.Fatal(err)
	}
	if size := disk.Blocks * uint64(disk.Bsize); capacity.Schedulable == 0 || capacity.Schedulable > size {
		t.Errorf("gdn was told that containers have %d bytes, on a file system of %d", capacity.Schedulable, size)
	}
	// When the plugin fails, gdn quietly takes the size of the depot's file system, which here is the same one.
	s.logLines(func(line logLine) {
		if strings.Contains(line.Message, "failed to retrieve schedulable disk capacity") {
			t.Errorf("gdn did not get its number from the plugin: %s", line.Data)
		}
	})
}

func TestParallel(t *testing.T) {
	s := newServer(t)
	const containers = 8
	failures := make(chan error, containers)
	for i := range containers {
		go func() {
			handle := s.handle(fmt.Sprintf("parallel-%d", i))
			_, err := s.Create(garden.ContainerSpec{Handle: handle, Privileged: i%2 == 1, Image: garden.ImageRef{URI: "file://" + s.image}})
			failures <- errors.Join(err, s.Destroy(handle))
		}()
	}
	for range containers {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
}

// handle makes a name that no other test can have: runc keeps one list for the whole machine.
func (s *server) handle(name string) string { return filepath.Base(s.dir) + "-" + name }

func (s *server) create(t testing.TB, spec garden.ContainerSpec) garden.Container {
	t.Helper()
	container, err := s.Create(spec)
	if err != nil {
		t.Fatalf("create %q (privileged: %t): %v", spec.Handle, spec.Privileged, err)
	}
	return container
}

func (s *server) destroy(t testing.TB, handle string) {
	t.Helper()
	if err := s.Destroy(handle); err != nil {
		t.Fatalf("destroy %q: %v", handle, err)
	}
}

// get decodes gdn's answer to a GET, for what the client has no method for.
func (s *server) get(t testing.TB, path string, answer any) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.socket)
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("http://gdn" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		t.Fatalf("GET %s: %s: %v", path, response.Status, err)
	}
}

// run runs a shell script as the container's root and returns what it printed.
func run(t testing.TB, container garden.Container, script string) string {
	t.Helper()
	return runAs(t, container, "root", script)
}

func runAs(t testing.TB, container garden.Container, user, script string) string {
	t.Helper()
	return runProcess(t, container, garden.ProcessSpec{Path: "/bin/sh", Args: []string{"-c", "set -e; " + script}, User: user})
}

func runProcess(t testing.TB, container garden.Container, spec garden.ProcessSpec) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	process, err := container.Run(spec, garden.ProcessIO{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatalf("run %q: %v", spec.Args, err)
	}
	if status, err := process.Wait(); err != nil || status != 0 {
		t.Fatalf("%q ended with status %d, error %v, and printed\n%s%s", spec.Args, status, err, &stdout, &stderr)
	}
	return stdout.String()
}

func isNotFound(err error) bool {
	var notFound garden.ContainerNotFoundError
	return errors.As(err, &notFound)
}

// writeImage makes a root file system of busybox alone. It has none of the directories that a runtime mounts on (/proc,
// /dev, /sys), so runc must be able to make them as the container's root.
func writeImage(t testing.TB, busybox, dir string) {
	t.Helper()
	for _, sub := range []string{"bin", "etc", "root", "home/alice", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if output, err := exec.Command("cp", busybox, filepath.Join(dir, "bin/busybox")).CombinedOutput(); err != nil {
		t.Fatalf("copy busybox: %v: %s", err, output)
	}
	for _, applet := range strings.Fields("sh cat chmod echo head id ls mkdir rm sleep stat test env") {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, "etc/passwd"), "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n", 0, 0o644)
	writeFile(t, filepath.Join(dir, "etc/group"), "root:x:0:\nalice:x:1000:\n", 0, 0o644)
	writeFile(t, filepath.Join(dir, "etc/motd"), "hello\n", 0, 0o644)
	if err := os.Chown(filepath.Join(dir, "home/alice"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o1777); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, path, content string, owner int, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, owner, owner); err != nil {
		t.Fatal(err)
	}
}

// snapshot describes a tree such that any change to it, were it only of an owner or a time, changes the description.
func snapshot(t testing.TB, dir string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		var content []byte
		if info.Mode().IsRegular() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&text, "%s %v %d:%d %v %x\n", path, info.Mode(), stat.Uid, stat.Gid, stat.Mtim, sha256.Sum256(content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func fileSize(t testing.TB, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(info.Size())
}
