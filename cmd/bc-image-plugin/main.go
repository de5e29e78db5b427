// Command bc-image-plugin is an image plugin for Guardian (gdn): it gives every container a copy-on-write root
// file system that lives exactly as long as the container.
//
// What gdn and people may rely on: stdout is the protocol (one JSON document on success, one sentence on failure),
// stderr is the log (one lager JSON object per line), and the exit code is 0 for done, 1 for failed, 2 for used
// wrongly.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	// With SIGPIPE ignored, printing to a gdn that is gone fails with EPIPE, and what was made can be undone.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := context.WithCancel(context.Background())
	time.AfterFunc(unusual, func() { onSignal(stop) })
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// unusual is how long a command takes that waits for something, or has much to do.
//
// Only such a one listens to signals. To catch three of them takes two threads, and these 0.1 to 0.2 ms: a tenth of a whole create or delete. A
// signal before that ends the program as a kill does, which the store has to cope with anyway.
const unusual = 3 * time.Millisecond

// onSignal makes the first signal ask the command to stop and to undo what it began; the second one ends it at once.
func onSignal(stop context.CancelFunc) {
	asked := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, asked...)
	<-signals
	signal.Reset(asked...)
	stop()
}
