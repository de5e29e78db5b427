package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

const opaqueMark = "trusted.overlay.opaque"

// makeLayer fills a new layer. Each entry is "name/" for a directory, "name/ opaque", "name = contents", "name -> target", or "name gone" for a
// whiteout.
func makeLayer(t testing.TB, entries ...string) string {
	t.Helper()
	dir := newDir(t)
	check(t, os.Chmod(dir, 0o755))
	for _, e := range entries {
		name, what, _ := strings.Cut(e, " ")
		path := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case strings.HasSuffix(name, "/"):
			mkdir(t, path)
			if what == "opaque" {
				check(t, unix.Setxattr(path, opaqueMark, []byte("y"), 0))
			}
		case what == "gone":
			check(t, unix.Mknod(path, unix.S_IFCHR, 0))
		case strings.HasPrefix(what, "-> "):
			check(t, os.Symlink(what[3:], path))
		default:
			check(t, os.WriteFile(path, []byte(strings.TrimPrefix(what, "= ")), 0o644))
		}
	}
	return dir
}

// layerHolds is the inverse of makeLayer.
func layerHolds(t testing.TB, dir string) []string {
	t.Helper()
	var entries []string
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		e := strings.TrimPrefix(path, dir+"/")
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			e += "/"
			if v, err := getXattr(path, opaqueMark); err == nil && string(v) == "y" {
				e += " opaque"
			}
		case unix.S_IFCHR:
			e += " gone"
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			e += " -> " + to
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			e += " = " + string(b)
		}
		entries = append(entries, e)
		return nil
	}))
	return entries
}

// merge merges layers, top first, into a new directory.
func merge(t testing.TB, layers []string, o MergeOptions) (string, error) {
	t.Helper()
	return mergeIn(t, t.Context(), layers, newDir(t), o)
}

func mergeIn(t testing.TB, ctx context.Context, layers []string, into string, o MergeOptions) (string, error) {
	t.Helper()
	var dirs []*os.File
	for _, l := range layers {
		f, err := os.OpenFile(l, unix.O_PATH|unix.O_DIRECTORY, 0)
		check(t, err)
		defer f.Close()
		dirs = append(dirs, f)
	}
	o.Opaque = opaqueMark
	return into + "/fs", Merge(ctx, dirs, fd(t, into), "fs", o)
}

func mustMerge(t testing.TB, layers []string, o MergeOptions) string {
	t.Helper()
	dir, err := merge(t, layers, o)
	check(t, err)
	return dir
}

// view mounts layers, top first, read-only, and returns the mount point.
func view(t testing.TB, layers ...string) string {
	t.Helper()
	at, empty := newDir(t), newDir(t)
	data := "index=off,metacopy=off,redirect_dir=nofollow,xino=auto,nfs_export=off,lowerdir=" + strings.Join(append(slices.Clone(layers), empty), ":")
	check(t, unix.Mount("test", at, "overlay", unix.MS_RDONLY, data))
	t.Cleanup(func() { check(t, unix.Unmount(at, unix.MNT_DETACH)) })
	return at
}

var linkCount = regexp.MustCompile(` links \d+`)

// shows is inspect.Tree without the number of names that a file has: a merged layer shares files with those it was made of.
func shows(t testing.TB, root string) map[string]string {
	t.Helper()
	all := inspect.Tree(t, root, inspect.Keep)
	for name, line := range all {
		all[name] = linkCount.ReplaceAllString(line, "")
	}
	return all
}

func TestMergeDecidesByTheTopmost(t *testing.T) {
	inspect.NeedRoot(t)
	// What stands below all of them: something for everything that could be hidden.
	base := makeLayer(t, "f = base", "d/ ", "d/base = base", "d/f = base", "d/sub/base = base", "e/base = base", "l -> base", "only/base = base")
	tests := []struct {
		name   string
		layers [][]string // top first
		want   []string
		bottom []string // with nothing below it
	}{
		{"nothing", [][]string{{}, {}}, nil, nil},
		{"file over file", [][]string{{"f = 2"}, {"f = 1"}}, []string{"f = 2"}, []string{"f = 2"}},
		{"files of both", [][]string{{"a = 2", "d/a = 2"}, {"b = 1", "d/b = 1"}},
			[]string{"a = 2", "b = 1", "d/", "d/a = 2", "d/b = 1"}, []string{"a = 2", "b = 1", "d/", "d/a = 2", "d/b = 1"}},
		{"whiteout at the top", [][]string{{"f gone"}, {"f = 1"}}, []string{"f gone"}, nil},
		{"whiteout in the middle", [][]string{{"a = 3"}, {"f gone"}, {"f = 1"}}, []string{"a = 3", "f gone"}, []string{"a = 3"}},
		{"whiteout below a file", [][]string{{"f = 3"}, {"f gone"}, {"f = 1"}}, []string{"f = 3"}, []string{"f = 3"}},
		{"whiteout below a directory", [][]string{{"d/a = 3"}, {"d gone"}, {"d/b = 1"}}, []string{"d/ opaque", "d/a = 3"}, []string{"d/", "d/a = 3"}},
		{"whiteout in a merged directory", [][]string{{"d/f gone"}, {"d/a = 1"}}, []string{"d/", "d/a = 1", "d/f gone"}, []string{"d/", "d/a = 1"}},
		{"opaque at the top", [][]string{{"d/ opaque", "d/a = 2"}, {"d/b = 1"}}, []string{"d/ opaque", "d/a = 2"}, []string{"d/", "d/a = 2"}},
		{"opaque in the middle", [][]string{{"d/a = 3"}, {"d/ opaque", "d/b = 2"}, {"d/c = 1"}},
			[]string{"d/ opaque", "d/a = 3", "d/b = 2"}, []string{"d/", "d/a = 3", "d/b = 2"}},
		{"opaque at the lowest", [][]string{{"d/a = 3"}, {"d/b = 2"}, {"d/ opaque", "d/c = 1"}},
			[]string{"d/ opaque", "d/a = 3", "d/b = 2", "d/c = 1"}, []string{"d/", "d/a = 3", "d/b = 2", "d/c = 1"}},
		{"opaque twice", [][]string{{"d/ opaque", "d/a = 3"}, {"d/b = 2"}, {"d/ opaque", "d/c = 1"}}, []string{"d/ opaque", "d/a = 3"}, []string{"d/", "d/a = 3"}},
		{"whiteout in an opaque directory", [][]string{{"d/b gone"}, {"d/ opaque", "d/a = 1", "d/b = 1"}}, []string{"d/ opaque", "d/a = 1"}, []string{"d/", "d/a = 1"}},
		// A whiteout that stayed would be listed: overlayfs reads a directory of one layer as it is.
		{"whiteout below an opaque directory", [][]string{{"d/sub/b gone"}, {"d/ opaque", "d/sub/a = 1", "d/sub/b = 1"}},
			[]string{"d/ opaque", "d/sub/", "d/sub/a = 1"}, []string{"d/", "d/sub/", "d/sub/a = 1"}},
		{"opaque below an opaque directory", [][]string{{"d/sub/ opaque", "d/sub/a = 2"}, {"d/ opaque", "d/sub/b = 1"}},
			[]string{"d/ opaque", "d/sub/", "d/sub/a = 2"}, []string{"d/", "d/sub/", "d/sub/a = 2"}},
		{"opaque far down", [][]string{{"d/sub/ opaque", "d/sub/a = 2"}, {"d/sub/b = 1", "d/c = 1"}},
			[]string{"d/", "d/c = 1", "d/sub/ opaque", "d/sub/a = 2"}, []string{"d/", "d/c = 1", "d/sub/", "d/sub/a = 2"}},
		{"whiteout of what is only there", [][]string{{"n gone", "d/n gone"}, {"n = 1", "d/n = 1"}}, []string{"d/"}, []string{"d/"}},
		{"whiteout in a directory that is only there", [][]string{{"n/b gone"}, {"n/a = 1", "n/b = 1"}}, []string{"n/", "n/a = 1"}, []string{"n/", "n/a = 1"}},
		{"whiteout of a directory", [][]string{{"d gone"}, {"d/a = 1"}}, []string{"d gone"}, nil},
		{"directory over file", [][]string{{"f/a = 2"}, {"f = 1"}}, []string{"f/", "f/a = 2"}, []string{"f/", "f/a = 2"}},
		{"directory over file over directory", [][]string{{"d/a = 3"}, {"d = 2"}, {"d/b = 1"}}, []string{"d/ opaque", "d/a = 3"}, []string{"d/", "d/a = 3"}},
		{"file over directory", [][]string{{"d = 2"}, {"d/a = 1", "d/sub/x = 1"}}, []string{"d = 2"}, []string{"d = 2"}},
		{"directory over symlink", [][]string{{"l/a = 2"}, {"l -> /etc"}}, []string{"l/", "l/a = 2"}, []string{"l/", "l/a = 2"}},
		{"symlink over directory", [][]string{{"d -> /etc"}, {"d/a = 1"}}, []string{"d -> /etc"}, []string{"d -> /etc"}},
		{"symlink over symlink", [][]string{{"l -> b"}, {"l -> a"}}, []string{"l -> b"}, []string{"l -> b"}},
		{"empty directory over file over directory", [][]string{{"d/"}, {"d gone"}, {"d/x = 1"}}, []string{"d/ opaque"}, []string{"d/"}},
		{"names of Docker's whiteouts are names", [][]string{{"d/.wh.f = 2", "d/.wh..wh..opq = 2"}, {"d/a = 1"}},
			[]string{"d/", "d/.wh..wh..opq = 2", "d/.wh.f = 2", "d/a = 1"}, []string{"d/", "d/.wh..wh..opq = 2", "d/.wh.f = 2", "d/a = 1"}},
		{"names that are not UTF-8", [][]string{{"\xff\xfe/\x80 = 2"}, {"\xff\xfe/\x01\n = 1"}},
			[]string{"\xff\xfe/", "\xff\xfe/\x01\n = 1", "\xff\xfe/\x80 = 2"}, []string{"\xff\xfe/", "\xff\xfe/\x01\n = 1", "\xff\xfe/\x80 = 2"}},
		{"one layer", [][]string{{"f gone", "d/ opaque", "d/a = 1"}}, []string{"d/ opaque", "d/a = 1", "f gone"}, []string{"d/", "d/a = 1"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var layers []string
			for _, entries := range test.layers {
				layers = append(layers, makeLayer(t, entries...))
			}
			merged := mustMerge(t, layers, MergeOptions{Below: []*os.File{open(t, base)}})
			if got := layerHolds(t, merged); !slices.Equal(got, test.want) {
				t.Errorf("merged: %q\nwant %q", got, test.want)
			}
			inspect.Same(t, shows(t, view(t, merged, base)), shows(t, view(t, append(slices.Clone(layers), base)...)))

			merged = mustMerge(t, layers, MergeOptions{})
			if got := layerHolds(t, merged); !slices.Equal(got, test.bottom) {
				t.Errorf("merged to the bottom: %q\nwant %q", got, test.bottom)
			}
			inspect.Same(t, shows(t, merged), shows(t, view(t, layers...)))
		})
	}
}

func TestMergeKeepsLinksWithinALayer(t *testing.T) {
	inspect.NeedRoot(t)
	top, low := makeLayer(t, "d/a = 1"), makeLayer(t, "x = 2", "d/hidden = 2")
	check(t, os.Link(top+"/d/a", top+"/b"))
	check(t, os.Link(top+"/d/a", top+"/d/c"))
	check(t, os.Link(low+"/x", low+"/d/y"))
	check(t, os.Link(low+"/d/hidden", low+"/d/a")) // its second name is hidden by the layer above
	merged := mustMerge(t, []string{top, low}, MergeOptions{})
	got := shows(t, merged)
	for name, first := range map[string]string{"b": "b", "d/a": "b", "d/c": "b", "x": "d/y", "d/y": "d/y", "d/hidden": "d/hidden"} {
		if !strings.Contains(got[name], fmt.Sprintf(" first %q", first)) {
			t.Errorf("%q is %s, want a link of %q", name, got[name], first)
		}
	}
	if inode(t, merged+"/b") != inode(t, top+"/b") {
		t.Error("the file was copied, not linked")
	}
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st.Ino
}

// richLayer holds one of everything, with attributes.
func richLayer(t testing.TB) string {
	t.Helper()
	dir := makeLayer(t, "file = contents", "d/in = 1", "link -> nowhere")
	check(t, unix.Mkfifo(dir+"/fifo", 0o640))
	check(t, unix.Mknod(dir+"/socket", unix.S_IFSOCK|0o600, 0))
	check(t, unix.Mknod(dir+"/char", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	check(t, unix.Mknod(dir+"/block", unix.S_IFBLK|0o600, int(unix.Mkdev(0, 0))))
	at := time.Unix(1_000_000_000, 123_456_789)
	for i, name := range []string{"file", "link", "fifo", "socket", "char", "block", "d", "."} {
		path := dir + "/" + name
		check(t, os.Lchown(path, 100+i, 200+i))
		check(t, unix.Lsetxattr(path, "trusted.kept", []byte(name), 0))
		if name != "link" {
			check(t, unix.Chmod(path, uint32(0o4711+i)))
		}
	}
	for _, args := range [][]string{
		{"setfacl", "-m", "u:77:rwx,d:g:78:r-x", dir + "/d"},
		{"setfacl", "-m", "u:77:r", dir + "/file"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Logf("without ACLs: %v %s", err, out)
		}
	}
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	check(t, unix.Lsetxattr(dir+"/file", "security.capability", capability, 0))
	for _, name := range []string{"file", "link", "fifo", "socket", "char", "block", "d/in", "d", "."} {
		at = at.Add(1)
		setTimes(t, dir+"/"+name, at)
	}
	return dir
}

func TestMergeKeepsAttributes(t *testing.T) {
	inspect.NeedRoot(t)
	for _, how := range []struct {
		name string
		link func(int, string, int, string) error
	}{
		{"by links", nil},
		{"by copies", func(int, string, int, string) error { return unix.EMLINK }},
		{"across file systems", func(int, string, int, string) error { return unix.EXDEV }},
		{"where links are not allowed", func(int, string, int, string) error { return unix.EPERM }},
	} {
		t.Run(how.name, func(t *testing.T) {
			rich := richLayer(t)
			want := shows(t, rich)
			low := makeLayer(t, "d/low = 2")
			merged := mustMerge(t, []string{rich, low}, MergeOptions{Link: how.link})
			got := shows(t, merged)
			if _, ok := got["d/low"]; !ok {
				t.Error("what is in the lower layer is missing")
			}
			delete(got, "d/low")
			inspect.Same(t, got, want)
			inspect.Same(t, shows(t, rich), want)
		})
	}
}

// A container's own attributes of such names are kept by overlayfs under others, and shown as it set them.
func TestMergeKeepsEscapedOverlayAttributes(t *testing.T) {
	inspect.NeedRoot(t)
	layer, low := makeLayer(t, "d/a = 1"), makeLayer(t, "d/b = 1")
	const escaped = "trusted.overlay.overlay.opaque"
	check(t, unix.Lsetxattr(layer+"/d", escaped, []byte("y"), 0))
	check(t, unix.Lsetxattr(layer+"/d", "trusted.overlay.origin", []byte("of the layer only"), 0))
	merged := mustMerge(t, []string{layer, low}, MergeOptions{})
	names, err := listXattrs(merged + "/d")
	check(t, err)
	slices.Sort(names)
	if want := []string{escaped}; !slices.Equal(names, want) {
		t.Errorf("attributes are %q, want %q", names, want)
	}
	if got := layerHolds(t, merged); !slices.Contains(got, "d/") {
		t.Errorf("merged: %q", got)
	}
}

// Case 48.
func TestCase48MergeOpensNothing(t *testing.T) {
	inspect.NeedRoot(t)
	for name, link := range map[string]func(int, string, int, string) error{
		"by links": nil, "by copies": func(int, string, int, string) error { return unix.EMLINK },
	} {
		t.Run(name, func(t *testing.T) {
			rich := richLayer(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // opening the FIFO would wait for ever
			defer cancel()
			_, err := mergeIn(t, ctx, []string{rich}, newDir(t), MergeOptions{Link: link})
			check(t, err)
		})
	}
}

func TestMergeCopiesHoles(t *testing.T) {
	inspect.NeedRoot(t)
	dir := makeLayer(t, "small = 1")
	f, err := os.Create(dir + "/sparse")
	check(t, err)
	defer f.Close()
	const size = 5 << 30
	check(t, f.Truncate(size))
	_, err = f.WriteAt([]byte("end"), size-3)
	check(t, err)
	merged := mustMerge(t, []string{dir}, MergeOptions{Link: func(int, string, int, string) error { return unix.EMLINK }})
	var st unix.Stat_t
	check(t, unix.Lstat(merged+"/sparse", &st))
	if st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes in %d blocks, want %d bytes and nearly no blocks", st.Size, st.Blocks, int64(size))
	}
	end := make([]byte, 3)
	out, err := os.Open(merged + "/sparse")
	check(t, err)
	defer out.Close()
	_, err = out.ReadAt(end, size-3)
	check(t, err)
	if string(end) != "end" {
		t.Errorf("it ends with %q", end)
	}
}

// Case 79: ext4 allows 65,000 names for one inode, other file systems more or fewer.
func TestCase79MergeCopiesWhatHasTooManyLinks(t *testing.T) {
	inspect.NeedRoot(t)
	layer := makeLayer(t, "full = contents", "other = 1")
	setTimes(t, layer+"/full", time.Unix(1, 2))
	aside := newDir(t)
	dir := fd(t, aside)
	for i := 0; ; i++ {
		err := unix.Linkat(unix.AT_FDCWD, layer+"/full", dir, fmt.Sprint(i), 0)
		if errors.Is(err, unix.EMLINK) {
			break
		}
		check(t, err)
		if i > 70_000 {
			t.Skip("this file system has no limit of 65,000 links")
		}
	}
	merged := mustMerge(t, []string{layer}, MergeOptions{})
	inspect.Same(t, shows(t, merged), shows(t, layer))
	if inode(t, merged+"/full") == inode(t, layer+"/full") || inode(t, merged+"/other") != inode(t, layer+"/other") {
		t.Error("the full inode must be copied, the other one linked")
	}
}

func TestMergeAcrossFileSystems(t *testing.T) {
	inspect.NeedRoot(t)
	rich := richLayer(t)
	if err := unix.Removexattr(rich+"/file", "security.capability"); err != nil {
		t.Fatal(err)
	}
	there := newFS(t, "tmpfs", "")
	merged, err := mergeIn(t, t.Context(), []string{rich}, there, MergeOptions{})
	check(t, err)
	inspect.Same(t, shows(t, merged), shows(t, rich))
}

func TestMergeDeepTrees(t *testing.T) {
	inspect.NeedRoot(t)
	a, b := makeLayer(t), makeLayer(t)
	makeDeep(t, a, 5000)
	makeDeep(t, b, 3000)
	check(t, os.WriteFile(b+"/d/d/low", nil, 0o600))
	merged := mustMerge(t, []string{a, b}, MergeOptions{})
	if !exists(merged + "/d/d/low") {
		t.Error("what is in the lower layer is missing")
	}
	count := func(dir string) Usage {
		u, err := Measure(t.Context(), fd(t, dir), ".", 0)
		check(t, err)
		return u
	}
	if got, want := count(merged).Entries, count(a).Entries+2; got != want { // low, and the file at b's end
		t.Errorf("%d entries, want %d", got, want)
	}
}

func TestMergeWideDirectories(t *testing.T) {
	inspect.NeedRoot(t)
	a, b := makeLayer(t), makeLayer(t)
	mkdir(t, a+"/d")
	mkdir(t, b+"/d")
	makeWide(t, a+"/d", 5_000)
	makeWide(t, b+"/d", 10_000)
	merged := mustMerge(t, []string{a, b}, MergeOptions{})
	names, err := os.ReadDir(merged + "/d")
	check(t, err)
	if len(names) != 10_000 {
		t.Errorf("%d names, want 10000", len(names))
	}
	if inode(t, merged+"/d/file-17") != inode(t, a+"/d/file-17") || inode(t, merged+"/d/file-9999") != inode(t, b+"/d/file-9999") {
		t.Error("a name comes from the wrong layer")
	}
}

func TestMergeStopsWithItsContext(t *testing.T) {
	inspect.NeedRoot(t)
	layer := makeLayer(t)
	makeWide(t, layer, 2_000)
	into := newDir(t)
	stop := onLook(func(n int) error {
		if n > 3 {
			return context.Canceled
		}
		return nil
	})
	dir, err := mergeIn(t, stop, []string{layer}, into, MergeOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Merge = %v, want Canceled", err)
	}
	names, err := os.ReadDir(dir)
	check(t, err)
	if len(names) == 0 || len(names) > 1_000 {
		t.Errorf("%d names were made before it stopped", len(names))
	}
	check(t, Remove(t.Context(), fd(t, into), "fs"))
}

func TestMergeFails(t *testing.T) {
	inspect.NeedRoot(t)
	layer := makeLayer(t, "a = 1", "d/b = 1")
	for _, want := range []error{unix.ENOSPC, unix.EIO, unix.EDQUOT} {
		_, err := merge(t, []string{layer}, MergeOptions{Link: func(int, string, int, string) error { return want }})
		if !errors.Is(err, want) {
			t.Errorf("Merge = %v, want %v", err, want)
		}
	}
	into := newDir(t)
	mkdir(t, into+"/fs")
	if _, err := mergeIn(t, t.Context(), []string{layer}, into, MergeOptions{}); !errors.Is(err, unix.EEXIST) {
		t.Errorf("into an existing directory: %v, want EEXIST", err)
	}
}

// A mount in a layer is not gone into.
func TestMergeCrossesNoMount(t *testing.T) {
	inspect.NeedRoot(t)
	layer := makeLayer(t, "d/", "e = 1")
	check(t, unix.Mount("test", layer+"/d", "tmpfs", 0, ""))
	defer func() { check(t, unix.Unmount(layer+"/d", unix.MNT_DETACH)) }()
	if _, err := merge(t, []string{layer}, MergeOptions{}); !errors.Is(err, unix.EXDEV) {
		t.Errorf("Merge = %v, want EXDEV", err)
	}
}

func TestMergeCostFollowsEntriesNotBytes(t *testing.T) {
	inspect.NeedRoot(t)
	layer := makeLayer(t)
	check(t, os.WriteFile(layer+"/big", bytes.Repeat([]byte("x"), 8<<20), 0o600))
	merged := mustMerge(t, []string{layer}, MergeOptions{})
	if inode(t, merged+"/big") != inode(t, layer+"/big") {
		t.Error("the data was copied")
	}
}
