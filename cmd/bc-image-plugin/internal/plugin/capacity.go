package plugin

import (
	"context"
	"encoding/json"
	"fmt"
)

// capacity says how large the store's file system is.
func capacity(_ context.Context, c *call) (answer, error) {
	if err := noArgs("capacity", c.args); err != nil {
		return answer{}, err
	}
	bytes, err := c.store().Capacity()
	if err != nil {
		return answer{}, fmt.Errorf("capacity: %w", err)
	}
	b, err := json.Marshal(struct {
		Capacity uint64 `json:"capacity"`
	}{bytes})
	if err != nil {
		return answer{}, fmt.Errorf("capacity: %w", err)
	}
	return answer{stdout: append(b, '\n'), did: "measured"}, nil
}
