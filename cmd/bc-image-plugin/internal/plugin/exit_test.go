package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes"
)

func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		name     string
		err      error
		code     int
		sentence string
	}{
		{"done", nil, 0, ""},
		{"failed", errors.New("no"), 1, "no"},
		{"used wrongly", Usagef("no: %w", errors.New("why")), 2, "no: why"},
		{"used wrongly, wrapped", fmt.Errorf("create: %w", Usagef("no")), 2, "create: no"},
		{"invalid input", fmt.Errorf("image: %w", volumes.ErrInvalid), 2, "image: invalid"},
		{"not found", fmt.Errorf("stats: %w", volumes.ErrNotFound), 1, "stats: not found"},
		{"exists", volumes.ErrExists, 1, "already exists"},
		{"not supported", volumes.ErrUnsupported, 1, "not supported"},
		{"timeout", fmt.Errorf("wait for the lock: %w", context.DeadlineExceeded), 1,
			"wait for the lock: context deadline exceeded (gave up after --timeout 3s)"},
		{"signal", fmt.Errorf("wait: %w", context.Canceled), 1, "wait: context canceled (stopped by a signal)"},
		{"several errors", errors.Join(errors.New("a"), errors.New("b\nc")), 1, "a; b; c"},
		{"bytes of a handle", errors.New("\"\xff\x1b[2J\r\"…"), 1, `"\xff\x1b[2J\r"…`},
		{"system error", &os.PathError{Op: "open", Path: "/x", Err: syscall.EROFS}, 1, "open /x: read-only file system"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, sentence := verdict(tt.err, 3*time.Second)
			if code != tt.code || sentence != tt.sentence {
				t.Errorf("got %d, %q; want %d, %q", code, sentence, tt.code, tt.sentence)
			}
		})
	}
}

func TestSentenceIsBounded(t *testing.T) {
	_, sentence := verdict(errors.New(strings.Repeat("ä", 5000)), time.Second)
	if len(sentence) > 2100 || !strings.HasSuffix(sentence, "ä…[7952 bytes more]") {
		t.Errorf("%d bytes, …%q", len(sentence), sentence[len(sentence)-40:])
	}
}
