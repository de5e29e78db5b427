package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/lagerline"
)

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func newTestCall(stderr io.Writer) *call {
	return &call{
		config: config{timeout: time.Second}, name: "create", log: newLogger(stderr, "debug", "lager"), started: time.Now(),
		facts: logrus.Fields{}, steps: durations{}, last: "start",
	}
}

func TestWhatCannotBePrintedIsUndone(t *testing.T) {
	for name, undoErr := range map[string]error{"undone": nil, "not undone": errors.New("busy")} {
		t.Run(name, func(t *testing.T) {
			undone := 0
			ctx, cancel := context.WithCancel(t.Context())
			do := func(context.Context, *call) (answer, error) {
				cancel() // as a signal would: undoing must not be stopped by it
				return answer{stdout: []byte("{}\n"), undo: func(ctx context.Context) error {
					if _, ok := ctx.Deadline(); !ok || ctx.Err() != nil {
						t.Errorf("undo got a context that is over, or never ends: %v", ctx.Err())
					}
					undone++
					return undoErr
				}}, nil
			}
			err := newTestCall(io.Discard).perform(ctx, do, failingWriter{syscall.EPIPE})
			if undone != 1 || !errors.Is(err, syscall.EPIPE) || undoErr != nil && !errors.Is(err, undoErr) {
				t.Errorf("undone %d times, error %v", undone, err)
			}
		})
	}
}

func TestNothingIsPrintedOnFailure(t *testing.T) {
	var stdout bytes.Buffer
	do := func(context.Context, *call) (answer, error) { return answer{stdout: []byte("{}")}, errors.New("no") }
	if err := newTestCall(io.Discard).perform(t.Context(), do, &stdout); err == nil || stdout.Len() > 0 {
		t.Errorf("printed %q, error %v", &stdout, err)
	}
}

func TestStuckCommandEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	defer close(release)
	do := func(_ context.Context, c *call) (answer, error) {
		c.step("lock", time.Millisecond)
		<-release // no context ends this: a disk that does not answer
		return answer{}, nil
	}
	c, told := newTestCall(io.Discard), make(chan error)
	c.stuck = func(err error) { told <- err }
	go c.perform(ctx, do, io.Discard)
	if err := <-told; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `after the step "lock"`) {
		t.Error(err)
	}
}

func TestPanicIsAFailureAndNotATrace(t *testing.T) {
	var stderr writes
	c := newTestCall(&stderr)
	err := c.perform(t.Context(), func(context.Context, *call) (answer, error) { panic("oops") }, io.Discard)
	if code, sentence := verdict(err, time.Second); code != exitFailed || sentence != "create: internal error: oops" {
		t.Errorf("%d, %q", code, sentence)
	}
	c.logFailed("create: internal error: oops")
	if len(stderr) != 1 {
		t.Fatalf("%d lines", len(stderr))
	}
	data, err := lagerline.Check(stderr[0])
	if err != nil || !strings.Contains(data["stack"].(string), "goroutine") {
		t.Errorf("%v, %v", data, err)
	}
}

func TestLogHasTheTimeOfEachStep(t *testing.T) {
	var stderr writes
	c := newTestCall(&stderr)
	c.step("lock", 1500*time.Microsecond)
	c.step("lock", 500*time.Microsecond)
	c.warn(errors.New("half of it"))
	c.answer.did = "created"
	c.logDone()
	if len(stderr) != 2 {
		t.Fatalf("%d lines", len(stderr))
	}
	for _, line := range stderr {
		data, err := lagerline.Check(line)
		if err != nil {
			t.Fatal(err)
		}
		ms := data["ms"].(map[string]any)
		if ms["lock"] != 2.0 || ms["total"] == nil {
			t.Errorf("%v", ms)
		}
	}
}
