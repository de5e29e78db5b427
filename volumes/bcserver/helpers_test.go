package bcserver

import (
	"os"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a real server of the driver until the end of the test, which must have left nothing on it but copies of images.
func start(t testing.TB, o bctest.Options) *bctest.Server {
	t.Helper()
	inspect.NeedRoot(t)
	o.Dir = inspect.NewDir(t)
	s, err := bctest.Start(o)
	check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log: %s", s.Log())
		}
		check(t, s.Close())
	})
	return s
}

// wantClean fails the test if the server has anything of ours.
func wantClean(t testing.TB, s *bctest.Server) {
	t.Helper()
	left, err := s.Left()
	if err != nil || len(left) > 0 {
		t.Errorf("left on the server's disk: %q, %v", left, err)
	}
	if m := inspect.Mounts(t, s.Volumes); len(m) > 0 && m[0] != s.Volumes {
		t.Errorf("mounts left: %q", m)
	}
}

func exist(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
