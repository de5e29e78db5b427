package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
)

const programName = "bc-image-plugin"

// program is one run of the command, from its arguments to its exit code.
type program struct {
	stdout, stderr io.Writer
	started        time.Time
	config         config
	call           *call // nil until the arguments are understood so far that a command runs
}

// run does what args say and returns the exit code. It is the whole program but for the process around it: the
// command's answer, or one sentence about its failure, goes to stdout, the log to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := &program{stdout: stdout, stderr: stderr, started: time.Now()}
	ok, err := p.quick(ctx, args)
	if !ok {
		err = p.app().RunContext(ctx, args)
	}
	return p.exit(err)
}

// commandWord is a command as the command line names it.
type commandWord struct {
	name, usage, argsUsage string
	do                     command
}

// commands are the words that may follow the global flags.
var commands = []commandWord{
	{"create", "make a container's root file system", createUsage, create},
	{"delete", "remove what create made; nothing to remove is success", "HANDLE", remove},
	{"stats", "say how many bytes a container uses", "HANDLE", stats},
	{"capacity", "say how many bytes the store's file system has", " ", capacity},
	{"list", "show the containers with their volumes", "[--json]", list},
	{"cache", "show check caches, drop one, or commit those of a live container", cacheUsage, cache},
	{"gc", "remove what killed commands left in the store", gcUsage, gc},
	{"doctor", "say whether this host can do it, and how well", " ", doctor},
	{"version", "print the version", " ", version},
}

// app describes the command line to cli, with everything switched off that cli would do by itself: to print on
// stdout, to exit, to take a handle named "help" for a wish, or to split values at commas.
func (p *program) app() *cli.App {
	app := &cli.App{
		Name:                      programName,
		Usage:                     "copy-on-write root file systems for Guardian's containers",
		Description:               "Global flags stand before the command, as gdn's --image-plugin-extra-arg values do.",
		Flags:                     p.config.flags(),
		Writer:                    p.stderr,
		ErrWriter:                 p.stderr,
		HideHelp:                  true,
		HideVersion:               true,
		DisableSliceFlagSeparator: true,
		Compiled:                  p.started, // or cli looks for the program's file to find its age
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              p.onUsageError,
		Action:                    p.withoutCommand,
	}
	for _, c := range commands {
		app.Commands = append(app.Commands, &cli.Command{Name: c.name, Usage: c.usage, ArgsUsage: c.argsUsage, HideHelp: true,
			SkipFlagParsing: true, // they take a handle, which may look like a flag, so they read their arguments themselves
			Action:          func(context *cli.Context) error { return p.perform(context.Context, c, context.Args().Slice()) }})
	}
	return app
}

// onUsageError takes what the flag package says about the global flags. Help is asked for by a flag that it does
// not know.
func (p *program) onUsageError(c *cli.Context, err error, _ bool) error {
	if errors.Is(err, flag.ErrHelp) {
		return p.printHelp(c, p.stdout)
	}
	return usagef("%w (see %s --help)", err, programName)
}

// withoutCommand runs where the first argument after the global flags is none of our commands.
func (p *program) withoutCommand(c *cli.Context) error {
	switch word := c.Args().First(); {
	case c.Args().Len() == 0:
		if logFormat(p.config.logFormat, p.stderr) == formatText {
			if err := p.printHelp(c, p.stderr); err != nil {
				return err
			}
		}
		return usagef("no command: use %s (see %s --help)", commandNames(c.App), programName)
	case word == "help":
		return p.printHelp(c, p.stdout)
	default:
		return usagef("unknown command %s: use %s (see %s --help)", quote(word), commandNames(c.App), programName)
	}
}

// printHelp prints cli's help text. Only a person asks for it.
func (p *program) printHelp(c *cli.Context, to io.Writer) error {
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

// exit logs how the command ended, says so on stdout if it failed, and returns the exit code.
func (p *program) exit(err error) int {
	code, sentence := verdict(err, p.config.timeout)
	switch {
	case err == nil && p.call == nil: // help was printed
	case err == nil:
		p.call.logDone()
	case p.call == nil: // the command line says no command, or a wrong one
		p.newLogger().WithField("error", sentence).Error("failed")
	default:
		p.call.logFailed(sentence)
	}
	if err != nil && !errors.Is(err, errReported) {
		// If this fails too, nobody is left to tell, and the exit code says it.
		_, _ = io.WriteString(p.stdout, sentence+"\n")
	}
	return code
}

func (p *program) newLogger() *logrus.Logger {
	return newLogger(p.stderr, p.config.logLevel, p.config.logFormat)
}
