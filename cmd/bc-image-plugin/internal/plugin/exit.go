package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// errReported is a failure that the command's answer on stdout has already told.
var errReported = errors.New("the report on stdout names a failure")

// usageError is a command line, an environment variable or a rootfs URL that nothing can be done with.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usagef is an error that says that the program was used wrongly: exit code 2.
func Usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// verdict decides the exit code of an error, and the sentence about it for the Garden client.
func verdict(err error, timeout time.Duration) (code int, sentence string) {
	var usage usageError
	switch {
	case err == nil:
		return exitDone, ""
	case errors.As(err, &usage), errors.Is(err, volumes.ErrInvalid):
		return exitUsage, oneLine(err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return exitFailed, oneLine(fmt.Sprintf("%v (gave up after --timeout %s)", err, timeout))
	case errors.Is(err, context.Canceled):
		return exitFailed, oneLine(fmt.Sprintf("%v (stopped by a signal)", err))
	default:
		return exitFailed, oneLine(err.Error())
	}
}

// oneLine makes one line of bounded length of an error's text. Joined errors have a line each.
func oneLine(s string) string {
	const maxBytes = 2048
	return cut(readable(strings.ReplaceAll(s, "\n", "; ")), maxBytes)
}
