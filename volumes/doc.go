// Package volumes is the embedded store: copy-on-write root file systems, and private copies of shared trees, on a local disk. They
// live exactly as long as their containers and are kept by no daemon: everything is done by the process that calls.
//
// # Layout
//
//	STORE/               0711
//	  store.json               format, driver, kind of file system, ids of the user namespace; what this host can do, found out once per boot
//	  lock                     the one lock file, see Locks
//	  volumes/           0700
//	    init/HANDLE            -> ID   the container is being made
//	    live/HANDLE            -> ID   it was made, and not deleted yet
//	    dead/HANDLE            -> ID   it is being removed
//	  layers/            0700
//	    ID/                            a container's own
//	      layer.json                   what it was made from; written once, before it is used
//	      fs/ work/                    upper of its root file system
//	      cache-N/{fs,work,commit}     upper of its N-th copy; commit: somebody said it is good; empty: its lower, if there is no generation yet
//	      merged-cache-N/              what its end is merging
//	      spoilt-N/                    was cache-N, and somebody may go on writing to it
//	    ID/                            a shifted copy of an image (where layers cannot be id-mapped)
//	      layer.json fs/ users/
//	    ID-N/                          a layer of a stack, once copy N of the container ID; ID-Nm: the older ones merged into one below it
//	      layer.json fs/ parent users/ durable
//	  caches/            0700
//	    STACK/current          -> "GENERATION TOP BOOT"
//	    STACK/dropped.ID       it was current, and is being removed
//	    STACK/next             the next current, for the moment of its rename (caches.total.next likewise)
//	  caches.total             -> bytes of all stacks, for eviction
//	  images/            0700  IDENTITY.size (measured once), IDENTITY.copy -> ID, IDENTITY.making -> ID
//	  mnt/               0711
//	    ID/              0711  (0700 if privileged) rootfs, cache-N: the only mount points of the store
//
// Everything that points at something else is a symlink that leads nowhere: its text is the pointer. It is made, replaced by rename
// and read by one system call each, and lives in the inode, so no power cut leaves one empty. IDs are 128 random bits. A HANDLE names nothing but
// its entry, so what a dead process left can never be in the way of a new container of that handle.
//
// On disk, owners are canonical: the files of a container's root belong to 0, whichever kind of container wrote them. (Where layers cannot be id-mapped, those
// of unprivileged containers belong to the highest id, in stacks of their own: STACK-shifted.) So layers holds real setuid-root files, and is closed to everybody
// but root.
//
// # Rules
//
//  1. An entry moves init → live → dead by rename. What it is in is its state. One that never got to live is removed from init.
//  2. Intent first: an entry is made before what it leads to, and removed after it. So whatever a crash leaves can be found through an entry,
//     or is a layer that nobody names.
//  3. Who holds the lock of a handle owns all that is named through it. An entry in init or dead whose lock is free is rubbish; the next
//     Create or Delete of the handle removes it.
//  4. Deleting unmounts everything below mnt/ID first, and removes files only then, by directory descriptors, without following a symlink or
//     crossing a mount. It needs no free space. nil is returned only when nothing is left.
//  5. Nothing on the way of Create and Delete looks at all containers, all mounts or all files: the cost is that of the calls for one.
//  6. A layer that is in use has a name in users/. The directory is removed, in one call that fails while it holds a name, before the layer is.
//     Before a copy is unmounted it is made read-only for whoever else has it mounted; if somebody has it open for writing, it becomes no layer.
//  7. What was made is looked at, as the container will see it, before Create returns.
//  8. GC removes what is proven to be of no use, under the lock of who might think otherwise. An entry that cannot be read may name anything.
//
// # Locks
//
// All are locks of one byte of the file STORE/lock, which the kernel releases when a process dies: one for each handle, then one each for an image, the drop of a
// stack, a stack, a record. In this order. The lock of a stack is held for a few calls. That of an image is held while the image is copied or measured, so that this is
// done once; only who wants the same image waits, with a limit. That of a handle is held for the whole of its Create or Delete, that of a drop until the layers are gone.
//
// There is none of the whole store. Check and GC do without: an exclusive lock would wait for the longest of the creates that run, and keep all others waiting
// meanwhile, or wait for ever where there is always one. They look at what is owned first and at the owners then. By rule 2, and as an ID comes only once, what has no owner
// then has none for ever. An owner that may be there and dead (init, dead, making, dropped) is asked for its lock, without waiting.
//
// # What is on disk if we die here
//
// Create:
//
//	after                       on disk                                 cleaned by
//	the first look at the host  layers/probe, mnt/probe                 the next look (one per boot, or Doctor)
//	init/HANDLE                 the entry alone                         next Create or Delete of HANDLE
//	layers/ID, mnt/ID, mounts   a half-made container in init           next Create or Delete of HANDLE
//	live/HANDLE                 a whole container nobody was told of    Delete (gdn sends one after each failed create)
//	images/X.making, its layer  a half-made shifted copy                next copy of that image
//
// Delete:
//
//	after                       on disk                                 cleaned by
//	dead/HANDLE                 a whole container in dead               next Create or Delete of HANDLE, which goes on
//	a copy renamed to spoilt-N  a whole container in dead               the same; that copy is dropped
//	umount, rmdir of mnt/ID     its layers                              the same
//	removing the commit marker  the copy, with a note of the commit     the same; it is promoted
//	Seal, Merge                 layers/ID as before, partly merged      the same; merged again
//	layers/ID-Nm renamed        what was merged, used by nobody yet     the same; used, or dropped if another was first
//	layers/ID-N renamed         a sealed layer that is not the top      the same; published, or dropped if another was first
//	STACK/current renamed       the new generation is complete          the same; the old top's marks are taken off
//	unmark of the old top       layers that nobody uses, partly removed the same
//	removal of layers/ID        a part of the layer                     the same
//	                            the entry in dead                       the same
//
// Dropping a stack, for age, size or by hand:
//
//	after                       on disk                                 cleaned by
//	STACK/current renamed       dropped.TOP, and layers only it names   next drop of STACK, next eviction
//
// All of this is also cleaned by GC, at any time, and by nothing else:
//
//	marks of a container whose layer.json a power cut took     layers/*/users/ID, ID.N, and what they keep from being removed
//	layers, mounts and mount points whose entry was lost       layers/ID, layers/ID-N, mnt/ID
//	containers whose owner was killed before it noted them     live/HANDLE, if GCOptions.Known says so
//	halves of records                                          store.json.tmp, caches.total.next, caches/STACK/next, images/X.size.tmp
//
// A full disk: Create fails and takes back what it made. Delete works; should even its rename need a block, it goes on in live.
//
// A reboot: mounts are gone, entries and layers are there. Such containers can only be deleted; Stats says so. store.json holds another boot, so
// the first Create looks at the host anew. Stacks published in an earlier boot are served without the layers that were never made durable,
// and without all above these.
//
// # Not guaranteed
//
// Root file systems do not survive a reboot and are never flushed. An image that is changed or removed while containers use it shows them the change:
// overlayfs calls that undefined. A generation may be lost in a power cut until a later promotion of its stack has flushed it; what is below it is served. The mounts are
// made in the mount namespace of the caller: who starts the container must share it.
package volumes
