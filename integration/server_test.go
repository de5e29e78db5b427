package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/bc-image-plugin/integration/bctest"
)

// TestOnBaggageClaim runs containers and the field cases of the embedded store with a real BaggageClaim server as the backend.
func TestOnBaggageClaim(t *testing.T) {
	requireRoot(t)
	for _, driver := range []string{"overlay", "btrfs", "naive"} {
		t.Run(driver, func(t *testing.T) {
			s, err := bctest.Start(bctest.Options{Dir: newDir(t), Driver: driver})
			if err != nil {
				t.Fatal(err)
			}
			serverFlags = []string{"--baggageclaim-url", s.URL}
			t.Cleanup(func() {
				serverFlags = nil
				if t.Failed() {
					t.Logf("the server's log: %s", s.Log())
				}
				left, err := s.Left()
				if err != nil {
					t.Error(err)
				}
				for _, l := range left {
					if !outlives(t, s, l) {
						t.Errorf("left on the server: %s", l)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			for _, privileged := range []bool{false, true} {
				for _, image := range []string{"debian", "debian-shifted"} {
					t.Run(image+"/"+slotName(privileged), func(t *testing.T) {
						volumes := debian(t)
						containerLife(t, newGdn(t, newStore(t), string(volumes)), volumes, image, privileged, true)
					})
				}
			}
			if driver != "overlay" {
				return // what is left is the same for all of them
			}
			for name, test := range map[string]func(*testing.T){
				"case 1": TestCase1DeleteOfTheUnknown, "case 2": TestCase2DeleteOncePerSlot, "case 10": TestCase10Peas,
				"case 13": TestCase13FailingCreates, "case 14": TestCase14OneLife, "case 17": TestCase17LeftoversDoNotBlock,
				"case 22": TestCase22NobodySweepsALiveVolume, "case 25": TestCase25MovedStore, "case 35": TestCase35OtherFlags, "case 24": TestCase24DeleteEverythingAtOnce,
				"case 28": TestCase28StackedMounts, "case 29": TestCase29AfterReboot, "case 31": TestCase31MountSeenElsewhere,
				"case 36": TestCase36ChainsOfCopies, "case 43": TestCase43ImageRemovedByHand, "case 53": TestCase53DeepTree,
				"case 63": TestCase63ManyChecksOfOneCache, "case 66": TestCase66KeysAreSeparateAndSecret,
				"case 77": TestCase77NumbersUsersBelieve,
			} {
				t.Run(name, test)
			}
		})
	}
}

// outlives says whether what is left at path belongs to a cache, or to a shifted copy of an image: they outlive containers.
func outlives(t *testing.T, s *bctest.Server, path string) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.Volumes, "live", filepath.Base(path), "properties.json"))
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	return strings.Contains(string(b), `"bc-image-plugin-role":"image"`) || strings.Contains(string(b), `"bc-image-plugin-role":"layer"`)
}
