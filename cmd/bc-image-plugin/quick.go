package main

import (
	"context"
	"flag"
	"io"
)

// quick does what the command line says if that needs nothing of cli but its flags: they are right, and a command of ours follows. Else it is not ok,
// nothing was done, and cli has to read the same line, to explain what is wrong with it or to help.
//
// It is here since to be read by cli costs a command 0.1 ms of its 1.3 (it lists all flags as text for every parse, splits names by a regular
// expression, and makes another flag set for each command). Both read with cli's own flags and Go's package flag, so they understand the same.
func (p *program) quick(ctx context.Context, args []string) (ok bool, err error) {
	set := flag.NewFlagSet(programName, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range p.config.flags() {
		if f.Apply(set) != nil { // a value in the environment
			return false, nil
		}
	}
	if set.Parse(args[1:]) != nil {
		return false, nil
	}
	for _, c := range commands {
		if c.name == set.Arg(0) {
			return true, p.perform(ctx, c, set.Args()[1:])
		}
	}
	return false, nil
}
