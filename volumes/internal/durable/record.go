package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// WriteJSON writes v to path whole: to path + ".tmp", flushed to disk, then renamed over path. A reader, also after a crash or a
// power cut, sees the old record or the new one. The rename itself is durable once the file system commits (seconds).
//
// The caller holds a lock: there is one temporary name for a record, so that a crash leaves at most one, which the next write uses again.
func WriteJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// ErrDamaged: a record is there and does not parse, as a power cut may leave one that was not flushed.
var ErrDamaged = errors.New("damaged")

// ReadJSON reads a record. fs.ErrNotExist: there is none. One that does not parse is an error that wraps ErrDamaged and names the file.
func ReadJSON(path string, v any) error {
	b, err := ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("record %q is %w: %w", path, ErrDamaged, err)
	}
	return nil
}
