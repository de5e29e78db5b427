// Package first runs gdn's commands before the packages that they do not need are initialised.
//
// Go initialises a program's packages in the order of their import paths, each after those that it imports (The Go Programming Language Specification, Program
// initialization). So this one comes before cli, with text/template and regexp, and before net/http with most of what that needs; to initialise these takes a fifth of
// the time in which an empty program starts and ends, at every create and delete.
package first

import (
	"os"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/plugin"
)

func init() {
	if code, ok := plugin.New(os.Stdout, os.Stderr).Quick(plugin.Signals(), os.Args); ok {
		os.Exit(code)
	}
}
