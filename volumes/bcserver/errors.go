package bcserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// How a call to the server can fail, by errors.Is. A call that fails otherwise was ended by its context.
var (
	// ErrRefused: nobody listens there. The server got nothing.
	ErrRefused = errors.New("refused the connection: is it running?")
	// ErrTimeout: no answer in the time for one call. Whether the server did it is unknown.
	ErrTimeout = errors.New("did not answer")
	// ErrBadAnswer: the answer is not BaggageClaim's, or it broke off. Whether the server did it is unknown.
	ErrBadAnswer = errors.New("gave a bad answer")
	// ErrServer: the server says that it failed. It tells no cause; its log does.
	ErrServer = errors.New("failed")
	// ErrNoVolume: the server says that it has no such volume. It also says so of volumes whose destruction failed half-way.
	ErrNoVolume = errors.New("has no such volume")
)

// callError is a failed call.
type callError struct {
	url, do string // "create volume X"
	err     error
}

func (e *callError) Error() string {
	return fmt.Sprintf("BaggageClaim server %s: %s: %v", e.url, e.do, e.err)
}

func (e *callError) Unwrap() error { return e.err }

// classify tells the ways apart in which no whole answer arrives. caller is the context without the limit for one call.
func classify(caller context.Context, limit time.Duration, err error) error {
	var timeout net.Error
	switch {
	case caller.Err() != nil:
		return fmt.Errorf("no answer yet: %w", context.Cause(caller))
	case errors.Is(err, syscall.ECONNREFUSED):
		return ErrRefused
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w within %s", ErrTimeout, limit)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: the connection broke off", ErrBadAnswer)
	}
	return fmt.Errorf("%w: %w", ErrBadAnswer, err)
}

// excerpt is the beginning of an answer, for a message.
func excerpt(body []byte) string {
	const most = 100
	s := strings.TrimSpace(string(body))
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}
