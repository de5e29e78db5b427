package userns

import (
	"fmt"
	"testing"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

func TestNewNamespaceOutlivesItsProcess(t *testing.T) {
	inspect.NeedRoot(t) // to write an id map
	max, err := MaxID()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		ns, err := New(max)
		if err != nil {
			t.Fatal(err)
		}
		kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
		if err != nil || kind != unix.CLONE_NEWUSER {
			t.Fatalf("kind %x, %v", kind, err)
		}
		ns.Close()
	}
	// No zombie is left: there is no child of any kind to wait for.
	if pid, err := unix.Wait4(-1, nil, unix.WALL|unix.WNOHANG, nil); err != unix.ECHILD {
		t.Fatalf("wait4 = %d, %v, want ECHILD", pid, err)
	}
}

func TestSwapIsItsOwnInverse(t *testing.T) {
	const max = 4294967294
	for _, id := range []uint32{0, 1, 1000, max - 1, max} {
		if got := Swap(Swap(id, max), max); got != id {
			t.Errorf("Swap twice of %d = %d", id, got)
		}
	}
	if Swap(0, max) != max || Swap(max, max) != 0 || Swap(7, max) != 7 {
		t.Error("Swap does not swap 0 and max only")
	}
}

func BenchmarkNew(b *testing.B) {
	max, err := MaxID()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		ns, err := New(max)
		if err != nil {
			b.Fatal(err)
		}
		ns.Close()
	}
}

func TestPassingLackIsNoRule(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EPERM: true, unix.EACCES: true, unix.EINVAL: true, unix.ENOSYS: true, unix.EAGAIN: false, unix.ENOMEM: false, unix.EMFILE: false,
	} {
		if got := IsForbidden(fmt.Errorf("make: %w", err)); got != want {
			t.Errorf("IsForbidden(%v) = %v", err, got)
		}
	}
}

func TestMaxOf(t *testing.T) {
	for ids, want := range map[string]uint32{
		"0 0 4294967295":           4294967294,
		"0 100000 65536":           65535,
		"0 1000 1 1 100000 65536":  65536,
		"1 100000 65536 0 1000 1":  65536,
		"":                         0,
		"0 1000 1":                 0,
		"0 0":                      0,
		"0 0 4294967295 1":         0,
		"0 0 -1":                   0,
		"0 0 0":                    0,
		"0 0 99999999999999999999": 0,
		"a b c":                    0,
	} {
		if got, err := MaxOf(ids); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v, want %d", ids, got, err, want)
		}
	}
}
