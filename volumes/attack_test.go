package volumes

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/attack"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	attack.Serve()
	os.Exit(m.Run())
}

// A path that is looked up in a tree, while a second process exchanges each part of it with symlinks out of the tree and moves it out: it is found inside, or not at all.
func TestAttackedPaths(t *testing.T) {
	for name, test := range map[string]struct {
		plan attack.Plan // of the tree at live/v/volume
		op   func(t *testing.T, dir string, c *attack.Canary) error
	}{
		"image": {
			attack.Plan{Dirs: []string{"a", "a/b", "a/b/rootfs"}, Files: []string{"a/b/metadata.json"}, Deep: []string{"a", "a/b"}},
			openAttackedImage,
		},
		"metadata": {
			attack.Plan{Dirs: []string{"a/b"}, Files: []string{"a/b/metadata.json"}},
			openAttackedImage,
		},
		"destination": {
			attack.Plan{Dirs: []string{"a", "a/b", "a/b/c", "a/b/c/d"}, Deep: []string{"a/b"}},
			makeAttackedDestination,
		},
		"new destination": {
			attack.Plan{Dirs: []string{"a/b/c", "a/b/c/d"}},
			makeAttackedDestination,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newTmpfs(t, "size=10m")
			c := attack.NewCanary(t, dir+"/canary")
			p := test.plan
			p.Tree, p.Stock, p.Away, p.Canary = dir+"/live/v/volume", dir+"/stock", dir+"/away", c.Dir
			p.Fill(t, c)
			c.Shun(t, p.Stock)
			c.Beside(t, p.Away)
			check(t, os.MkdirAll(p.Tree+"/a/b/rootfs", 0o755))
			check(t, os.WriteFile(p.Tree+"/a/b/metadata.json", []byte("{}"), 0o600))
			second := attack.Start(t, p, nil)
			worked := attack.Rounds(t, func(int) error {
				err := test.op(t, dir, c)
				c.Untouched(t)
				return err
			})
			c.Intact(t)
			if moves := second.Stop(t); moves < 1000 || worked == 0 {
				t.Errorf("%d moves, %d rounds worked: this shows nothing", moves, worked)
			}
		})
	}
}

func openAttackedImage(t *testing.T, dir string, c *attack.Canary) error {
	img, err := OpenVolumeImage(dir, "v", "a/b/rootfs")
	if err != nil {
		return err
	}
	defer img.Close()
	for _, f := range []*os.File{img.dir, img.parent} {
		if path := c.Holds(t, int(f.Fd())); path != "" {
			t.Errorf("the image, or what holds it, is %q", path)
		}
	}
	b, err := img.Metadata(1000)
	if bytes.Contains(b, []byte(attack.Secret)) {
		t.Errorf("the metadata are %q", b)
	}
	return err
}

func makeAttackedDestination(t *testing.T, dir string, c *attack.Canary) error {
	root := dir + "/live/v/volume"
	at, err := makeDestination(root, "/a/b/c/d", 12345)
	if err == nil {
		if path := c.Has(at.dev, at.ino); path != "" {
			t.Errorf("the cache path is %q", path)
		}
	}
	// For the next round, by a way that leads nowhere else either.
	top, openErr := durable.OpenDir(root, 0)
	check(t, openErr)
	defer top.Close()
	if b, err := openBeneath(top, "a/b", root, unix.RESOLVE_NO_SYMLINKS); err == nil {
		err = tree.Remove(t.Context(), int(b.Fd()), "c")
		check(t, errors.Join(err, b.Close()))
	}
	return err
}
