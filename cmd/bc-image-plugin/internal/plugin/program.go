// Package plugin is the program behind its command line: the commands, their flags, answers, log and exit codes. What is here does not need cli or net/http, and so can
// run before these are initialised: see package first.
//
// What gdn and people may rely on: stdout is the protocol (one JSON document on success, one sentence on failure), stderr is the log (one lager JSON object per line),
// and the exit code is 0 for done, 1 for failed, 2 for used wrongly.
package plugin

import (
	"errors"
	"io"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// Name is the program's.
const Name = "bc-image-plugin"

// Program is one run of the command, from its arguments to its exit code.
type Program struct {
	stdout, stderr io.Writer
	started        time.Time
	config         config
	call           *call // nil until the arguments are understood so far that a command runs
}

// New returns a program that has not read its arguments.
func New(stdout, stderr io.Writer) *Program {
	return &Program{stdout: stdout, stderr: stderr, started: time.Now(), config: newConfig()}
}

// Started is when the program began.
func (p *Program) Started() time.Time { return p.started }

// Flags returns the global flags. Each is also an environment variable, see [EnvVar].
func (p *Program) Flags() []Flag { return p.config.flags() }

// ForPerson says whether a person reads the log.
func (p *Program) ForPerson() bool { return logFormat(p.config.logFormat, p.stderr) == formatText }

// Command is a command as the command line names it.
type Command struct {
	Name, Usage, ArgsUsage string
	do                     work
}

// Commands are the words that may follow the global flags.
var Commands = []Command{
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

// Server is the backend of --baggageclaim-url. It is set by main: it needs net/http.
var Server struct {
	ParseURL func(string) (string, error)
	New      func(url string, o overlay.Options) volumes.Driver
}

// Exit logs how the command ended, says so on stdout if it failed, and returns the exit code.
func (p *Program) Exit(err error) int {
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

func (p *Program) newLogger() *logrus.Logger {
	return newLogger(p.stderr, p.config.logLevel, p.config.logFormat)
}
