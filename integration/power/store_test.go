package power

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/concourse/bc-image-plugin/imagespec"
	"github.com/concourse/bc-image-plugin/integration/generation"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// plugin is the path of the program.
var plugin string

// imageFiles are the image.
var imageFiles = map[string]string{"etc/name": "image", "bin/tool": "#!/bin/sh\n"}

// store is where it is: in a directory that the first create makes, on a disk that has nothing else.
func (m *machine) store() string { return m.point() + "/store" }

func (m *machine) flags(args []string) []string {
	return append([]string{"--store", m.store(), "--timeout", "60s"}, args...)
}

// do runs the plugin, and returns what it printed and logged. It has to exit 0.
func (m *machine) do(args ...string) (stdout, log string, err error) {
	var out, errs strings.Builder
	cmd := exec.Command(plugin, m.flags(args)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", "", fmt.Errorf("%q: %w: %s", args, err, out.String())
	}
	return out.String(), errs.String(), nil
}

// drop drops a cache, if there is one.
func (m *machine) drop(key string) error {
	_, _, err := m.do("cache", "drop", imagespec.CacheID(key))
	if err != nil && strings.Contains(err.Error(), "not found") {
		err = nil
	}
	return err
}

// creation are the arguments that create handle with a copy of the cache of each key.
func (m *machine) creation(handle string, privileged bool, keys ...string) []string {
	r := imagespec.Ref{Dir: m.image()}
	for i, key := range keys {
		r.Caches = append(r.Caches, imagespec.Cache{Key: key, Path: fmt.Sprintf("/cache-%d", i), Promote: imagespec.PromoteOnCommit})
	}
	args := []string{"create", r.String(), handle}
	if privileged {
		args = append([]string{"--privileged"}, args...)
	}
	return args
}

// container is what create answered.
type container struct {
	root   string
	caches []string // in the order of the keys
}

func (m *machine) create(handle string, privileged bool, keys ...string) (container, error) {
	out, _, err := m.do(m.creation(handle, privileged, keys...)...)
	if err != nil {
		return container{}, err
	}
	var s specs.Spec
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Root == nil || len(s.Mounts) != len(keys) {
		return container{}, fmt.Errorf("create answered %q: %w", out, err)
	}
	c := container{root: s.Root.Path}
	for _, mount := range s.Mounts {
		c.caches = append(c.caches, mount.Source)
	}
	for name, want := range imageFiles {
		if got, err := os.ReadFile(c.root + "/" + name); err != nil || string(got) != want {
			return c, fmt.Errorf("the root of %q shows %q as %q: %w", handle, name, got, err)
		}
	}
	return c, os.WriteFile(c.root+"/written", nil, 0o644)
}

// problems are what the store's own checker finds.
func (m *machine) problems() ([]volumes.Problem, error) {
	return volumes.New(volumes.Options{Dir: m.store(), Driver: overlay.New(overlay.Options{})}).Check(context.Background())
}

// entries are the handles that the store knows.
func (m *machine) entries() ([]string, error) {
	return m.names("volumes/init", "volumes/live", "volumes/dead")
}

// names are what is in directories of the store.
func (m *machine) names(dirs ...string) (all []string, err error) {
	for _, dir := range dirs {
		list, err := os.ReadDir(m.store() + "/" + dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range list {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

// chain are the layers of key's current generation, top first, as their pointers lead. The stack's name has a suffix on hosts that cannot map ids.
func (m *machine) chain(key string) ([]string, error) {
	stacks, err := filepath.Glob(m.store() + "/caches/" + imagespec.CacheID(key) + "*")
	if err != nil || len(stacks) == 0 {
		return nil, err
	}
	text, err := os.Readlink(stacks[0] + "/current")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var layers []string
	for f := strings.Fields(text); err == nil && len(f) == 3; {
		layers = append(layers, f[1])
		f[1], err = os.Readlink(m.store() + "/layers/" + f[1] + "/parent")
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return layers, err
}

// flushed is the number of the generation of key that was flushed last, 0 for none: what README and volumes/doc.go say is served after a power cut, as soon as the names of the
// moment are on disk.
func (m *machine) flushed(key string) (int, error) {
	layers, err := m.chain(key)
	if err != nil {
		return 0, err
	}
	number := 0
	for _, l := range slices.Backward(layers) {
		dir := m.store() + "/layers/" + l
		if _, err := os.Lstat(dir + "/durable"); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return 0, err
		}
		text, err := os.ReadFile(dir + "/fs/number") // each generation has another
		if err != nil {
			return 0, err
		}
		if number, err = strconv.Atoi(string(text)); err != nil {
			return 0, err
		}
	}
	return number, nil
}

// age makes the layers of key look as if they were made years ago: the plugin flushes only those of which the kernel had time to write back most by itself. A layer that goes
// away meanwhile, or has no record yet, is none of them.
func (m *machine) age(key string) error {
	layers, err := m.chain(key)
	if err != nil {
		return err
	}
	for _, l := range layers {
		if err := ageRecord(m.store() + "/layers/" + l + "/layer.json"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func ageRecord(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, _ := f.Read(b)
	const field = `"created":"`
	at := strings.Index(string(b[:n]), field)
	if at < 0 {
		return nil // a power cut took what is in it
	}
	_, err = f.WriteAt([]byte("2001"), int64(at+len(field)))
	return err
}

// cycle is a container from create to delete that makes the next generation of caches.
func (m *machine) cycle(handle string, privileged bool, heavy int, keys ...string) error {
	c, err := m.create(handle, privileged, keys...)
	if err != nil {
		return err
	}
	for _, dir := range c.caches {
		g, err := generation.Read(dir)
		if err != nil {
			return err
		}
		if err := generation.Write(dir, g+1, heavy); err != nil {
			return err
		}
	}
	_, log, err := m.do("delete", handle)
	for _, key := range keys {
		if err == nil && !promoted(log, key) {
			err = fmt.Errorf("delete %q did not promote its cache: %s", handle, log)
		}
	}
	return err
}

// promoted says whether a delete logged that it promoted the copy of key.
func promoted(log, key string) bool {
	id := imagespec.CacheID(key)
	return strings.Contains(log, id+" promoted: ") || strings.Contains(log, id+"-shifted promoted: ")
}
