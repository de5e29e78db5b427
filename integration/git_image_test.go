package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// gitImage is a Debian with git in it, and the repository that all upstreams begin as. Both are made once per machine.
var gitImage = sync.OnceValues(func() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	image := filepath.Join(cache, "debian-git")
	if out, err := exec.Command("./debian-rootfs.sh", image, "git,ca-certificates,attr,acl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("debian-rootfs.sh: %w\n%s", err, out)
	}
	if out, err := exec.Command("testdata/git-upstream.sh", "make", filepath.Join(cache, "git-upstream")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("git-upstream.sh: %w\n%s", err, out)
	}
	return "file://" + image, nil
})

func requireGit(t *testing.T) (image string) {
	t.Helper()
	requireRoot(t)
	requireTool(t, "debootstrap", "apt-get", "git", "runc", "perl")
	image, err := gitImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// upstream is a repository that gains commits.
type upstream struct {
	t       *testing.T
	dir     string
	commits int
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{t: t, dir: filepath.Join(newDir(t), "upstream.git")}
	command(t, "cp", "-a", "--reflink=auto", filepath.Join(cache, "git-upstream"), u.dir)
	return u
}

// commit adds a commit and returns its name.
func (u *upstream) commit(kib int) string {
	u.t.Helper()
	u.commits++
	return strings.TrimSpace(command(u.t, "testdata/git-upstream.sh", "commit", u.dir, strconv.Itoa(u.commits), strconv.Itoa(kib)))
}

// mount shows the repository to a container. git refuses a repository of somebody else's, whichever end it is at: so it is given to the
// container's root. (How upstreams come to real checks, over the network, this question does not arise.)
func (u *upstream) mount(privileged bool) specs.Mount {
	u.t.Helper()
	owner := guardianRoot
	if privileged {
		owner = 0
	}
	if err := os.Chown(u.dir, owner, owner); err != nil {
		u.t.Fatal(err)
	}
	return specs.Mount{Destination: "/upstream", Type: "bind", Source: u.dir, Options: []string{"rbind", "ro"}}
}

// gitCheck is the script of a check, with variables for it.
func gitCheck(t *testing.T, variables ...string) string {
	t.Helper()
	script, err := os.ReadFile("testdata/git-check.sh")
	if err != nil {
		t.Fatal(err)
	}
	return "export CACHE=" + cacheAt + " " + strings.Join(variables, " ") + "\n" + string(script)
}

// checkResult is what a check printed.
type checkResult struct {
	received int64 // bytes, all that the server sent
	head     string
}

var checkLines = regexp.MustCompile(`(?m)^received (\d+)\nhead ([0-9a-f]{40})$`)

func parseCheck(out string) (checkResult, error) {
	match := checkLines.FindStringSubmatch(out)
	if match == nil {
		return checkResult{}, errors.New("the check did not say what it received")
	}
	received, err := strconv.ParseInt(match[1], 10, 64)
	return checkResult{received, match[2]}, err
}
