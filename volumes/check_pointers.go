package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"golang.org/x/sys/unix"
)

// judgeStacks finds pointers that lead nowhere, and drops that died.
func (l *look) judgeStacks() error {
	stacks, err := readNames(l.path("caches"))
	if err != nil {
		return err
	}
	slices.Sort(stacks)
	for _, stack := range stacks {
		if !ValidStack(stack) {
			l.add("caches/"+stack, "was not made by the store", nil)
			continue
		}
		if err := l.judgeDrops(stack); err != nil {
			return err
		}
		l.judgePointer(stack)
	}
	return nil
}

// judgeDrops finds what is left of a generation that somebody began to drop, and other names that nobody is about to remove.
func (l *look) judgeDrops(stack string) error {
	names, err := readNames(l.path("caches", stack))
	if err != nil {
		return err
	}
	for _, n := range names {
		path := "caches/" + stack + "/" + n
		there := func() bool { return exists(l.path(path)) }
		switch {
		case n == "current":
		case strings.HasPrefix(n, droppedPrefix):
			if l.isFree(durable.Records, dropLock(stack), there) {
				l.add(path, "whoever dropped this generation died", l.collectDrop(stack))
			}
		case n == "next":
			if l.isFree(durable.Caches, stack, there) {
				l.add(path, "whoever published a generation died", func(ctx context.Context) (Deleted, error) {
					return Deleted{}, l.locked(ctx, durable.Caches, stack, func() error { return removeIfThere(l.path(path)) })
				})
			}
		default:
			l.add(path, "was not made by the store", nil)
		}
	}
	isEmpty := func() bool {
		names, err := readUsers(l.path("caches", stack))
		return err == nil && names != nil && len(names) == 0
	}
	// Who drops a stack removes its directory last; who publishes makes it first.
	if isEmpty() && l.isFree(durable.Records, dropLock(stack), func() bool { return l.isFree(durable.Caches, stack, isEmpty) }) {
		l.add("caches/"+stack, "whoever dropped this cache died", l.collectDrop(stack))
	}
	return nil
}

// collectDrop goes on with a drop that died, if nobody else does.
func (l *look) collectDrop(stack string) func(context.Context) (Deleted, error) {
	return func(ctx context.Context) (Deleted, error) {
		return Deleted{}, l.locked(ctx, durable.Records, dropLock(stack), func() error { return l.finishDrops(ctx, stack) })
	}
}

// judgePointer looks whether containers can have copies of a stack. Twice: a generation that is replaced or dropped while we look is not broken.
func (l *look) judgePointer(stack string) {
	path := "caches/" + stack + "/current"
	for range 2 {
		if why := l.whyBroken(stack); why != "" {
			l.add(path, why+", so no container can have a copy", l.collectBroken(stack))
			return
		}
		t, err := l.top(stack)
		if err != nil || exists(l.path("layers", t.layer, "users", stack)) {
			return
		}
		if again, err := l.top(stack); err == nil && again == t {
			l.add(path, fmt.Sprintf("its layer %s does not know that it is used; drop the cache", t.layer), nil)
			return
		}
	}
}

// whyBroken says why no container can have a copy of a stack. "": they can, or it has no generation, or it has another one now.
func (l *look) whyBroken(stack string) string {
	boot, err := bootID()
	if err != nil {
		return ""
	}
	t, layers, err := l.readStack(stack, shortBoot(boot))
	why := ""
	if t.layer != "" { // which is used, also where it is not served
		layers = append(layers, t.layer)
	}
	for _, layer := range layers {
		if !exists(l.path("layers", layer)) {
			why = fmt.Sprintf("its layer %s is gone", layer)
		}
	}
	if err != nil {
		why = err.Error()
	}
	if now, err := l.top(stack); err == nil && now != t {
		return ""
	}
	return why
}

// collectBroken drops a stack that is of no use.
func (l *look) collectBroken(stack string) func(context.Context) (Deleted, error) {
	return func(ctx context.Context) (Deleted, error) {
		_, err := l.dropStack(ctx, stack, func() (bool, error) { return l.whyBroken(stack) != "", nil })
		if isNotFound(err) {
			err = nil
		}
		return Deleted{}, err
	}
}

// judgeImages finds copies whose maker died, and what is kept of images that are gone.
func (l *look) judgeImages() error {
	names, err := readNames(l.path("images"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		path := "images/" + n
		identity, kind, _ := strings.Cut(n, ".")
		there := func() bool { return exists(l.path(path)) }
		switch kind {
		case "making":
			if l.isFree(durable.Images, identity, there) {
				l.add(path, "whoever copied this image died", l.collectCopy(n))
			}
		case "copy":
			l.judgeCopy(n, identity)
		case "size":
			var r sizeRecord
			if err := durable.ReadJSON(l.path(path), &r); err != nil || !imageIs(string(r.Image), identity) {
				l.spare(path, "the size of an image that is gone", func(context.Context) (Deleted, error) {
					return Deleted{}, removeIfThere(l.path(path))
				})
			}
		case "size.tmp":
			if l.isFree(durable.Images, identity, there) {
				l.spare(path, "a command died that wrote it", func(ctx context.Context) (Deleted, error) {
					return Deleted{}, l.locked(ctx, durable.Images, identity, func() error { return removeIfThere(l.path(path)) })
				})
			}
		default:
			l.add(path, "was not made by the store", nil)
		}
	}
	return nil
}

// spare notes what nobody needs, and is no problem.
func (l *look) spare(path, text string, collect func(context.Context) (Deleted, error)) {
	l.found = append(l.found, Problem{Path: path, Text: text, collect: collect, spare: true})
}

// judgeCopy looks at the pointer to a shifted copy.
func (l *look) judgeCopy(name, identity string) {
	path := "images/" + name
	broken := func() (layer, why string) {
		layer, err := os.Readlink(l.path(path))
		switch {
		case errors.Is(err, unix.ENOENT):
			return "", ""
		case err != nil || !ids.Valid(layer):
			return "", "leads to no layer"
		case !exists(l.path("layers", layer)):
			return layer, "leads to a layer that is gone"
		case !exists(l.path("layers", layer, "users")):
			return layer, "leads to a layer whose removal died"
		}
		return layer, ""
	}
	layer, why := broken()
	if why != "" {
		if l.isFree(durable.Images, identity, func() bool { layer, why = broken(); return why != "" }) {
			l.add(path, why, l.collectCopy(name))
		}
		return
	}
	if layer == "" {
		return // it went
	}
	var r layerRecord
	if err := durable.ReadJSON(l.path("layers", layer, "layer.json"), &r); err != nil {
		if exists(l.path("layers", layer, "users")) {
			l.add("layers/"+layer, "its record cannot be read: the next container of its image makes another copy", l.collectCopy(name))
		}
		return
	}
	if len(l.users[layer]) == 0 && !imageIs(string(r.Image), r.Identity) {
		l.spare(path, "the copy of an image that is gone", func(ctx context.Context) (Deleted, error) {
			return Deleted{}, l.locked(ctx, durable.Images, identity, func() error { return l.dropUnused(ctx, layer, r) })
		})
	}
}

// collectCopy removes a copy whose maker or remover died.
func (l *look) collectCopy(name string) func(context.Context) (Deleted, error) {
	return func(ctx context.Context) (Deleted, error) {
		identity, _, _ := strings.Cut(name, ".")
		return Deleted{}, l.locked(ctx, durable.Images, identity, func() error { return l.dropCopy(ctx, l.path("images", name)) })
	}
}
