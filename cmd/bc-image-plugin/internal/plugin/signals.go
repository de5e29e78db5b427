package plugin

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// unusual is how long a command takes that waits for something, or has much to do.
//
// Only such a one listens to signals. To catch three of them takes two threads, and these 0.1 to 0.2 ms: a tenth of a whole create or delete. A
// signal before that ends the program as a kill does, which the store has to cope with anyway.
const unusual = 3 * time.Millisecond

// Signals prepares the process, once, and returns the context that the first signal cancels.
var Signals = sync.OnceValue(func() context.Context {
	// With SIGPIPE ignored, printing to a gdn that is gone fails with EPIPE, and what was made can be undone.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := context.WithCancel(context.Background())
	time.AfterFunc(unusual, func() { onSignal(stop) })
	return ctx
})

// onSignal makes the first signal ask the command to stop and to undo what it began; the second one ends it at once.
func onSignal(stop context.CancelFunc) {
	asked := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, asked...)
	<-signals
	signal.Reset(asked...)
	stop()
}
