package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var containers atomic.Int64

// inContainer runs a program in a container that runc starts from what create printed, put together as Guardian does: our
// root, our env before the client's, our mounts before all others, and for an unprivileged container the user namespace whose
// root is the host's highest id. extra mounts stand for the client's. It returns what the program wrote.
func inContainer(t *testing.T, spec specs.Spec, privileged bool, extra []specs.Mount, argv ...string) (string, error) {
	t.Helper()
	requireTool(t, "runc")
	bundle := newDir(t)
	config, err := json.Marshal(bundleConfig(t, spec, privileged, extra, argv))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("bcip-%d-%d", os.Getpid(), containers.Add(1))
	runc := []string{"--root", filepath.Join(bundle, "state")}
	t.Cleanup(func() { // after a failure it may still be there; runc run removes it otherwise
		exec.Command("runc", append(runc, "delete", "--force", id)...).Run()
	})
	out, err := exec.Command("runc", append(runc, "run", "--bundle", bundle, id)...).CombinedOutput()
	return string(out), err
}

// mustRun is inContainer for a shell script that has to succeed.
func mustRun(t *testing.T, spec specs.Spec, privileged bool, script string, extra ...specs.Mount) string {
	t.Helper()
	out, err := inContainer(t, spec, privileged, extra, "/bin/sh", "-eu", "-c", script)
	if err != nil {
		t.Fatalf("in the container: %v\n%s", err, out)
	}
	return out
}

func bundleConfig(t *testing.T, spec specs.Spec, privileged bool, extra []specs.Mount, argv []string) *specs.Spec {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if spec.Process != nil {
		env = append(env, spec.Process.Env...)
	}
	capabilities := containerCapabilities(t)
	config := &specs.Spec{
		Version:  "1.0.2",
		Root:     &specs.Root{Path: spec.Root.Path},
		Hostname: "container",
		Process: &specs.Process{
			Args: argv,
			Env:  env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities, Inheritable: capabilities,
			},
		},
		Mounts: slices.Concat(spec.Mounts, []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			// As Garden's own init: runc has to make the mount point in our root file system, as the container's root.
			{Destination: "/tmp/garden-init", Type: "bind", Source: "/bin/true", Options: []string{"bind", "ro"}},
		}, extra),
		// An empty network of its own, without which a user namespace may not mount /sys.
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
	if !privileged {
		ids := []specs.LinuxIDMapping{
			{ContainerID: 0, HostID: guardianRoot, Size: 1},
			{ContainerID: 1, HostID: 1, Size: guardianRoot - 1},
		}
		config.Linux.Namespaces = append(config.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		config.Linux.UIDMappings, config.Linux.GIDMappings = ids, ids
	}
	return config
}

// capabilityBits are the capabilities that Garden gives a container's root, by their numbers in capability.h.
var capabilityBits = map[string]uint{
	"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
	"CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": 13, "CAP_SYS_CHROOT": 18, "CAP_MKNOD": 27,
	"CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31,
}

// containerCapabilities are those of Garden's that this process has to give: the tests may run as a root of few powers.
func containerCapabilities(t *testing.T) []string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^CapBnd:\s*([0-9a-f]+)$`).FindSubmatch(status)
	if line == nil {
		t.Fatalf("no CapBnd in /proc/self/status:\n%s", status)
	}
	ours, err := strconv.ParseUint(string(line[1]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(capabilityBits)) {
		if ours&(1<<capabilityBits[name]) != 0 {
			list = append(list, name)
		}
	}
	return list
}
