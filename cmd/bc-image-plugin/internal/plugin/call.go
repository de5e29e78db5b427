package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/internal/appendjson"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// graceAfterTimeout is how long a command that ran out of time or got a signal may take to undo what it began.
// After that it is stuck in the kernel (a dead disk), and gdn, which waits for us without a limit, is told.
const graceAfterTimeout = 2 * time.Second

// work is one command's: it reads its arguments, makes one call, and returns what to print.
type work func(context.Context, *call) (answer, error)

// answer is what a command that succeeded has to say.
type answer struct {
	stdout []byte // printed by one write, when everything is done

	// undo takes the work back when stdout cannot be written: nobody knows of it then.
	undo func(context.Context) error

	did     string // the message of the command's log line
	quiet   bool   // a person asked and reads stdout: the log line is for debugging only
	failure error  // what the answer reports is a failure: stdout says so already
}

// call is one command being run: its input, and what the log will say about it.
type call struct {
	config  config
	name    string
	args    []string
	log     *logrus.Logger
	started time.Time
	answer  answer
	volumes volumes.Driver // see driver

	stuck func(error) // ends the process, see watch
	over  atomic.Bool // the work has ended, or is given up: whoever sets it tells

	mu    sync.Mutex // a command that is stuck may still write while its end is logged
	facts logrus.Fields
	steps durations
	last  string
}

// Perform runs a command within --timeout and prints its answer.
func (p *Program) Perform(ctx context.Context, word Command, args []string) error {
	err := p.config.check()
	p.call = &call{
		config: p.config, name: word.Name, args: args, log: p.newLogger(), started: p.started,
		facts: logrus.Fields{}, steps: durations{}, last: "start",
		stuck: func(err error) { os.Exit(p.Exit(err)) },
	}
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.timeout)
	defer cancel()
	return p.call.perform(ctx, word.do, p.stdout)
}

// perform does the work and prints the answer. If that cannot be printed, the work is undone.
func (c *call) perform(ctx context.Context, do work, stdout io.Writer) error {
	a, err := c.watch(ctx, do)
	if err != nil {
		return err
	}
	c.answer = a
	if len(a.stdout) > 0 {
		if _, err = stdout.Write(a.stdout); err != nil {
			err = fmt.Errorf("%s: print the answer: %w", c.name, err)
			if a.undo == nil {
				return err
			}
			// ctx may be why the reader is gone, and is no good for undoing then.
			undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.timeout)
			defer cancel()
			return errors.Join(err, a.undo(undoing))
		}
	}
	return a.failure
}

// watch does the work. gdn waits for us without a limit, so when the work is stuck in the kernel, with no way to stop it, the process says so and ends around it.
func (c *call) watch(ctx context.Context, do work) (answer, error) {
	defer context.AfterFunc(ctx, func() {
		time.Sleep(graceAfterTimeout)
		if c.over.CompareAndSwap(false, true) {
			c.stuck(fmt.Errorf("%s: stuck after the step %q, probably in the kernel: %w", c.name, c.lastStep(), ctx.Err()))
		}
	})()
	a, err := c.guarded(ctx, do)
	if !c.over.CompareAndSwap(false, true) {
		select {} // too late: the end is being told already
	}
	return a, err
}

// guarded makes a failure of a panic.
func (c *call) guarded(ctx context.Context, do work) (_ answer, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.fact("stack", string(debug.Stack()))
			err = fmt.Errorf("%s: internal error: %v", c.name, r)
		}
	}()
	return do(ctx, c)
}

// store returns the store that the flags name. It touches nothing.
func (c *call) store() *volumes.Store { return c.caches().Store() }

// caches returns the check caches of that store. It touches nothing.
func (c *call) caches() *cachecopy.Caches {
	store := volumes.Options{
		Dir:       c.config.store,
		Driver:    c.driver(),
		NeverCopy: overlay.IDMap(c.config.idMap) == overlay.Mount,
		Warn:      c.warn,
		Trace:     c.step,
	}
	return cachecopy.New(store, cachecopy.Options{MaxBytes: c.config.cacheMaxBytes, MaxAge: c.config.cacheMaxAge})
}

// driver returns what makes volumes: our own overlays, in volumes of a BaggageClaim server if one is named. It is the same for the whole command, which so has one
// connection to a server.
func (c *call) driver() volumes.Driver {
	o := overlay.Options{IDMap: overlay.IDMap(c.config.idMap)}
	switch {
	case c.volumes != nil:
	case c.config.baggageclaimURL != "":
		c.volumes = Server.New(c.config.baggageclaimURL, o)
	default:
		c.volumes = overlay.New(o)
	}
	return c.volumes
}

// fact adds to the data of the command's log line.
func (c *call) fact(key string, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.facts[key] = value
}

// step notes that a step of the work is done. A step that is done several times is added up.
func (c *call) step(name string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps[name] += milliseconds(took)
	c.last = name
}

func (c *call) lastStep() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// warn logs what a person must see although the command goes on.
func (c *call) warn(err error) {
	c.log.WithFields(c.data()).WithField("error", err.Error()).Warn(c.name + ": warning")
}

// logDone writes the one line of a command that succeeded.
func (c *call) logDone() {
	level := logrus.InfoLevel
	if c.answer.quiet {
		level = logrus.DebugLevel
	}
	c.log.WithFields(c.data()).Log(level, c.name+": "+c.answer.did)
}

// logFailed writes the one line of a command that failed.
func (c *call) logFailed(sentence string) {
	c.log.WithFields(c.data()).WithField("error", sentence).Error(c.name + ": failed")
}

// data returns a copy of what the log says about the command so far.
func (c *call) data() logrus.Fields {
	c.mu.Lock()
	defer c.mu.Unlock()
	data := make(logrus.Fields, len(c.facts)+1)
	for key, value := range c.facts {
		data[key] = value
	}
	ms := make(durations, len(c.steps)+1)
	for name, took := range c.steps {
		ms[name] = round(took)
	}
	ms["total"] = round(milliseconds(time.Since(c.started)))
	data["ms"] = ms
	return data
}

// durations are milliseconds by step: an object in JSON, and words for people.
type durations map[string]float64

func (d durations) String() string {
	var words []string
	for _, step := range slices.Sorted(maps.Keys(d)) {
		words = append(words, fmt.Sprintf("%s %g", step, d[step]))
	}
	return strings.Join(words, ", ")
}

// append appends d as a JSON object. It is not ok if JSON has no such number.
func (d durations) append(b []byte) (_ []byte, ok bool) {
	b = append(b, '{')
	for i, step := range slices.Sorted(maps.Keys(d)) {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(d[step]) || math.IsInf(d[step], 0) {
			return b, false
		}
		b = strconv.AppendFloat(append(appendjson.String(b, step), ':'), d[step], 'f', -1, 64)
	}
	return append(b, '}'), true
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// round keeps whole microseconds of a number of milliseconds.
func round(ms float64) float64 { return float64(int64(ms*1000+0.5)) / 1000 }
