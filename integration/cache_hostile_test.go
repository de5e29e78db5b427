package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manifest is a shell function that writes down all that a container can see of its cache: types, modes, owners, sizes, times, targets, contents,
// attributes. A directory's size and the marker, which no generation has, are left out; so is a tree too deep for path names.
const manifest = `
manifest() {
	cd ` + cacheAt + `
	find . -mindepth 1 ! -name .bc-cache-commit -path ./deep -prune -o \
		-mindepth 1 ! -name .bc-cache-commit -type d -printf '%p %y %m %U:%G %T@\n' -o \
		-mindepth 1 ! -name .bc-cache-commit -printf '%p %y %m %U:%G %s %T@ %l\n' | LC_ALL=C sort
	find . -path ./deep -prune -o -type f ! -name .bc-cache-commit -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum
	find . -path ./deep -prune -o -print0 | LC_ALL=C sort -z | xargs -0 getfattr -h -d -m - -- 2>/dev/null || true
	cd /
}
`

// hostileFirst is what the first container leaves. $OUTSIDE is a directory of the host.
const hostileFirst = `
cd ` + cacheAt + `
ln -s "$OUTSIDE" to-outside
ln -s "$OUTSIDE/file" to-outside-file
ln -s /etc/shadow to-shadow
ln -s ../../../../../../.. to-above
ln -s /proc/self/root to-root
ln -s /proc/self/fd/0 to-fd
ln -s . to-itself
ln -s "$(printf '%4095s' '' | tr ' ' x)" to-nowhere 2>/dev/null || ln -s nowhere to-nowhere
mkdir -p hard/a hard/b
echo linked > hard/a/one
ln hard/a/one hard/b/two
ln hard/a/one three
mkfifo fifo
perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) && bind(S, sockaddr_un("socket")) or die'
mknod whiteout c 0 0 2>/dev/null && echo "whiteout made" || echo "whiteout refused"
mknod null c 1 3 2>/dev/null && echo "device made" || echo "device refused"
mknod zero b 0 0 2>/dev/null && echo "block device made" || echo "block device refused"
cp /usr/bin/id setuid
chmod 6755 setuid
mkdir attributes attributes-file
: > attributes-file/zero
setfattr -n user.overlay.opaque -v y attributes
setfattr -n user.overlay.redirect -v /etc attributes
setfattr -n user.overlay.whiteout -v y attributes-file/zero
setfattr -n trusted.overlay.opaque -v y attributes 2>/dev/null && echo "trusted made" || echo "trusted refused"
echo seen > attributes/below
: > .wh.to-outside
: > .wh..wh..opq
: > "$(printf 'bytes-\377\n')"
mkdir closed
echo x > closed/x
chmod 0 closed/x closed
chown 1000:1001 closed
perl -e 'mkdir "deep"; chdir "deep"; for (1 .. 4999) { mkdir "d" or die; chdir "d" or die } open F, ">bottom" or die'
cd /
`

// hostileChange makes things into others, so that what one layer has as a symlink is a directory in the next, and the other way round.
const hostileChange = `
cd ` + cacheAt + `
echo $N >> log
rm -rf swap other item-* opaque
if [ $((N % 2)) = 0 ]; then
	mkdir -p swap/sub
	echo $N > swap/file
	echo $N > swap/sub/file
	ln -s "$OUTSIDE" other
else
	ln -s "$OUTSIDE" swap
	mkdir -p other/sub
	echo $N > other/file
fi
mkdir opaque
echo $N > opaque/$N
case $((N % 3)) in
0) rm -rf kind; echo file > kind ;;
1) rm -rf kind; mkdir -p kind/dir; echo $N > kind/dir/file ;;
2) rm -rf kind; mkfifo kind ;;
esac
echo $N > item-$N
touch -h -d "2001-01-0$((N % 9 + 1)) 00:00:00.123456789" item-$N kind
cd /
`

// TestHostileCache has real containers leave in a cache whatever might lead the plugin astray when it promotes, merges and deletes. What the one
// left is exactly what the next one sees, in eleven generations with merges between them, and nothing outside is touched.
func TestHostileCache(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		t.Run(slotName(privileged), func(t *testing.T) {
			image := requireGit(t)
			outside := filepath.Join(newDir(t), "outside")
			if err := os.MkdirAll(filepath.Join(outside, "sub"), 0o777); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"file", "sub/file"} {
				writeFile(t, filepath.Join(outside, name), "of the host")
			}
			outsideBefore, imageBefore := imageTree(t, outside), imageTree(t, strings.TrimPrefix(image, "file://"))
			g := newGdn(t, newStore(t), "")
			url := withCache(image, "hostile", cacheAt)
			before := warm(t, g, image)
			mounts := mountCount(t, g.store)
			setup := "OUTSIDE=" + outside + "\n" + manifest

			var left string
			merged := false
			for n := 1; n <= 11; n++ {
				handle := fmt.Sprintf("hostile-%d", n)
				c := g.mustCreate(handle, url, privileged)
				script := setup + fmt.Sprintf("N=%d\n", n) + "echo ==found; manifest; echo ==\n"
				if n == 1 {
					script += hostileFirst
				} else {
					script += `test ` + cacheAt + `/three -ef ` + cacheAt + `/hard/b/two
						test "$(stat -c %h ` + cacheAt + `/three)" = 3
						test "$(cd ` + cacheAt + `; find deep -type d | wc -l)" = 5000
						test "$(cd ` + cacheAt + `; find deep -name bottom | wc -l)" = 1
						test "$(getfattr --only-values -n user.overlay.whiteout ` + cacheAt + `/attributes-file/zero)" = y
						test "$(cat ` + cacheAt + `/attributes/below)" = seen
						test ! -e ` + cacheAt + `/.bc-cache-commit
						if test -e ` + cacheAt + `/null && cat ` + cacheAt + `/null 2>/dev/null; then echo "a device of the cache works"; exit 1; fi
						cp /usr/bin/setpriv /tmp/setpriv
						echo "setuid gives $(/tmp/setpriv --reuid 1000 --regid 1000 --clear-groups ` + cacheAt + `/setuid -u), ruid 1000"
						`
				}
				script += hostileChange + "echo ==left; manifest; echo ==\n: > " + cacheAt + "/.bc-cache-commit\n"
				out, err := inContainer(t, c.spec, privileged, nil, "/bin/bash", "-eu", "-c", script)
				if err != nil {
					t.Fatalf("container %d: %v\n%s", n, err, shorten(out))
				}
				found := section(out, "found")
				if n > 1 {
					if found != left {
						t.Errorf("container %d finds another tree than container %d left:\n%s", n, n-1, differentLines(left, found))
					}
					if !strings.Contains(out, "setuid gives 1000, ruid 1000") {
						t.Errorf("container %d: a setuid program of the cache is honoured:\n%s", n, shorten(out))
					}
				} else {
					t.Log(strings.TrimSpace(out[strings.Index(out, "==\n")+3 : strings.Index(out, "==left")]))
				}
				left = section(out, "left")
				merged = strings.Contains(g.wantEnd(handle, fmt.Sprintf("promoted: generation %d", n)), "merged") || merged
				// Not clean(), which cannot walk a tree this deep.
				if left := live(t, g.store); len(left) != 0 || mountCount(t, g.store) != mounts {
					t.Errorf("container %d is deleted, and there are the live %q and %d mounts", n, left, mountCount(t, g.store))
				}
			}
			if !merged {
				t.Error("no layers were merged: this test shows less than it should")
			}
			same(t, "what is outside", outsideBefore, imageTree(t, outside))
			same(t, "the image", imageBefore, imageTree(t, strings.TrimPrefix(image, "file://")))
			g.dropAll()
			same(t, "the store after all", without(before, "caches.total"), without(storeTree(t, g.store), "caches.total"))
		})
	}
}

// TestMarkerOfAnotherKind: only a regular file commits. Whatever else bears the marker's name gets into no generation either.
func TestMarkerOfAnotherKind(t *testing.T) {
	volumes := busybox(t)
	for _, privileged := range []bool{false, true} {
		for kind, make := range map[string]string{
			"directory": "mkdir -p .bc-cache-commit/sub; echo x > .bc-cache-commit/sub/file; ln -s /etc .bc-cache-commit/etc",
			"symlink":   "ln -s /etc/passwd .bc-cache-commit",
			"dangling":  "ln -s nowhere .bc-cache-commit",
			"fifo":      "mkfifo .bc-cache-commit",
		} {
			t.Run(kind+"/"+slotName(privileged), func(t *testing.T) {
				g := newGdn(t, newStore(t), string(volumes))
				on, always := withCache(volumes.url("busybox"), "k", cacheAt), withCache(volumes.url("busybox"), "k", cacheAt, "always")
				c := g.mustCreate("marks-wrongly", on, privileged)
				mustRun(t, c.spec, privileged, "cd "+cacheAt+"; echo one > data; "+make)
				g.wantEnd("marks-wrongly", "dropped: not committed: .bc-cache-commit is no regular file")
				c = g.mustCreate("marks-anyway", always, privileged)
				mustRun(t, c.spec, privileged, "cd "+cacheAt+"; test -z \"$(ls -A)\"; echo two > data; "+make)
				g.wantEnd("marks-anyway", "promoted: generation 1")
				c = g.mustCreate("looks", on, privileged)
				mustRun(t, c.spec, privileged, "cd "+cacheAt+`; test "$(ls -A)" = data; test "$(cat data)" = two`)
				g.wantEnd("looks", "not committed")
				g.dropAll()
				noLayers(t, g)
			})
		}
	}
}

// TestCachePathsThroughSymlinks: where a cache is mounted is found inside the image, by the plugin that makes the directory and by runc that mounts
// on it, also if the image has a symlink there that would lead somewhere on the host. Two caches in one container are two.
func TestCachePathsThroughSymlinks(t *testing.T) {
	requireRoot(t)
	requireTool(t, "busybox")
	outside := newDir(t)
	volumes := newVolumes(t)
	err := volumes.addImage("links", false, func(root string) error {
		inside := filepath.Join(root, outside) // the container has a directory of the same name
		return errors.Join(
			fillBusybox(root),
			os.MkdirAll(inside, 0o755),
			os.Symlink(outside, filepath.Join(root, "absolute")),
			os.Symlink("../../../../.."+outside, filepath.Join(root, "etc/climbing")),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	before := imageTree(t, outside)
	for _, privileged := range []bool{false, true} {
		g := newGdn(t, newStore(t), string(volumes))
		url := withCache(withCache(volumes.url("links"), "one", "/absolute/one"), "two", "/etc/climbing/two")
		const handle = "through-symlinks"
		for round := range 2 {
			c := g.mustCreate(handle, url, privileged)
			if len(c.spec.Mounts) != 2 {
				t.Fatalf("mounts: %+v", c.spec.Mounts)
			}
			mustRun(t, c.spec, privileged, fmt.Sprintf(`
				cd %s
				test "$(ls -A one two | tr '\n' ' ')" = "%s"
				echo 1 > /absolute/one/first; echo 2 > /etc/climbing/two/second
				test "$(cat one/first two/second | tr '\n' ' ')" = "1 2 "
				grep -q " $(pwd)/one .*nosuid,nodev" /proc/self/mountinfo
				: > one/.bc-cache-commit; : > two/.bc-cache-commit`, outside, []string{"one:  two: ", "one: first  two: second "}[round]))
			if ends := g.end(handle); len(ends) != 2 || !strings.Contains(ends[0], "promoted") || !strings.Contains(ends[1], "promoted") {
				t.Errorf("%q, want both promoted", ends)
			}
		}
		if n := len(g.caches("one", "two")); n != 2 {
			t.Errorf("%d caches, want 2", n)
		}
	}
	same(t, "the directory of the host", before, imageTree(t, outside))
}

// section is what a script wrote between "==name" and "==".
func section(out, name string) string {
	_, after, _ := strings.Cut(out, "=="+name+"\n")
	text, _, _ := strings.Cut(after, "==\n")
	return text
}

// differentLines lists the lines that only one of two texts has, a few of them.
func differentLines(before, after string) string {
	count := map[string]int{}
	for line := range strings.Lines(before) {
		count[line]--
	}
	for line := range strings.Lines(after) {
		count[line]++
	}
	var b strings.Builder
	for line, n := range count {
		if n < 0 {
			b.WriteString("  lost " + shorten(line) + "\n")
		} else if n > 0 {
			b.WriteString("  got  " + shorten(line) + "\n")
		}
		if b.Len() > 4000 {
			break
		}
	}
	return b.String()
}

func shorten(s string) string {
	const most = 3000
	if len(s) > most {
		return "… " + s[len(s)-most:]
	}
	return s
}
