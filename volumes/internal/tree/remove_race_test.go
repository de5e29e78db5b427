package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A file system may skip entries when others are removed while it is read (readdir(3)). Here names that appear while reading goes on are
// the ones that this pass may have missed.
func TestRemoveReadsAgainWhatItMayHaveSkipped(t *testing.T) {
	dir := newDir(t)
	mkdir(t, dir+"/x/sub")
	makeWide(t, dir+"/x/sub", 2_000)
	added := 0
	err := remove(onLook(func(n int) error {
		if n > 5 {
			return nil
		}
		for i := range 50 {
			check(t, os.WriteFile(fmt.Sprintf("%s/x/sub/late-%d-%d", dir, n, i), nil, 0o600))
			added++
		}
		return nil
	}), t, dir)
	check(t, err)
	if added == 0 || exists(dir+"/x") {
		t.Errorf("%d names were added, x is there: %v", added, exists(dir+"/x"))
	}
}

// Two containers that used one image copy last remove it at once: dismantling it failed for one of them with ENOENT.
func TestRemoveBesideAnotherRemover(t *testing.T) {
	t.Run("the other is done in the middle of ours", func(t *testing.T) {
		for _, at := range []int{1, 2, 5} {
			dir := newDir(t)
			for i := range 30 {
				write(t, fmt.Sprintf("%s/x/%d/%d/file", dir, i, i), "")
			}
			mkdir(t, dir+"/x/wide")
			makeWide(t, dir+"/x/wide", 1_500)
			makeDeep(t, dir+"/x", 100)
			err := remove(onLook(func(n int) error {
				if n == at {
					return remove(t.Context(), t, dir)
				}
				return nil
			}), t, dir)
			if err != nil || exists(dir+"/x") {
				t.Errorf("other remover at look %d: %v", at, err)
			}
		}
	})
	t.Run("both at once", func(t *testing.T) {
		dir := newDir(t)
		for i := range 300 {
			write(t, fmt.Sprintf("%s/x/%d/%d/file", dir, i%7, i), "")
		}
		makeDeep(t, dir+"/x", 200)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := remove(t.Context(), t, dir); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// Whoever moves a directory out of the tree while it is removed must not lead the remover out with it.
func TestRemoveDoesNotFollowADirectoryThatIsMoved(t *testing.T) {
	for _, c := range []struct {
		depth int // of the directory that is moved; the remover is at the bottom, in directory 60
		fails bool
	}{
		{depth: 1},               // its parent, the root of the walk, is always open
		{depth: 5, fails: true},  // its parent must be found again, and is another now
		{depth: 20, fails: true}, //
		{depth: 50},              // its parent is open
		{depth: 60},
	} {
		t.Run(fmt.Sprint(c.depth), func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			bottom := dir + "/x" + strings.Repeat("/d", 60)
			mkdir(t, bottom)
			makeWide(t, bottom, 600)
			write(t, dir+"/outside/precious", "")
			write(t, dir+"/outside/sub/precious", "")

			moved := false
			err := remove(onLook(func(n int) error {
				if n == 2 { // 60 levels are behind it, the rest of checkEvery were files of the bottom
					moved = true
					check(t, os.Rename(dir+"/x"+strings.Repeat("/d", c.depth), dir+"/outside/moved"))
				}
				return nil
			}), t, dir)
			if !moved {
				t.Fatal("nothing was moved")
			}
			if (err != nil) != c.fails {
				t.Errorf("error %v, want one: %v", err, c.fails)
			}
			if !exists(dir+"/outside/precious") || !exists(dir+"/outside/sub/precious") {
				t.Error("files outside are gone")
			}
			check(t, remove(t.Context(), t, dir)) // the rest
			if exists(dir + "/x") {
				t.Error("it is still there")
			}
		})
	}
}

func TestRemoveWhileAnotherGoroutineMovesDirectories(t *testing.T) {
	dir := newDir(t)
	outside := dir + "/outside"
	for i := range 20 {
		write(t, fmt.Sprintf("%s/keep-%d/precious", outside, i), "")
	}
	for round := range 5 {
		for i := range 20 {
			write(t, fmt.Sprintf("%s/x/%s/%d/file", dir, strings.Repeat("d/", 40), i), "")
			write(t, fmt.Sprintf("%s/x/a/%d/file", dir, i), "")
		}
		mkdir(t, outside+"/swap")
		stop := make(chan struct{})
		var mover sync.WaitGroup
		mover.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				// Errors are expected: the other side removes what we move.
				from := filepath.Join(dir, "x", strings.Repeat("d/", 1+i%40))
				_ = os.Rename(from, fmt.Sprintf("%s/moved-%d-%d", outside, round, i))
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/x/a", unix.AT_FDCWD, outside+"/swap", unix.RENAME_EXCHANGE)
				_ = os.Symlink(outside, fmt.Sprintf("%s/x/a/link-%d", dir, i))
			}
		})
		_ = remove(t.Context(), t, dir) // may fail: it was told of a tree that is no more
		close(stop)
		mover.Wait()
		check(t, remove(t.Context(), t, dir))
	}
	for i := range 20 {
		if !exists(fmt.Sprintf("%s/keep-%d/precious", outside, i)) {
			t.Errorf("keep-%d is gone", i)
		}
	}
}

// A directory that was read as one and is a symlink, a file or a mount when it is opened must not be gone into.
func TestOpenDirRefuses(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/outside/precious", "")
	check(t, os.Symlink("outside", dir+"/link"))
	check(t, os.Symlink(dir+"/outside", dir+"/absolute"))
	write(t, dir+"/file", "")
	check(t, unix.Mkfifo(dir+"/pipe", 0o600))
	for _, name := range []string{"link", "absolute", "file", "pipe", "..", "link/../outside"} {
		if got, err := openDir(fd(t, dir), name); err == nil {
			unix.Close(got)
			t.Errorf("openDir(%q) works", name)
		}
	}
}
