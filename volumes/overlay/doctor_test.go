package overlay

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// says returns whether a finding of that level has the text.
func says(findings []volumes.Finding, level volumes.Level, text string) bool {
	return slices.ContainsFunc(findings, func(f volumes.Finding) bool { return f.Level == level && strings.Contains(f.Text, text) })
}

func TestDoctor(t *testing.T) {
	dir := newFS(t, "tmpfs", 32)
	s, img := newStore(t, dir+"/store", Auto), newImage(t, 0)
	findings := s.Doctor(t.Context()) // makes the store
	for _, want := range []string{"on tmpfs, driver overlay", "as descriptors", "unprivileged containers can reach", "0 live containers", "mounts in this"} {
		if !says(findings, volumes.OK, want) {
			t.Errorf("no finding says that it is well with %q: %+v", want, findings)
		}
	}
	for _, f := range findings {
		if f.Level == volumes.Fail || strings.Contains(f.Text, "\n") {
			t.Errorf("on a good host: %+v", f)
		}
	}
	v, err := create(t, s, "h", img, true)
	must(t, err)
	must(t, os.Symlink(v.ID[1:]+"0", dir+"/store/volumes/init/k"))
	findings = s.Doctor(t.Context())
	if !says(findings, volumes.OK, "1 live container") || !says(findings, volumes.Warn, "being made or removed") {
		t.Errorf("with a live container and a leftover: %+v", findings)
	}
	must(t, unix.Unmount(v.Root, unix.MNT_DETACH))
	if findings = s.Doctor(t.Context()); !says(findings, volumes.Warn, "lost their mount") {
		t.Errorf("with a container whose mount is gone: %+v", findings)
	}
	must(t, os.Chmod(dir+"/store", 0o700))
	if findings = s.Doctor(t.Context()); !says(findings, volumes.Fail, "chmod o+x") {
		t.Errorf("where nobody can reach it: %+v", findings)
	}
	must(t, remove(t, s, "h"))
	must(t, remove(t, s, "k"))
	if left := files(t, dir+"/store"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if left := inspect.Mounts(t, dir+"/store"); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
}
