package power

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// TestSnapshotIsOneMoment: all that the other test says rests on it. Somebody writes 1, 2, 3 … to places all over a disk, each when the one before is done; a snapshot has to have all
// up to some number, which is none below the last that was done when it was begun.
func TestSnapshotIsOneMoment(t *testing.T) {
	need(t)
	r, err := job{Kind: "ext4", Dir: inspect.NewDir(t), Moment: true}.start()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Violations {
		t.Error(v)
	}
	t.Logf("%d snapshots", r.total())
}

func (m *machine) oneMoment(r *report) error {
	const places, block, rounds = 1024, 4096, 20
	if err := sparse(m.disk(), places*block); err != nil {
		return err
	}
	out, err := exec.Command("losetup", "--find", "--show", m.disk()).Output()
	if err != nil {
		return fmt.Errorf("losetup: %w", err)
	}
	device := strings.TrimSpace(string(out))
	defer func() { _ = command("losetup", "--detach", device) }() // it has ended, or an error is told
	f, err := os.OpenFile(device, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	var done atomic.Uint64
	var stop, ended atomic.Bool
	var writer sync.WaitGroup
	var failed error
	writer.Go(func() {
		defer ended.Store(true)
		buf := aligned(block)
		for n := uint64(1); !stop.Load() && failed == nil; n++ {
			binary.LittleEndian.PutUint64(buf, n)
			_, failed = f.WriteAt(buf, int64(n*2654435761%places)*block) // odd: each place once in a round
			done.Store(n)
		}
	})
	for i := range rounds {
		least := done.Load()
		for done.Load() < least+uint64(20*i) && !ended.Load() {
			runtime.Gosched() // let it go on
		}
		least = done.Load()
		path, err := m.snapshot()
		if err == nil {
			err = isPrefix(path, places, block, least)
		}
		r.add(m.kind, snapshot{command: "numbers", at: path}, verdict{}, err)
	}
	stop.Store(true)
	writer.Wait()
	return errors.Join(failed, f.Close())
}

// isPrefix wants the numbers that were written up to some one, and none above.
func isPrefix(path string, places, block, least uint64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	last := uint64(0)
	for i := range places {
		last = max(last, binary.LittleEndian.Uint64(b[i*block:]))
	}
	if last < least {
		return fmt.Errorf("it ends at %d, and %d was done before", last, least)
	}
	for n := last; n > 0 && n+places > last; n-- {
		if got := binary.LittleEndian.Uint64(b[n*2654435761%places*block:]); got != n {
			return fmt.Errorf("it has %d, and %d where %d has to be", last, got, n)
		}
	}
	return nil
}

// aligned is memory for direct writes.
func aligned(size int) []byte {
	b := make([]byte, 2*size)
	return b[size-int(uintptr(unsafe.Pointer(&b[0]))%uintptr(size)):][:size]
}
