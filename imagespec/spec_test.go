package imagespec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestSpecDecodesIntoTheRuntimeSpec(t *testing.T) {
	b, err := json.Marshal(NewSpec("/store/mnt/1/rootfs", []string{"A=b"}, []specs.Mount{CacheMount("/c", "/store/mnt/1/cache-0")}))
	if err != nil {
		t.Fatal(err)
	}
	want := specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "/store/mnt/1/rootfs"},
		Process: &specs.Process{Env: []string{"A=b"}},
		Mounts: []specs.Mount{{
			Destination: "/c", Type: "bind", Source: "/store/mnt/1/cache-0", Options: []string{"rbind", "rw", "nosuid", "nodev"},
		}},
	}
	var got specs.Spec
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s\n got %#v\nwant %#v", b, got, want)
	}
}

func TestSpecWithoutAnythingSaysNoNull(t *testing.T) {
	b, err := json.Marshal(NewSpec("/r", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"ociVersion":"` + specs.Version + `","root":{"path":"/r"},"process":{"env":[]}}`; string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
}

func TestSpecHasNoMountOnTheRoot(t *testing.T) {
	mounts := []specs.Mount{CacheMount("/c", "/s")}
	for _, root := range []string{"/", "//", "/.", "/c/..", "", "."} {
		mounts = append(mounts, CacheMount(root, "/s"))
	}
	if got := NewSpec("/r", nil, mounts).Mounts; len(got) != 1 || got[0].Destination != "/c" {
		t.Errorf("mounts: %v", got)
	}
}

func TestSpecKeepsItsOwnEnvironment(t *testing.T) {
	env := []string{"A=b"}
	s := NewSpec("/r", env, nil)
	env[0] = "A=c"
	if s.Process.Env[0] != "A=b" {
		t.Error("the caller's slice is in the Spec")
	}
}

func TestCacheID(t *testing.T) {
	// printf 'key' | sha256sum
	if got := CacheID("key"); got != "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683" {
		t.Error(got)
	}
	if CacheID("a\x00b") == CacheID("a") || strings.Contains(CacheID("hunter2"), "hunter2") {
		t.Error("not a hash of the whole key")
	}
}

func TestAppendJSONWritesWhatEncodingJSONDoes(t *testing.T) {
	other := specs.Mount{Destination: "/d", UIDMappings: []specs.LinuxIDMapping{{ContainerID: 1, HostID: 2, Size: 3}}}
	for _, s := range []Spec{
		NewSpec("/r", nil, nil),
		NewSpec("/r \" \n\\", []string{"A=b", "B=é\u2028"}, nil),
		NewSpec("/r", []string{"A"}, []specs.Mount{CacheMount("/c", "/s"), CacheMount("/d", "/t")}),
		NewSpec("/r", []string{"A"}, []specs.Mount{other, CacheMount("/c", "/s"), {Destination: "/bare"}}),
	} {
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.AppendJSON([]byte("x")); err != nil || string(got) != "x"+string(want) {
			t.Errorf("got  %s, %v\nwant x%s", got, err, want)
		}
	}
}
