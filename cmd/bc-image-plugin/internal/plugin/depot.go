package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/concourse/bc-image-plugin/volumes"
)

// depot is the directory in which gdn notes its containers (rundmc/depot/dirdepot.go): DEPOT/HANDLE from after our create until after our delete, also for one that a
// restarted gdn cannot restore. A pea has only DEPOT/SANDBOX/processes/HANDLE, from after our create until it is cleaned up.
type depot struct{ dir string }

// openDepot refuses a directory that cannot be read.
func openDepot(dir string) (depot, error) {
	if err := checkDir(dir); err != nil {
		return depot{}, Usagef("gc: --depot %s: %w", Quote(dir), err)
	}
	if _, err := os.ReadDir(dir); err != nil {
		return depot{}, fmt.Errorf("gc: --depot: %w", err)
	}
	return depot{dir}, nil
}

// knows says whether gdn has a container or a pea of that handle.
func (d depot) knows(h volumes.Handle) (bool, error) {
	if is, err := isThere(filepath.Join(d.dir, h.String())); is || err != nil {
		return is, err
	}
	sandboxes, err := os.ReadDir(d.dir) // not a depot that is gone meanwhile: that would be one that knows nobody
	if err != nil {
		return false, err
	}
	for _, s := range sandboxes {
		if is, err := isThere(filepath.Join(d.dir, s.Name(), "processes", h.String())); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

func isThere(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // gdn's depot holds files too
		return false, nil
	}
	return err == nil, err
}
