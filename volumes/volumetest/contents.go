package volumetest

import (
	"errors"
	"os"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// contents: a root file system can be changed like any other, and the image never is.
func contents(p *place) {
	for _, s := range slots {
		shifted := s == unprivileged // the ownership that every driver can show
		image := p.image("image-for-"+s.String(), shifted)
		v := p.create("h", image, s)
		p.changeFiles(v.Root)
		p.removeAndRename(v.Root)
		p.linkAndMark(v.Root)
		if _, err := p.Stats(p.Context(), p.handle("h")); err != nil {
			p.Error(err)
		}
		again := p.create("again", image, s) // and the next container sees the image as it was
		inspect.Same(p, withoutTopTime(inspect.Tree(p, again.Root, inspect.Keep)), withoutTopTime(inspect.Tree(p, image, inspect.Keep)))
		p.delete("again")
		p.delete("h")
	}
}

// changeFiles changes files and attributes of the image, and makes files.
func (p *place) changeFiles(root string) {
	p.Helper()
	f, err := os.OpenFile(root+"/plain", os.O_WRONLY|os.O_APPEND, 0)
	p.check(err)
	_, err = f.WriteString(" and more")
	p.check(errors.Join(err, f.Close()))
	if got := p.read(root + "/plain"); got != "content and more" {
		p.Errorf("appended: %q", got)
	}
	p.check(os.Truncate(root+"/sub/lower", 0))
	p.check(os.Chmod(root+"/sub/sub/deep/lower", 0o600))
	p.check(os.Chown(root+"/owner-2", 5, 6))
	p.check(unix.Lsetxattr(root+"/sub", "user.new", []byte("x"), 0))
	p.check(os.Chmod(root+"/sub", 0o700))
	p.wantOwner(root+"/owner-2", [2]uint32{5, 6})
	if string(inspect.Xattr(p, root+"/sub", "user.new")) != "x" {
		p.Error("the attribute is not there")
	}
	p.write(root+"/sub/new", "new")
	p.check(os.MkdirAll(root+"/a/b/c", 0o755))
	p.write(root+"/a/b/c/"+strings.Repeat("n", 255), "")
	p.check(os.Symlink("plain", root+"/a/link"))
	p.check(unix.Mkfifo(root+"/a/pipe", 0o600))
	p.check(unix.Mknod(root+"/a/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
}

// removeAndRename removes and renames what the image has and what it has not.
func (p *place) removeAndRename(root string) {
	p.Helper()
	gone := func(name string) {
		p.Helper()
		if exists(root + "/" + name) {
			p.Errorf("%q is still there", name)
		}
	}
	p.check(os.Remove(root + "/setuid"))
	gone("setuid")
	p.write(root+"/setuid", "again")
	if got := p.read(root + "/setuid"); got != "again" {
		p.Errorf("a removed file that was made again holds %q", got)
	}
	p.check(os.RemoveAll(root + "/sub/sub")) // a whiteout, then a directory that hides the image's
	gone("sub/sub")
	p.check(os.Mkdir(root+"/sub/sub", 0o755))
	if names, err := os.ReadDir(root + "/sub/sub"); err != nil || len(names) > 0 {
		p.Errorf("a removed directory that was made again holds %v, %v", names, err)
	}
	p.check(os.Rename(root+"/owner-0", root+"/renamed"))
	gone("owner-0")
	p.check(os.Rename(root+"/sub/new", root+"/plain")) // over a file of the image
	if got := p.read(root + "/plain"); got != "new" {
		p.Errorf("renamed over: %q", got)
	}
	p.check(os.Rename(root+"/a", root+"/a2")) // a directory of its own
	gone("a")
	// A directory of the image: done, or EXDEV, which mv(1) and package managers answer by copying.
	if err := os.Rename(root+"/closed", root+"/opened"); err == nil {
		gone("closed")
	} else if !errors.Is(err, unix.EXDEV) {
		p.Errorf("rename of the image's directory: %v", err)
	}
	p.check(os.Remove(root + "/sticky/empty"))
	p.check(os.WriteFile(root+"/sticky/empty", nil, 0o600)) // a file in a directory's place
}

// linkAndMark makes hard links, also to files of the image.
func (p *place) linkAndMark(root string) {
	p.Helper()
	for _, name := range []string{"cap3", "renamed", "setuid"} {
		p.check(os.Link(root+"/"+name, root+"/sub/link-"+name))
		var a, b unix.Stat_t
		p.check(errors.Join(unix.Stat(root+"/"+name, &a), unix.Stat(root+"/sub/link-"+name, &b)))
		if a.Ino != b.Ino || a.Nlink != 2 {
			p.Errorf("%q: inodes %d and %d, %d links", name, a.Ino, b.Ino, a.Nlink)
		}
	}
}

// deepTree: a container can make a tree that no path can name and that has more levels than there may be open files (field case 53).
func deepTree(p *place) {
	v := p.create("h", p.small("image"), privileged)
	const levels = 5_000
	at, err := unix.Open(v.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	p.check(err)
	for range levels {
		p.check(unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		p.check(err)
		unix.Close(at)
		at = next
	}
	p.check(unix.Mknodat(at, "file", unix.S_IFREG|0o600, 0))
	unix.Close(at)
	if _, err := p.Stats(p.Context(), p.handle("h")); err != nil {
		p.Error(err)
	}
	p.delete("h")
}

// hostileUpper: whatever a container, or a fault, leaves in the upper on disk, delete removes that and nothing else.
func hostileUpper(p *place) {
	outside := p.path("outside")
	p.check(os.Mkdir(outside, 0o755))
	p.write(outside+"/precious", "")
	v := p.create("h", p.small("image"), privileged)
	upper := p.store + "/layers/" + v.ID + "/" + p.Upper
	p.check(os.MkdirAll(upper+"/d/e", 0o755))
	for name, to := range map[string]string{
		"absolute": outside, "relative": "../../../../outside", "up": "..", "root": "/", "loop": "loop", "d/image": p.path("image"), "d/e/layers": p.store + "/layers",
	} {
		p.check(os.Symlink(to, upper+"/"+name))
	}
	for name, dev := range map[string]int{"whiteout": 0, "d/whiteout": 0, "zero": int(unix.Mkdev(1, 5))} {
		p.check(unix.Mknod(upper+"/"+name, unix.S_IFCHR|0o600, dev))
	}
	p.check(unix.Mkfifo(upper+"/pipe", 0o600))
	for name, value := range map[string]string{"trusted.overlay.opaque": "y", "trusted.overlay.redirect": "/../..", "trusted.overlay.metacopy": ""} {
		p.check(unix.Lsetxattr(upper+"/d", name, []byte(value), 0))
	}
	p.write(upper+"/d/locked", "")
	p.check(os.Chmod(upper+"/d/e", 0))
	p.write(upper+"/not\xffutf8\n", "")
	inspect.Command(p, "chattr", "+i", upper+"/d/locked")
	inspect.Command(p, "chattr", "+a", upper+"/d")
	if _, err := p.Stats(p.Context(), p.handle("h")); err != nil {
		p.Error(err)
	}
	p.delete("h")
	if !exists(outside+"/precious") || !exists(p.path("image")+"/file") {
		p.Error("something outside was deleted")
	}
}
