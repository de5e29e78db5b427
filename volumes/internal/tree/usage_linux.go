package tree

import (
	"context"
	"errors"
)

// Usage is what a tree takes on disk.
type Usage struct {
	Bytes   uint64 // blocks, as du counts them: holes not counted, each hard-linked file once
	Entries uint64 // files and directories, the root not counted
	Partial bool   // the walk was cut: Bytes and Entries are lower bounds
}

// Measure adds up the blocks of the tree name below dirfd. A walk that is ended by the deadline of ctx, by maxEntries (0: none) or by
// somebody who moves what is just walked is no error: the answer is then Partial. The root directory's own blocks are not counted: an
// empty tree takes nothing.
func Measure(ctx context.Context, dirfd int, name string, maxEntries uint64) (Usage, error) {
	var u Usage
	type inode struct{ dev, ino uint64 }
	seen := map[inode]struct{}{}
	errCut := errors.New("cut")
	err := Walk(ctx, dirfd, name, Visitor{Visit: func(e Entry) error {
		if e.Name == "." {
			return nil
		}
		if maxEntries > 0 && u.Entries >= maxEntries {
			return errCut
		}
		u.Entries++
		if e.Stat.Nlink > 1 && !e.IsDir() {
			id := inode{e.Stat.Dev, e.Stat.Ino}
			if _, ok := seen[id]; ok {
				return nil
			}
			seen[id] = struct{}{}
		}
		u.Bytes += uint64(max(e.Stat.Blocks, 0)) * 512 // st_blocks counts 512-byte units whatever the block size: stat(3type)
		return nil
	}})
	if errors.Is(err, errCut) || errors.Is(err, errMoved) || errors.Is(err, context.DeadlineExceeded) {
		u.Partial = true
		return u, nil
	}
	return u, err
}
