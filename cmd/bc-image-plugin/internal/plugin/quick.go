package plugin

import (
	"context"
	"flag"
	"io"
	"os"
	"time"
)

// Quick does what the command line says if that needs nothing but flags: they are right, and a command follows. Else it is not ok, nothing was done, and cli has to
// read the same line, to explain what is wrong with it or to help.
//
// To be read by cli costs a command 0.1 ms of its 1.3 (it lists all flags as text for every parse, splits names by a regular expression, and makes another flag set
// for each command), and to initialise it more: see package first. Both use Go's package flag, so they understand the same.
func (p *Program) Quick(ctx context.Context, args []string) (code int, ok bool) {
	set := flag.NewFlagSet(Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range p.Flags() {
		switch v := f.Value.(type) {
		case *string:
			set.StringVar(v, f.Name, *v, "")
		case *bool:
			set.BoolVar(v, f.Name, *v, "")
		case *uint64:
			set.Uint64Var(v, f.Name, *v, "")
		case *time.Duration:
			set.DurationVar(v, f.Name, *v, "")
		}
		_, isText := f.Value.(*string)
		if env, given := os.LookupEnv(EnvVar(f.Name)); given && (isText || env != "") && set.Set(f.Name, env) != nil {
			return 0, false
		}
	}
	if set.Parse(args[1:]) != nil || p.config.baggageclaimURL != "" && Server.New == nil {
		return 0, false
	}
	for _, c := range Commands {
		if c.Name == set.Arg(0) {
			return p.Exit(p.Perform(ctx, c, set.Args()[1:])), true
		}
	}
	return 0, false
}
