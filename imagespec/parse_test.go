package imagespec

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// What people and gdn write that String does not.
func TestParseRefTakes(t *testing.T) {
	cache := func(key, path string) []Cache { return []Cache{{key, path, PromoteOnCommit}} }
	for _, tt := range []struct {
		name, url string
		want      Ref
	}{
		{"plain path", "/img/rootfs", Ref{Dir: "/img/rootfs"}},
		{"plain path, as gdn encodes a blank", "/a%20b", Ref{Dir: "/a b"}},
		{"plain path, as a client writes a blank", "/a b", Ref{Dir: "/a b"}},
		{"plus in a path", "/a+b", Ref{Dir: "/a+b"}},
		{"colon in a path", "/alpine:3.20", Ref{Dir: "/alpine:3.20"}},
		{"UTF-8 in a path", "/ä", Ref{Dir: "/ä"}},
		{"dots that are names", "/a/.../.b/c..", Ref{Dir: "/a/.../.b/c.."}},
		{"slashes", "file:////a//b/", Ref{Dir: "/a/b"}},
		{"slashes after a volume", "baggageclaim://v//a//b/", Ref{Volume: "v", SubPath: "a/b"}},
		{"top with a slash", "baggageclaim://v/", Ref{Volume: "v"}},
		{"scheme in upper case", "FILE:///a", Ref{Dir: "/a"}},
		{"empty query", "file:///a?", Ref{Dir: "/a"}},
		{"plain path with a cache", "/a?cache=k&cache-path=/c", Ref{Dir: "/a", Caches: cache("k", "/c")}},
		{"url.Values.Encode", "/a?" + url.Values{"cache": {"a b+c/ä"}, "cache-path": {"/c d"}}.Encode(), Ref{Dir: "/a", Caches: cache("a b+c/ä", "/c d")}},
		{"grouped parameters", "/a?cache=k&cache=l&cache-path=/c&cache-path=/d&cache-promote=never&cache-promote=on-commit",
			Ref{Dir: "/a", Caches: []Cache{{"k", "/c", PromoteNever}, {"l", "/d", PromoteOnCommit}}}},
		{"promote of the first cache only", "/a?cache=k&cache-path=/c&cache-promote=never&cache=l&cache-path=/d",
			Ref{Dir: "/a", Caches: []Cache{{"k", "/c", PromoteNever}, {"l", "/d", PromoteOnCommit}}}},
		{"equals sign in a key", "/a?cache=k=v&cache-path=/c", Ref{Dir: "/a", Caches: cache("k=v", "/c")}},
		{"question mark in a key", "/a?cache=k?v&cache-path=/c", Ref{Dir: "/a", Caches: cache("k?v", "/c")}},
		{"neighbouring cache paths", "/a?cache=k&cache-path=/c&cache=l&cache-path=/cd",
			Ref{Dir: "/a", Caches: []Cache{{"k", "/c", PromoteOnCommit}, {"l", "/cd", PromoteOnCommit}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkParse(t, tt.url, tt.want)
			checkParse(t, throughGdn(t, tt.url), tt.want)
		})
	}
}

func TestParseRefRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, url string
		want      []string // what the sentence must say
	}{
		{"nothing", "", []string{"gdn sent none", "--default-rootfs"}},
		{"relative path", "img/rootfs", []string{`"img/rootfs"`, "absolute", "file:///ABS/DIR"}},
		{"blank", " ", []string{"absolute"}},
		{"network path", "//host/img", []string{`"//"`, "one slash"}},
		{"root", "/", []string{"root directory"}},
		{"root as a URL", "file:///", []string{"root directory"}},
		{"only slashes", "file://////", []string{"root directory"}},
		{"file without a path", "file://", []string{"root directory"}},
		{"file with a host", "file://localhost/img", []string{"host", "three slashes"}},
		{"file with one slash", "file:/img", []string{`"//"`, "file:///ABS/DIR"}},
		{"opaque", "baggageclaim:vol", []string{`"//"`, "baggageclaim://VOLUME"}},
		{"no volume", "baggageclaim://", []string{"names no volume"}},
		{"no volume but a path", "baggageclaim:///rootfs", []string{"names no volume"}},
		{"volume is a dot", "baggageclaim://./x", []string{`"."`}},
		{"volume goes up", "baggageclaim://../x", []string{`".."`}},
		{"long volume", "baggageclaim://" + strings.Repeat("v", 256), []string{"256 bytes"}},
		{"encoded volume", "baggageclaim://v%2Fw", []string{`"%"`}},
		{"volume with a blank", "baggageclaim://v w", []string{`" "`}},
		{"volume not in ASCII", "baggageclaim://v\xff", []string{`"\xff"`}},
		{"port", "baggageclaim://vol:80/x", []string{"port"}},
		{"fragment, rewritten by gdn", "baggageclaim://vol:frag", []string{`"#"`}},
		{"fragment", "baggageclaim://vol/x#frag", []string{"fragment", "%23"}},
		{"user", "baggageclaim://user@vol/x", []string{"user name", "leave it out"}},
		{"password", "file://user:hunter2@/x", []string{"password", "leave it out"}},
		{"sub-path goes up", "baggageclaim://vol/a/../../x", []string{`".."`}},
		{"sub-path goes up, encoded", "baggageclaim://vol/a/%2e%2E/x", []string{`".."`}},
		{"dot", "baggageclaim://vol/./x", []string{`"."`}},
		{"directory goes up", "/a/..", []string{`".."`}},
		{"encoded slash", "/a%2Fb", []string{"%2F"}},
		{"encoded slash, lower case", "/a%2fb", []string{"%2F"}},
		{"zero byte", "/a%00b", []string{"zero byte"}},
		{"raw zero byte", "/a\x00b", []string{"control character"}},
		{"newline", "/a\nb", []string{"control character"}},
		{"bad escape", "/a%zz", []string{"%25"}},
		{"cut escape", "/a%2", []string{"%25"}},
		{"raw", "raw:///img", []string{`"raw" is not supported`, "baggageclaim://", "file:///"}},
		{"docker, after gdn", "docker:///busybox:1.36", []string{`"docker" is not supported`}},
		{"docker with a password", "docker://user:hunter2@registry/busybox", []string{`"docker" is not supported`}},
		{"what gdn makes of preloaded+layer", "oci:///depot/handle/image", []string{`"oci" is not supported`}},
		{"unknown scheme", "preloaded+layer:///x", []string{`"preloaded+layer" is unknown`, "baggageclaim://", "file:///"}},
		{"mistyped scheme", "baggagecliam://vol", []string{`"baggagecliam" is unknown`}},
		{"no scheme before the colon", "://x", []string{"absolute"}},
		{"scheme begins with a digit", "9p://x", []string{"absolute"}},

		{"unknown parameter", "/a?layer=x", []string{`"layer"`, "cache-promote"}},
		{"unknown parameter beside a cache", "/a?cache=hunter2&cache-path=/c&cache_promote=never", []string{`"cache_promote"`}},
		{"parameter in upper case", "/a?Cache=hunter2", []string{`"Cache"`}},
		{"encoded parameter", "/a?%63ache=hunter2&cache-path=/c", []string{"proper name"}},
		{"no parameter", "/a?&", []string{"proper name"}},
		{"no name", "/a?=hunter2", []string{"proper name"}},
		{"semicolon", "/a?cache=hunter2;cache-path=/c", []string{"%3B"}},
		{"bare parameter", "/a?privileged", []string{`"privileged"`}},
		{"bare ampersand in a key", "/a?cache=hunter1&hunter2&cache-path=/c", []string{"%26"}},
		{"bad escape in a key", "/a?cache=hunter2%zz&cache-path=/c", []string{"%25"}},
		{"cache without a path", "/a?cache=hunter2", []string{`1 "cache" and 0 "cache-path"`}},
		{"path without a cache", "/a?cache-path=/c", []string{`0 "cache" and 1 "cache-path"`}},
		{"promote without a cache", "/a?cache-promote=never", []string{"0 caches"}},
		{"more promotes than caches", "/a?cache=hunter2&cache-path=/c&cache-promote=never&cache-promote=always", []string{"1 caches"}},
		{"promote behind the second cache only", "/a?cache=hunter2&cache-path=/c&cache=k&cache-path=/d&cache-promote=always", []string{"its own"}},
		{"empty key", "/a?cache=&cache-path=/c", []string{"cache 1", "empty"}},
		{"second key is empty", "/a?cache=hunter2&cache-path=/c&cache=&cache-path=/d", []string{"cache 2", "empty"}},
		{"no cache path", "/a?cache=hunter2&cache-path=", []string{"cache 1", "absolute"}},
		{"key and path swapped", "/a?cache=/c&cache-path=hunter2", []string{"cache 1", "absolute"}},
		{"cache path goes up", "/a?cache=hunter2&cache-path=/c/../d", []string{`".."`}},
		{"cache path with a slash at its end", "/a?cache=hunter2&cache-path=/c/", []string{"slash"}},
		{"cache on the root", "/a?cache=hunter2&cache-path=/", []string{"where the image is"}},
		{"cache on many slashes", "/a?cache=hunter2&cache-path=//", []string{"slash"}},
		{"zero byte in a cache path", "/a?cache=hunter2&cache-path=/c%00", []string{"zero byte"}},
		{"cache path not in UTF-8", "/a?cache=hunter2&cache-path=/%FF", []string{"UTF-8"}},
		{"unknown promote", "/a?cache=k&cache-path=/c&cache-promote=hunter2", []string{"on-commit, always and never"}},
		{"empty promote", "/a?cache=hunter2&cache-path=/c&cache-promote=", []string{"on-commit, always and never"}},
		{"same path", "/a?cache=hunter2&cache-path=/c&cache=k&cache-path=/c", []string{"caches 1 and 2", "same"}},
		{"nested paths", "/a?cache=hunter2&cache-path=/c/d&cache=k&cache-path=/c", []string{"caches 1 and 2", "inside"}},
		{"same key", "/a?cache=hunter2&cache-path=/c&cache=hunter2&cache-path=/d", []string{"caches 1 and 2", "same key"}},
		{"ampersand where the query should begin", "/a&cache=hunter2&cache-path=/c", []string{`"?"`}},
		{"encoded query", "/a%3Fcache=hunter2%26cache-path=/c", []string{`"?"`}},
		{"completely encoded query", "/a%3Fcache%3Dhunter2", []string{`"?"`}},
		{"query after a bad path", "baggageclaim://vol/../x?cache=hunter2&cache-path=/c", []string{`".."`}},
		{"query in a fragment", "/a#?cache=hunter2", []string{"fragment"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseRef(tt.url)
			if err == nil {
				t.Fatalf("taken as %#v", r)
			}
			t.Log(err)
			if !reflect.DeepEqual(r, Ref{}) {
				t.Errorf("returned %#v beside the error", r)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			checkSentence(t, err, "hunter")
		})
	}
}

// An error is one line of bounded length that shows no secret.
func checkSentence(t *testing.T, err error, secret string) {
	t.Helper()
	s := err.Error()
	if secret != "" && strings.Contains(s, secret) {
		t.Errorf("%q shows a secret", s)
	}
	if strings.ContainsAny(s, "\n\r\x00") {
		t.Errorf("%q has more than one line", s)
	}
	if len(s) > 2048 {
		t.Errorf("%d bytes are no sentence", len(s))
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{
		"", "/", "/a%20b", "docker:///busybox:1.36", "docker:///busybox#1.36%23", "raw:///path",
		"oci:///DEPOT/HANDLE/image", "preloaded+layer:///base?layer=URL&layer_path=P&layer_digest=D",
		"baggageclaim://vol/../..", "baggageclaim://u:p@vol:80/x#f", "file:////a//b/%2e%2e",
		"/a?cache=k%26l&cache-path=/c&cache-promote=never&cache=m&cache-path=/d",
	} {
		f.Add(s)
	}
	for _, tt := range refs {
		f.Add(tt.url)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			checkSentence(t, err, "")
			return
		}
		checkParse(t, r.String(), r)
		checkParse(t, throughGdn(t, r.String()), r)
		checkParse(t, throughGdn(t, s), r) // what the client wrote is what we get
		if strings.Contains(r.Redacted(), "?") {
			t.Errorf("%q has a query", r.Redacted())
		}
		if r.Dir == "" && checkVolume(r.Volume) != nil {
			t.Errorf("%#v has no volume handle", r)
		}
		for name := range strings.SplitSeq(r.Dir+"/"+r.SubPath, "/") {
			if name == "." || name == ".." || strings.Contains(name, "\x00") {
				t.Errorf("%#v has the name %q", r, name)
			}
		}
	})
}

// However a client spells a URL with a secret where keys and passwords stand, the error does not show it.
func FuzzParseRefKeepsSecrets(f *testing.F) {
	f.Add("", "", "&cache-path=/c")
	f.Add("a", "%zz", "&cache-path=/c")
	f.Add("/", "/", "&cache-path=/c&cache-promote=x")
	f.Add("a", "b", "&cache=k&cache-path=/c/d&cache-path=/c")
	f.Fuzz(func(t *testing.T, before, after, rest string) {
		if strings.ContainsAny(before+after, "&;#") {
			t.Skip("ends the value: what follows is no secret any more")
		}
		const secret = "hUnTeR2"
		value := before + secret + after
		for _, s := range []string{
			"/a?cache=" + value + rest,
			"/a?cache=k&cache-path=" + value + rest,
			"/a?cache=k&cache-path=/c&cache-promote=" + value + rest,
			"/a&cache=" + value + rest,
			"/a%3Fcache=" + value + rest,
			"/a/../?cache=" + value + rest,
			"baggageclaim://user:" + secret + "@vol/a" + rest,
			"docker://user:" + secret + "@vol/a" + rest,
		} {
			if _, err := ParseRef(s); err != nil {
				checkSentence(t, err, secret)
			}
		}
	})
}
