package volumes

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// newVolumes is a BaggageClaim's volumes directory with one live volume "v" that has the given files.
func newVolumes(t *testing.T, files map[string]string) (volumes, volume string) {
	t.Helper()
	volumes = inspect.NewDir(t)
	volume = volumes + "/live/v/volume"
	check(t, os.MkdirAll(volume, 0o755))
	for name, content := range files {
		path := volume + "/" + name
		check(t, os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o755))
		check(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return volumes, volume
}

func TestOpenVolumeImage(t *testing.T) {
	volumes, volume := newVolumes(t, map[string]string{"rootfs/bin/sh": "", "metadata.json": "{}", "a b/#%/file": ""})
	check(t, os.Symlink("rootfs", volume+"/inside"))
	check(t, os.Symlink("../../v/volume/rootfs", volume+"/out-and-in"))
	check(t, os.Symlink("/etc", volume+"/absolute"))
	check(t, os.Symlink("../../..", volume+"/out"))
	check(t, os.Symlink("/proc/self/root", volume+"/magic"))
	check(t, os.Symlink(volume, volumes+"/live/v/link"))
	check(t, os.Symlink("v", volumes+"/live/alias"))
	for _, sub := range []string{"", "rootfs", "rootfs/bin", "inside", "inside/bin", "a b/#%"} {
		img, err := OpenVolumeImage(volumes, "v", sub)
		if err != nil {
			t.Errorf("%q: %v", sub, err)
			continue
		}
		if want := strings.TrimSuffix(volume+"/"+sub, "/"); img.Path() != want {
			t.Errorf("%q: path %q, want %q", sub, img.Path(), want)
		}
		check(t, img.Close())
	}
	for _, c := range []struct {
		volume, sub string
		is          error
		want        string
	}{
		{"v", "absent", unix.ENOENT, `no directory "absent" in BaggageClaim volume "v"`},
		{"v", "metadata.json", unix.ENOTDIR, `"metadata.json" in BaggageClaim volume "v"`},
		{"v", "absolute", ErrInvalid, `"absolute": it leads out of BaggageClaim volume "v"`},
		{"v", "out", ErrInvalid, "leads out"},
		{"v", "out-and-in", ErrInvalid, "leads out"},
		{"v", "magic", ErrInvalid, "leads out"},
		{"v", "rootfs/../..", ErrInvalid, "leads out"},
		{"gone", "rootfs", unix.ENOENT, `parent missing: BaggageClaim volume "gone"`},
		{"alias", "", unix.ELOOP, `"alias"`},
		{"..", "", ErrInvalid, `volume ".."`},
		{"a/b", "", ErrInvalid, `volume "a/b"`},
		{"", "", ErrInvalid, `volume ""`},
	} {
		img, err := OpenVolumeImage(volumes, c.volume, c.sub)
		if !errors.Is(err, c.is) || img != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("volume %q sub %q: error %v, want %v that says %q", c.volume, c.sub, err, c.is, c.want)
		}
	}
	if _, err := OpenVolumeImage(volumes+"/absent", "v", ""); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "live volumes of BaggageClaim") {
		t.Errorf("no volumes directory: %v", err)
	}
}

func TestOpenVolumeImageReadsTheVolumesRecord(t *testing.T) {
	for content, want := range map[string]*bool{"true": new(bool), "false": func() *bool { b := true; return &b }(), "": nil} {
		volumes, _ := newVolumes(t, map[string]string{"file": ""})
		if content != "" {
			check(t, os.WriteFile(volumes+"/live/v/privileged.json", []byte(content), 0o600))
		}
		img, err := OpenVolumeImage(volumes, "v", "")
		check(t, err)
		if (img.shifted == nil) != (want == nil) || (want != nil && *img.shifted != *want) {
			t.Errorf("%q: shifted %v, want %v", content, img.shifted, want)
		}
		img.Close()
	}
	volumes, _ := newVolumes(t, map[string]string{"file": ""})
	check(t, os.WriteFile(volumes+"/live/v/privileged.json", []byte("maybe"), 0o600))
	if _, err := OpenVolumeImage(volumes, "v", ""); err == nil || !strings.Contains(err.Error(), "privileged.json") {
		t.Errorf("a damaged record: %v", err)
	}
}

func TestMetadata(t *testing.T) {
	const max = 100
	for name, c := range map[string]struct {
		sub, file, content string
		want               string // "" : none
		err                string
	}{
		"beside rootfs":        {"rootfs", "metadata.json", "{}", "{}", ""},
		"beside a deep rootfs": {"a/rootfs", "a/metadata.json", "{}", "{}", ""},
		"none":                 {"rootfs", "other", "", "", ""},
		"beside another name":  {"root", "metadata.json", "{}", "", ""},
		"the volume itself":    {"", "metadata.json", "{}", "", ""},
		"inside only":          {"rootfs", "rootfs/metadata.json", "{}", "", ""},
		"just small enough":    {"rootfs", "metadata.json", strings.Repeat("x", max), strings.Repeat("x", max), ""},
		"too large":            {"rootfs", "metadata.json", strings.Repeat("x", max+1), "", "larger than 100 bytes"},
	} {
		volumes, volume := newVolumes(t, map[string]string{c.file: c.content})
		check(t, os.MkdirAll(volume+"/"+c.sub, 0o755))
		img, err := OpenVolumeImage(volumes, "v", c.sub)
		check(t, err)
		got, err := img.Metadata(max)
		switch {
		case c.err != "":
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v", name, err)
			}
		case err != nil || string(got) != c.want || (c.want == "") != (got == nil):
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
		img.Close()
	}
	dir := inspect.NewDir(t)
	check(t, os.Mkdir(dir+"/rootfs", 0o755))
	check(t, os.WriteFile(dir+"/metadata.json", []byte("{}"), 0o600))
	img, err := OpenImage(dir + "/rootfs")
	check(t, err)
	defer img.Close()
	if got, err := img.Metadata(max); got != nil || err != nil {
		t.Errorf("of a directory of the host: %q, %v", got, err)
	}
}

func TestMetadataThatIsNoFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"pipe":                  func(p string) error { return unix.Mkfifo(p, 0o600) }, // which opening for reading would wait upon
		"directory":             func(p string) error { return os.Mkdir(p, 0o755) },
		"symlink out":           func(p string) error { return os.Symlink("/etc/hostname", p) },
		"symlink to another":    func(p string) error { return os.Symlink("real.json", p) },
		"symlink to the parent": func(p string) error { return os.Symlink("../../../secret", p) },
	} {
		volumes, volume := newVolumes(t, map[string]string{"rootfs/x": "", "real.json": "{}"})
		check(t, make(volume+"/metadata.json"))
		img, err := OpenVolumeImage(volumes, "v", "rootfs")
		check(t, err)
		if got, err := img.Metadata(100); err == nil || got != nil || !strings.Contains(err.Error(), volume+"/metadata.json") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		img.Close()
	}
}

func TestIsShifted(t *testing.T) {
	yes, no := true, false
	const max = 4294967294
	for _, c := range []struct {
		owner   uint32
		record  *bool
		maxID   uint32
		shifted bool
	}{
		{0, nil, max, false}, {0, &no, max, false}, {max, nil, max, true}, {max, &yes, max, true},
		{0, &yes, max, false}, // what is really there counts
		{max, &no, max, true}, // also against the record
		{1000, nil, max, false}, {1000, &yes, max, true}, {1000, &no, max, false},
		{0, nil, 0, false}, // max is not known: as it is
	} {
		img := Image{shifted: c.record, stat: unix.Stat_t{Uid: c.owner}}
		if got := img.isShifted(c.maxID); got != c.shifted {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestIdentity(t *testing.T) {
	dir := inspect.NewDir(t)
	check(t, os.Mkdir(dir+"/a", 0o755))
	identity := func() string {
		img, err := OpenImage(dir + "/a")
		check(t, err)
		defer img.Close()
		return img.identity()
	}
	first := identity()
	if again := identity(); again != first || strings.ContainsAny(first, "/.") {
		t.Errorf("%q and %q", first, again)
	}
	check(t, os.Mkdir(dir+"/b", 0o755))
	check(t, os.Remove(dir+"/a"))
	check(t, os.Rename(dir+"/b", dir+"/a"))
	second := identity()
	if second == first {
		t.Error("another directory in its place is the same image")
	}
	check(t, os.Chtimes(dir+"/a", time.Time{}, time.Unix(1, 0)))
	if identity() == second {
		t.Error("a changed directory is the same image")
	}
}

// Copied as an image, the store would be copied into itself until the disk is full.
func TestContains(t *testing.T) {
	dir := inspect.NewDir(t)
	check(t, os.MkdirAll(dir+"/image/a/store", 0o755))
	check(t, os.MkdirAll(dir+"/image-2", 0o755))
	for _, c := range []struct {
		image, store string
		contains     bool
	}{
		{dir + "/image", dir + "/image/a/store", true},
		{dir + "/image/a/store", dir + "/image/a/store", false}, // that is isBelow's
		{dir + "/image", dir + "/image-2", false},
		{dir + "/image/a", dir + "/image", false},
		{"/", "/etc", true},
		{"/", "/proc", false}, // a mount of its own is no part of it
	} {
		img, err := OpenImage(c.image)
		check(t, err)
		if got := img.contains(c.store); got != c.contains {
			t.Errorf("%+v: %v", c, got)
		}
		img.Close()
	}
	img, err := OpenImage(dir + "/image")
	check(t, err)
	defer img.Close()
	s := New(Options{Dir: dir + "/image/a/store", Driver: fakeDriver{}})
	if _, err := s.Create(t.Context(), handle(t, "h"), Request{Image: img}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "is inside it") {
		t.Errorf("error %v", err)
	}
}
