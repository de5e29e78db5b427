package overlay

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/userns"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestCandidates(t *testing.T) {
	all := candidates(true, false)
	if best := (volumes.Features{LayerFDs: true, IDMap: true, Volatile: true}); all[0] != best {
		t.Errorf("the first is %+v, want %+v", all[0], best)
	}
	if last := (volumes.Features{}); all[len(all)-1] != last {
		t.Errorf("the last is %+v, want what every kernel can do", all[len(all)-1])
	}
	for _, f := range candidates(false, true) {
		if f.IDMap || !f.UserXattr {
			t.Errorf("without a user namespace for maps, inside of one: %+v", f)
		}
	}
}

// What older kernels can do: each kind of mount that a probe may settle for gives the same view.
func TestMountWithFewerFeatures(t *testing.T) {
	dir := newFS(t, "tmpfs", 32)
	lower := inspect.NewDir(t)
	must(t, os.WriteFile(lower+"/file", []byte("lower"), 0o644))
	ns, err := userns.New(inspect.MaxID)
	must(t, err)
	defer ns.Close()
	for i, f := range candidates(true, false) {
		for _, mapped := range []bool{false, true} {
			if mapped && !f.IDMap {
				continue
			}
			l, err := os.OpenFile(lower, unix.O_PATH|unix.O_DIRECTORY, 0)
			must(t, err)
			v := volumes.View{
				Target: fmt.Sprintf("%s/mnt/%d/rootfs", dir, i), Layers: dir + "/layers", Upper: fmt.Sprint(i),
				Lowers: []volumes.Lower{{Dir: l, Map: mapped}}, Mapped: mapped, UpperMapped: mapped, MaxID: inspect.MaxID, UserNS: ns,
			}
			must(t, errors.Join(os.MkdirAll(v.Target, 0o755), os.MkdirAll(v.Layers+"/"+v.Upper, 0o700)))
			d := New(Options{})
			if err := d.Mount(t.Context(), f, v); err != nil {
				t.Errorf("%+v, mapped %v: %v", f, mapped, err)
			} else {
				var st unix.Stat_t
				if err := unix.Stat(v.Target+"/file", &st); err != nil || st.Uid != v.Root() {
					t.Errorf("%+v, mapped %v: owner %d, %v", f, mapped, st.Uid, err)
				}
				must(t, os.WriteFile(v.Target+"/file", []byte("upper"), 0o644))
				// Clones that were attached for mount(2) are gone.
				if names, err := os.ReadDir(dir + "/mnt/" + v.Upper); err != nil || len(names) != 1 {
					t.Errorf("%+v, mapped %v: beside the root: %v, %v", f, mapped, names, err)
				}
			}
			l.Close()
			must(t, d.Unmount(t.Context(), dir+"/mnt/"+v.Upper))
			must(t, os.RemoveAll(dir+"/mnt/"+v.Upper))
			must(t, d.Remove(t.Context(), v.Layers, v.Upper))
		}
	}
	if left := inspect.Mounts(t, dir); !slices.Equal(left, []string{dir}) {
		t.Errorf("mounts are left: %q", left)
	}
}

// Killed in the middle of a mount by path, the driver leaves id-mapped clones of all layers and of the image attached beside the root. A delete
// takes them off and removes nothing through them.
func TestClonesThatAKillLeft(t *testing.T) {
	dir := newFS(t, "tmpfs", 32)
	s, img := newStore(t, dir+"/store", Mount), newImage(t, 0)
	other, err := create(t, s, "other", img, false)
	must(t, err)
	const id = "00000000000000000000000000000000"
	for _, name := range []string{"layers", "lower-0", "rootfs"} {
		must(t, os.MkdirAll(dir+"/store/mnt/"+id+"/"+name, 0o700))
	}
	must(t, os.MkdirAll(dir+"/store/layers/"+id+"/work", 0o700))
	must(t, os.Symlink(id, dir+"/store/volumes/init/h"))
	must(t, unix.Mount(dir+"/store/layers", dir+"/store/mnt/"+id+"/layers", "", unix.MS_BIND, ""))
	must(t, unix.Mount(img.Path(), dir+"/store/mnt/"+id+"/lower-0", "", unix.MS_BIND, ""))
	must(t, remove(t, s, "h"))
	for _, f := range []string{other.Root + "/file", img.Path() + "/file", dir + "/store/layers/" + other.ID + "/layer.json"} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
	must(t, remove(t, s, "other"))
	if left := files(t, dir+"/store"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// An image on a file system without id maps is found out by trying; then there is a copy, or a refusal.
func TestImageThatCannotBeMapped(t *testing.T) {
	dir := newFS(t, "tmpfs", 32)
	image := inspect.NewDir(t) + "/image"
	must(t, os.Mkdir(image, 0o755))
	must(t, unix.Mount("test", image, "ramfs", 0, "mode=0755"))
	t.Cleanup(func() { inspect.Unmount(t, image) })
	must(t, os.WriteFile(image+"/file", []byte("lower"), 0o644))
	img := openImage(t, image)
	for _, idMap := range []IDMap{Auto, Mount} {
		never := volumes.New(volumes.Options{Dir: dir + "/store", Driver: New(Options{IDMap: idMap}), NeverCopy: true})
		_, err := create(t, never, "h", img, false)
		inspect.WantError(t, err, volumes.ErrCannotMap, image, "invalid argument", "--idmap auto")
		if left := files(t, dir+"/store"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	s := newStore(t, dir+"/store", Auto)
	for _, privileged := range []bool{false, true} {
		v, err := create(t, s, "h", img, privileged)
		must(t, err)
		if b, err := os.ReadFile(v.Root + "/file"); err != nil || string(b) != "lower" {
			t.Errorf("%q, %v", b, err)
		}
		must(t, remove(t, s, "h"))
	}
	if copies := files(t, dir+"/store"); !slices.ContainsFunc(copies, func(f string) bool { return strings.HasSuffix(f, "/fs/file") }) {
		t.Errorf("no copy was made: %q", copies)
	}
}

// Whatever Probe cannot do for a passing reason must not be remembered for the boot. Short of inodes, the kernel mounts read-only without an error.
func TestProbeFailsForPassingReasons(t *testing.T) {
	best := volumes.Features{LayerFDs: true, IDMap: true, Volatile: true}
	for free := range 12 {
		dir := newFS(t, "tmpfs", 32, "nr_inodes=100")
		must(t, errors.Join(os.MkdirAll(dir+"/mnt/p/rootfs", 0o755), os.MkdirAll(dir+"/layers/p", 0o700)))
		takeInodes(t, dir)(free)
		f, err := New(Options{}).Probe(t.Context(), volumes.View{Target: dir + "/mnt/p/rootfs", Layers: dir + "/layers", Upper: "p"})
		switch {
		case err == nil && f == best:
		case err == nil:
			t.Errorf("with %d inodes free: %+v, want the best or an error", free, f)
		default:
			inspect.WantError(t, err, unix.ENOSPC, "no space left on device")
			if free > 8 {
				t.Errorf("with %d inodes free: %v", free, err)
			}
		}
	}
}

// inNamespace, when set, makes TestInAUserNamespace the process inside.
const inNamespace = "BC_TEST_OVERLAY_IN_NAMESPACE"

// In a user namespace, as in a rootless container, there is no trusted.* and the highest id is another.
func TestInAUserNamespace(t *testing.T) {
	if dir := os.Getenv(inNamespace); dir != "" {
		storeInNamespace(t, dir)
		return
	}
	inspect.NeedRoot(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInAUserNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"="+inspect.NewDir(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 100_000, Size: 65_535}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 100_000, Size: 65_535}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInAUserNamespace") {
		t.Errorf("%v: %s", err, out)
	}
}

func storeInNamespace(t *testing.T, dir string) {
	must(t, unix.Mount("test", dir, "tmpfs", 0, "mode=0755"))
	must(t, os.Mkdir(dir+"/image", 0o755))
	must(t, os.MkdirAll(dir+"/image/sub/gone", 0o755))
	must(t, os.WriteFile(dir+"/image/file", []byte("lower"), 0o644))
	img := openImage(t, dir+"/image")
	for _, idMap := range []IDMap{Auto, Mount, Copy} {
		s := newStore(t, dir+"/store-"+string(idMap), idMap)
		for _, privileged := range []bool{true, false} {
			v, err := create(t, s, "h", img, privileged)
			must(t, err)
			root := uint32(0)
			if !privileged {
				root = 65_535
			}
			var st unix.Stat_t
			if err := unix.Stat(v.Root+"/file", &st); err != nil || st.Uid != root {
				t.Errorf("%s, privileged %v: owner %d, %v", idMap, privileged, st.Uid, err)
			}
			must(t, os.WriteFile(v.Root+"/file", []byte("upper"), 0o644))
			must(t, os.RemoveAll(v.Root+"/sub/gone")) // leaves a whiteout
			must(t, os.Mkdir(v.Root+"/sub/gone", 0o755))
			must(t, remove(t, s, "h"))
		}
	}
}
