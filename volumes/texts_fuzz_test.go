package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func FuzzParseLedger(f *testing.F) {
	for _, s := range []string{"1 2 3", "0 0 0", "9223372036854775807 9223372036854775807 9223372036854775807", "9223372036854775808 0 0", "-1 2 3", "1 2", "", "1  2 3", "+1 2 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := parseLedger(text)
		if back := parseLedger(l.String()); back.bytes != l.bytes || back.next != l.next || back.swept.Unix() != max(l.swept.Unix(), 0) {
			t.Errorf("%q is read as %+v, and then as %+v", text, l, back)
		}
		if l != (ledger{}) && strings.Count(text, " ") != 2 {
			t.Errorf("%q is taken for a ledger", text)
		}
	})
}

// Whatever is taken for a name is the name of something in the directory where it is looked up.
func FuzzNamesStayInside(f *testing.F) {
	const id = "0123456789abcdef0123456789abcdef"
	for _, s := range []string{id, id + "-0", id + "-0m", id + "-65535m", id + "/cache-7", strings.Repeat("a", 64), strings.Repeat("a", 64) + "-shifted", "..", "", id + "-/..", id + "-1mm"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		inside := func(name string) bool {
			return name != "" && filepath.Base(name) == name && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00") && len(name) <= 255
		}
		if h, err := ParseHandle(name); err == nil && !inside(h.String()) {
			t.Errorf("the handle %q", name)
		}
		if (isLayer(name) || ids.Valid(name) || ValidStack(name)) && !inside(name) {
			t.Errorf("the layer, ID or stack %q", name)
		}
		if id, ok := madeFor(name); ok {
			dir, part, nested := strings.Cut(name, "/")
			if !inside(id) || dir != id || nested && !inside(part) {
				t.Errorf("the layer %q of a container", name)
			}
		}
		if top, err := parseTop(name); err == nil && !inside(top.layer) {
			t.Errorf("the pointer %q", name)
		}
	})
}

// treeDriver keeps trees where package overlay does, mounts nothing, and removes as it does, but nothing outside.
type treeDriver struct {
	fakeDriver
	t *testing.T
}

func (d treeDriver) Remove(ctx context.Context, layers, name string) error {
	if !filepath.IsLocal(name) {
		d.t.Errorf("layer %q would be removed", name)
		return nil
	}
	return tree.RemoveIn(ctx, layers, name)
}

// leadsFar says whether a text may lead further out than the test's own directory: a store that follows it is found out by what is there, and must not get to the
// rest of the host. Strings of records count one by one.
func leadsFar(texts ...string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		return strings.Contains(text, `\`) || slices.ContainsFunc(strings.Split(text, `"`), func(s string) bool { return strings.Count(s, "..") > 2 })
	})
}

// The texts in a store are pointers, and the store is root's; but whatever they are, nothing outside of the store is touched by those who follow them, all ends, and a
// delete that says that all is gone has left nothing of the container.
func FuzzStoreTexts(f *testing.F) {
	const id, other = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	const stack = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	f.Add("h", id, "7 "+other+"-0 boot", other+"-0", "stack", `{"kind":"rootfs","copies":[{"stack":"`+stack+`","base":"`+other+`-0","generation":7,"layers":["`+other+`-0"]}]}`, "1 2 3")
	f.Add("h", id, "1 "+id+"-0 b", id+"-0", "x", `{"lowers":["../../outside"],"copies":[{"stack":"../../../outside","base":"../outside","layers":["../../outside"]}]}`, "")
	f.Add("h", id, "7 "+other+"-0 boot", "", "x", `{"copies":[{"stack":"`+stack+`","base":"`+other+`-0","layers":["../../outside"]}]}`, "")
	f.Add("-dash\n", "../../outside", "1 ../../outside b", "../../outside", "../outside", `{"image":"/outside","image_identity":"../../outside","lowers":["`+id+`"]}`, "9 9 9")
	f.Fuzz(func(t *testing.T, entry, to, current, parent, user, record, total string) {
		if leadsFar(to, current, parent, user, record) {
			t.Skip("it may lead out of the test")
		}
		base := t.TempDir()
		s := New(Options{Dir: base + "/store", Driver: treeDriver{t: t}, Keep: func(context.Context, *Ended) (string, error) { return "", nil }})
		for _, d := range directories {
			check(t, os.MkdirAll(s.path(d.name), 0o700))
		}
		check(t, os.MkdirAll(base+"/outside/users", 0o755)) // as a layer's
		for _, name := range []string{"users/" + id, "users/" + id + "-0", "users/" + id + ".0", "users/" + stack, "durable", "fs", "cache-0"} {
			check(t, os.WriteFile(base+"/outside/"+name, []byte("untouched"), 0o600))
		}
		check(t, os.WriteFile(base+"/outside/layer.json", []byte(`{"image_identity":"1-2-3","image":"/none"}`), 0o600))
		h, err := ParseHandle(entry)
		if err != nil {
			t.Skip(err)
		}
		boot, err := bootKey()
		check(t, err)
		check(t, durable.WriteJSON(s.path("store.json"), hostRecord{Format: format, Driver: "fake", FS: "ext4", Boot: boot}))
		check(t, os.MkdirAll(s.path("caches", stack), 0o700))
		for _, layer := range []string{id, id + "/cache-0", other + "-0"} {
			check(t, os.MkdirAll(s.path("layers", layer, "users"), 0o700))
			check(t, os.MkdirAll(s.path("layers", layer, "fs"), 0o700))
			_ = os.Symlink(parent, s.path("layers", layer, "parent")) // some texts cannot be a symlink's
			check(t, os.WriteFile(s.path("layers", layer, "layer.json"), []byte(record), 0o600))
			if filepath.Base(user) == user {
				_ = os.WriteFile(s.path("layers", layer, "users", user), nil, 0o600)
			}
		}
		check(t, os.MkdirAll(s.path("mnt", id, "rootfs"), 0o700))
		_ = os.Symlink(to, s.entryPath(stateLive, h))
		_ = os.Symlink(current, s.stackPointer(stack))
		_ = os.Symlink(current, s.path("caches", stack, "dropped."+id))
		_ = os.Symlink(to, s.path("images", "1-2-3.making"))
		_ = os.Symlink(to, s.path("images", "1-2-3.copy"))
		_ = os.Symlink(total, s.path("caches.total"))
		before := inspect.Tree(t, base+"/outside", inspect.Keep)

		ctx := t.Context()
		_, _ = s.Check(ctx)
		_, _ = s.List(ctx)
		_, _ = s.Stacks(ctx)
		_, _ = s.Stats(ctx, h)
		_, _ = s.GC(ctx, GCOptions{DryRun: true})
		_, _ = s.CommitCopies(ctx, h)
		if _, err := s.Delete(ctx, h); err == nil {
			if _, _, err := s.find(h); !errors.Is(err, ErrNotFound) {
				t.Errorf("deleted, and found: %v", err)
			}
			if to == id && exists(s.path("layers", id)) {
				t.Error("deleted, and its layer is there")
			}
		}
		_ = s.DropStack(ctx, stack)
		s.sweepImages(ctx)
		_, _ = s.GC(ctx, GCOptions{})
		_, _ = s.Evict(ctx, Bounds{MaxBytes: 1, MaxAge: time.Hour}, 2)
		inspect.Same(t, inspect.Tree(t, base+"/outside", inspect.Keep), before)
		if names, err := readNames(base); err != nil || len(names) != 2 {
			t.Errorf("beside the store: %q, %v", names, err)
		}
	})
}
