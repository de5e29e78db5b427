// Package volumetest is the conformance suite of package volumes: what a Store promises, whatever driver makes its volumes, and what
// [volumes.Driver] asks of a driver. A new driver is ready when [Run] passes on each file system that it is for.
package volumetest

import (
	"testing"

	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// Config says what is tested and how it is expected to differ from other drivers and file systems.
type Config struct {
	Driver volumes.Driver

	// Dir is a directory on the file system under test. Everybody can reach it; its path has no symlinks. The suite makes and removes
	// directories in it.
	Dir string

	// Upper is where the driver keeps the container's own files below layers/ID.
	Upper string

	// Record, if not empty, is the file that the driver keeps beside the layers' directory.
	Record string

	// CanMap: the driver can show a layer of this file system under the other ownership. What a container writes is then canonical on disk.
	CanMap bool

	// NeverCopy: the stores are used with [volumes.Options.NeverCopy].
	NeverCopy bool
}

// copies says whether containers can be made that need a shifted copy of their image.
func (c Config) copies() bool { return !c.NeverCopy }

// Run runs the suite. It needs root. All tests run in parallel, each in a store of its own.
func Run(t *testing.T, c Config) {
	inspect.NeedRoot(t)
	for name, test := range map[string]func(*place){
		"life cycle":                  lifeCycle,
		"create twice":                createTwice,
		"any handle":                  anyHandle,
		"ownership":                   ownership,
		"the container's root":        containersRoot,
		"a privileged root is closed": privilegedIsClosed,
		"contents":                    contents,
		"many at once":                manyAtOnce,
		"one handle at once":          oneHandleAtOnce,
		"killed create":               killedCreate,
		"killed delete":               killedDelete,
		"entry made by hand":          entryMadeByHand,
		"cancelled create":            cancelledCreate,
		"cancelled delete":            cancelledDelete,
		"busy root":                   busyRoot,
		"stacked mounts":              stackedMounts,
		"store behind a symlink":      storeBehindASymlink,
		"lost mounts":                 lostMounts,
		"another boot":                anotherBoot,
		"another driver":              anotherDriver,
		"damaged record":              damagedRecord,
		"numbers":                     numbers,
		"image measured once":         imageMeasuredOnce,
		"deep tree":                   deepTree,
		"hostile upper":               hostileUpper,
		"image in the store":          imageInTheStore,
		"odd paths":                   oddPaths,
		"image with whiteouts":        imageWithWhiteouts,
		"image with a mount":          imageWithAMount,
		"image on an overlay":         imageOnAnOverlay,
		"image removed by hand":       imageRemovedByHand,
		"default ACL above the store": defaultACL,
		"layers":                      layers,
		"no layers":                   noLayers,
		"driver finds nothing":        driverFindsNothing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newPlace(t, c))
		})
	}
	if !c.copies() {
		return
	}
	for name, test := range map[string]func(*place){
		"copy is made once":             copyIsMadeOnce,
		"copy goes after its image":     copyGoesAfterItsImage,
		"copy of another boot":          copyOfAnotherBoot,
		"copy in use":                   copyInUse,
		"killed create with a copy":     killedCreateWithACopy,
		"killed delete of the last use": killedDeleteOfTheLastUse,
		"cancelled copy":                cancelledCopy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newPlace(t, c))
		})
	}
}
