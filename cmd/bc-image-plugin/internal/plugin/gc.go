package plugin

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
)

const gcUsage = "[--depot DIR [--min-age D]] [--dry-run]"

// gc prints a line for each thing that is of no use: what became of it, where it is, what it is. A script reads the exit code: 0, nothing of no use is left (with
// --dry-run: it was found out what there is); 1, something is left, and its line begins with "left", or it could not be found out; 2, used wrongly.
func gc(ctx context.Context, c *call) (answer, error) {
	o, err := parseGC(c.args)
	if err != nil {
		return answer{}, err
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
		path, text := Quote(one.Path), one.Text
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

// parseGC reads the arguments of gc.
func parseGC(args []string) (o volumes.GCOptions, err error) {
	var dir string
	set := flag.NewFlagSet("gc", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.BoolVar(&o.DryRun, "dry-run", false, "")
	set.StringVar(&dir, "depot", "", "")
	set.DurationVar(&o.MinAge, "min-age", time.Hour, "")
	given := map[string]bool{}
	if err = set.Parse(args); err == nil && set.NArg() > 0 {
		err = fmt.Errorf("takes nothing but flags")
	}
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case err != nil:
	case given["min-age"] && !given["depot"]:
		err = errors.New("--min-age needs --depot")
	case o.MinAge <= 0:
		err = fmt.Errorf("--min-age %s: must be longer than 0", o.MinAge)
	}
	if err != nil {
		return o, Usagef("gc: %w: use %s, global flags stand before the command", err, gcUsage)
	}
	if given["depot"] {
		d, err := openDepot(dir)
		if err != nil {
			return o, err
		}
		o.Known = d.knows
	}
	return o, nil
}
