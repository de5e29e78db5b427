package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// sparse makes a file of 5 GiB that holds data at its start, behind 4 GiB and just before its end.
func sparse(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	defer f.Close()
	check(t, f.Truncate(5<<30))
	for _, at := range []int64{0, 4<<30 + 12345, 5<<30 - 7} {
		_, err := f.WriteAt(bytes.Repeat([]byte("data"), 1000)[:min(4000, 5<<30-at)], at)
		check(t, err)
	}
	check(t, f.Sync())
}

func TestCopyKeepsHoles(t *testing.T) {
	for name, where := range map[string]func(t *testing.T) string{
		"on one file system": func(t *testing.T) string { return newDir(t) },
		"to another":         func(t *testing.T) string { return newFS(t, "tmpfs", "") }, // where copy_file_range(2) is EXDEV
	} {
		t.Run(name, func(t *testing.T) {
			src, dst := newDir(t), where(t)
			sparse(t, src+"/f")
			check(t, os.WriteFile(src+"/only-a-hole", nil, 0o600))
			check(t, os.Truncate(src+"/only-a-hole", 1<<30))
			check(t, os.WriteFile(src+"/no-hole", bytes.Repeat([]byte("0123456789abcde"), 100_000), 0o600))
			check(t, os.WriteFile(src+"/empty", nil, 0o600))
			check(t, Copy(t.Context(), open(t, src), fd(t, dst), "copy", CopyOptions{}))
			for _, f := range []string{"f", "only-a-hole", "no-hole", "empty"} {
				var a, b unix.Stat_t
				check(t, unix.Stat(src+"/"+f, &a))
				check(t, unix.Stat(dst+"/copy/"+f, &b))
				if a.Size != b.Size || b.Blocks > a.Blocks+64 {
					t.Errorf("%s: size %d with %d blocks became %d with %d", f, a.Size, a.Blocks, b.Size, b.Blocks)
				}
				if digest(t, src+"/"+f) != digest(t, dst+"/copy/"+f) {
					t.Errorf("%s: the contents differ", f)
				}
			}
		})
	}
}

// digest is of where data is and what it is: reading gigabytes of holes takes seconds.
func digest(t *testing.T, path string) [32]byte {
	t.Helper()
	f := open(t, path)
	all := sha256.New()
	for pos := int64(0); ; {
		data, err := f.Seek(pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		check(t, err)
		hole, err := f.Seek(data, unix.SEEK_HOLE)
		check(t, err)
		content := make([]byte, hole-data)
		_, err = io.ReadFull(io.NewSectionReader(f, data, hole-data), content)
		check(t, err)
		for i, b := range content { // which blocks are data is the file system's business, bytes that are not 0 are not
			if b != 0 {
				at := data + int64(i)
				all.Write([]byte{byte(at), byte(at >> 8), byte(at >> 16), byte(at >> 24), byte(at >> 32), b})
			}
		}
		pos = hole
	}
	return [32]byte(all.Sum(nil))
}

// A cancelled create went on until the file that was just copied, however large, was done.
func TestCopyIsCancelledWithinAFile(t *testing.T) {
	src, dst := newDir(t), newDir(t)
	check(t, os.WriteFile(src+"/f", make([]byte, 3*copyStep), 0o600))
	in, err := os.Open(src + "/f")
	check(t, err)
	defer in.Close()
	out, err := os.Create(dst + "/f")
	check(t, err)
	defer out.Close()
	steps := 0
	err = copySegment(onLook(func(n int) error {
		if steps = n; n == 3 {
			return context.Canceled
		}
		return nil
	}), int(out.Fd()), int(in.Fd()), 0, 3*copyStep, make([]byte, 1<<10))
	if !errors.Is(err, context.Canceled) || steps != 3 {
		t.Errorf("error %v after %d steps", err, steps)
	}
}

func TestCopyOfAFileThatShrinks(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/in", "short")
	in, out := open(t, dir+"/in"), dir+"/out"
	f, err := os.Create(out)
	check(t, err)
	defer f.Close()
	err = copySegment(t.Context(), int(f.Fd()), int(in.Fd()), 0, 1000, make([]byte, 100))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v", err)
	}
}
