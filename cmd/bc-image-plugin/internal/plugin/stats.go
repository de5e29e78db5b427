package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/concourse/bc-image-plugin/volumes"
)

// diskUsage is the answer to stats. gdn reads it as objects of unsigned integers, and fails for anything else in it.
type diskUsage struct {
	DiskUsage struct {
		Total     uint64 `json:"total_bytes_used"`
		Exclusive uint64 `json:"exclusive_bytes_used"`
	} `json:"disk_usage"`
}

// stats says how many bytes a container uses. It fails for an unknown handle: gdn asks the other slot then.
func stats(ctx context.Context, c *call) (answer, error) {
	arg, err := oneHandle("stats", c.args)
	if err != nil {
		return answer{}, err
	}
	c.fact("handle", arg)
	handle, err := volumes.ParseHandle(arg)
	if err != nil {
		return answer{}, Usagef("stats: %w", err)
	}
	usage, err := c.store().Stats(ctx, handle)
	if err != nil {
		return answer{}, err
	}
	var u diskUsage
	u.DiskUsage.Total = usage.TotalBytes
	u.DiskUsage.Exclusive = usage.ExclusiveBytes
	b, err := json.Marshal(u)
	if err != nil {
		return answer{}, fmt.Errorf("stats %s: %w", Quote(arg), err)
	}
	c.fact("exclusive-bytes", usage.ExclusiveBytes)
	c.fact("partial", usage.Partial)
	return answer{stdout: append(b, '\n'), did: "measured"}, nil
}
