// Package bcserver keeps the store's layers in volumes of a BaggageClaim server.
//
// [Driver] is a [volumes.Driver]. Everything else is the store's: entries, generations of caches, locks, what is done after a kill. So both backends mean the same by
// everything, and run the same tests.
//
// # What the server is asked for
//
// Two things, which it does well: an empty volume, and to destroy one. The tree of each layer is one volume; the overlays that containers see are ours, mounted on
// these trees and on the image, with id-mapped layers where the container is unprivileged.
//
// What it could do besides is left to us, for a reason each (all seen with v1.9.1 and v1.11.0):
//
//   - Copy-on-write volumes: the server walks over all files of the image at each creation, also of privileged volumes, and chowns them one by one for unprivileged
//     ones, with errors lost (a full disk gives 201 and half of the owners). With the overlay driver such a volume is an overlay, which nobody can id-map.
//   - import, to make one volume of a cache's layers: it is a cp -a whose errors are one fixed text, and sees our mounts only in the same mount namespace. Merging is the
//     store's, checks each file, and copies no more than what changed.
//   - Parents: the server destroys a parent under its children. Layers have their users noted in the store, and are destroyed after the last one.
//
// # Layout
//
//	STORE/server.json              the server's address, its directory of volumes, its driver; found out with the host's features, once per boot
//	STORE/server.lost/HANDLE       a volume that was asked for before anything was known of the server; it is looked for when something is
//	STORE/layers/NAME/volume       -> VOLUMES/live/HANDLE/volume, made before the server is asked
//	VOLUMES/live/HANDLE/volume/    fs/ work/ empty/: the tree of the layer
//
// A HANDLE is 128 random bits, and asked for once: creating it again would destroy what the first volume holds. What a volume is for stands in its properties (see propStore and
// the following), by which it is found when the store's directory is lost.
//
// # What is left if the server or we die
//
//	during                  on the server's disk                     cleaned by
//	New                     init/HANDLE or a volume nobody waits for  the Remove of the layer, which cancels, waits, destroys, and looks at the disk
//	Remove, after DELETE    dead/HANDLE, its mount, overlays/HANDLE   the Remove again: the server has "no such volume" any more, so it is done here
//	a restart on mounts     a second mount on each volume             Remove: the server fails once, and the rest is done here
//	loss of STORE           volumes with our properties               Delete of their container, the first Create (it adopts them), or gc
//
// The server's "not found" alone is never taken for "gone": what it moved to dead/ and failed to take apart, it does not know any more.
//
// # Not guaranteed
//
// Who else uses the server can destroy our volumes, and a Concourse ATC does so with all that it does not know: the server must be the plugin's own. It has to run on
// this host and in this mount namespace, which the first use checks. Its address is trusted: it has no authentication.
package bcserver
