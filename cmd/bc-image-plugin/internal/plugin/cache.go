package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
)

const cacheUsage = "list [--json] | drop ID | commit HANDLE"

// cache is for the person who looks after a worker. Caches are known by their IDs: nobody here has the keys.
func cache(ctx context.Context, c *call) (answer, error) {
	if len(c.args) == 0 {
		return answer{}, Usagef("cache: use %s", cacheUsage)
	}
	switch word, rest := c.args[0], c.args[1:]; word {
	case "list":
		return cacheList(ctx, c, rest)
	case "drop":
		return cacheDrop(ctx, c, rest)
	case "commit":
		return cacheCommit(ctx, c, rest)
	default:
		return answer{}, Usagef("cache: unknown word %s: use %s", Quote(word), cacheUsage)
	}
}

// cacheEntry is one element of `cache list --json`.
type cacheEntry struct {
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"`
	Layers     int       `json:"layers"`
	Bytes      uint64    `json:"bytes"`
	Files      uint64    `json:"files"`
	LastUsed   time.Time `json:"last_used"`
	Users      int       `json:"users"`
}

func cacheList(ctx context.Context, c *call, args []string) (answer, error) {
	asJSON := len(args) == 1 && args[0] == "--json"
	if len(args) > 0 && !asJSON {
		return answer{}, Usagef("cache list: takes nothing but --json: global flags stand before the command")
	}
	infos, err := c.caches().List(ctx)
	if err != nil {
		return answer{}, fmt.Errorf("cache list: %w", err)
	}
	slices.SortFunc(infos, func(a, b volumes.StackInfo) int { return cmp.Compare(a.Name, b.Name) })
	entries := []cacheEntry{}
	for _, i := range infos {
		entries = append(entries, cacheEntry{i.Name, i.Generation, i.Layers, i.Bytes, i.Entries, i.LastUsed.UTC(), i.Users})
	}
	var b bytes.Buffer
	if asJSON {
		err = json.NewEncoder(&b).Encode(entries)
	} else {
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tGENERATION\tLAYERS\tBYTES\tFILES\tLAST USED\tUSERS")
		for _, e := range entries {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t%d\n", e.ID, e.Generation, e.Layers, e.Bytes, e.Files, e.LastUsed.Format(time.RFC3339), e.Users)
		}
		err = w.Flush()
	}
	if err != nil {
		return answer{}, fmt.Errorf("cache list: %w", err)
	}
	return answer{stdout: b.Bytes(), did: "listed", quiet: true}, nil
}

func cacheDrop(ctx context.Context, c *call, args []string) (answer, error) {
	if len(args) != 1 {
		return answer{}, Usagef("cache drop: takes one ID of `cache list`")
	}
	if volumes.ValidStack(args[0]) { // else it may be a key, which has no place in a log
		c.fact("cache", args[0])
	}
	if err := c.caches().Drop(ctx, args[0]); err != nil {
		return answer{}, err
	}
	return answer{did: "dropped"}, nil
}

func cacheCommit(ctx context.Context, c *call, args []string) (answer, error) {
	arg, err := oneHandle("cache commit", args)
	if err != nil {
		return answer{}, err
	}
	c.fact("handle", arg)
	handle, err := volumes.ParseHandle(arg)
	if err != nil {
		return answer{}, Usagef("cache commit: %w", err)
	}
	n, err := c.caches().Commit(ctx, handle)
	if err != nil {
		return answer{}, err
	}
	c.fact("caches", n)
	return answer{did: "committed"}, nil
}
