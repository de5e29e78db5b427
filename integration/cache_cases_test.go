package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/imagespec"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// concourse/concourse#5799 ("Volumes can only be reused twice"), #5961, #4964: each copy was made from the one before, and the third failed to mount.
// Here forty generations follow on one another, and a mount never has more than eight layers below it.
func TestCase36ChainsOfCopies(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	url := withCache(volumes.url("busybox"), "chain", cacheAt, "always")
	want := ""
	for n := 1; n <= 40; n++ {
		c := g.mustCreate("a-link-of-the-chain", url, n%3 == 0)
		log := filepath.Join(c.cache, "log")
		if n > 1 {
			if got, err := os.ReadFile(log); err != nil || string(got) != want {
				t.Fatalf("generation %d holds %q, %v, want %q", n-1, got, err, want)
			}
			if _, err := os.Lstat(filepath.Join(c.cache, fmt.Sprint(n-1))); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(filepath.Join(c.cache, fmt.Sprint(n-2))); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file that container %d removed is back: %v", n-1, err)
			}
			if err := os.Remove(filepath.Join(c.cache, fmt.Sprint(n-1))); err != nil {
				t.Error(err)
			}
		}
		want += fmt.Sprintln(n)
		writeFile(t, log, want)
		writeFile(t, filepath.Join(c.cache, fmt.Sprint(n)), "")
		g.wantEnd("a-link-of-the-chain", fmt.Sprintf("promoted: generation %d, ", n))
		info := g.caches("chain")["chain"]
		if info.Layers < 1 || info.Layers > 8 || info.Layers != len(layers(t, g.store)) {
			t.Errorf("after %d generations: %+v, and %d layers on disk", n, info, len(layers(t, g.store)))
		}
	}
	g.dropAll()
	same(t, "the store after all", without(before, "caches.total"), without(storeTree(t, g.store), "caches.total"))
}

// cloudfoundry/garden-runc-release#77 ("Deleted files are listed, but inaccessible"), containers/fuse-overlayfs#136 and #306, containerd/containerd#13030:
// images with the marks of other tools in them. Decided: such an image shows what overlayfs makes of it, and the same whichever way its
// ownership is made. To find a mark would take a walk over each image at each create.
//
//   - A 0/0 character device hides its own name: it cannot be opened. In a directory that the container changed it is not listed either.
//   - trusted.overlay.opaque on a directory of the image changes nothing: nothing is below the image. The container does not see the attribute.
//   - Files named .wh.* are files.
//
// None of it gets into a cache: there a container cannot make one, and what it makes of that kind is shown as it was made (TestHostileCache).
func TestCase45MarksOfOtherTools(t *testing.T) {
	requireRoot(t)
	requireTool(t, "busybox")
	volumes := newVolumes(t)
	err := volumes.addImage("marked", false, func(root string) error {
		if err := fillBusybox(root); err != nil {
			return err
		}
		opaque := filepath.Join(root, "opaque")
		return errors.Join(
			unix.Mknod(filepath.Join(root, "hidden"), unix.S_IFCHR|0o644, 0),
			unix.Mknod(filepath.Join(root, "usr/hidden"), unix.S_IFCHR|0o644, 0),
			os.Mkdir(opaque, 0o755),
			os.WriteFile(filepath.Join(opaque, "file"), []byte("seen\n"), 0o644),
			unix.Setxattr(opaque, "trusted.overlay.opaque", []byte("y"), 0),
			os.WriteFile(filepath.Join(root, ".wh.motd"), nil, 0o644),
			os.WriteFile(filepath.Join(root, "usr/.wh..wh..opq"), nil, 0o644),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	before := imageTree(t, volumes.content("marked"))
	seen := map[string]string{}
	for _, idmap := range []string{"auto", "mount", "copy"} {
		for _, privileged := range []bool{false, true} {
			name := idmap + "/" + slotName(privileged)
			g := newGdn(t, newStore(t), string(volumes), "--idmap", idmap)
			spec, err := g.create("marked", rootfs{url: volumes.url("marked"), privileged: privileged})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			out, err := inContainer(t, spec, privileged, nil, "/bin/sh", "-c", `
				cat /opaque/file; ls -A /opaque; ls -A / | grep -v -e proc -e sys -e dev -e tmp; ls /hidden 2>&1; ls -A /usr 2>/dev/null | grep -v hidden; cat /usr/hidden 2>&1
				echo mine > /usr/mine; ls -A /usr 2>/dev/null; echo over > /hidden; cat /hidden; rm -r /opaque; mkdir /opaque; ls -A /opaque; echo end`)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
			seen[name] = out
			if out != seen["auto/unprivileged"] {
				t.Errorf("%s shows\n%s\nand auto/unprivileged\n%s", name, out, seen["auto/unprivileged"])
			}
			if err := g.destroy("marked"); err != nil {
				t.Error(err)
			}
		}
	}
	t.Log(seen["auto/unprivileged"])
	for _, want := range []string{"seen\n", ".wh.motd\n", ".wh..wh..opq\n", "ls: /hidden: No such file", "cat: can't open '/usr/hidden': No such file", "over\n", "end\n"} {
		if !strings.Contains(seen["auto/unprivileged"], want) {
			t.Errorf("not shown: %q", want)
		}
	}
	same(t, "the image", before, imageTree(t, volumes.content("marked")))
}

// containerd/continuity#244, moby/moby#38155, podman-container-tools/podman#5781, podman-container-tools/buildah#4625, canonical/lxd#2267: attributes and ACLs are lost, or
// one of them fails a copy. What containers of both kinds set in a cache, all later ones see, ids in ACLs included. (What a file system without such a
// class does is tested in volumes/internal/tree: copy_labels_test.go.)
func TestCase56AttributesInCaches(t *testing.T) {
	image := requireGit(t)
	g := newGdn(t, newStore(t), "")
	url := withCache(image, "attributes", cacheAt)
	var left string
	for n := 1; n <= 10; n++ {
		privileged := n%2 == 0
		c := g.mustCreate("attributes", url, privileged)
		out, err := inContainer(t, c.spec, privileged, nil, "/bin/sh", "-eu", "-c", fmt.Sprintf(`
			show() {
				find . ! -name .bc-cache-commit | LC_ALL=C sort | xargs getfacl -n
				find . ! -name .bc-cache-commit | LC_ALL=C sort | xargs getfattr -h -d
			}
			cd %s
			mkdir -p dir
			echo ==found
			show
			echo ==
			echo %[2]d > file-%[2]d
			setfattr -n user.number -v %[2]d file-%[2]d
			setfacl -m u:0:r,u:1000:rw,g:0:x,g:1001:rwx file-%[2]d
			setfacl -m d:u:%[2]d:rwx,u:0:rwx dir
			setfattr -n user.last -v %[2]d dir
			echo x > dir/inherits-%[2]d
			echo ==left
			show
			echo ==
			: > .bc-cache-commit`, cacheAt, n))
		if err != nil {
			t.Fatalf("container %d: %v\n%s", n, err, out)
		}
		if found := section(out, "found"); n > 1 && found != left {
			t.Errorf("container %d finds other attributes than container %d left:\n%s", n, n-1, differentLines(left, found))
		}
		left = section(out, "left")
		if !strings.Contains(left, "user:1000:rw-") || !strings.Contains(left, "user:0:r--") || !strings.Contains(left, fmt.Sprintf(`user.number="%d"`, n)) {
			t.Fatalf("container %d: nothing was tested:\n%s", n, left)
		}
		g.wantEnd("attributes", "promoted")
	}
}

// containerd/continuity#303 and #304, containerd/containerd#14164, #10457, cri-o/cri-o#3999 and #4691, containers/storage#920, podman-container-tools/podman#8005,
// concourse/concourse#6173: a flush per file is slow, a flush of the file system waits for the neighbours, and without any a power cut leaves volumes
// recorded as good whose files are empty. Decided: what was just promoted is not flushed, and not served after a reboot; layers that have
// settled are flushed, one by one, when the next one is put on them. So after a reboot the last durable generation is served.
func TestCase61FlushesAndReboots(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	url := withCache(volumes.url("busybox"), "durable", cacheAt, "always")
	promote := func(name string) (flushes []string) {
		t.Helper()
		c := g.mustCreate("flushes", url, false)
		writeFile(t, filepath.Join(c.cache, name), name)
		lines, res := trace(t, g, g.unprivileged, "delete", "flushes")
		if res.err != nil || !strings.Contains(string(res.stderr), "promoted") {
			t.Fatalf("delete: %v: %s", res.err, res.stderr)
		}
		for _, line := range lines {
			if match := systemCall.FindStringSubmatch(line); match != nil && slices.Contains([]string{"sync", "syncfs", "fsync", "fdatasync", "sync_file_range"}, match[1]) {
				flushes = append(flushes, line)
			}
		}
		return flushes
	}
	if f := promote("one"); len(f) != 0 {
		t.Errorf("the first promotion flushes: %q", f)
	}
	if f := promote("two"); len(f) != 0 {
		t.Errorf("a promotion onto a layer of just now flushes: %q", f)
	}

	// The bottom layer is an hour old now: the next promotion makes it, and nothing else, durable.
	bottom := ""
	for _, l := range layers(t, g.store) {
		if _, err := os.Lstat(filepath.Join(g.store, "layers", l, "parent")); errors.Is(err, os.ErrNotExist) {
			bottom = filepath.Join(g.store, "layers", l)
		}
	}
	record, err := os.ReadFile(filepath.Join(bottom, "layer.json"))
	if err != nil {
		t.Fatal(err)
	}
	year := time.Now().UTC().Format(`"created":"2006-`)
	if !strings.Contains(string(record), year) {
		t.Fatalf("the record of a layer is %s", record)
	}
	writeFile(t, filepath.Join(bottom, "layer.json"), strings.Replace(string(record), year, `"created":"1999-`, 1))
	flushes := promote("three")
	if len(flushes) == 0 {
		t.Error("a settled layer is not made durable")
	}
	for _, f := range flushes {
		if !strings.Contains(f, "<"+bottom) || strings.Contains(f, "sync(") && !strings.Contains(f, "fsync(") && !strings.Contains(f, "fdatasync(") {
			t.Errorf("flushes something else: %s", f)
		}
		// What was removed from a directory that is flushed is gone after a power cut, on btrfs, and the pointer to it is back.
		_, path, _ := strings.Cut(f, "<")
		path, _, _ = strings.Cut(path, ">")
		if info, err := os.Lstat(path); err != nil || info.IsDir() {
			t.Errorf("flushes a directory: %s, %v", f, err)
		}
	}

	// A reboot, for this cache: its pointer is of another boot.
	pointer := filepath.Join(g.store, "caches", imagespec.CacheID("durable"), "current")
	text, err := os.Readlink(pointer)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(text)
	fields[2] = strings.Repeat("0", len(fields[2]))
	if err := errors.Join(os.Remove(pointer), os.Symlink(strings.Join(fields, " "), pointer)); err != nil {
		t.Fatal(err)
	}
	c := g.mustCreate("after-the-reboot", url, true)
	if names := namesIn(t, c.cache); !slices.Equal(names, []string{"one"}) {
		t.Errorf("after a reboot the cache holds %q, want what was durable: one", names)
	}
	writeFile(t, filepath.Join(c.cache, "four"), "four")
	g.wantEnd("after-the-reboot", "promoted: generation 4, 2 layers")
	c = g.mustCreate("goes-on", url, false)
	if names := namesIn(t, c.cache); !slices.Equal(names, []string{"four", "one"}) {
		t.Errorf("after a reboot and a promotion the cache holds %q", names)
	}
	g.wantEnd("goes-on", "unchanged")
	if n := len(layers(t, g.store)); n != 2 {
		t.Errorf("%d layers on disk, want 2: those that did not survive are to go", n)
	}
	g.dropAll()
	noLayers(t, g)
}

// concourse/concourse#4940, moby/buildkit#1662, #2459, #7088, podman-container-tools/buildah#2602 and #3820: checks that share a cache see each other's locks
// and halves. Sixteen containers work on copies of one generation at once, with git; one of them becomes the next generation, whole.
func TestCase63ManyChecksOfOneCache(t *testing.T) {
	image := requireGit(t)
	g := newGdn(t, newStore(t), "")
	url := withCache(image, "shared", cacheAt)
	up := &upstream{t: t, dir: filepath.Join(newDir(t), "upstream.git")}
	command(t, "git", "init", "-q", "--bare", "-b", "main", up.dir)
	tree := strings.TrimSpace(command(t, "git", "-C", up.dir, "hash-object", "-w", "-t", "tree", "/dev/null"))
	first := strings.TrimSpace(command(t, "git", "-C", up.dir, "-c", "user.name=x", "-c", "user.email=x", "commit-tree", "-m", "first", tree))
	command(t, "git", "-C", up.dir, "update-ref", "refs/heads/main", first)

	const script = `
		mkdir -p ` + cacheAt + `; test "$(sort ` + cacheAt + `/log | uniq -d | wc -l)" = 0
		cp ` + cacheAt + `/log /tmp/before
		echo $HANDLE >> ` + cacheAt + `/log
	`
	c := g.mustCreate("makes-it", url, false)
	mustRun(t, c.spec, false, "echo makes-it > "+cacheAt+"/log\n"+gitCheck(t), up.mount(false))
	g.wantEnd("makes-it", "promoted: generation 1")

	// All see an upstream of root's: containers of one kind.
	want := up.commit(64)
	mount := up.mount(false)
	const count = 16
	handle := func(i int) string { return fmt.Sprintf("check-at-once-%d", i) }
	specs16 := make([]specs.Spec, count)
	if err := together(count, func(i int) error {
		var err error
		specs16[i], err = g.create(handle(i), rootfs{url: url})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if users := g.caches("shared")["shared"].Users; users != count {
		t.Errorf("cache list says %d users, want %d", users, count)
	}
	text := gitCheck(t)
	if err := together(count, func(i int) error {
		out, err := inContainer(t, specs16[i], false, []specs.Mount{mount}, "/bin/sh", "-eu", "-c", "HANDLE="+handle(i)+script+text+"\ncat /tmp/before")
		if err == nil && (!strings.Contains(out, "head "+want) || !strings.HasSuffix(out, "\nmakes-it\n")) {
			err = errors.New("saw another generation or commit")
		}
		if err != nil {
			return fmt.Errorf("%s: %w:\n%s", handle(i), err, out)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	var promoted, overtaken atomic.Int32
	if err := together(count, func(i int) error {
		switch end := g.wantEnd(handle(i), ""); {
		case strings.Contains(end, "promoted: generation 2"):
			promoted.Add(1)
		case strings.Contains(end, "dropped: overtaken"):
			overtaken.Add(1)
		default:
			return errors.New(end)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if promoted.Load() != 1 || overtaken.Load() != count-1 {
		t.Errorf("%d copies were promoted and %d overtaken, want 1 and %d", promoted.Load(), overtaken.Load(), count-1)
	}
	c = g.mustCreate("looks", url, false)
	log, err := os.ReadFile(filepath.Join(c.cache, "log"))
	if lines := strings.Fields(string(log)); err != nil || len(lines) != 2 || lines[0] != "makes-it" || !strings.HasPrefix(lines[1], "check-at-once-") {
		t.Errorf("the generation is of %q, %v, want makes-it and one other", log, err)
	}
	if out := mustRun(t, c.spec, false, "git -C "+cacheAt+"/repository fsck --full --strict; git -C "+cacheAt+"/repository rev-parse HEAD"); !strings.Contains(out, want) {
		t.Errorf("the repository is not at %s:\n%s", want, out)
	}
	g.wantEnd("looks", "not committed")
	g.dropAll()
	noLayers(t, g)
}

// concourse/concourse#2386, #2456, #2910, #2951, #366: what one team's check left is seen by another's, as caches are known by less than all that makes
// them different. Here any two keys are two caches, and no key is seen anywhere. That a key holds team, credentials, version and so on is up to
// the client, and so is whether it holds the privileged flag: containers of both kinds share the caches of a key.
func TestCase66KeysAreSeparateAndSecret(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes), "--log-level", "debug")
	const secret = "hunter2"
	keys := []string{
		"team-a\x00" + secret, "team-b\x00" + secret, "team-a\x00" + secret + "x", "team-a\x00" + secret + "\x00v1", "team-a\x00" + secret + "\x00v2",
		"a" + secret + "|bc", "ab|" + secret + "c", "a" + secret, "A" + secret, " a" + secret, "a" + secret + " ", "a" + secret + "+", "a" + secret + "%20", "a" + secret + "\n",
		"é" + secret, "e\u0301" + secret, "\xff" + secret, "../" + secret, "/" + secret, secret + "&cache=a", secret + "=", strings.Repeat(secret, 200),
	}
	quiet := func(res result) {
		t.Helper()
		if res.err != nil || strings.Contains(string(res.stdout)+string(res.stderr), secret) {
			t.Errorf("%v, or shows a key:\n%s%s", res.err, res.stdout, res.stderr)
		}
	}
	for round := range 2 {
		for i, key := range keys {
			url, err := rewrite(withCache(volumes.url("busybox"), key, cacheAt, "always"))
			if err != nil {
				t.Fatal(err)
			}
			quiet(g.call(g.slot(round == 1), "create", url, "separate"))
			copies, err := filepath.Glob(filepath.Join(g.store, "mnt/*/cache-0"))
			if err != nil || len(copies) != 1 {
				t.Fatalf("%q, %v", copies, err)
			}
			want := []string{}
			if round == 1 {
				want = []string{fmt.Sprint(i)}
			}
			if names := namesIn(t, copies[0]); !slices.Equal(names, want) {
				t.Errorf("key %q holds %q, want %q", key, names, want)
			}
			if round == 0 {
				writeFile(t, filepath.Join(copies[0], fmt.Sprint(i)), "")
			}
			quiet(g.call(g.unprivileged, "list", "--json"))
			quiet(g.call(g.unprivileged, "delete", "separate"))
		}
	}
	quiet(g.call(g.unprivileged, "cache", "list"))
	quiet(g.call(g.unprivileged, "cache", "list", "--json"))
	quiet(g.call(g.unprivileged, "doctor"))
	if n := len(g.caches(keys...)); n != len(keys) {
		t.Errorf("%d caches for %d keys", n, len(keys))
	}
	for _, key := range keys {
		if _, ok := g.caches(keys...)[key]; !ok {
			t.Errorf("no cache has the ID of key %q", key)
		}
	}
	if found := command(t, "/bin/sh", "-c", `grep -r -a -l "$0" "$1"; find "$1" -name "*$0*" -o -lname "*$0*"`, secret, g.store); found != "" {
		t.Errorf("a key is on disk: %s", found)
	}
}

// concourse/concourse#4431, #1751, #565, #4465: caches grow until the disk is full. Here all together keep to a bound, and the one that was not used
// for longest goes first, however many keys come by.
func TestCase69CachesAreBounded(t *testing.T) {
	volumes := busybox(t)
	const bound, each = 8 << 20, 128 << 10
	g := newGdn(t, newStore(t), string(volumes), "--cache-max-bytes", fmt.Sprint(bound))
	warm(t, g, volumes.url("busybox"))
	idle := diskBytes(t, g.store)
	use := func(key string, add int) (held []string) {
		t.Helper()
		c := g.mustCreate("grows", withCache(volumes.url("busybox"), key, cacheAt, "always"), false)
		held = namesIn(t, c.cache)
		if add > 0 {
			writeFile(t, filepath.Join(c.cache, fmt.Sprint(len(held))), strings.Repeat("x", add))
		}
		g.end("grows")
		return held
	}
	use("used", each)
	live := g.mustCreate("lives-long", withCache(volumes.url("busybox"), "used", cacheAt), false)
	var most int64
	for i := range 300 {
		use(fmt.Sprint(i), each)
		if i%20 == 19 {
			most = max(most, diskBytes(t, g.store)-idle)
		}
	}
	if most > bound+bound/4 {
		t.Errorf("caches took %d bytes of the disk, and %d are allowed", most, bound)
	}
	kept := len(g.caches())
	if kept < bound/each/2 || kept > bound/each {
		t.Errorf("%d caches of %d bytes are kept, of a bound of %d", kept, each, bound)
	}
	if held := use("299", 0); len(held) != 1 {
		t.Error("the cache used last was dropped")
	}
	if held := use("0", 0); len(held) != 0 {
		t.Error("the cache that was not used for longest is kept")
	}
	if info, ok := g.caches("used")["used"]; !ok || info.Users != 1 {
		t.Errorf("a cache that a container uses was dropped: %+v", info)
	}
	if names := namesIn(t, live.cache); !slices.Equal(names, []string{"0"}) {
		t.Errorf("its container sees %q", names)
	}
	g.wantEnd("lives-long", "not committed")

	// One that grows by an eighth of the bound each time: when it is too large, it begins anew.
	most = 0
	anew := 0
	for range 24 {
		if held := use("growing", bound/8); len(held) == 0 {
			anew++
		}
		most = max(most, diskBytes(t, g.store)-idle)
	}
	t.Logf("a growing cache began anew %d times, and took at most %.1f of a bound of %.1f MiB", anew, float64(most)/(1<<20), float64(bound)/(1<<20))
	if most > 2*bound || anew < 2 {
		t.Errorf("a growing cache took %d bytes of the disk and began anew %d times: %d bytes are allowed", most, anew, bound)
	}
	g.dropAll()
	noLayers(t, g)
}

// moby/buildkit#7088, containerd/containerd#2457: a copy that is made while its source is being replaced fails, or is of two sources. One
// container after the other makes a generation here, while sixteen look at theirs.
func TestCase70CopiesWhilePromoting(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	warm(t, g, volumes.url("busybox"))
	url := withCache(volumes.url("busybox"), "replaced", cacheAt)
	const files, readers = 20, 16
	generations := 60
	if serverFlags != nil {
		generations = 12 // each call to it takes a while
	}
	stamp := func(dir, text string) error {
		for i := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(text), 0o644); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(dir, ".bc-cache-commit"), nil, 0o644)
	}
	generation := func(n int) error {
		spec, err := g.create("promotes", rootfs{url: url, privileged: n%2 == 0})
		if err != nil {
			return err
		}
		if err := stamp(spec.Mounts[0].Source, fmt.Sprint(n)); err != nil {
			return err
		}
		if end := g.wantEnd("promotes", "promoted"); !strings.Contains(end, "promoted") {
			return errors.New(end)
		}
		return nil
	}
	if err := generation(0); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var copies atomic.Int32
	err := together(readers+1, func(i int) error {
		if i == readers {
			defer done.Store(true)
			for n := 1; n <= generations; n++ {
				if err := generation(n); err != nil {
					return err
				}
			}
			return nil
		}
		handle := fmt.Sprintf("copies-%d", i)
		for !done.Load() {
			spec, err := g.create(handle, rootfs{url: url, privileged: i%2 == 0})
			if err != nil {
				return err
			}
			first := ""
			for f := range files {
				text, err := os.ReadFile(filepath.Join(spec.Mounts[0].Source, fmt.Sprint(f)))
				if err != nil {
					return err
				}
				if f == 0 {
					first = string(text)
				} else if string(text) != first {
					return fmt.Errorf("a copy is of generation %s and %s", first, text)
				}
			}
			if err := g.destroy(handle); err != nil {
				return err
			}
			copies.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	info := g.caches("replaced")["replaced"]
	t.Logf("%d copies while %d generations were made; %d layers are left", copies.Load(), info.Generation, info.Layers)
	if info.Generation != uint64(generations)+1 || info.Users != 0 || info.Layers != len(layers(t, g.store)) {
		t.Errorf("%+v, and %d layers on disk", info, len(layers(t, g.store)))
	}
	g.dropAll()
	noLayers(t, g)
}

// coreos/bugs#474, moby/moby#16755, apache/incubator-pagespeed-mod#111, thoughtbot/paperclip#80: a file has at most 65,000 names on ext4, and whoever copies by
// hard links fails when they are used up. Merging layers links; a container that used up a file's names gets its cache merged by copies.
func TestCase79TooManyLinks(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, filepath.Join(loopFS(t, "ext4", 512, "-N", "200000"), "store"), string(volumes))
	url := withCache(volumes.url("busybox"), "links", cacheAt, "always")
	const names = 64998
	for n := 1; n <= 10; n++ {
		c := g.mustCreate("links", url, false)
		if n == 2 {
			writeFile(t, filepath.Join(c.cache, "0"), "")
			if err := errors.Join(os.Chmod(filepath.Join(c.cache, "0"), 0o604), os.Chtimes(filepath.Join(c.cache, "0"), time.Unix(1, 2), time.Unix(3, 4))); err != nil {
				t.Fatal(err)
			}
			for i := 1; i < names; i++ {
				if err := os.Link(filepath.Join(c.cache, "0"), filepath.Join(c.cache, fmt.Sprint(i))); err != nil {
					t.Fatal(err)
				}
			}
		}
		writeFile(t, filepath.Join(c.cache, "generation"), fmt.Sprint(n))
		end := g.wantEnd("links", fmt.Sprintf("promoted: generation %d", n))
		if strings.Contains(end, "merged") {
			t.Log(end)
		}
	}
	c := g.mustCreate("looks", url, false)
	if got := len(namesIn(t, c.cache)); got != names+1 {
		t.Errorf("%d names, want %d", got, names+1)
	}
	for _, name := range []string{"0", "1", "500", fmt.Sprint(names - 1)} {
		var st syscall.Stat_t
		if err := syscall.Lstat(filepath.Join(c.cache, name), &st); err != nil || st.Mode&0o7777 != 0o604 || st.Mtim != (syscall.Timespec{Sec: 3, Nsec: 4}) {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
	if info := g.caches("links")["links"]; info.Generation != 10 || info.Layers > 8 {
		t.Errorf("%+v", info)
	}
	g.end("looks")
	g.dropAll()
	noLayers(t, g)
}
