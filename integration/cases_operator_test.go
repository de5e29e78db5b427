package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cloudfoundry/garden#40, #58, concourse/concourse#1269, #5134, #3495: containers reaped while in use, or never. By design there
// is nothing of ours that runs between two calls and no time after which a volume goes; this shows as much of it as a test can.
func TestCase74NoLifetimeOfItsOwn(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	spec, err := g.create("of-long-ago", rootfs{url: volumes.url("busybox")})
	if err != nil {
		t.Fatal(err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range processes {
		if target, err := os.Readlink(exe); err == nil && target == binary {
			t.Errorf("create left a process: %s", exe)
		}
	}

	// A volume of twenty years ago, as far as the store's files can tell.
	old := time.Now().AddDate(-20, 0, 0)
	for name, n := range storeTree(t, g.store) {
		if n.mount || n.mode&0o170000 == 0o120000 {
			continue
		}
		if err := os.Chtimes(filepath.Join(g.store, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if _, err := g.create("of-today", rootfs{url: volumes.url("busybox"), privileged: true}); err != nil {
			t.Fatal(err)
		}
		if err := g.destroy("of-today"); err != nil {
			t.Fatal(err)
		}
	}
	if res := g.call(g.unprivileged, "list"); res.err != nil || !strings.Contains(string(res.stdout), "of-long-ago") {
		t.Errorf("list: %v: %s", res.err, res.stdout)
	}
	if _, err := os.ReadFile(filepath.Join(spec.Root.Path, "etc/motd")); err != nil {
		t.Errorf("the old volume: %v", err)
	}
	for range 2 {
		if err := g.destroy("of-long-ago"); err != nil {
			t.Error(err)
		}
	}
	clean(t, g, "of-long-ago")
	same(t, "the store", before, storeTree(t, g.store))
}

// concourse/concourse#800, #1950, #1778, #1194, #3354: "failed to create volume" and nothing else. The failures of the other
// cases are looked at there; these are the ones that a user or an operator makes. All leave the store as it was, byte for byte.
func TestCase76ErrorTexts(t *testing.T) {
	volumes := newVolumes(t)
	requireRoot(t)
	requireTool(t, "busybox")
	if err := volumes.addImage("image-76", false, fillBusybox); err != nil {
		t.Fatal(err)
	}
	content := volumes.content("image-76")
	for link, target := range map[string]string{"escapes": "/etc", "climbs": "../../../../..", "loops": "loops"} {
		if err := os.Symlink(target, filepath.Join(content, link)); err != nil {
			t.Fatal(err)
		}
	}
	broken, err := volumes.add("broken-76", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(broken), "privileged.json"), []byte("{not json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := volumes.addImage("metadata-76", false, fillBusybox); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volumes.content("metadata-76"), "metadata.json"), []byte(`{"env":"not a list"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	g := newGdn(t, newStore(t), string(volumes))
	warm(t, g, volumes.url("image-76"))
	if _, err := g.create("live-76", rootfs{url: volumes.url("image-76")}); err != nil {
		t.Fatal(err)
	}
	before := storeTree(t, g.store)

	for _, test := range []struct {
		args []string
		exit int
		says []string // each of them has to be in the sentence
	}{
		{[]string{"create", volumes.url("image-76"), "live-76"}, 1, []string{"live-76", "exist"}},
		{[]string{"create", "baggageclaim://absent-76/rootfs", "new-76"}, 1, []string{"absent-76", "no such file"}},
		{[]string{"create", "baggageclaim://image-76/absent", "new-76"}, 1, []string{"image-76", "absent", "no such file"}},
		{[]string{"create", "baggageclaim://image-76/metadata.json", "new-76"}, 1, []string{"image-76", "not a directory"}},
		{[]string{"create", "baggageclaim://image-76/escapes", "new-76"}, 2, []string{"image-76", "escapes"}},
		{[]string{"create", "baggageclaim://image-76/climbs", "new-76"}, 2, []string{"image-76", "climbs"}},
		{[]string{"create", "baggageclaim://image-76/loops", "new-76"}, 1, []string{"image-76", "loops"}},
		{[]string{"create", "baggageclaim://image-76/../image-76/rootfs", "new-76"}, 2, []string{".."}},
		{[]string{"create", "baggageclaim://../live", "new-76"}, 2, []string{".."}},
		{[]string{"create", "file://" + content + "/absent", "new-76"}, 1, []string{"image-76", "absent", "no such file"}},
		{[]string{"create", "file://relative/path", "new-76"}, 2, []string{"relative"}},
		{[]string{"create", "relative/path", "new-76"}, 2, []string{"relative/path"}},
		{[]string{"create", "", "new-76"}, 2, []string{"--default-rootfs"}},
		{[]string{"create", "ftp://server/image", "new-76"}, 2, []string{"ftp"}},
		{[]string{"create", "docker:///busybox:1.36", "new-76"}, 2, []string{"docker"}},
		{[]string{"create", volumes.url("image-76") + "?unknown=1", "new-76"}, 2, []string{"unknown"}},
		{[]string{"create", "baggageclaim://broken-76", "new-76"}, 1, []string{"broken-76", "privileged.json"}},
		{[]string{"create", "baggageclaim://metadata-76/rootfs", "new-76"}, 1, []string{"metadata-76", "metadata.json"}},
		{[]string{"create", volumes.url("image-76"), "../evil"}, 2, []string{"../evil"}},
		{[]string{"create", volumes.url("image-76")}, 2, []string{"HANDLE"}},
		{[]string{"create", volumes.url("image-76"), "new-76", "one-too-many"}, 2, []string{"HANDLE"}},
		{[]string{"create", "--no-such-flag", volumes.url("image-76"), "new-76"}, 2, []string{"no-such-flag"}},
		{[]string{"create", "--disk-limit-size-bytes", "many", volumes.url("image-76"), "new-76"}, 2, []string{"disk-limit-size-bytes"}},
		{[]string{"create", "--disk-limit-size-bytes", "1", volumes.url("image-76"), "new-76"}, 1, []string{"--ignore-disk-limit"}},
		{[]string{"stats", "absent-76"}, 1, []string{"absent-76"}},
		{[]string{"stats"}, 2, []string{"HANDLE"}},
		{[]string{"delete"}, 2, []string{"HANDLE"}},
		{[]string{"delete", "one-76", "two-76"}, 2, []string{"HANDLE"}},
		{[]string{"no-such-command"}, 2, []string{"no-such-command"}},
		{nil, 2, []string{"create"}},
		{[]string{"--idmap", "magic", "capacity"}, 2, []string{"magic"}},
		{[]string{"--timeout", "soon", "capacity"}, 2, []string{"soon"}},
		{[]string{"--log-level", "loud", "capacity"}, 2, []string{"loud"}},
	} {
		res := g.call(g.unprivileged, test.args...)
		if res.code() != test.exit {
			t.Errorf("%q: exit %d, want %d: %s", test.args, res.code(), test.exit, res.stdout)
		}
		for _, part := range test.says {
			if !strings.Contains(string(res.stdout), part) {
				t.Errorf("%q does not say %q: %s", test.args, part, res.stdout)
			}
		}
		if differences(before, storeTree(t, g.store)) != "" {
			same(t, strings.Join(test.args, " ")+" changed the store", before, storeTree(t, g.store))
			before = storeTree(t, g.store)
		}
	}
	if err := g.destroy("live-76"); err != nil {
		t.Error(err)
	}
}
