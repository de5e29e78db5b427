// Command bc-image-plugin is an image plugin for Guardian (gdn): it gives every container a copy-on-write root
// file system that lives exactly as long as the container.
//
// The commands are in package plugin; here is what reads a command line that needs more than its flags, and what links the BaggageClaim backend.
package main

import (
	"os"

	_ "github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/first" // it may have done all there is to do
	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/plugin"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/bcserver"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

func init() {
	plugin.Server.ParseURL = bcserver.ParseURL
	plugin.Server.New = func(url string, o overlay.Options) volumes.Driver {
		return bcserver.New(bcserver.Options{URL: url, Overlay: o})
	}
}

func main() { os.Exit(run(plugin.Signals(), os.Args, os.Stdout, os.Stderr)) }
