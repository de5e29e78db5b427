package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/concourse/bc-image-plugin/integration/bundle"
)

// maxID is the host id of an unprivileged container's root: the highest there is.
const maxID = 4294967294

// cacheAt is where containers have their cache.
const cacheAt = "/cache"

// work is what one container does: a script, and what its cache holds after it.
type work struct {
	script string
	tree   tree
}

// plan makes the work of one check on a cache that holds t: it overwrites, adds, removes and replaces, commits or not, and may be killed on the way.
func plan(rng *rand.Rand, handle string, t tree, commit, killed bool) work {
	w := work{tree: maps.Clone(t)}
	var lines []string
	write := func(name string, size int) {
		text := handle + " " + name + " " + strings.Repeat("x", size)
		sum := sha256.Sum256([]byte(text))
		w.tree[name] = hex.EncodeToString(sum[:])
		lines = append(lines, fmt.Sprintf("printf %%s '%s' > %s", text, name))
	}
	remove := func(name string) {
		maps.DeleteFunc(w.tree, func(path, _ string) bool { return path == name || strings.HasPrefix(path, name+"/") })
		lines = append(lines, "rm -rf "+name)
	}
	mkdir := func(name string) {
		w.tree[name] = "directory"
		lines = append(lines, "mkdir "+name)
	}
	if t["objects"] == "" {
		mkdir("objects")
	}
	write("latest", 0)
	write("objects/"+handle, rng.IntN(8<<10))
	var objects []string
	for name := range t {
		if strings.HasPrefix(name, "objects/") {
			objects = append(objects, name)
		}
	}
	slices.Sort(objects)
	for i := 0; len(objects)-i > 8; i++ {
		remove(objects[i])
	}
	if rng.IntN(4) == 0 { // a directory of the layers below is replaced
		remove("refs")
		mkdir("refs")
		write("refs/"+handle, rng.IntN(100))
	}
	if killed {
		lines = slices.Insert(lines, 1+rng.IntN(len(lines)), "printf x > index.lock", "kill -9 $$")
	}
	if commit {
		lines = append(lines, "printf x > .bc-cache-commit")
	}
	w.script = "printf %s " + handle + " > $1/result; rm $1/etc/motd; cd $2\n" + strings.Join(lines, "\n") + "\n"
	return w
}

// standIn does the work by a process of the container's root on the host, on the paths that create returned. It costs a tenth of a container.
func standIn(spec specs.Spec, privileged bool, script string) error {
	cmd := exec.Command("/bin/sh", "-euc", script, "sh", spec.Root.Path, spec.Mounts[0].Source)
	if !privileged {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: maxID, Gid: maxID}}
	}
	return run(cmd)
}

// runc does it in a real container.
func runc(spec specs.Spec, privileged bool, script, dir, name string) (err error) {
	config, err := bundle.Config(spec, bundle.Container{Privileged: privileged, Argv: []string{"/bin/sh", "-euc", script, "sh", "", cacheAt}, MaxID: maxID})
	if err != nil {
		return err
	}
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, name)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/config.json", b, 0o600)); err != nil {
		return err
	}
	return run(exec.Command("runc", "--root", dir+"/state", "run", "--bundle", dir, name))
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, out)
	}
	return nil
}

// readTree reads a whole copy of a cache through its mount. Everything in it must belong to the container's root.
func readTree(dir string, privileged bool) (tree, error) {
	owner := uint32(maxID)
	if privileged {
		owner = 0
	}
	t := tree{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != owner {
			return broken{fmt.Errorf("%s belongs to %d, want %d", path, uid, owner)}
		}
		name := strings.TrimPrefix(path, dir+"/")
		switch {
		case e.IsDir():
			t[name] = "directory"
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			t[name] = hex.EncodeToString(sum[:])
		default:
			t[name] = e.Type().String()
		}
		return nil
	})
	return t, err
}

// makeImage makes a BaggageClaim volume as an image resource leaves it, with a small root file system of static busybox, and returns its tree.
func makeImage(volumes, handle string) (string, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("the image needs Debian's busybox-static: %w", err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return "", err
	}
	top := filepath.Join(volumes, "live", handle)
	root := top + "/volume/rootfs"
	for _, dir := range []string{root + "/bin", root + "/etc", root + "/proc", root + "/dev", root + "/sys", root + "/tmp"} {
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
	}
	err = errors.Join(err, os.WriteFile(top+"/privileged.json", []byte("true"), 0o644), os.WriteFile(top+"/properties.json", []byte("{}"), 0o644),
		os.WriteFile(root+"/bin/busybox", program, 0o755), os.WriteFile(root+"/etc/motd", []byte("from the image\n"), 0o644))
	applets, lerr := exec.Command(busybox, "--list").Output()
	err = errors.Join(err, lerr)
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			err = errors.Join(err, os.Symlink("busybox", root+"/bin/"+applet))
		}
	}
	return root, err
}
