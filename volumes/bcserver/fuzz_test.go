package bcserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/concourse/baggageclaim"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

const someID = "0123456789abcdef0123456789abcdef"

// A place that is read is written the same, and is where a server may have a volume of ours.
func FuzzParsePlace(f *testing.F) {
	for _, s := range []string{"/v/live/" + someID + "/volume", "/live/" + someID + "/volume", "v/live/" + someID + "/volume", "/v/../live/" + someID + "/volume", "//live/" + someID + "/volume", "/volume"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := parsePlace(text)
		if !ok {
			return
		}
		if p.tree() != text || !ids.Valid(p.handle) || p.volumes != "" && (!filepath.IsAbs(p.volumes) || filepath.Clean(p.volumes) != p.volumes) {
			t.Errorf("%q is read as %+v", text, p)
		}
		for _, state := range []string{"init", "live", "dead"} {
			if rel, err := filepath.Rel(p.volumes+"/", p.in(state)); err != nil || rel != state+"/"+p.handle {
				t.Errorf("%q: %q is not in %q: %q, %v", text, p.in(state), p.volumes, rel, err)
			}
		}
	})
}

// An address that is taken names a host and nothing else, and has no secret to be logged.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"http://127.0.0.1:7788", "https://[::1]:1/", "http://u:p@h", "http://h/path", "http://h?q", "http://h#", "http:/h", "HTTP://H", "http://%31", "http://h:", "http://[fe80::1%25x]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseURL(s)
		if err != nil {
			if got != "" || len(err.Error()) > 200 {
				t.Errorf("%q: %q, %v", s, got, err)
			}
			return
		}
		u, err := url.Parse(got)
		if err != nil || u.Hostname() == "" || u.User != nil || u.Path+u.RawQuery+u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" {
			t.Errorf("%q is taken as %q, %v", s, got, err)
		}
		if again, err := ParseURL(got); err != nil || again != got {
			t.Errorf("%q is taken as %q, and that as %q, %v", s, got, again, err)
		}
		if _, err := http.NewRequest(http.MethodGet, got+"/volumes", nil); err != nil {
			t.Errorf("%q is taken, and no request can be made: %v", s, err)
		}
	})
}

// scripted answers each request alike.
type scripted struct {
	status int
	body   string
}

func (s scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	return &http.Response{StatusCode: s.status, Body: io.NopCloser(strings.NewReader(s.body)), Header: http.Header{}, Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}, nil
}

// Whatever a server answers, a call that works has the answer that it asked for, and any other says so in one sentence; what is told of containers leads nowhere
// outside of the store.
func FuzzAnswer(f *testing.F) {
	volume := `{"handle":"` + someID + `","path":"/v/live/` + someID + `/volume","properties":{"bc-image-plugin-role":"rootfs","bc-image-plugin-container":"h","bc-image-plugin-layer":"` + someID + `"},"privileged":true}`
	for _, s := range []struct {
		status int
		body   string
	}{
		{200, volume}, {201, `{"handle":"` + someID + `"}`}, {204, ""}, {404, ""}, {404, `{"error":"volume not found"}`}, {404, "<html>"}, {500, strings.Repeat("e", 300)}, {302, ""},
		{200, "[" + volume + "]"}, {200, "[null,{}]"}, {200, "null"},
		{200, `[{"handle":"../x","path":"/v/live/../volume","properties":{"bc-image-plugin-role":"cache","bc-image-plugin-container":"%2e%2e","bc-image-plugin-layer":"../../outside"}}]`},
	} {
		f.Add(s.status, s.body)
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 999 {
			t.Skip("net/http would not give it to us")
		}
		dir := t.TempDir()
		layers := dir + "/store/layers"
		check(t, errors.Join(os.MkdirAll(layers, 0o700), os.MkdirAll(dir+"/outside", 0o700)))
		before := inspect.Tree(t, dir+"/outside", inspect.Keep)
		d := New(Options{URL: "http://127.0.0.1:1", Overlay: overlay.Options{}})
		c := d.client
		c.http.Transport = scripted{status, body}
		ctx := t.Context()
		ok := func(do string, err error, may bool) {
			t.Helper()
			var call *callError
			switch {
			case err == nil && !may:
				t.Errorf("%s: %d %q is taken for success", do, status, body)
			case err != nil && (!errors.As(err, &call) || len(err.Error()) > 2000 || !strings.Contains(err.Error(), "BaggageClaim server")):
				t.Errorf("%s: error %.2000v", do, err)
			}
		}
		var v baggageclaim.VolumeResponse
		isVolume := json.Unmarshal([]byte(body), &v) == nil && v.Handle == someID && filepath.IsAbs(v.Path)

		ok("start", c.Start(ctx, baggageclaim.VolumeRequest{Handle: someID}), status == 201 && v.Handle == someID)
		if status != 204 { // which says that it has to be asked again
			got, err := c.Wait(ctx, someID)
			ok("wait", err, false) // the one answer cannot be right for both of its calls
			if got.Handle != "" && got.Handle != v.Handle {
				t.Errorf("wait: %+v", got)
			}
		}
		_, err := c.Forget(ctx, someID)
		ok("forget", err, status == 204 || status == 404)
		ok("destroy", c.Destroy(ctx, someID), status == 204)
		_, err = c.Volume(ctx, someID)
		ok("volume", err, status == 200 && isVolume)
		ok("set property", c.SetProperty(ctx, someID, "n", "v"), status == 204)
		_, err = c.Sees(ctx, someID, "seen")
		ok("sees", err, status == 200 || status == 404)
		_, err = c.List(ctx, nil)
		ok("list", err, status == 200)

		err = d.Find(ctx, layers, "", func(container, name string) (bool, error) {
			// As the store does: see (*Store).adopt.
			_, err := volumes.ParseHandle(container)
			id, part, nested := strings.Cut(name, "/")
			if err != nil || !ids.Valid(id) || nested && part != "cache-0" {
				return false, nil
			}
			return true, os.MkdirAll(filepath.Join(layers, name), 0o700)
		})
		ok("find", err, status == 200)
		_, err = d.Strays(ctx, layers)
		ok("strays", err, status == 200)
		for _, finding := range d.Examine(ctx, layers) {
			if finding.Text == "" || len(finding.Text) > 4000+len(body) {
				t.Errorf("doctor says %q", finding.Text)
			}
		}
		inspect.Same(t, inspect.Tree(t, dir+"/outside", inspect.Keep), before)
		if names, err := os.ReadDir(dir); err != nil || len(names) != 2 {
			t.Errorf("beside the store: %v, %v", names, err)
		}
	})
}

// What is known of the server is read, or is not known: then it is found out again. It is not taken for a store's whatever it is.
func FuzzReadServer(f *testing.F) {
	f.Add([]byte(`{"url":"http://127.0.0.1:1","volumes":"/v","driver":"overlay","overlays":"/o"}`), "/v/live/"+someID+"/volume")
	f.Add([]byte(`{"volumes":"/`), "/o/x")
	f.Add([]byte(`{"volumes":5}`), "")
	f.Fuzz(func(t *testing.T, b []byte, path string) {
		layers := t.TempDir() + "/layers"
		check(t, durable.WriteFile(recordPath(layers), b))
		s, err := readServer(layers)
		var want server
		if json.Unmarshal(b, &want) != nil {
			want = server{}
		}
		if err != nil || s != want {
			t.Errorf("%q: %+v, %v", b, s, err)
		}
		d := New(Options{URL: "http://127.0.0.1:1"})
		if home := d.Home(layers); home == "" || home != layers && home != s.Volumes {
			t.Errorf("%q: home %q", b, home)
		}
		if d.Holds(layers, path) && (s.Overlays == "" || !strings.HasPrefix(path+"/", s.Overlays+"/")) {
			t.Errorf("%q holds %q", b, path) // there is no volume with our properties
		}
		back, err := json.Marshal(s)
		check(t, err)
		check(t, durable.WriteFile(recordPath(layers), bytes.TrimSpace(back)))
		if again, err := readServer(layers); err != nil || again != s {
			t.Errorf("%+v is read again as %+v, %v", s, again, err)
		}
	})
}
