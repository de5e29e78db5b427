package volumetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"syscall"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// ownership: an image of either ownership, shown to a container of either slot, looks as that container must see it, and what is
// written has the right owners for the container and, where layers can be mapped, canonical ones on disk.
func ownership(p *place) {
	for _, shifted := range []bool{false, true} {
		image := p.image(fmt.Sprintf("image-shifted-%v", shifted), shifted)
		for _, s := range slots {
			what := fmt.Sprintf("%v container, image shifted: %v", s, shifted)
			suits, needsMap := p.suits(shifted, s)
			v, err := p.make(p.Context(), p.Store, "h", image, s)
			if !suits {
				p.wantError(what, err, volumes.ErrCannotMap, image, "--idmap auto")
				continue
			}
			p.check(err)
			mapID := inspect.Keep
			if needsMap {
				mapID = inspect.Swap
			}
			want := withoutTopTime(inspect.Tree(p, image, mapID))
			got := withoutTopTime(inspect.Tree(p, v.Root, inspect.Keep))
			p.Log(what)
			inspect.Same(p, got, want)
			p.ownersOfWhatIsWritten(v, s)
			p.delete("h")
		}
	}
}

// withoutTopTime leaves out when the top directory was changed: it is the container's own, made now.
func withoutTopTime(tree map[string]string) map[string]string {
	tree["."] = regexp.MustCompile(`changed \d+`).ReplaceAllString(tree["."], "")
	return tree
}

func (p *place) ownersOfWhatIsWritten(v *volumes.Volume, s slot) {
	p.Helper()
	p.check(os.Mkdir(v.Root+"/made", 0o755))
	other := inspect.Swap(s.root()) // the id that has no place in the container, or is nobody special
	for name, id := range map[string]uint32{"by-root": s.root(), "by-user": 1000, "by-other": other} {
		path := v.Root + "/made/" + name
		p.write(path, name)
		p.check(os.Chown(path, int(id), int(id)))
		p.check(unix.Chmod(path, 0o4755))
	}
	p.check(os.Chown(v.Root+"/plain", 1000, int(s.root()))) // a file of the image
	for name, want := range map[string][2]uint32{
		"made/by-root": {s.root(), s.root()}, "made/by-user": {1000, 1000}, "made/by-other": {other, other}, "plain": {1000, s.root()},
	} {
		onDisk := want
		if p.CanMap && s == unprivileged {
			onDisk = [2]uint32{inspect.Swap(want[0]), inspect.Swap(want[1])}
		}
		p.wantOwner(v.Root+"/"+name, want)
		p.wantOwner(p.store+"/layers/"+v.ID+"/"+p.Upper+"/"+name, onDisk)
	}
	if info, err := os.Stat(v.Root + "/made/by-user"); err != nil || info.Mode()&os.ModeSetuid == 0 {
		p.Errorf("setuid was lost: %v, %v", info, err)
	}
}

func (p *place) wantOwner(path string, want [2]uint32) {
	p.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Uid != want[0] || st.Gid != want[1] {
		p.Errorf("%q belongs to %d:%d, %v, want %d:%d", path, st.Uid, st.Gid, err, want[0], want[1])
	}
}

// as runs a shell script as an id without rights.
func as(id uint32, script string) error {
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// containersRoot: the init of an unprivileged container comes as its root's host id, without any rights (field case 59).
func containersRoot(p *place) {
	for _, shifted := range []bool{false, true} {
		if suits, _ := p.suits(shifted, unprivileged); !suits {
			continue
		}
		image := p.image(fmt.Sprintf("image-shifted-%v", shifted), shifted)
		v := p.create("h", image, unprivileged)
		if err := as(inspect.MaxID, fmt.Sprintf("cd %s; ls -l >/dev/null; mkdir proc; echo x >proc/x; rm plain; echo new >plain", v.Root)); err != nil {
			p.Errorf("image shifted: %v: %v", shifted, err)
		}
		p.delete("h")
	}
	// A directory on the way that it cannot cross is named.
	image := p.small("shifted")
	p.check(os.Chown(image, inspect.MaxID, inspect.MaxID))
	p.check(os.Chmod(p.dir, 0o750))
	_, err := p.make(p.Context(), p.Store, "h", image, unprivileged)
	p.check(os.Chmod(p.dir, 0o755))
	if err == nil {
		p.Error("created where nobody can reach it")
		p.delete("h")
	} else {
		p.wantError("closed way", err, err, p.dir, "0750", "chmod o+x")
	}
}

// privilegedIsClosed: a privileged container's root can make files of real setuid root; nobody else on the host may reach them, nor the layers.
func privilegedIsClosed(p *place) {
	v := p.create("h", p.small("image"), privileged)
	const nobody = 65534
	for _, dir := range []string{v.Root, p.store + "/layers", p.store + "/volumes"} {
		if err := as(nobody, "ls "+dir); err == nil {
			p.Errorf("anybody can list %q", dir)
		} else if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			p.Errorf("cannot tell: %v", err)
		}
	}
	p.delete("h")
}

// defaultACL: what is above the store has no effect in it.
func defaultACL(p *place) {
	p.check(os.Mkdir(p.store, 0o711))
	inspect.SetXattr(p, p.store, "system.posix_acl_default", inspect.ACL(1000, 1000))
	for _, shifted := range []bool{false, true} {
		image := p.image(fmt.Sprintf("image-shifted-%v", shifted), shifted)
		for _, s := range slots {
			suits, needsMap := p.suits(shifted, s)
			if !suits {
				continue
			}
			v := p.create("h", image, s)
			mapID := inspect.Keep
			if needsMap {
				mapID = inspect.Swap
			}
			inspect.Same(p, withoutTopTime(inspect.Tree(p, v.Root, inspect.Keep)), withoutTopTime(inspect.Tree(p, image, mapID)))
			p.delete("h")
		}
	}
}
