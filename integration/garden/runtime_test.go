package garden

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The capabilities of a privileged container are fixed in Guardian's code: all up to CAP_AUDIT_READ. Where the bounding
// set has lost one of them (sandboxes and CI machines like to take CAP_SYS_RESOURCE), runc cannot apply the set, and every
// privileged create fails whatever the image plugin did. There, and only there, gdn gets this test binary as its runtime,
// under the name narrowRuntime: it takes the missing capabilities out of what gdn asks for, then becomes the real runc.
const (
	narrowRuntime = "runc-narrowed"
	realRuncEnv   = "GARDEN_TEST_RUNC" // tells narrowRuntime where runc is
)

// capabilities are the kernel's names in the order of their numbers, as in linux/capability.h.
var capabilities = strings.Fields(`
	CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID
	CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER
	CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE
	CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP
	CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ`)

// missingCapabilities names those that Guardian may ask for and this process can never have.
func missingCapabilities() ([]string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	_, after, found := strings.Cut(string(status), "\nCapBnd:")
	var bounding uint64
	if _, err := fmt.Sscanf(after, "%x", &bounding); !found || err != nil {
		return nil, fmt.Errorf("no bounding set in /proc/self/status: %w", err)
	}
	var missing []string
	for number, name := range capabilities {
		if bounding&(1<<number) == 0 {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// runtimePlugin is what gdn shall use as its runtime: runc itself wherever that can work.
func runtimePlugin(t testing.TB, runc, dir string) string {
	t.Helper()
	missing, err := missingCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	if len(missing) == 0 {
		return runc
	}
	t.Logf("this host cannot give %s, which gdn wants for privileged containers: runc gets its configuration without", strings.Join(missing, ", "))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, narrowRuntime)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// execNarrowed replaces this process by runc with the same arguments, after `run`'s bundle or `exec`'s process file has
// lost the capabilities that this host cannot give. It returns only on failure.
func execNarrowed(args []string) error {
	missing, err := missingCapabilities()
	if err != nil {
		return err
	}
	if i := slices.Index(args, "--bundle"); i >= 0 && i+1 < len(args) {
		config := filepath.Join(args[i+1], "config.json")
		if err := narrowFile(config, config, missing); err != nil {
			return err
		}
	}
	if i := slices.Index(args, "-p"); i >= 0 && i+1 < len(args) && slices.Contains(args, "exec") {
		// The process file is a pipe, so what replaces it is a file: below TMPDIR, which is the test's own directory.
		file, err := os.CreateTemp("", "process-*.json")
		if err != nil {
			return err
		}
		if err := narrowFile(args[i+1], file.Name(), missing); err != nil {
			return err
		}
		args[i+1] = file.Name()
	}
	runc := os.Getenv(realRuncEnv)
	return fmt.Errorf("run %q: %w", runc, syscall.Exec(runc, append([]string{runc}, args...), os.Environ()))
}

func narrowFile(from, to string, missing []string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if content, err = narrow(content, missing); err != nil {
		return fmt.Errorf("%q: %w", from, err)
	}
	return os.WriteFile(to, content, 0o600)
}

// narrow takes capabilities out of a runtime configuration (process.capabilities) or of a process (capabilities). All
// else stays as it is: the document goes through a map, so that no field is lost, and numbers through json.Number.
func narrow(document []byte, missing []string) ([]byte, error) {
	var top map[string]any
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	if err := decoder.Decode(&top); err != nil {
		return nil, err
	}
	process := top
	if inner, ok := top["process"].(map[string]any); ok {
		process = inner
	}
	sets, ok := process["capabilities"].(map[string]any)
	if !ok {
		return document, nil // nothing to take away
	}
	for name, set := range sets {
		names, _ := set.([]any)
		sets[name] = slices.DeleteFunc(names, func(capability any) bool {
			name, _ := capability.(string)
			return slices.Contains(missing, name)
		})
	}
	return json.Marshal(top)
}

func TestNarrow(t *testing.T) {
	for name, document := range map[string]string{
		"configuration": `{"process":{"args":["x"],"capabilities":{"bounding":["CAP_KILL","CAP_SYS_TIME"],"effective":["CAP_SYS_TIME"]}},"pid":9007199254740993}`,
		"process":       `{"args":["x"],"capabilities":{"bounding":["CAP_KILL","CAP_SYS_TIME"],"effective":["CAP_SYS_TIME"]},"pid":9007199254740993}`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := narrow([]byte(document), []string{"CAP_SYS_TIME", "CAP_CHOWN"})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`"bounding":["CAP_KILL"]`, `"effective":[]`, `"args":["x"]`, `"pid":9007199254740993`} {
				if !strings.Contains(string(got), want) {
					t.Errorf("%s is not in %s", want, got)
				}
			}
		})
	}
}
