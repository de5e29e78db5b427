package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/concourse/bc-image-plugin/volumes/internal/tree"
	"golang.org/x/sys/unix"
)

// Changed implements [volumes.Driver].
func (d *Driver) Changed(layers, upper, below string) (bool, error) {
	standsAlone := below == ""
	if standsAlone {
		below = filepath.Join(upper, "empty")
	} else {
		below = filepath.Join(below, "fs")
	}
	a, err := os.Open(filepath.Join(layers, upper, "fs"))
	if err != nil {
		return false, err
	}
	defer a.Close()
	if names, err := a.Readdirnames(1); len(names) > 0 {
		return true, nil
	} else if !errors.Is(err, io.EOF) {
		return false, err
	}
	b, err := os.Open(filepath.Join(layers, below))
	if standsAlone && errors.Is(err, unix.ENOENT) {
		return true, nil // it was sealed already, so it was found to be changed
	}
	if err != nil {
		return false, err
	}
	defer b.Close()
	same, err := tree.SameTop(a, b)
	return !same, err
}

// Seal implements [volumes.Driver]: what only an upper has is removed. A layer must not be an upper again: it was mounted volatile.
func (d *Driver) Seal(ctx context.Context, layers, upper string) error {
	return removeAll(ctx, filepath.Join(layers, upper), "work", "empty")
}

// Merge implements [volumes.Driver].
func (d *Driver) Merge(ctx context.Context, layers string, from, below []string, into string) (err error) {
	var dirs []*os.File
	defer func() {
		for _, f := range dirs {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, l := range slices.Concat(from, below) {
		f, err := os.OpenFile(filepath.Join(layers, l, "fs"), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		dirs = append(dirs, f)
	}
	dst, err := os.OpenFile(filepath.Join(layers, into), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dst.Close()
	inNamespace, err := insideUserNamespace()
	if err != nil {
		return err
	}
	opaque := "trusted.overlay.opaque"
	if inNamespace {
		opaque = "user.overlay.opaque"
	}
	if err := tree.Merge(ctx, dirs[:len(from)], int(dst.Fd()), "fs", tree.MergeOptions{Opaque: opaque, Below: dirs[len(from):]}); err != nil {
		return fmt.Errorf("merge %d layers: %w", len(from), err)
	}
	return nil
}
