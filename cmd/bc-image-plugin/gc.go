package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

const gcUsage = "[--dry-run]"

// gc prints a line for each thing that is of no use: what became of it, where it is, what it is. A script reads the exit code: 0, nothing of no use is left (with
// --dry-run: it was found out what there is); 1, something is left, and its line begins with "left", or it could not be found out; 2, used wrongly.
func gc(ctx context.Context, c *call) (answer, error) {
	var o volumes.GCOptions
	for _, arg := range c.args {
		switch arg {
		case "--dry-run":
			o.DryRun = true
		default:
			return answer{}, usagef("gc: use %s: global flags stand before the command", gcUsage)
		}
	}
	all, err := c.caches().GC(ctx, o)
	var evict *cachecopy.EvictError
	switch {
	case errors.As(err, &evict):
		c.warn(err)
	case err != nil && len(all) == 0:
		return answer{}, err
	}
	a := answer{did: "looked through"}
	var b bytes.Buffer
	removed, left := 0, 0
	for _, one := range all {
		path, text := quote(one.Path), one.Text
		switch {
		case o.DryRun:
			fmt.Fprintf(&b, "found    %s  %s\n", path, readable(text))
			continue
		case one.Err != nil:
			left++
			fmt.Fprintf(&b, "left     %s  %s; not removed: %s\n", path, readable(text), oneLine(one.Err.Error()))
		default:
			removed++
			fmt.Fprintf(&b, "removed  %s  %s\n", path, readable(text))
		}
		for _, end := range describeEnds(one.Deleted.Copies) {
			fmt.Fprintf(&b, "         cache %s\n", end)
		}
	}
	if evict == nil && err != nil {
		left++
		fmt.Fprintf(&b, "left     it could not be found out what else: %s\n", oneLine(err.Error()))
	}
	if left > 0 {
		a.failure = fmt.Errorf("gc: %w", errReported)
	}
	c.fact("removed", removed)
	c.fact("left", left)
	a.stdout = b.Bytes()
	return a, nil
}
