// Command demo shows the plugin's main job on real input: gdn's calls in, a real container's root file system out, and nothing left
// when it is gone. Nothing in it is staged: each line is what a command printed or what was read from disk.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/integration/bundle"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	plugin := flag.String("plugin", "bin/bc-image-plugin", "the built plugin")
	image := flag.String("image", ".cache/debian", "a root file system")
	gitImage := flag.String("git-image", ".cache/debian-git", "a root file system with git in it")
	gitUpstream := flag.String("git-upstream", ".cache/git-upstream", "a repository to clone, of git-upstream.sh")
	scripts := flag.String("scripts", "integration/testdata", "where git-upstream.sh and git-check.sh are")
	backend := flag.String("backend", "embedded", "where volumes are: embedded, or baggageclaim for a server that the demo starts")
	flag.Parse()
	if err := run(*plugin, *image, *gitImage, *gitUpstream, *scripts, *backend); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is one run: a store and a directory for bundles, both removed at the end.
type demo struct {
	plugin, image, store, work string
	server                     *bctest.Server // nil: the embedded store
}

// maxID is the host id of an unprivileged container's root: the highest there is.
const maxID = 4294967294

func run(plugin, image, gitImage, gitUpstream, scripts, backend string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it mounts file systems and starts containers: run it as root")
	}
	d, git := demo{}, gitDemo{}
	for _, p := range []struct {
		to   *string
		path string
	}{{&d.plugin, plugin}, {&d.image, image}, {&git.image, gitImage}, {&git.upstream, gitUpstream}, {&git.scripts, scripts}} {
		if *p.to, err = filepath.Abs(p.path); err != nil {
			return err
		}
	}
	if d.work, err = os.MkdirTemp("", "bc-image-plugin-demo-"); err != nil {
		return err
	}
	// The container's init comes as an id without rights: every directory above its root has to be o+x.
	if err := os.Chmod(d.work, 0o711); err != nil {
		return err
	}
	d.store = filepath.Join(d.work, "store")
	const handle = "demo-check-1"
	defer func() {
		// Whatever went wrong on the way, what the plugin made is the plugin's to remove.
		if _, derr := d.call("delete", handle); derr != nil {
			err = errors.Join(err, derr)
			return
		}
		err = errors.Join(err, os.RemoveAll(d.work))
	}()

	if backend == "baggageclaim" {
		title("0. A BaggageClaim server of our own, driver overlay")
		if d.server, err = bctest.Start(bctest.Options{Dir: d.work + "/server", Driver: "overlay"}); err != nil {
			return err
		}
		fmt.Printf("   %s, volumes in %s\n", d.server.URL, d.server.Volumes)
		defer func() { err = errors.Join(err, d.server.Close()) }()
	}

	title("1. Can this host do it?")
	out, err := d.call("doctor")
	if err != nil {
		return err
	}
	fmt.Print(indent(out))

	title("2. The image: a real Debian, made by debootstrap")
	files, bytes, err := size(d.image)
	if err != nil {
		return err
	}
	fmt.Printf("   %s: %d files, %d MiB, owned by root\n", d.image, files, bytes>>20)

	title("3. gdn asks for the root file system of an unprivileged container")
	out, err = d.call("create", "file://"+d.image, handle)
	if err != nil {
		return err
	}
	fmt.Print(indent(out))
	var spec specs.Spec
	if err := json.Unmarshal([]byte(out), &spec); err != nil {
		return err
	}

	title("4. runc starts a container on it: in a user namespace, its root is an id without rights on this host")
	if err := d.container(spec, `
		echo "I am $(id -un) ($(id -u)), which is host id $(awk '$1 == 0 { print $2 }' /proc/self/uid_map)"
		echo "$(ls -ld /etc/shadow) (in the image it belongs to this host's root)"
		echo "result of the check" > /root/result
		chown daemon:daemon /root/result
		dd if=/dev/urandom of=/var/tmp/data bs=1M count=20 2>/dev/null
		cp /bin/su /usr/local/bin/my-su && chmod 4755 /usr/local/bin/my-su
		rm /etc/motd 2>/dev/null || rm /etc/issue
		echo "wrote 20 MiB, a set-uid program, a file of another owner; removed a file of the image"`); err != nil {
		return err
	}

	title("5. What it left on disk, in the container's own layer: owners are those of the container")
	if err := show("find", d.layers(), "-path", "*/fs/*", "!", "-type", "d", "-printf", "   %M %u:%g %s bytes  .../fs/%P\n"); err != nil {
		return err
	}
	if out, err = d.call("stats", handle); err != nil {
		return err
	}
	fmt.Print(indent(out))
	title("   and the image is as it was:")
	files2, bytes2, err := size(d.image)
	if err != nil {
		return err
	}
	fmt.Printf("   %d files, %d MiB\n", files2, bytes2>>20)
	if files2 != files || bytes2 != bytes {
		return errors.New("the image has changed")
	}

	title("6. gdn destroys the container: it asks both slots")
	for _, slot := range [][]string{nil, {"--privileged"}} {
		if _, err := d.call(append(slot, "delete", handle)...); err != nil {
			return err
		}
	}

	title("7. A check cache: check 1 clones, upstream gains commits, checks 2 to 4 fetch in fresh containers on copies of the cache")
	git.demo = d
	if err := git.run(); err != nil {
		return err
	}

	title("8. Nothing is left")
	return d.nothingLeft()
}

// call runs the plugin as gdn does, shows the command, and what it logged about its steps.
func (d demo) call(args ...string) (string, error) {
	command := strings.Join(args, " ")
	fmt.Printf("   $ bc-image-plugin %s\n", command)
	args = d.flags("text", args)
	cmd := exec.Command(d.plugin, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	fmt.Print(indent(stderr.String()))
	fmt.Printf("   (%.1f ms with the start of the process)\n", float64(took.Microseconds())/1000)
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command, err, stdout.String())
	}
	return stdout.String(), nil
}

// flags puts the global flags of the demo before args.
func (d demo) flags(logFormat string, args []string) []string {
	all := []string{"--store", d.store, "--log-format", logFormat}
	if d.server != nil {
		all = append(all, "--baggageclaim-url", d.server.URL)
	}
	return append(all, args...)
}

// layers is where containers' files are on disk.
func (d demo) layers() string {
	if d.server != nil {
		return d.server.Volumes + "/live"
	}
	return d.store + "/layers"
}

func (d demo) container(plugin specs.Spec, script string) error {
	out, err := d.runc(plugin, script)
	fmt.Print(indent(out))
	return err
}

// runc runs a shell script in a container, as its root, and returns what it wrote.
func (d demo) runc(plugin specs.Spec, script string, mounts ...specs.Mount) (string, error) {
	config, err := bundle.Config(plugin, bundle.Container{Argv: []string{"/bin/sh", "-eu", "-c", script}, Mounts: mounts, MaxID: maxID})
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(config)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(d.work, "bundle")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600)); err != nil {
		return "", err
	}
	out, err := exec.Command("runc", "--root", filepath.Join(dir, "state"), "run", "--bundle", dir, filepath.Base(d.work)).CombinedOutput()
	return string(out), err
}

// nothingLeft looks at the disk and the mount table, not at what the plugin says.
func (d demo) nothingLeft() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	n := strings.Count(string(mounts), d.store)
	fmt.Printf("   mounts below the store: %d\n", n)
	left := 0
	for _, dir := range []string{"layers", "mnt", "volumes/init", "volumes/live", "volumes/dead"} {
		names, err := os.ReadDir(filepath.Join(d.store, dir))
		if err != nil {
			return err
		}
		fmt.Printf("   %-13s %d entries\n", dir+":", len(names))
		left += len(names)
	}
	if d.server != nil {
		volumes, err := d.server.Left()
		if err != nil {
			return err
		}
		fmt.Printf("   %-13s %d volumes\n", "server:", len(volumes))
		left += len(volumes)
	}
	if n != 0 || left != 0 {
		return errors.New("something is left")
	}
	return nil
}

// size counts the files of a tree and the bytes in them.
func size(dir string) (files int, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		files++
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return err
	})
	return files, bytes, err
}

func show(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	fmt.Print(string(out))
	return err
}

func title(s string) { fmt.Printf("\n%s\n", s) }

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("   " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
