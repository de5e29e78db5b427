package main

import (
	"context"

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
	deleted, err := c.store().Delete(ctx, handle)
	if err != nil {
		return answer{}, err
	}
	if deleted.ID == "" {
		return answer{did: "nothing to delete"}, nil
	}
	c.fact("id", deleted.ID)
	return answer{did: "deleted"}, nil
}
