package plugin

import (
	"bytes"
	"context"
	"fmt"

	"github.com/concourse/bc-image-plugin/volumes"
)

// doctor prints what this host can do for the store. The report is for a person, so it is text, and it is printed
// whether it is good or bad.
func doctor(ctx context.Context, c *call) (answer, error) {
	if err := noArgs("doctor", c.args); err != nil {
		return answer{}, err
	}
	var b bytes.Buffer
	a := answer{did: "examined", quiet: true}
	for _, f := range c.store().Doctor(ctx) {
		fmt.Fprintf(&b, "%-4s  %s\n", f.Level, readable(f.Text))
		if f.Level == volumes.Fail {
			a.failure = fmt.Errorf("doctor: %w", errReported)
		}
	}
	a.stdout = b.Bytes()
	return a, nil
}
