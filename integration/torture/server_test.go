package torture

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// The disk of a place's server, whose driver is overlay: it has the most that can be left, a directory with its mount and one beside it for each volume. The server itself runs
// on: it keeps what it knows of volumes on that disk.

// strays are what the server's disk holds and no layer of the store leads to.
func (p *place) strays() ([]string, error) {
	if p.server == nil {
		return nil, nil
	}
	pointers, err := filepath.Glob(p.store + "/layers/*/volume")
	if err != nil {
		return nil, err
	}
	var known []string
	for _, pointer := range pointers {
		to, err := os.Readlink(pointer)
		if err != nil {
			return nil, err
		}
		known = append(known, filepath.Base(filepath.Dir(to)))
	}
	left, err := p.server.Left()
	return slices.DeleteFunc(left, func(path string) bool {
		state := filepath.Base(filepath.Dir(path))
		return state != "init" && state != "dead" && slices.Contains(known, filepath.Base(path))
	}), err
}

func (p *place) wipeServer() error {
	if p.server == nil {
		return nil
	}
	left, err := p.server.Left()
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

func (p *place) saveServer(to string) error {
	if p.server == nil {
		return nil
	}
	points, err := mounts(p.server.Volumes)
	for _, point := range points {
		err = errors.Join(err, unix.Unmount(point, 0))
	}
	live := p.server.Volumes + "/live"
	return errors.Join(err, os.Rename(live, to+"/live"), os.Rename(p.server.Overlays, to+"/overlays"), os.Mkdir(live, 0o755), os.Mkdir(p.server.Overlays, 0o755))
}

func (p *place) restoreServer(from string) error {
	if p.server == nil {
		return nil
	}
	// The directories stay: the server is in them.
	err := errors.Join(copyAll(from+"/live/.", p.server.Volumes+"/live"), copyAll(from+"/overlays/.", p.server.Overlays))
	names, failed := os.ReadDir(from + "/live")
	err = errors.Join(err, failed)
	for _, n := range names { // as the server does when it starts
		err = errors.Join(err, unix.Mount(p.server.Overlays+"/"+n.Name(), p.server.Volumes+"/live/"+n.Name()+"/volume", "", unix.MS_BIND, ""))
	}
	return err
}
