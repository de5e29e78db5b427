package torture

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
	"strings"

	"github.com/concourse/bc-image-plugin/imagespec"
	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/integration/generation"
	"github.com/concourse/bc-image-plugin/volumes"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// place is a store, for one command at a time, and an image.
type place struct {
	dir, store, image string
	privileged        bool
	server            *bctest.Server // nil: the store is the embedded one
	driver            volumes.Driver // of the checker: one that talks to a server keeps a connection
}

// keys are those of the caches that are used here.
var keys = []string{"key 0", "key 1"}

// flags puts the global flags before args.
func (p *place) flags(args []string) []string {
	all := []string{"--store", p.store, "--timeout", "20s"}
	if p.privileged {
		all = append(all, "--privileged")
	}
	if p.server != nil {
		all = append(all, "--baggageclaim-url", p.server.URL)
	}
	return append(all, args...)
}

// do runs the plugin undisturbed, and returns stdout.
func (p *place) do(args ...string) (string, error) {
	out, err := exec.Command(binary, p.flags(args)...).Output()
	if err != nil {
		err = fmt.Errorf("%q: %w: %s", args, err, out)
	}
	return string(out), err
}

// url asks for the image with n caches.
func (p *place) url(n int) string {
	r := imagespec.Ref{Dir: p.image}
	for i := range n {
		r.Caches = append(r.Caches, imagespec.Cache{Key: keys[i], Path: fmt.Sprintf("/cache-%d", i), Promote: imagespec.PromoteOnCommit})
	}
	return r.String()
}

// problems are what the store's own checker finds.
func (p *place) problems() ([]volumes.Problem, error) {
	return volumes.New(volumes.Options{Dir: p.store, Driver: p.driver}).Check(context.Background())
}

// clean says what is left in the store of h, or of anything that died, but for what has one of the names except. It looks itself as well, as the checker may be as wrong as
// the plugin.
func (p *place) clean(except ...string) error {
	for _, dir := range []string{"volumes/init", "volumes/live", "volumes/dead", "mnt"} {
		entries, err := os.ReadDir(p.store + "/" + dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if !slices.Contains(except, e.Name()) {
				return fmt.Errorf("left: %s/%s", dir, e.Name())
			}
		}
	}
	points, err := mounts(p.store)
	points = slices.DeleteFunc(points, func(point string) bool { return slices.Contains(except, filepath.Base(filepath.Dir(point))) })
	if err == nil && len(points) > 0 {
		err = fmt.Errorf("left mounted: %q", points)
	}
	if err != nil {
		return err
	}
	if left, err := p.strays(); err != nil || len(left) > 0 {
		return fmt.Errorf("left on the server: %q, %v", left, err)
	}
	found, err := p.problems()
	found = slices.DeleteFunc(found, func(found volumes.Problem) bool { return slices.Contains(except, filepath.Base(found.Path)) })
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("the checker finds %v", found)
	}
	return err
}

// mounts are the mount points below dir.
func mounts(dir string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	var points []string
	for line := range strings.Lines(string(table)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points, err
}

// wipe takes everything away, so that after a violation the next run begins anew.
func (p *place) wipe() error {
	points, err := mounts(p.dir)
	for _, point := range slices.Backward(points) {
		err = errors.Join(err, unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	if err != nil {
		return err // what is mounted must not be walked into
	}
	return errors.Join(os.RemoveAll(p.store), p.wipeServer())
}

// save moves the store, which has no container, to the new directory to.
func (p *place) save(to string) error {
	return errors.Join(os.Mkdir(to, 0o700), p.saveServer(to), os.Rename(p.store, to+"/store"))
}

// restore makes the store anew of what save put there.
func (p *place) restore(from string) error {
	return errors.Join(copyAll(from+"/store", p.store), p.restoreServer(from))
}

func copyAll(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// container is what create answered.
type container struct {
	root   string
	caches []string
}

func parseSpec(stdout string) (container, error) {
	var s specs.Spec
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || s.Root == nil {
		return container{}, fmt.Errorf("create answered %q: %w", stdout, err)
	}
	c := container{root: s.Root.Path}
	for _, m := range s.Mounts {
		c.caches = append(c.caches, m.Source)
	}
	return c, nil
}

// whole looks at a container as its processes will: the image, as its root's own, writable, and n caches. It returns the generations of these.
func (p *place) whole(c container, n int) ([]int, error) {
	for name, want := range imageFiles {
		var st unix.Stat_t
		got, err := os.ReadFile(c.root + "/" + name)
		if err = errors.Join(err, unix.Lstat(c.root+"/"+name, &st)); err != nil {
			return nil, err
		}
		if root := rootID(p.privileged); string(got) != want || st.Uid != root || st.Gid != root {
			return nil, fmt.Errorf("the root shows %q with %q of %d:%d", name, got, st.Uid, st.Gid)
		}
	}
	if err := os.WriteFile(c.root+"/written", nil, 0o644); err != nil {
		return nil, err
	}
	if len(c.caches) != n {
		return nil, fmt.Errorf("%d caches, want %d", len(c.caches), n)
	}
	var generations []int
	for _, dir := range c.caches {
		g, err := generation.Read(dir)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(dir+"/written", nil, 0o644); err != nil {
			return nil, err
		}
		generations = append(generations, g)
	}
	return generations, nil
}

// imageFiles are the image.
var imageFiles = map[string]string{"etc/name": "image", "bin/tool": "#!/bin/sh\n"}

// rootID is a container's root as the host sees it.
func rootID(privileged bool) uint32 {
	if privileged {
		return 0
	}
	return 4294967294
}

// tree lists the store's names with their kinds and modes. What was counted and measured (caches.total, images/*.size) comes when it is first needed.
func tree(dir string) ([]string, error) {
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir)
		if name == "/caches.total" || strings.HasSuffix(name, ".size") {
			return nil
		}
		info, err := d.Info()
		list = append(list, fmt.Sprintf("%s %s", info.Mode(), name))
		return err
	})
	return list, err
}
