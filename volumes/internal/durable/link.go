package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ReplaceLink makes link a symlink of that text, whatever it was, by way of the name next, in one rename: a reader sees the old text or the new one, also after a
// power cut, as the text of a short one is in the inode. After a failure link is what it was, and next is gone; a kill may leave next, which the next call takes away.
//
// Two must not do it at once with one next.
func ReplaceLink(link, next, text string) error {
	if err := os.Remove(next); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := os.Symlink(text, next); err != nil {
		return err
	}
	err := os.Rename(next, link)
	if err != nil {
		err = errors.Join(err, os.Remove(next))
	}
	return err
}
