// Package cachecopy gives each container a private, writable copy of a named cache, and makes the copy of a container that succeeded the
// cache of the next one.
//
// A cache is a sequence of generations, each an immutable tree. A copy begins as the current generation, costs the same whatever its
// size, and is nobody else's: what one container does in it no other sees. At the container's end its copy becomes the next generation if
// the container committed it, changed it, and nobody else made a generation since it began; else it is dropped. Readers see one whole
// generation, never a mix.
//
// A cache is as trusted as its key: what a container leaves in it, hooks and configuration included, the next container of that key
// finds. Setuid bits and device nodes have no effect when it is mounted with the options that the plugin gives (nosuid, nodev).
//
// Not guaranteed: a generation that was made shortly before a power cut or crash is not served after it; the last one that is on disk for
// certain is. See [Options] for what bounds all caches together.
package cachecopy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
)

// Marker is the name of the file that a container leaves at the top of its cache to commit it. It has to be a regular file; its contents do not
// matter. No generation ever contains it.
const Marker = ".bc-cache-commit"

// Promote says when a copy becomes the next generation.
type Promote string

// The values of Promote.
const (
	OnCommit Promote = "on-commit" // when the container left a Marker, or Commit was called; the zero value means the same
	Always   Promote = "always"    // whatever the container did
	Never    Promote = "never"     // only read
)

// ID returns the cache's name in a store: the hex SHA-256 of its key. A key may hold secrets, and never gets to disk, logs or paths.
func ID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Options of Caches. The zero value limits nothing but the age.
type Options struct {
	// MaxBytes bounds the layers of all caches of the store together; 0 is a quarter of the store's file system.
	MaxBytes uint64
	// MaxAge is how long a cache is kept that no container uses; 0 is seven days.
	MaxAge time.Duration
}

// DefaultMaxAge is the MaxAge of the zero Options.
const DefaultMaxAge = 7 * 24 * time.Hour

// Caches are the caches of one store. It has no state of its own: any number of processes may work on one store.
type Caches struct {
	store *volumes.Store
	opts  Options
}

// New returns the caches of the store that storeOpts describe. Its Keep is set here.
func New(storeOpts volumes.Options, opts Options) *Caches {
	storeOpts.Keep = keep
	return &Caches{store: volumes.New(storeOpts), opts: opts}
}

// Store is the store below. Its containers must be deleted by [Caches.Delete], or nothing is evicted.
func (c *Caches) Store() *volumes.Store { return c.store }

// Cache names a cache that a container wants a copy of.
type Cache struct {
	Key     string  // opaque, not empty
	Path    string  // where the container's runtime will mount it; a directory is made there in the root file system. "": none is made
	Promote Promote // when the copy becomes the next generation
}

// Create makes container h with a root file system of req (which may have no image) and a copy of each cache. The copies' paths are in
// Volume.Copies, in order. An unknown key begins empty.
func (c *Caches) Create(ctx context.Context, h volumes.Handle, req volumes.Request, caches ...Cache) (*volumes.Volume, error) {
	for i, k := range caches {
		if k.Promote == "" {
			k.Promote = OnCommit
		}
		if err := k.check(caches[:i]); err != nil {
			return nil, err
		}
		req.Copies = append(req.Copies, volumes.CopyRequest{Stack: ID(k.Key), At: k.Path, Policy: string(k.Promote)})
	}
	return c.store.Create(ctx, h, req)
}

// check refuses a cache that cannot be had beside others. Messages never hold keys.
func (k Cache) check(others []Cache) error {
	switch {
	case k.Key == "":
		return fmt.Errorf("%w cache: its key is empty", volumes.ErrInvalid)
	case k.Promote != OnCommit && k.Promote != Always && k.Promote != Never:
		return fmt.Errorf("%w cache promotion %q: it has to be %s, %s or %s", volumes.ErrInvalid, k.Promote, OnCommit, Always, Never)
	case k.Path == "":
		return nil
	case k.Path == "/" || !path.IsAbs(k.Path) || path.Clean(k.Path) != k.Path || strings.ContainsRune(k.Path, 0):
		return fmt.Errorf("%w cache path %q: it has to be absolute and clean, and below the root directory", volumes.ErrInvalid, k.Path)
	}
	for _, o := range others {
		if o.Path != "" && (strings.HasPrefix(k.Path+"/", o.Path+"/") || strings.HasPrefix(o.Path+"/", k.Path+"/")) {
			return fmt.Errorf("%w cache paths %q and %q: one would hide the other", volumes.ErrInvalid, o.Path, k.Path)
		}
	}
	return nil
}

// Delete removes container h as volumes.Store.Delete does, and makes its copies the next generations of their caches where they are to be;
// Deleted.Copies says what became of each. A promotion that fails never fails the delete. Caches beyond the bounds are dropped after it, only if
// something was promoted.
func (c *Caches) Delete(ctx context.Context, h volumes.Handle) (volumes.Deleted, []volumes.StackInfo, error) {
	d, err := c.store.Delete(ctx, h)
	if err != nil {
		return d, nil, err
	}
	dropped, err := c.evict(ctx, d.Copies)
	return d, dropped, err
}

// evict drops caches beyond the bounds if something was promoted.
func (c *Caches) evict(ctx context.Context, ends []volumes.CopyEnd) ([]volumes.StackInfo, error) {
	var added uint64
	promoted := false
	for _, end := range ends {
		if end.Promoted {
			promoted = true
			added += end.Bytes
		}
	}
	if !promoted {
		return nil, nil
	}
	bounds, err := c.bounds()
	if err != nil {
		return nil, &EvictError{err}
	}
	// The container is gone and its caches are safe: that some other cache could not be dropped is a matter of its own.
	dropped, err := c.store.Evict(ctx, bounds, added)
	if err != nil {
		return dropped, &EvictError{err}
	}
	return dropped, nil
}

// GC removes leftovers as volumes.Store.GC does, goes on with deletes that were killed, and drops caches beyond the bounds as Delete does. The list is
// complete also with an [EvictError].
func (c *Caches) GC(ctx context.Context, o volumes.GCOptions) ([]volumes.Collected, error) {
	all, err := c.store.GC(ctx, o)
	if err != nil {
		return all, err
	}
	var ends []volumes.CopyEnd
	for _, one := range all {
		ends = append(ends, one.Deleted.Copies...)
	}
	_, err = c.evict(ctx, ends)
	return all, err
}

// EvictError says that the container was deleted, and that caches beyond the bounds could not be dropped.
type EvictError struct{ Err error }

func (e *EvictError) Error() string { return "drop caches beyond the bounds: " + e.Err.Error() }
func (e *EvictError) Unwrap() error { return e.Err }

func (c *Caches) bounds() (volumes.Bounds, error) {
	b := volumes.Bounds{MaxBytes: c.opts.MaxBytes, MaxAge: c.opts.MaxAge}
	if b.MaxAge == 0 {
		b.MaxAge = DefaultMaxAge
	}
	if b.MaxBytes == 0 {
		size, err := c.store.Capacity()
		if err != nil {
			return b, err
		}
		b.MaxBytes = size / 4
	}
	return b, nil
}

// Commit commits all copies of the live container h, as a Marker in each would. It returns how many there are.
func (c *Caches) Commit(ctx context.Context, h volumes.Handle) (int, error) {
	return c.store.CommitCopies(ctx, h)
}

// List returns all caches that have a generation, in no order.
func (c *Caches) List(ctx context.Context) ([]volumes.StackInfo, error) { return c.store.Stacks(ctx) }

// Drop forgets the cache id: the next container of its key begins empty. Live containers keep their copies, and do not promote them
// unless they began empty.
func (c *Caches) Drop(ctx context.Context, id string) error { return c.store.DropStack(ctx, id) }

// keep is the policy at the end of a copy.
func keep(ctx context.Context, e *volumes.Ended) (reason string, err error) {
	mode, err := e.Mode(Marker)
	absent := errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return "", err
	}
	committed := e.Committed || (!absent && mode.IsRegular())
	if !absent {
		if committed {
			if err := e.Commit(); err != nil {
				return "", err
			}
		}
		// Whatever it is: no generation contains that name.
		if err := e.Remove(ctx, Marker); err != nil {
			return "", err
		}
	}
	switch {
	case Promote(e.Policy) == Always:
		return "", nil
	case Promote(e.Policy) == Never:
		return "it is never promoted", nil
	case committed:
		return "", nil
	case absent:
		return "not committed", nil
	}
	return "not committed: " + Marker + " is no regular file", nil
}
