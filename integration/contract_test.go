package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oddHandles are names that gdn passes on as they are, and that are good names for a container.
var oddHandles = []string{
	"-dash", "--help", "-h", "h", "help", "--version", "version", "--privileged", "--", "create", "...",
	"a blank", " ", "tab\tand\nnewline", "Zähler-漢字", "not-utf8-\xff", "comma,colon:back\\slash", "%2e%2e", "'\"$(id)`",
	strings.Repeat("x", 255),
}

// impossibleHandles cannot name anything below a directory. gdn passes them on too, for create and again for delete.
var impossibleHandles = []string{"", ".", "..", "../evil", "a/b", "/etc", strings.Repeat("x", 256)}

func TestOddHandles(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	for _, handle := range oddHandles {
		for _, privileged := range []bool{false, true} {
			spec, err := g.create(handle, rootfs{url: volumes.url("busybox"), privileged: privileged})
			if err != nil {
				t.Errorf("create %q: %v", handle, err)
				continue
			}
			if _, err := os.Lstat(filepath.Join(spec.Root.Path, "bin/sh")); err != nil {
				t.Errorf("create %q: %v", handle, err)
			}
			if _, err := g.stats(handle); err != nil {
				t.Errorf("stats %q: %v", handle, err)
			}
			if err := g.destroy(handle); err != nil {
				t.Errorf("delete %q: %v", handle, err)
			}
			clean(t, g, handle)
		}
	}
	same(t, "the store after the odd handles", before, storeTree(t, g.store))
}

func TestImpossibleHandles(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	outside := filepath.Join(filepath.Dir(g.store), "evil")
	if err := os.WriteFile(outside, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, handle := range impossibleHandles {
		res := g.call(g.unprivileged, "create", volumes.url("busybox"), handle)
		if res.code() != 2 {
			t.Errorf("create %q: exit %d, want 2 (used wrongly): %s", handle, res.code(), res.stdout)
		}
		if _, err := g.stats(handle); err == nil {
			t.Errorf("stats %q succeeds", handle)
		}
		if err := g.destroy(handle); err != nil {
			t.Errorf("delete %q: %v", handle, err)
		}
	}
	same(t, "the store after the impossible handles", before, storeTree(t, g.store))
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a file beside the store: %v", err)
	}
}

// TestCreateUndoesItselfWhenNobodyReads is a gdn killed while its plugin worked: nobody will ever call delete.
func TestCreateUndoesItselfWhenNobodyReads(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	before := warm(t, g, volumes.url("busybox"))
	for _, privileged := range []bool{false, true} {
		const handle = "nobody-reads-this"
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		cmd := g.command(context.Background(), g.slot(privileged), "create", volumes.url("busybox"), handle)
		cmd.Stdout = w
		if err := cmd.Run(); err == nil {
			t.Error("create succeeds, and could not say so to anybody")
		}
		w.Close()
		clean(t, g, handle)
		same(t, "the store after the failed print", before, storeTree(t, g.store))
	}
}

// TestInfoLog is what an operator sees at the default level: one line per command, with the handle, what was done and the time.
func TestInfoLog(t *testing.T) {
	volumes := busybox(t)
	g := newGdn(t, newStore(t), string(volumes))
	for _, args := range [][]string{
		{"create", volumes.url("busybox"), "an-info-line"},
		{"delete", "an-info-line"},
	} {
		res := g.call(g.unprivileged, args...)
		if res.err != nil || len(res.records) != 1 || res.records[0].Level != "info" {
			t.Errorf("%q: %v, want one info line: %s", args, res.err, res.stderr)
			continue
		}
		if !bytes.Contains(res.stderr, []byte(`"an-info-line"`)) {
			t.Errorf("%q: the handle is not in the log: %s", args, res.stderr)
		}
	}
}

// TestSecretsStayOutOfLogs covers all that a client may send and that must not be seen by who reads the server's log.
func TestSecretsStayOutOfLogs(t *testing.T) {
	volumes := busybox(t)
	const secret = "hunter2-secret"
	for _, r := range []rootfs{
		{url: volumes.url("busybox"), username: "user", password: secret},
		{url: volumes.url("absent"), username: "user", password: secret},
		{url: volumes.url("busybox") + "?cache=" + secret},                      // no path: refused
		{url: volumes.url("busybox") + "?cache=" + secret + "&cache-path=here"}, // not absolute: refused
		{url: volumes.url("busybox") + "?unknown=" + secret},
		{url: "docker://user:" + secret + "@registry/repository"},
	} {
		g := newGdn(t, newStore(t), string(volumes), "--log-level", "debug")
		image, err := rewrite(r.url)
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"create", image, "h"}
		if r.password != "" {
			args = []string{"create", "--username", r.username, "--password", r.password, image, "h"}
		}
		res := g.call(g.unprivileged, args...)
		if all := string(res.stdout) + string(res.stderr); strings.Contains(all, secret) {
			t.Errorf("%q: the secret is in what was printed:\n%s", args, all)
		}
	}
}
