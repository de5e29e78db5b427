// Package ids makes names that never meet: 128 random bits in hex.
package ids

import (
	"encoding/hex"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const idBytes = 16

// New returns a fresh ID. The bits are taken from the kernel directly: crypto/rand costs start-up time.
func New() (string, error) {
	var b [idBytes]byte
	for n := 0; n < len(b); {
		m, err := unix.Getrandom(b[n:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return "", os.NewSyscallError("getrandom", err)
		}
		n += max(m, 0)
	}
	return hex.EncodeToString(b[:]), nil
}

// Valid says whether s can be an ID.
func Valid(s string) bool {
	if len(s) != 2*idBytes {
		return false
	}
	_, err := hex.DecodeString(s)
	return err == nil
}
