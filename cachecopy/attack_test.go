package cachecopy_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/attack"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// attacked is the store that is attacked through the files of its containers, and of their image.
type attacked struct {
	*fixture
	t      *testing.T
	canary *attack.Canary
	image  string
	plan   attack.Plan // against the image
}

func newAttacked(t *testing.T, change func(*volumes.Options)) *attacked {
	a := &attacked{t: t}
	a.fixture = newFixture(t, func(o *volumes.Options, _ *cachecopy.Options) {
		o.Dir, o.MaxLayers = inMemory(t), 3
		if change != nil {
			change(o)
		}
	})
	dir := newDir(t)
	a.canary, a.image = attack.NewCanary(t, dir+"/canary"), dir+"/image"
	a.plan = a.tree(a.image, dir)
	return a
}

// tree makes what is attacked in dir, and what it is exchanged with in beside.
func (a *attacked) tree(dir, beside string) attack.Plan {
	a.t.Helper()
	p := attack.Plan{
		Tree: dir, Stock: beside + "/stock", Away: beside + "/away", Canary: a.canary.Dir,
		Dirs: []string{"a", "a/b", "a/b/c", "d"}, Files: []string{"a/file", "a/b/file", "d/file", "../" + cachecopy.Marker}, Deep: []string{"a/b", "d"},
	}
	check(a.t, os.MkdirAll(dir+"/a/b/c", 0o755))
	for _, name := range p.Files {
		write(a.t, dir+"/"+name, name)
	}
	p.Fill(a.t, a.canary)
	return p
}

// openImage opens the image until the end of the test.
func (a *attacked) openImage() *volumes.Image {
	img, err := volumes.OpenImage(a.image)
	check(a.t, err)
	a.t.Cleanup(func() { img.Close() })
	return img
}

// ends is as long as a delete may take that is retried; it only bounds how long a test takes to fail.
const ends = 30 * time.Second

// delete deletes container h, whose files somebody goes on moving about, as gdn does: again and again.
func (a *attacked) delete(h string) (volumes.Deleted, error) {
	ctx, cancel := context.WithTimeout(a.t.Context(), ends)
	defer cancel()
	for {
		d, _, err := a.Delete(ctx, handle(h))
		if err == nil || ctx.Err() != nil {
			return d, err
		}
	}
}

// A container whose processes exchange and move its files, in its root file system and in its copy of a cache, while it is measured, and go on in their mount
// namespace while it is deleted. What they leave becomes a generation, or not; neither that nor anything else takes in or touches what is outside.
func TestAttackedContainer(t *testing.T) {
	a := newAttacked(t, nil)
	img := a.openImage()
	promoted, moves := 0, 0
	attack.Rounds(t, func(round int) error {
		v, err := a.Create(t.Context(), handle("h"), volumes.Request{Image: img, Privileged: round%2 == 0}, cachecopy.Cache{Key: "k", Path: "/cache", Promote: cachecopy.Always})
		check(t, err)
		var inside []*attack.Process
		for upper, dir := range map[string]string{v.ID + "/fs/x": v.Root + "/x", v.ID + "/cache-0/fs/x": v.Copies[0] + "/x"} {
			check(t, os.RemoveAll(dir)) // of the last generation
			p := a.tree(dir, dir)
			p.Seed, p.Inside = uint64(round+1), true
			a.canary.Shun(t, a.dir+"/layers/"+upper+"/stock")
			inside = append(inside, attack.Start(t, p, &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}))
		}
		for range 20 {
			if _, err := a.Store().Stats(t.Context(), handle("h")); err != nil {
				t.Errorf("stats: %v", err)
			}
		}
		d, err := a.delete("h")
		check(t, err)
		if len(d.Copies) == 1 && d.Copies[0].Promoted {
			promoted++
		}
		a.canary.Untouched(t)
		reader := a.open("reader", "k", privileged, cachecopy.Never)
		a.canary.NotIn(t, reader)
		generation := describe(t, reader, inspect.Keep)
		for _, p := range inside {
			moves += p.Stop(t)
		}
		inspect.Same(t, describe(t, reader, inspect.Keep), generation)
		a.end("reader")
		return nil
	})
	a.canary.Intact(t)
	if promoted == 0 || moves < 1000 {
		t.Errorf("%d generations, %d moves: this shows nothing", promoted, moves)
	}
	check(t, a.Drop(t.Context(), cachecopy.ID("k")))
	a.canary.Intact(t)
}

// A container whose processes outlive it and make files as fast as they can while it is removed: its delete ends, with its time at the latest, and at the next one nothing is left.
func TestFloodedContainer(t *testing.T) {
	a := newAttacked(t, nil)
	v, err := a.Create(t.Context(), handle("h"), volumes.Request{Image: a.openImage(), Privileged: true}, cachecopy.Cache{Key: "k", Path: "/cache"})
	check(t, err)
	var inside []*attack.Process
	for _, dir := range []string{v.Root, v.Root, v.Copies[0]} {
		inside = append(inside, attack.Start(t, attack.Plan{Tree: dir, Stock: dir, Away: dir, Inside: true, Flood: true, Seed: 1}, &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}))
	}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := a.Delete(ctx, handle("h"))
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Logf("delete: %v", err)
	case <-time.After(2 * ends):
		t.Fatal("the delete does not end")
	}
	for _, p := range inside {
		p.Stop(t)
	}
	_, err = a.delete("h")
	check(t, err)
}

// An image that is changed while containers are made from it: mapped, and by a copy for other ids. The copies hold nothing from outside, and caches' directories are made
// nowhere else.
func TestAttackedImage(t *testing.T) {
	for _, how := range []overlay.IDMap{overlay.Auto, overlay.Copy} {
		t.Run(string(how), func(t *testing.T) {
			a := newAttacked(t, func(o *volumes.Options) { o.Driver = overlay.New(overlay.Options{IDMap: how}) })
			a.canary.Shun(t, a.plan.Stock)
			a.canary.Beside(t, a.plan.Away)
			second := attack.Start(t, a.plan, nil)
			worked := attack.Rounds(t, func(round int) error {
				img, err := volumes.OpenImage(a.image)
				check(t, err)
				defer img.Close()
				v, err := a.Create(t.Context(), handle("h"), volumes.Request{Image: img}, cachecopy.Cache{Key: fmt.Sprint(round), Path: "/a/b/c/cache/here"})
				if err == nil && how == overlay.Copy {
					a.canary.NotIn(t, v.Root) // which nobody changes
				}
				_, deleteErr := a.delete("h")
				check(t, deleteErr)
				a.canary.Untouched(t)
				return err
			})
			a.canary.Intact(t)
			if moves := second.Stop(t); moves < 1000 || worked == 0 {
				t.Errorf("%d moves, %d rounds worked: this shows nothing", moves, worked)
			}
			// A copy of the image as it is now may be there, and stays as long as that.
			check(t, os.RemoveAll(a.image))
			_, err := a.Store().GC(t.Context(), volumes.GCOptions{})
			check(t, err)
		})
	}
}
