// Package bundle makes an OCI bundle's configuration from what the plugin printed, put together as Guardian does it, so that runc
// starts the container that gdn would start. The tests and the demo use it.
package bundle

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Container is what a Garden client asks for.
type Container struct {
	Privileged bool
	Argv       []string
	Env        []string
	Mounts     []specs.Mount // after the plugin's and Garden's own
	MaxID      uint32        // host id of an unprivileged container's root
}

// Config is config.json of the container c on the root file system, environment and mounts that the plugin printed: our root, our env
// before the client's, our mounts before all others, and for an unprivileged container the user namespace whose root is MaxID.
func Config(plugin specs.Spec, c Container) (*specs.Spec, error) {
	capabilities, err := Capabilities()
	if err != nil {
		return nil, err
	}
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if plugin.Process != nil {
		env = append(env, plugin.Process.Env...)
	}
	config := &specs.Spec{
		Version:  "1.0.2", // what Debian's runc knows
		Root:     &specs.Root{Path: plugin.Root.Path},
		Hostname: "container",
		Process: &specs.Process{
			Args: c.Argv,
			Env:  append(env, c.Env...),
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities, Inheritable: capabilities,
			},
		},
		Mounts: slices.Concat(plugin.Mounts, []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			// As Garden's own init: runc has to make the mount point in our root file system, as the container's root.
			{Destination: "/tmp/garden-init", Type: "bind", Source: "/bin/true", Options: []string{"bind", "ro"}},
		}, c.Mounts),
		// An empty network of its own, without which a user namespace may not mount /sys.
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
	if !c.Privileged {
		ids := []specs.LinuxIDMapping{
			{ContainerID: 0, HostID: c.MaxID, Size: 1},
			{ContainerID: 1, HostID: 1, Size: c.MaxID - 1},
		}
		config.Linux.Namespaces = append(config.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		config.Linux.UIDMappings, config.Linux.GIDMappings = ids, ids
	}
	return config, nil
}

// capabilityBits are the capabilities that Garden gives a container's root, by their numbers in capability.h.
var capabilityBits = map[string]uint{
	"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
	"CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": 13, "CAP_SYS_CHROOT": 18, "CAP_MKNOD": 27,
	"CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31,
}

// Capabilities are those of Garden's that this process has to give: it may be a root of few powers.
func Capabilities() ([]string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	line := regexp.MustCompile(`(?m)^CapBnd:\s*([0-9a-f]+)$`).FindSubmatch(status)
	if line == nil {
		return nil, fmt.Errorf("no CapBnd in /proc/self/status")
	}
	ours, err := strconv.ParseUint(string(line[1]), 16, 64)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(capabilityBits)) {
		if ours&(1<<capabilityBits[name]) != 0 {
			list = append(list, name)
		}
	}
	return list, nil
}
