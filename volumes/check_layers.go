package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/internal/durable"
	"github.com/concourse/bc-image-plugin/volumes/internal/ids"
	"golang.org/x/sys/unix"
)

// aMoment is how long a look waits for a lock: longer than another look holds it, and much shorter than a create.
const aMoment = 5 * time.Millisecond

// judgeLayers finds layers that nobody names, marks of users that are gone, and marks that are missing.
func (l *look) judgeLayers() error {
	for _, name := range l.layers {
		id, ok := owner(name)
		users, hasUsers := l.users[name]
		switch {
		case name == scratch: // see judgeRecords
		case !ok || (name != id && !isLayer(name)):
			l.add("layers/"+name, "was not made by the store", nil)
		case l.owned(id):
			// A container's own, or what it is about to publish.
		case name == id && !hasUsers && l.copies[id]:
			// A shifted copy that is being made, or removed.
		case name == id && !hasUsers:
			if exists(l.path("layers", name)) {
				l.add("layers/"+name, "no container has this layer", l.collectID(name))
			}
		default:
			if err := l.judgeUsers(name, users); err != nil {
				return err
			}
			if name != id {
				l.judgeParent(name)
			}
		}
	}
	return nil
}

// judgeUsers: a layer lives by its users.
func (l *look) judgeUsers(layer string, users []string) error {
	used := false
	for _, user := range users {
		stale, err := l.isStale(layer, user)
		if err != nil {
			return err
		}
		if !stale {
			used = true
			continue
		}
		if !exists(l.path("layers", layer, "users", user)) {
			continue // it was taken off meanwhile, before what made it stale
		}
		l.add("layers/"+layer+"/users/"+user, "this user is gone", func(ctx context.Context) (Deleted, error) {
			if ids.Valid(layer) {
				return Deleted{}, removeIfThere(l.path("layers", layer, "users", user))
			}
			return Deleted{}, l.unmarkLayer(ctx, layer, user)
		})
	}
	// One of which every mark is stale goes with the last of them.
	if used || len(users) > 0 || l.copies[layer] || l.releases[layer] || !exists(l.path("layers", layer)) {
		return nil
	}
	l.add("layers/"+layer, "nobody uses this layer", func(ctx context.Context) (Deleted, error) {
		if ids.Valid(layer) {
			_, err := l.removeUnused(ctx, layer)
			return Deleted{}, err
		}
		return Deleted{}, l.unmarkLayer(ctx, layer, nobody)
	})
	return nil
}

// nobody is the name of no user.
const nobody = "-"

// isStale says whether the user of a layer that was seen is gone for ever.
func (l *look) isStale(layer, user string) (bool, error) {
	id, ok := owner(user)
	switch {
	case ok && (user == id || strings.HasPrefix(user, id+".")): // a container, or its copy
		return !l.owned(id), nil
	case isLayer(user): // the layer above: its container marked this one before it had that name
		return !l.owned(id) && !exists(l.path("layers", user)), nil
	case ValidStack(user):
		return l.isStaleStack(layer, user)
	}
	return false, nil // not ours to judge
}

// isStaleStack: a stack's mark on its top layer is put before that is published, and taken off after it was replaced, by the container that was
// made from it and replaced it, or dropped, through its pointer. The layer's own container is done. So at this moment, in this order, the layer is the top, or
// is dropped, or is used by a copy, or the mark is gone or stale. A layer becomes the top only once.
func (l *look) isStaleStack(layer, stack string) (bool, error) {
	t, err := l.top(stack)
	if err != nil && !isNotFound(err) {
		return false, nil // a pointer that cannot be read may lead here
	}
	if t.layer == layer || exists(l.path("caches", stack, droppedPrefix+layer)) {
		return false, nil
	}
	users, err := readNames(l.path("layers", layer, "users"))
	if err != nil {
		return false, err
	}
	return slices.Contains(users, stack) && !slices.ContainsFunc(users, isCopyUser), nil
}

// isCopyUser says whether a mark is a container copy's.
func isCopyUser(user string) bool {
	id, _, ok := strings.Cut(user, ".")
	return ok && ids.Valid(id)
}

// judgeParent looks at what a layer stands on, and at its record. A layer that is going has no users any more.
func (l *look) judgeParent(layer string) {
	users := l.path("layers", layer, "users")
	parent, err := os.Readlink(l.path("layers", layer, "parent"))
	text := ""
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		text = fmt.Sprintf("its parent cannot be read: %v", err)
	case !isLayer(parent):
		text = fmt.Sprintf("its parent %q is no layer", parent)
	case !exists(l.path("layers", parent)):
		text = fmt.Sprintf("its parent %s is gone", parent)
	case !exists(l.path("layers", parent, "users", layer)):
		text = fmt.Sprintf("its parent %s does not know that it is used", parent)
	}
	if text != "" && exists(users) {
		l.add("layers/"+layer, text, nil)
	}
	var r layerRecord
	if err := durable.ReadJSON(l.path("layers", layer, "layer.json"), &r); err != nil && exists(users) {
		l.add("layers/"+layer+"/layer.json", "cannot be read, so the layer counts as empty until it is measured anew", func(ctx context.Context) (Deleted, error) {
			return Deleted{}, l.mendRecord(ctx, layer)
		})
	}
}

// mendRecord measures a layer anew whose record a power cut took. Meanwhile it has a user, of a container that never was: should we die, it is a stale one.
func (l *look) mendRecord(ctx context.Context, layer string) error {
	id, err := ids.New()
	if err != nil {
		return err
	}
	user := copyUser(id, 0)
	if err := l.markLayer(layer, user); errors.Is(err, unix.ENOENT) {
		return nil // it went
	} else if err != nil {
		return err
	}
	u, err := l.measureLayer(ctx, layer)
	if err == nil {
		err = l.writeLayerRecord(layer, layerRecord{Kind: kindCache, Driver: l.keeper(), Created: time.Now().UTC(), Bytes: u.Bytes, Entries: u.Entries})
	}
	return errors.Join(err, l.unmarkLayer(context.WithoutCancel(ctx), layer, user))
}
