package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// gdn is a double of Garden's server: it calls the plugin with the arguments, the surroundings and the order of calls that
// Guardian's imageplugin package uses, decodes what comes back by its rules, and fails the test on whatever the real one could
// not digest. Its methods may be called from several goroutines.
type gdn struct {
	t testing.TB

	// What the operator configured for the two slots: --image-plugin-extra-arg and --privileged-image-plugin-extra-arg.
	unprivileged, privileged []string

	store  string   // where the tests look at the disk; the server itself does not know it
	prefix []string // a command to run the plugin under, such as strace
	env    []string // besides our own
}

// serverFlags are added to those of every plugin while tests run on a BaggageClaim server.
var serverFlags []string

// newGdn is a server with both slots on one store. extra are global flags for both.
func newGdn(t testing.TB, store, volumes string, extra ...string) *gdn {
	args := []string{"--store", store}
	if volumes != "" {
		args = append(args, "--baggageclaim-volumes", volumes)
	}
	args = append(append(args, serverFlags...), extra...)
	g := &gdn{t: t, store: store, unprivileged: args, privileged: append(slices.Clone(args), "--privileged")}
	t.Cleanup(g.sound) // live containers may be left, and nothing else
	return g
}

// under is the same server, with the plugin run by another command.
func (g *gdn) under(prefix ...string) *gdn {
	other := *g
	other.prefix = append(slices.Clone(prefix), g.prefix...)
	return &other
}

// slot is the configuration of one of the two slots.
func (g *gdn) slot(privileged bool) []string {
	if privileged {
		return g.privileged
	}
	return g.unprivileged
}

// rootfs is what a Garden client asks for, as far as it reaches an image plugin.
type rootfs struct {
	url                string
	privileged         bool
	limitBytes         uint64
	exclusive          bool // the limit does not count the image
	username, password string
}

// create is what a container's creation asks of the plugin. As in Guardian it does not clean up: see destroy.
func (g *gdn) create(handle string, r rootfs) (specs.Spec, error) {
	args := []string{"create"}
	if r.limitBytes != 0 {
		args = append(args, "--disk-limit-size-bytes", strconv.FormatUint(r.limitBytes, 10))
		if r.exclusive {
			args = append(args, "--exclude-image-from-quota")
		}
	}
	if r.username != "" {
		args = append(args, "--username", r.username)
	}
	if r.password != "" {
		args = append(args, "--password", r.password)
	}
	image, err := rewrite(r.url)
	if err != nil {
		return specs.Spec{}, err
	}

	res := g.call(g.slot(r.privileged), append(args, image, handle)...)
	if r.password != "" && (bytes.Contains(res.stdout, []byte(r.password)) || bytes.Contains(res.stderr, []byte(r.password))) {
		g.t.Errorf("create printed the password:\n%s%s", res.stdout, res.stderr)
	}
	if res.err != nil {
		return specs.Spec{}, fmt.Errorf("running image plugin create: %s: %w", res.stdout, res.err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(res.stdout, &spec); err != nil {
		return specs.Spec{}, fmt.Errorf("parsing image plugin create: %s: %w", res.stdout, err)
	}
	g.checkSpec(spec)
	return spec, nil
}

// rewrite does to a client's rootfs URL what gdn does before the plugin sees it.
func rewrite(clientURL string) (string, error) {
	u, err := url.Parse(clientURL)
	if err != nil {
		return "", fmt.Errorf("gdn refuses the rootfs URL before it asks us: %w", err)
	}
	return strings.Replace(u.String(), "#", ":", 1), nil
}

// checkSpec refuses what the server or runc would stumble over later.
func (g *gdn) checkSpec(spec specs.Spec) {
	if spec.Root == nil || !filepath.IsAbs(spec.Root.Path) {
		g.t.Errorf("create answered without an absolute root.path: %+v", spec)
		return
	}
	for _, m := range spec.Mounts {
		if filepath.Clean(m.Destination) == "/" {
			g.t.Errorf("create asks for a mount on /, which newer runc refuses: %+v", m)
		}
	}
	// Under a prefix the plugin may be in a mount namespace of its own.
	if len(g.prefix) == 0 {
		if _, err := os.Stat(spec.Root.Path); err != nil {
			g.t.Errorf("create answered with a root that is not there: %v", err)
		}
	}
}

// destroy is what every destroyed container and every failed create asks of the plugin: delete of both slots, the unprivileged
// one first, whichever made the image. The second is not asked when the first fails.
func (g *gdn) destroy(handle string) error {
	for _, slot := range [][]string{g.unprivileged, g.privileged} {
		if res := g.call(slot, "delete", handle); res.err != nil {
			return fmt.Errorf("running image plugin destroy: %s: %w", res.stdout, res.err)
		}
	}
	return nil
}

// usage is the part of a container's metrics that the plugin gives.
type usage struct{ totalBytes, exclusiveBytes uint64 }

// stats asks the unprivileged slot, and the privileged one only if that fails.
func (g *gdn) stats(handle string) (usage, error) {
	var failed error
	for _, slot := range [][]string{g.unprivileged, g.privileged} {
		res := g.call(slot, "stats", handle)
		if res.err != nil {
			failed = fmt.Errorf("running image plugin metrics: %s: %w", res.stdout, res.err)
			continue
		}
		var answer map[string]map[string]uint64
		if err := json.NewDecoder(bytes.NewReader(res.stdout)).Decode(&answer); err != nil {
			return usage{}, fmt.Errorf("parsing stats: %s: %w", res.stdout, err)
		}
		disk := answer["disk_usage"]
		for _, field := range []string{"total_bytes_used", "exclusive_bytes_used"} {
			if _, ok := disk[field]; !ok {
				g.t.Errorf("stats answered without disk_usage.%s: %s", field, res.stdout)
			}
		}
		return usage{totalBytes: disk["total_bytes_used"], exclusiveBytes: disk["exclusive_bytes_used"]}, nil
	}
	return usage{}, failed
}

// capacity asks the unprivileged slot only.
func (g *gdn) capacity() (uint64, error) {
	res := g.call(g.unprivileged, "capacity")
	if res.err != nil {
		return 0, fmt.Errorf("running image plugin capacity: %s: %w", res.stdout, res.err)
	}
	var answer map[string]uint64
	if err := json.NewDecoder(bytes.NewReader(res.stdout)).Decode(&answer); err != nil {
		return 0, fmt.Errorf("parsing capacity: %s: %w", res.stdout, err)
	}
	bytes, ok := answer["capacity"]
	if !ok {
		g.t.Errorf("capacity answered without capacity: %s", res.stdout)
	}
	return bytes, nil
}

// result is what one run of the plugin left.
type result struct {
	stdout, stderr []byte
	records        []record // stderr, decoded
	err            error    // nil, or an *exec.ExitError
	took           time.Duration
}

// code is the exit code; -1 when a signal ended the plugin.
func (r result) code() int {
	var exit *exec.ExitError
	if errors.As(r.err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// hangs is longer than any call in these tests may take. The real server would wait for ever.
const hangs = 2 * time.Minute

// call runs the plugin once: stdin /dev/null, stdout and stderr pipes of our own, its own process group, our environment and
// directory. It returns when the plugin has exited AND nobody holds the pipes, like the server.
func (g *gdn) call(slot []string, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	cmd := g.command(ctx, slot, args...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	lines, wait, err := stderrWrites(cmd)
	if err != nil {
		g.t.Errorf("making a pipe for stderr: %v", err)
		return result{err: err}
	}

	start := time.Now()
	err = cmd.Start()
	lines.Close()
	if err == nil {
		err = cmd.Wait()
	}
	res := result{stdout: stdout.Bytes(), err: err, took: time.Since(start)}
	res.stderr, res.records = wait(g.t, args)
	if ctx.Err() != nil {
		g.t.Errorf("%q did not end within %s", args, hangs)
	}
	g.checkFailure(args, res)
	return res
}

// command is the plugin as a process of the server, not yet started.
func (g *gdn) command(ctx context.Context, slot []string, args ...string) *exec.Cmd {
	argv := slices.Concat(g.prefix, []string{binary}, slot, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), g.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// checkFailure holds a failed call to the contract: exit 1 or 2, and on stdout one sentence, which is all a client sees.
func (g *gdn) checkFailure(args []string, res result) {
	code := res.code()
	if res.err == nil || code == -1 {
		return
	}
	if code != 1 && code != 2 {
		g.t.Errorf("%q: exit %d, want 1 or 2: %v", args, code, res.err)
	}
	sentence, ok := strings.CutSuffix(string(res.stdout), "\n")
	if !ok || sentence == "" || strings.Contains(sentence, "\n") {
		g.t.Errorf("%q failed, stdout is not one sentence on one line: %q", args, res.stdout)
	}
}
