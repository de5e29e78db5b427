package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// gitDemo is a git resource's check with a cache: real git, in real containers, on an upstream of 200 MB that gains commits.
type gitDemo struct {
	demo
	image, upstream, scripts string
}

// cacheAt is where the check's container finds its cache.
const cacheAt = "/var/cache/check"

// run clones in check 1 and fetches in checks 2 … 4, each in a fresh container of its own, and drops the cache at the end.
func (d gitDemo) run() error {
	upstream := filepath.Join(d.work, "upstream.git")
	if out, err := exec.Command("cp", "-a", "--reflink=auto", d.upstream, upstream).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the upstream: %w: %s", err, out)
	}
	// Whose repository it is matters to git at both ends. An unprivileged container's root is this id.
	if err := os.Chown(upstream, maxID, maxID); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(d.scripts, "git-check.sh"))
	if err != nil {
		return err
	}
	script := "export CACHE=" + cacheAt + "\n" + string(text)

	// The key is the client's: team and whole configuration, with its secrets. Only its hash is seen anywhere.
	image := "file://" + d.image + "?cache=team%00uri%00secret&cache-path=" + cacheAt
	fmt.Printf("   rootfs URL: %s\n\n", image)
	fmt.Println("   check        received     create      check     delete  generation  layers  disk of the store")
	var first int64
	for check := 1; check <= 4; check++ {
		if check > 1 {
			commit := exec.Command(filepath.Join(d.scripts, "git-upstream.sh"), "commit", upstream, strconv.Itoa(check), "64")
			if out, err := commit.CombinedOutput(); err != nil {
				return fmt.Errorf("commit to the upstream: %w: %s", err, out)
			}
		}
		received, err := d.check(check, image, script, upstream)
		if err != nil {
			return fmt.Errorf("check %d: %w", check, err)
		}
		if check == 1 {
			first = received
		} else if received*100 > first {
			return fmt.Errorf("check %d received %d bytes, more than 1%% of what check 1 did", check, received)
		}
	}
	fmt.Println()
	list, err := d.cacheList()
	if err != nil {
		return err
	}
	out, err := d.call("cache", "list")
	if err != nil {
		return err
	}
	fmt.Print(indent(out))
	_, err = d.call("cache", "drop", list.ID)
	return err
}

// check is one container's whole life, and a line of the table.
func (d gitDemo) check(n int, image, script, upstream string) (received int64, err error) {
	handle := fmt.Sprintf("demo-git-%d", n)
	defer func() {
		if err != nil {
			_, _, derr := d.timed("delete", handle)
			err = errors.Join(err, derr)
		}
	}()
	out, create, err := d.timed("create", image, handle)
	if err != nil {
		return 0, err
	}
	var spec specs.Spec
	if err := json.Unmarshal([]byte(out), &spec); err != nil {
		return 0, err
	}
	start := time.Now()
	out, err = d.runc(spec, script, specs.Mount{Destination: "/upstream", Type: "bind", Source: upstream, Options: []string{"rbind", "ro"}})
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	match := regexp.MustCompile(`(?m)^received (\d+)$`).FindStringSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("it did not say what it received: %s", out)
	}
	if received, err = strconv.ParseInt(match[1], 10, 64); err != nil {
		return 0, err
	}
	_, remove, err := d.timed("delete", handle)
	if err != nil {
		return 0, err
	}
	info, err := d.cacheList()
	if err != nil {
		return 0, err
	}
	used, err := exec.Command("du", "-sm", d.layers()).Output()
	if err != nil {
		return 0, err
	}
	mib, _, _ := strings.Cut(string(used), "\t")
	fmt.Printf("   %5d %9d bytes  %6d ms  %6d ms  %6d ms  %10d  %6d  %13s MiB\n",
		n, received, create.Milliseconds(), took.Milliseconds(), remove.Milliseconds(), info.Generation, info.Layers, mib)
	return received, nil
}

// timed runs the plugin and shows nothing of it.
func (d gitDemo) timed(args ...string) (string, time.Duration, error) {
	start := time.Now()
	out, err := exec.Command(d.plugin, d.flags("lager", append([]string{"--log-level", "error"}, args...))...).Output()
	took := time.Since(start)
	if err != nil {
		return "", took, fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return string(out), took, nil
}

// cacheInfo is what `cache list --json` says of the one cache there is.
type cacheInfo struct {
	ID         string `json:"id"`
	Generation int    `json:"generation"`
	Layers     int    `json:"layers"`
}

func (d gitDemo) cacheList() (cacheInfo, error) {
	out, _, err := d.timed("cache", "list", "--json")
	if err != nil {
		return cacheInfo{}, err
	}
	var list []cacheInfo
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return cacheInfo{}, err
	}
	if len(list) != 1 {
		return cacheInfo{}, fmt.Errorf("%d caches, want 1: %s", len(list), out)
	}
	return list[0], nil
}
