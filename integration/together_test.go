package integration

import (
	"errors"
	"sync"
)

// together calls f(0) … f(n-1) at the same time, and returns all their errors.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	all.Wait()
	return errors.Join(errs...)
}
