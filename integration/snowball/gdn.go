package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// gdn calls the plugin with the arguments and in the order of Guardian's imageplugin package, as the double of package integration does.
type gdn struct {
	plugin string
	flags  []string // --image-plugin-extra-arg of both slots
}

// how is what goes wrong around one call. The zero value: nothing.
type how struct {
	killAfter time.Duration // SIGKILL, if not 0
	unread    bool          // nobody reads stdout any more
	timeout   time.Duration // the plugin's own --timeout, if not 0
}

// errKilled is a call that ended by our kill.
var errKilled = errors.New("the plugin was killed")

// hangs is longer than any call may take: its own --timeout is 30 s, and 2 s to undo.
const hangs = 2 * time.Minute

// call runs the plugin once and returns its stdout. An error is one of a command that failed by the contract (exit 1 or 2 and one sentence), or errKilled; a
// failure in any other way is a bug, an error of type broken.
func (g *gdn) call(privileged bool, h how, args ...string) ([]byte, error) {
	all := append([]string{"--log-level", "error"}, g.flags...)
	if h.timeout != 0 {
		all = append(all, "--timeout", h.timeout.String())
	}
	if privileged {
		all = append(all, "--privileged")
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.plugin, append(all, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stdout, stderr bytes.Buffer
	cmd.Stderr = &stderr
	if h.unread {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer w.Close()
		if err := r.Close(); err != nil {
			return nil, err
		}
		cmd.Stdout = w
	} else {
		cmd.Stdout = &stdout
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if h.killAfter != 0 {
		kill := time.AfterFunc(h.killAfter, func() { _ = cmd.Process.Kill() }) // it may be done already
		defer kill.Stop()
	}
	err := cmd.Wait()
	switch code := cmd.ProcessState.ExitCode(); {
	case ctx.Err() != nil:
		return nil, broken{fmt.Errorf("%q did not end within %s", args, hangs)}
	case code == -1 && h.killAfter != 0:
		return nil, errKilled
	case err == nil:
		return stdout.Bytes(), nil
	case code != 1 && code != 2:
		return nil, broken{fmt.Errorf("%q: %w: %s", args, err, stderr.String())}
	}
	sentence := strings.TrimSuffix(stdout.String(), "\n")
	if !h.unread && (sentence == "" || strings.Contains(sentence, "\n")) && args[0] != "gc" {
		return nil, broken{fmt.Errorf("%q failed without one sentence on stdout: %q", args, stdout.String())}
	}
	return stdout.Bytes(), fmt.Errorf("%s: %w", sentence, err)
}

// broken is what the plugin must never do.
type broken struct{ error }

// create asks for a root file system, as the creation of a container does.
func (g *gdn) create(privileged bool, h how, handle, image string, args ...string) (specs.Spec, error) {
	var spec specs.Spec
	out, err := g.call(privileged, h, append(append([]string{"create"}, args...), image, handle)...)
	if err != nil {
		return spec, err
	}
	if h.unread {
		return spec, broken{fmt.Errorf("create %s could not print and exits 0", handle)}
	}
	if err := json.Unmarshal(out, &spec); err != nil || spec.Root == nil || len(spec.Mounts) != 1 {
		return spec, broken{fmt.Errorf("create %s printed %q: %v", handle, out, err)}
	}
	return spec, nil
}

// destroy asks both slots to delete, the unprivileged one first, as each destroyed container and each failed create does.
func (g *gdn) destroy(handle string) error {
	for _, privileged := range []bool{false, true} {
		if _, err := g.call(privileged, how{}, "delete", handle); err != nil {
			return broken{fmt.Errorf("destroy %s: %w", handle, err)}
		}
	}
	return nil
}
