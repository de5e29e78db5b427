package plugin

import (
	"context"
	"runtime/debug"
)

// buildVersion is set when a release is built: -ldflags "-X …/internal/plugin.buildVersion=v1.2.3".
var buildVersion string

// version prints which version this is.
func version(_ context.Context, c *call) (answer, error) {
	if err := noArgs("version", c.args); err != nil {
		return answer{}, err
	}
	v := buildVersion
	if info, ok := debug.ReadBuildInfo(); v == "" && ok {
		v = info.Main.Version
	}
	return answer{stdout: []byte(Name + " " + v + "\n"), did: "printed", quiet: true}, nil
}
