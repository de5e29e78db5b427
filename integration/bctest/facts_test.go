package bctest

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// These tests hold what real servers do where it surprises. Package bcserver relies on it: should one of them fail with a newer server, look there.

// kinds are the servers that the facts are held of. What they leave differs: only the overlay driver has mounts, and a directory beside the volume's own.
var kinds = []Options{
	{Driver: "overlay"}, {Driver: "btrfs"}, {Driver: "naive"},
	{Driver: "overlay", Version: "v1.9.1"}, {Driver: "btrfs", Version: "v1.9.1"}, {Driver: "naive", Version: "v1.9.1"},
}

// each runs a test on a fresh server of each kind.
func each(t *testing.T, test func(*testing.T, *asked)) {
	inspect.NeedRoot(t)
	for _, o := range kinds {
		t.Run(strings.TrimSpace(o.Driver+" "+o.Version), func(t *testing.T) {
			if o.Driver == "btrfs" {
				inspect.NeedTool(t, "btrfs", "mkfs.btrfs")
			}
			test(t, start(t, o))
		})
	}
}

// asked is a server that a test asks.
type asked struct {
	*Server
	t      *testing.T
	driver string
}

func start(t *testing.T, o Options) *asked {
	t.Helper()
	o.Dir = t.TempDir()
	s, err := Start(o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.Log())
		}
		must(t, s.Close())
		if m := inspect.Mounts(t, o.Dir); len(m) > 0 {
			t.Errorf("mounts are left: %q", m)
		}
	})
	return &asked{s, t, o.Driver}
}

// ask returns the status and body of an answer, with V for the directory of volumes.
func (s *asked) ask(method, path, body string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	must(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	must(s.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(s.t, err)
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", strings.ReplaceAll(string(b), s.Volumes, "V")))
}

// answers fails the test if the answer is not the wanted one.
func (s *asked) answers(want, method, path, body string) {
	s.t.Helper()
	if got := s.ask(method, path, body); got != want {
		s.t.Errorf("%s %s %s: %s, want %s", method, path, body, got, want)
	}
}

// empty makes an empty volume and returns its path.
func (s *asked) empty(handle string) string {
	s.t.Helper()
	s.answers("201 "+made(handle), "POST", "/volumes", request(handle, `{"type":"empty"}`))
	return s.Volumes + "/live/" + handle + "/volume"
}

// wait asks until the answer is not 204.
func (s *asked) wait(path string) string {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if got := s.ask("GET", path, ""); got != "204" {
			return got
		}
	}
	s.t.Fatalf("GET %s: it stays 204", path)
	return ""
}

// leaves fails the test unless this is what is on the server's disk, and mounted (m:). Of drivers but overlay no volumes' mounts are expected, and no overlays.
func (s *asked) leaves(want ...string) {
	s.t.Helper()
	left, err := s.Left()
	must(s.t, err)
	for i := range left {
		left[i], err = filepath.Rel(filepath.Dir(s.Volumes), left[i])
		must(s.t, err)
		left[i] = strings.TrimPrefix(left[i], "volumes/")
	}
	for _, m := range inspect.Mounts(s.t, s.Volumes) {
		left = append(left, "m:"+strings.TrimPrefix(m, s.Volumes+"/"))
	}
	if s.driver != "overlay" {
		want = slices.DeleteFunc(want, func(w string) bool { return strings.HasSuffix(w, "/volume") || strings.HasPrefix(w, "overlays/") })
	}
	slices.Sort(left)
	slices.Sort(want)
	if !slices.Equal(left, want) {
		s.t.Errorf("left are %q, want %q", left, want)
	}
}

// pick is for what differs between the overlay driver and the others.
func (s *asked) pick(overlay, others string) string {
	if s.driver == "overlay" {
		return overlay
	}
	return others
}

func request(handle, strategy string) string {
	return fmt.Sprintf(`{"handle":%q,"strategy":%s,"properties":{},"privileged":true}`, handle, strategy)
}

func volume(handle string) string {
	return fmt.Sprintf(`{"handle":%[1]q,"path":"V/live/%[1]s/volume","properties":{},"privileged":true}`, handle)
}

// made is the answer to a creation. It always says that the volume is not privileged; only later answers tell the truth.
func made(handle string) string {
	return fmt.Sprintf(`{"handle":%[1]q,"path":"V/live/%[1]s/volume","properties":{},"privileged":false}`, handle)
}

const (
	createFailed   = `{"error":"failed to create volume"}`
	noDestroy      = `404 {"error":"failed to destroy volume"}`
	destroyFailed  = `500 {"error":"failed to destroy volume"}`
	noVolume       = `404 {"error":"failed to get volume"}`
	noFuture       = "404"
	futureExists   = `500 {"error":"promise already exists in list"}`
	emptyStrategy  = `{"type":"empty"}`
	unknownParents = `{"type":"cow","volume":"nobody"}`
)

// A volume is asked for, found ready, and destroyed.
func TestFuture(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		s.answers(`201 {"handle":"a"}`, "POST", "/volumes-async", request("a", emptyStrategy))
		for range 2 { // it is told as often as one asks
			if got := s.wait("/volumes-async/a"); got != "200 "+made("a") {
				t.Errorf("it is ready: %s", got)
			}
		}
		s.answers(futureExists, "POST", "/volumes-async", request("a", emptyStrategy))
		s.answers("204", "DELETE", "/volumes-async/a", "") // of one that is ready: nothing else happens
		s.answers("404", "DELETE", "/volumes-async/a", "")
		s.answers("404", "GET", "/volumes-async/a", "")
		s.answers("404", "GET", "/volumes-async/unknown", "")
		s.answers("200 "+volume("a"), "GET", "/volumes/a", "")
		s.leaves("live/a", "overlays/a", "m:live/a/volume")

		s.answers("204", "DELETE", "/volumes/a", "")
		s.leaves()
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		s.answers(noVolume, "GET", "/volumes/a", "")
	})
}

// While a volume is being made, only its future is known. Cancelled, it is destroyed when it is ready.
func TestPendingFuture(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		w := s.importing("a")
		s.answers("204", "GET", "/volumes-async/a", "")
		s.answers(noVolume, "GET", "/volumes/a", "")
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		s.answers("200 []", "GET", "/volumes", "")
		s.leaves("init/a", "overlays/a", "m:init/a/volume")

		s.answers("204", "DELETE", "/volumes-async/a", "")
		s.answers("404", "GET", "/volumes-async/a", "")
		s.answers("404", "DELETE", "/volumes-async/a", "")
		s.leaves("init/a", "overlays/a", "m:init/a/volume") // it goes on being made
		archive(t, w)
		s.untilGone("a")
		s.leaves()
	})
}

// What failed is told as often as one asks. An import that fails is never cleaned up, and spoils its handle.
func TestFailedFuture(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		s.answers(`201 {"handle":"a"}`, "POST", "/volumes-async", request("a", unknownParents))
		for range 2 {
			if got := s.wait("/volumes-async/a"); got != "422 "+createFailed {
				t.Errorf("a copy of an unknown volume: %s", got)
			}
		}
		s.answers("422 "+createFailed, "POST", "/volumes", request("c", unknownParents))
		s.answers("422 "+createFailed, "POST", "/volumes", request("c", `{"type":"magic"}`))
		s.answers("422 "+createFailed, "POST", "/volumes-async", `{"handle":"c"}`)
		s.answers("400 "+createFailed, "POST", "/volumes-async", `{"handle":`)
		s.leaves()

		w := s.importing("b")
		must(t, w.Close()) // no archive
		for range 2 {
			if got := s.wait("/volumes-async/b"); got != "500 "+createFailed {
				t.Errorf("an import of nothing: %s", got)
			}
		}
		s.answers("204", "DELETE", "/volumes-async/b", "")
		s.answers("404", "GET", "/volumes-async/b", "")
		s.answers(noDestroy, "DELETE", "/volumes/b", "")
		s.leaves("init/b", "overlays/b", "m:init/b/volume")
		s.answers("500 "+createFailed, "POST", "/volumes", request("b", emptyStrategy))
		s.leaves("init/b", "overlays/b", "m:init/b/volume")
	})
}

// A second creation of a handle fails, and with the overlay driver takes from the volume what it holds.
func TestCreatedTwice(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		dir := s.empty("a")
		must(t, os.WriteFile(dir+"/file", []byte("mine"), 0o644))
		s.answers("500 "+createFailed, "POST", "/volumes", request("a", emptyStrategy))
		s.answers("200 "+volume("a"), "GET", "/volumes/a", "")
		_, err := os.Stat(dir + "/file")
		if lost := errors.Is(err, os.ErrNotExist); lost != (s.driver == "overlay") {
			t.Errorf("the volume's file after a second creation: %v", err)
		}
		left := []string{"live/a", "m:live/a/volume"}
		err = os.WriteFile(dir+"/new", nil, 0o644)
		if s.driver == "overlay" && !errors.Is(err, syscall.ENOENT) || s.driver != "overlay" && err != nil {
			t.Errorf("a new file in it: %v", err)
		}
		s.leaves(left...)
		s.answers("204", "DELETE", "/volumes/a", "")
		s.leaves()
	})
}

// A busy volume is gone for the server after a failure that it tells once: what is left is nobody's. Only the overlay driver minds open files.
func TestDestroyBusy(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		dir := s.empty("a")
		must(t, os.WriteFile(dir+"/file", []byte("mine"), 0o644))
		file, err := os.Open(dir + "/file")
		must(t, err)
		defer file.Close()
		s.answers(s.pick(destroyFailed, "204"), "DELETE", "/volumes/a", "")
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		s.answers(noVolume, "GET", "/volumes/a", "")
		if s.driver == "overlay" {
			s.leaves("dead/a", "overlays/a", "m:dead/a/volume")
			if b, err := os.ReadFile(s.Volumes + "/dead/a/volume/file"); string(b) != "mine" {
				t.Errorf("the file: %q, %v", b, err)
			}
		} else {
			s.leaves()
		}
	})
}

// With a mount in it, a volume is busy as well for overlay, and for naive, which has removed the files beside it by then. Btrfs takes the mount off with the volume.
func TestDestroyWithMount(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		dir := s.empty("a")
		must(t, errors.Join(os.WriteFile(dir+"/file", []byte("mine"), 0o644), os.Mkdir(dir+"/mount", 0o755)))
		must(t, syscall.Mount("test", dir+"/mount", "tmpfs", 0, ""))
		if s.driver == "btrfs" {
			s.answers("204", "DELETE", "/volumes/a", "")
			s.leaves()
			return
		}
		s.answers(destroyFailed, "DELETE", "/volumes/a", "")
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		s.leaves("dead/a", "overlays/a", "m:dead/a/volume", "m:dead/a/volume/mount")
		if _, err := os.Stat(s.Volumes + "/dead/a/volume/file"); (err == nil) != (s.driver == "overlay") {
			t.Errorf("the file beside the mount: %v", err)
		}
	})
}

// A volume that is an overlay's upper layer is not busy: an overlay has mounts of its own of its layers (fs/overlayfs/super.c, clone_private_mount).
// So the order of taking apart is ours to keep.
func TestDestroyBelowOverlay(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		dir, point := s.empty("a"), t.TempDir()
		must(t, errors.Join(os.Mkdir(dir+"/fs", 0o755), os.Mkdir(dir+"/work", 0o755), os.Mkdir(dir+"/lower", 0o755)))
		must(t, syscall.Mount("overlay", point, "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/fs,workdir=%[1]s/work", dir)))
		defer func() { must(t, syscall.Unmount(point, syscall.MNT_DETACH)) }()
		s.answers("204", "DELETE", "/volumes/a", "")
		s.leaves()
	})
}

// A server that is started while its mounts are there makes them again, on top; destroying takes off one of them, and the data, and fails.
// With btrfs and naive nothing of the kind happens. Futures are forgotten.
func TestRestart(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		s.answers(`201 {"handle":"a"}`, "POST", "/volumes-async", request("a", emptyStrategy))
		s.wait("/volumes-async/a")
		must(t, os.WriteFile(s.Volumes+"/live/a/volume/file", []byte("mine"), 0o644))
		must(t, s.Stop())
		s.leaves("live/a", "overlays/a", "m:live/a/volume")
		must(t, s.Restart())
		s.answers("404", "GET", "/volumes-async/a", "")
		s.answers("200 "+volume("a"), "GET", "/volumes/a", "")
		s.leaves("live/a", "overlays/a", "m:live/a/volume", "m:live/a/volume")
		if b, err := os.ReadFile(s.Volumes + "/live/a/volume/file"); string(b) != "mine" {
			t.Errorf("the file: %q, %v", b, err)
		}

		s.answers(s.pick(destroyFailed, "204"), "DELETE", "/volumes/a", "")
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		if s.driver == "overlay" {
			s.leaves("dead/a", "m:dead/a/volume")
		} else {
			s.leaves()
		}
	})
}

// As after a reboot: the mounts are gone when the server starts. All is as before.
func TestReboot(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		dir := s.empty("a")
		must(t, os.WriteFile(dir+"/file", []byte("mine"), 0o644))
		must(t, s.Kill())
		if s.driver == "overlay" {
			must(t, syscall.Unmount(dir, 0))
		}
		must(t, s.Restart())
		if b, err := os.ReadFile(dir + "/file"); string(b) != "mine" {
			t.Errorf("the file: %q, %v", b, err)
		}
		s.answers("204", "DELETE", "/volumes/a", "")
		s.leaves()
	})
}

// A server that is killed while it makes a volume never looks at it again, and its handle is spoiled.
func TestKilledWhileCreating(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		w := s.importing("a")
		must(t, s.Kill())
		must(t, w.Close())
		s.leaves("init/a", "overlays/a", "m:init/a/volume")
		must(t, s.Restart())
		s.answers("404", "GET", "/volumes-async/a", "")
		s.answers("404", "DELETE", "/volumes-async/a", "")
		s.answers(noVolume, "GET", "/volumes/a", "")
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		s.answers("500 "+createFailed, "POST", "/volumes", request("a", emptyStrategy))
		s.leaves("init/a", "overlays/a", "m:init/a/volume")
	})
}

// A volume that somebody unmounted cannot be destroyed by the overlay driver, which compares the kernel's "not mounted" with the wrong error.
func TestUnmountedByHand(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		if s.driver != "overlay" {
			t.Skip("it has no mounts")
		}
		dir := s.empty("a")
		must(t, syscall.Unmount(dir, 0))
		s.answers(destroyFailed, "DELETE", "/volumes/a", "")
		s.answers(noDestroy, "DELETE", "/volumes/a", "")
		s.leaves("dead/a", "overlays/a")
	})
}

// Properties that are null stay null until one is set.
func TestNullProperties(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		s.answers(`201 {"handle":"a","path":"V/live/a/volume","properties":null,"privileged":false}`, "POST", "/volumes", `{"handle":"a","strategy":{"type":"empty"},"properties":null,"privileged":true}`)
		s.answers(`200 {"handle":"a","path":"V/live/a/volume","properties":null,"privileged":true}`, "GET", "/volumes/a", "")
		s.answers("204", "PUT", "/volumes/a/properties/k", `{"value":"v"}`)
		s.answers(`200 {"handle":"a","path":"V/live/a/volume","properties":{"k":"v"},"privileged":true}`, "GET", "/volumes/a", "")
		s.answers(`404 {"error":"failed to set property on volume"}`, "PUT", "/volumes/b/properties/k", `{"value":"v"}`)
	})
}

// A list can be narrowed by properties, all of which a volume must have.
func TestList(t *testing.T) {
	each(t, func(t *testing.T, s *asked) {
		s.answers("200 []", "GET", "/volumes", "")
		for _, h := range []string{"a", "b", "c"} {
			s.empty(h)
		}
		s.answers("204", "PUT", "/volumes/a/properties/k", `{"value":"v w"}`)
		s.answers("204", "PUT", "/volumes/b/properties/k", `{"value":"v w"}`)
		s.answers("204", "PUT", "/volumes/b/properties/l", `{"value":""}`)
		for query, want := range map[string]string{"": "a b c", "?k=v+w": "a b", "?k=v%20w&l=": "b", "?l": "b", "?k=v": "", "?k=v+w&m=": ""} {
			var all []struct{ Handle string }
			got := s.ask("GET", "/volumes"+query, "")
			if err := json.Unmarshal([]byte(got[4:]), &all); err != nil || got[:4] != "200 " {
				t.Fatalf("%q: %s, %v", query, got, err)
			}
			var names []string
			for _, v := range all {
				names = append(names, v.Handle)
			}
			if strings.Join(names, " ") != want {
				t.Errorf("%q: %q, want %q", query, names, want)
			}
		}
		if got := s.ask("GET", "/volumes?k=v&k=w", ""); !strings.HasPrefix(got, `422 {"error":"a property may only have a single value`) {
			t.Errorf("two values: %s", got)
		}
	})
}

// importing has the server make a volume from a pipe, and returns when it reads from it: the volume is half made, for as long as the test likes.
func (s *asked) importing(handle string) *os.File {
	s.t.Helper()
	pipe := filepath.Join(s.opts.Dir, "pipe-"+handle)
	must(s.t, syscall.Mkfifo(pipe, 0o600))
	s.answers(fmt.Sprintf(`201 {"handle":%q}`, handle), "POST", "/volumes-async", request(handle, fmt.Sprintf(`{"type":"import","path":%q}`, pipe)))
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the server opens it
	must(s.t, err)
	s.t.Cleanup(func() { w.Close() })
	return w
}

// archive writes an archive with nothing in it, and closes w.
func archive(t *testing.T, w io.WriteCloser) {
	t.Helper()
	z := gzip.NewWriter(w)
	must(t, errors.Join(tar.NewWriter(z).Close(), z.Close(), w.Close()))
}

// untilGone waits until the server has nothing of a volume on its disk.
func (s *asked) untilGone(handle string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		left, err := s.Left()
		must(s.t, err)
		if !slices.ContainsFunc(left, func(p string) bool { return filepath.Base(p) == handle }) {
			return
		}
	}
	s.t.Errorf("volume %q stays", handle)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
