package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

// remove deletes what create made for a handle. gdn asks twice for each container, for containers that never had
// anything of ours, and for handles that nothing can be named by: all that is success.
func remove(ctx context.Context, c *call) (answer, error) {
	arg, err := oneHandle("delete", c.args)
	if err != nil {
		return answer{}, err
	}
	c.fact("handle", arg)
	handle, err := volumes.ParseHandle(arg)
	if err != nil {
		return answer{did: "nothing to delete: no container can have this handle"}, nil
	}
	deleted, dropped, err := c.caches().Delete(ctx, handle)
	var evict *cachecopy.EvictError
	switch {
	case errors.As(err, &evict):
		c.warn(err) // the container is gone: that is what delete is asked for
	case err != nil:
		return answer{}, err
	}
	if deleted.ID == "" {
		return answer{did: "nothing to delete"}, nil
	}
	c.fact("id", deleted.ID)
	if len(deleted.Copies) > 0 {
		c.fact("caches", describeEnds(deleted.Copies))
	}
	if len(dropped) > 0 {
		c.fact("caches-dropped", len(dropped))
	}
	return answer{did: "deleted"}, nil
}

// describeEnds says for the log what became of each copy of a cache, in a sentence each.
func describeEnds(ends []volumes.CopyEnd) []string {
	var all []string
	for _, e := range ends {
		switch {
		case !e.Promoted:
			all = append(all, fmt.Sprintf("%s dropped: %s", e.Stack, e.Reason))
		case e.Merged > 0:
			all = append(all, fmt.Sprintf("%s promoted: generation %d, %d layers, %d bytes in %d files new, %d layers merged", e.Stack, e.Generation, e.Layers, e.Bytes, e.Entries, e.Merged))
		default:
			all = append(all, fmt.Sprintf("%s promoted: generation %d, %d layers, %d bytes in %d files new", e.Stack, e.Generation, e.Layers, e.Bytes, e.Entries))
		}
	}
	return all
}
