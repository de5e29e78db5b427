package inspect

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NeedRoot skips a test that needs root's rights. See Cannot.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Cannot(t, "needs root")
	}
}

// NeedTool skips a test that runs a program which is not there. See Cannot.
func NeedTool(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			Cannot(t, "needs the program "+name)
		}
	}
}

// Cannot skips a test that this host cannot run, or fails where skipping would hide that nothing was tested.
func Cannot(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("BC_TEST_REQUIRE_ROOT") == "1" {
		t.Fatalf("%s, and BC_TEST_REQUIRE_ROOT=1 forbids skipping", why)
	}
	t.Skip(why)
}

// Mounts are the mount points at dir and below it, in the order in which they were made.
func Mounts(t testing.TB, dir string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// mountinfo's escapes: fs/seq_file.c, mangle_path.
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")
	var all []string
	for line := range strings.Lines(string(b)) {
		if p := unescape.Replace(strings.Split(line, " ")[4]); p == dir || strings.HasPrefix(p, dir+"/") {
			all = append(all, p)
		}
	}
	return all
}

// Unmount takes the last mount off dir. A program that another test is about to start holds that test's open files, and this one's, until
// the kernel executes it, so a mount can be busy for a moment without anybody using it.
func Unmount(t testing.TB, dir string) {
	t.Helper()
	for range 1000 {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("umount %q: %v", dir, err)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("umount %q: it stays busy", dir)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Errorf("umount -l %q: %v", dir, err)
	}
}

// Command runs a program that must succeed.
func Command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// NewDir is an empty directory that everybody can reach, also an unprivileged container's root.
func NewDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
