// Package lagerline checks log lines in tests.
package lagerline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Check returns the data of a line, or an error if it is not what gdn's relogger takes for a lager line.
func Check(line []byte) (map[string]any, error) {
	body, ok := bytes.CutSuffix(line, []byte("\n"))
	switch {
	case !ok:
		return nil, fmt.Errorf("%q does not end its line", line)
	case bytes.ContainsAny(body, "\n\r"):
		return nil, fmt.Errorf("%q is more than one line", line)
	case len(line) >= 4096:
		return nil, fmt.Errorf("%d bytes are not below 4 KiB", len(line))
	}
	var l struct {
		Timestamp, Level, Source, Message *string
		Data                              map[string]any
	}
	if err := json.Unmarshal(body, &l); err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	if l.Timestamp == nil || l.Level == nil || l.Source == nil || l.Message == nil || l.Data == nil {
		return nil, fmt.Errorf("%q lacks a part", line)
	}
	if _, err := time.Parse(time.RFC3339Nano, *l.Timestamp); err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	switch *l.Level {
	case "debug", "info", "error", "fatal":
	default:
		return nil, fmt.Errorf("%q: lager knows no level %q", line, *l.Level)
	}
	if *l.Source != "bc-image-plugin" {
		return nil, fmt.Errorf("%q: source %q", line, *l.Source)
	}
	for _, key := range []string{"error", "trace", "session"} {
		if value, ok := l.Data[key]; ok {
			if _, ok := value.(string); !ok {
				return nil, fmt.Errorf("%q: %s is no string, which gdn takes for garbage", line, key)
			}
		}
	}
	return l.Data, nil
}
