package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/plugin"
)

// reader is the program as cli reads its command line.
type reader struct {
	*plugin.Program
	stdout, stderr io.Writer
}

// run does what args say and returns the exit code. It is the whole program but for the process around it: the command's answer, or one sentence about its failure,
// goes to stdout, the log to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := plugin.New(stdout, stderr)
	if code, ok := p.Quick(ctx, args); ok {
		return code
	}
	p = plugin.New(stdout, stderr) // Quick may have read some of the flags
	r := reader{p, stdout, stderr}
	return p.Exit(r.app().RunContext(ctx, args))
}

// app describes the command line to cli, with everything switched off that cli would do by itself: to print on
// stdout, to exit, to take a handle named "help" for a wish, or to split values at commas.
func (p reader) app() *cli.App {
	app := &cli.App{
		Name:                      plugin.Name,
		Usage:                     "copy-on-write root file systems for Guardian's containers",
		Description:               "Global flags stand before the command, as gdn's --image-plugin-extra-arg values do.",
		Flags:                     cliFlags(p.Flags()),
		Writer:                    p.stderr,
		ErrWriter:                 p.stderr,
		HideHelp:                  true,
		HideVersion:               true,
		DisableSliceFlagSeparator: true,
		Compiled:                  p.Started(), // or cli looks for the program's file to find its age
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              p.onUsageError,
		Action:                    p.withoutCommand,
	}
	for _, c := range plugin.Commands {
		app.Commands = append(app.Commands, &cli.Command{Name: c.Name, Usage: c.Usage, ArgsUsage: c.ArgsUsage, HideHelp: true,
			SkipFlagParsing: true, // they take a handle, which may look like a flag, so they read their arguments themselves
			Action:          func(context *cli.Context) error { return p.Perform(context.Context, c, context.Args().Slice()) }})
	}
	return app
}

// onUsageError takes what the flag package says about the global flags. Help is asked for by a flag that it does
// not know.
func (p reader) onUsageError(c *cli.Context, err error, _ bool) error {
	if errors.Is(err, flag.ErrHelp) {
		return p.printHelp(c, p.stdout)
	}
	return plugin.Usagef("%w (see %s --help)", err, plugin.Name)
}

// withoutCommand runs where the first argument after the global flags is none of our commands.
func (p reader) withoutCommand(c *cli.Context) error {
	switch word := c.Args().First(); {
	case c.Args().Len() == 0:
		if p.ForPerson() {
			if err := p.printHelp(c, p.stderr); err != nil {
				return err
			}
		}
		return plugin.Usagef("no command: use %s (see %s --help)", commandNames(c.App), plugin.Name)
	case word == "help":
		return p.printHelp(c, p.stdout)
	default:
		return plugin.Usagef("unknown command %s: use %s (see %s --help)", plugin.Quote(word), commandNames(c.App), plugin.Name)
	}
}

// printHelp prints cli's help text. Only a person asks for it.
func (p reader) printHelp(c *cli.Context, to io.Writer) error {
	var b bytes.Buffer
	cli.HelpPrinter(&b, cli.AppHelpTemplate, c.App)
	_, err := to.Write(b.Bytes())
	return err
}

func commandNames(app *cli.App) string {
	var names []string
	for _, c := range app.Commands {
		names = append(names, c.Name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// cliFlags returns flags as cli wants them.
func cliFlags(flags []plugin.Flag) []cli.Flag {
	var all []cli.Flag
	for _, f := range flags {
		env := []string{plugin.EnvVar(f.Name)}
		switch v := f.Value.(type) {
		case *string:
			all = append(all, &cli.StringFlag{Name: f.Name, Usage: f.Usage, Value: *v, Destination: v, EnvVars: env})
		case *bool:
			all = append(all, &cli.BoolFlag{Name: f.Name, Usage: f.Usage, Value: *v, Destination: v, EnvVars: env})
		case *uint64:
			all = append(all, &cli.Uint64Flag{Name: f.Name, Usage: f.Usage, Value: *v, Destination: v, EnvVars: env})
		case *time.Duration:
			all = append(all, &cli.DurationFlag{Name: f.Name, Usage: f.Usage, Value: *v, Destination: v, EnvVars: env})
		}
	}
	return all
}
