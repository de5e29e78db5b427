package imagespec

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
)

// throughGdn does to a rootfs URL what Guardian's imageplugin/default_command_creator.go does.
func throughGdn(t *testing.T, s string) string {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatalf("gdn cannot parse %q: %v", s, err)
	}
	return strings.Replace(u.String(), "#", ":", 1)
}

var refs = []struct {
	name string
	url  string
	ref  Ref
}{
	{"volume", "baggageclaim://vol", Ref{Volume: "vol"}},
	{"all characters of a handle", "baggageclaim://aZ09-_.~", Ref{Volume: "aZ09-_.~"}},
	{"longest handle", "baggageclaim://" + strings.Repeat("v", 255), Ref{Volume: strings.Repeat("v", 255)}},
	{"sub-path", "baggageclaim://vol/a/rootfs", Ref{Volume: "vol", SubPath: "a/rootfs"}},
	{"encoded sub-path", "baggageclaim://vol/a%20b/%23%3F%25%3A", Ref{Volume: "vol", SubPath: "a b/#?%:"}},
	{"directory", "file:///img/rootfs", Ref{Dir: "/img/rootfs"}},
	{"directory not in UTF-8", "file:///%E4%FF", Ref{Dir: "/\xe4\xff"}},
	{"characters that mount options split at", "file:///a%2Cb%3Ac%5Cd", Ref{Dir: `/a,b:c\d`}},
	{"one cache", "baggageclaim://vol/rootfs?cache=k&cache-path=/c",
		Ref{Volume: "vol", SubPath: "rootfs", Caches: []Cache{{"k", "/c", PromoteOnCommit}}}},
	{"key with everything", "file:///i?cache=a%20%26%3D%23%2B%00%FF/&cache-path=/c%20d/e",
		Ref{Dir: "/i", Caches: []Cache{{"a &=#+\x00\xff/", "/c d/e", PromoteOnCommit}}}},
	{"three caches", "file:///i?cache=a&cache-path=/a&cache-promote=on-commit&cache=b&cache-path=/b&cache-promote=never&cache=c&cache-path=/ab",
		Ref{Dir: "/i", Caches: []Cache{{"a", "/a", PromoteOnCommit}, {"b", "/b", PromoteNever}, {"c", "/ab", PromoteOnCommit}}}},
}

func TestStringAndParseRefAreInverse(t *testing.T) {
	for _, tt := range refs {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.ref.String(); got != tt.url {
				t.Errorf("String\n got %s\nwant %s", got, tt.url)
			}
			checkParse(t, tt.url, tt.ref)
			checkParse(t, throughGdn(t, tt.url), tt.ref)
		})
	}
}

func TestPropertyEveryValidRefSurvivesGdn(t *testing.T) {
	names := func(parts [][]byte) []string {
		var out []string
		for _, p := range parts {
			p := strings.NewReplacer("/", "", "\x00", "").Replace(string(p))
			if p != "" && p != "." && p != ".." {
				out = append(out, p)
			}
		}
		return out
	}
	property := func(dir bool, volume, sub string, path [][]byte, keys []string, promotes []uint8) bool {
		r := Ref{Volume: "v", SubPath: strings.Join(names(path), "/")}
		if dir {
			r = Ref{Dir: "/" + strings.Join(append(names(path), "d"), "/")}
		}
		for i, key := range keys {
			promote := PromoteOnCommit
			if i < len(promotes) {
				promote = []Promote{PromoteOnCommit, PromoteAlways, PromoteNever}[promotes[i]%3]
			}
			r.Caches = append(r.Caches, Cache{Key: key + string(rune('A'+i)), Path: "/c" + strings.Repeat("#", i+1), Promote: promote})
		}
		direct, err := ParseRef(r.String())
		if err != nil || !reflect.DeepEqual(direct, r) {
			t.Logf("%#v: %v, %#v", r, err, direct)
			return false
		}
		rewritten, err := ParseRef(throughGdn(t, r.String()))
		return err == nil && reflect.DeepEqual(rewritten, r)
	}
	if err := quick.Check(property, &quick.Config{MaxCount: 300}); err != nil {
		t.Error(err)
	}
}

func TestStringOfWhatIsNoRefIsRefused(t *testing.T) {
	for name, r := range map[string]Ref{
		"empty":                {},
		"two images":           {Volume: "v", Dir: "/d"},
		"directory + sub-path": {Dir: "/d", SubPath: "s"},
		"relative directory":   {Dir: "d"},
		"sub-path goes up":     {Volume: "v", SubPath: "../w"},
		"volume with a slash":  {Volume: "v/w"},
		"volume goes up":       {Volume: "../w"},
		"cache without a path": {Dir: "/d", Caches: []Cache{{Key: "k"}}},
		"promote unknown":      {Dir: "/d", Caches: []Cache{{"k", "/c", "sometimes"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ParseRef(r.String()); err == nil {
				t.Errorf("%#v became %q and then %#v", r, r.String(), got)
			}
		})
	}
}

func TestStringTakesTheZeroPromote(t *testing.T) {
	r := Ref{Dir: "/d", Caches: []Cache{{Key: "k", Path: "/c"}, {"l", "/d", PromoteAlways}}}
	want := Ref{Dir: "/d", Caches: []Cache{{"k", "/c", PromoteOnCommit}, {"l", "/d", PromoteAlways}}}
	checkParse(t, r.String(), want)
}

func TestRedacted(t *testing.T) {
	secret := Cache{"hunter2", "/c", PromoteAlways}
	for want, r := range map[string]Ref{
		"baggageclaim://v/rootfs":    {Volume: "v", SubPath: "rootfs"},
		"file:///d (1 cache)":        {Dir: "/d", Caches: []Cache{secret}},
		"file:///d%20e (2 caches)":   {Dir: "/d e", Caches: []Cache{secret, {"hunter3", "/d", ""}}},
		"baggageclaim://v (1 cache)": {Volume: "v", Caches: []Cache{secret}},
	} {
		if got := r.Redacted(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWithin(t *testing.T) {
	const volumes = "/worker/volumes"
	for _, tt := range []struct {
		name, volumes, dir string
		want               Ref
	}{
		{"top of a volume", volumes, "/worker/volumes/live/v/volume", Ref{Volume: "v"}},
		{"rootfs of a volume", volumes, "/worker/volumes/live/v/volume/a/rootfs", Ref{Volume: "v", SubPath: "a/rootfs"}},
		{"volumes directory with slashes", "/worker//volumes/", "/worker/volumes/live/v/volume", Ref{Volume: "v"}},
		{"volumes directory is the root", "/", "/live/v/volume/x", Ref{Volume: "v", SubPath: "x"}},
		{"no volumes directory", "", "/live/v/volume", Ref{Dir: "/live/v/volume"}},
		{"relative volumes directory", "live", "/live/v/volume", Ref{Dir: "/live/v/volume"}},
		{"elsewhere", volumes, "/img", Ref{Dir: "/img"}},
		{"longer name", volumes, "/worker/volumes2/live/v/volume", Ref{Dir: "/worker/volumes2/live/v/volume"}},
		{"not live", volumes, "/worker/volumes/dead/v/volume", Ref{Dir: "/worker/volumes/dead/v/volume"}},
		{"beside the volume", volumes, "/worker/volumes/live/v/properties.json", Ref{Dir: "/worker/volumes/live/v/properties.json"}},
		{"the entry itself", volumes, "/worker/volumes/live/v", Ref{Dir: "/worker/volumes/live/v"}},
		{"no handle", volumes, "/worker/volumes/live/a b/volume", Ref{Dir: "/worker/volumes/live/a b/volume"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			caches := []Cache{{"k", "/c", PromoteNever}}
			tt.want.Caches = caches
			if got := (Ref{Dir: tt.dir, Caches: caches}).Within(tt.volumes); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %#v, want %#v", got, tt.want)
			}
		})
	}
	if r := (Ref{Volume: "v", SubPath: "s"}); !reflect.DeepEqual(r.Within(volumes), r) {
		t.Errorf("a volume changed: %#v", r.Within(volumes))
	}
}

func checkParse(t *testing.T, s string, want Ref) {
	t.Helper()
	got, err := ParseRef(s)
	if err != nil {
		t.Errorf("ParseRef(%q): %v", s, err)
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ParseRef(%q)\n got %#v\nwant %#v", s, got, want)
	}
}

func FuzzUnescape(f *testing.F) {
	for _, s := range []string{"", "a", "%", "%4", "%41", "%zz", "a%2Fb+c%", "%25", "%e4%b8%96"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := unescape(s)
		want, wantErr := url.PathUnescape(s)
		if got != want || (err == nil) != (wantErr == nil) {
			t.Errorf("%q: %q, %v; net/url has %q, %v", s, got, err, want, wantErr)
		}
		if plain, err := unescape(escape(s)); err != nil || plain != s {
			t.Errorf("%q comes back as %q, %v", s, plain, err)
		}
	})
}
