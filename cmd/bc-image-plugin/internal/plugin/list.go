package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
)

// list shows the containers with their volumes, by the order of their handles.
func list(ctx context.Context, c *call) (answer, error) {
	asJSON := len(c.args) == 1 && c.args[0] == "--json"
	if len(c.args) > 0 && !asJSON {
		return answer{}, Usagef("list: takes nothing but --json: global flags stand before the command")
	}
	entries, err := c.store().List(ctx)
	if err != nil {
		return answer{}, fmt.Errorf("list: %w", err)
	}
	slices.SortFunc(entries, func(a, b volumes.Entry) int { return cmp.Compare(a.Handle, b.Handle) })
	format := listTable
	if asJSON {
		format = listJSON
	}
	b, err := format(entries)
	if err != nil {
		return answer{}, fmt.Errorf("list: %w", err)
	}
	return answer{stdout: b, did: "listed", quiet: true}, nil
}

// listJSON is a list for programs: [] when there is nothing.
func listJSON(entries []volumes.Entry) ([]byte, error) {
	if entries == nil {
		entries = []volumes.Entry{}
	}
	b, err := json.Marshal(entries)
	return append(b, '\n'), err
}

// listTable is a list for people.
func listTable(entries []volumes.Entry) ([]byte, error) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "HANDLE\tSTATE\tMOUNTED\tPRIVILEGED\tCREATED\tIMAGE\tROOT")
	for _, e := range entries {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", tableCell(e.Handle), e.State, yesNo(e.Mounted), yesNo(e.Privileged),
			e.Created.Format(time.RFC3339), tableCell(e.Image), tableCell(e.Root))
	}
	err := w.Flush()
	return b.Bytes(), err
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// tableCell returns s as it is, or in quotes if it would be mistaken for several columns or lines, or for none.
func tableCell(s string) string {
	quoted := strconv.Quote(s)
	if s == "" || len(quoted) != len(s)+len(`""`) || strings.Contains(s, " ") {
		return quoted
	}
	return s
}
