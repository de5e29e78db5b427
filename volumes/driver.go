package volumes

import (
	"context"
	"os"
)

// Driver makes a writable, private view of immutable layers, and takes it apart.
//
// A layer is a directory below Layers with a random name; what is inside belongs to the driver, except layer.json, users, parent, durable and
// commit, which belong to the store. What the layer shows is in its tree, a directory that only the driver knows the place of. The store calls a driver for one layer name from one process at a time; for different names in parallel, from
// many processes, without a lock between them. A driver keeps no state outside of what it is given.
//
// Every method may be cut short at any point by a kill. What Mount left behind then, Unmount and Remove take away, whatever the
// state it is in. Methods that wait honour ctx.
type Driver interface {
	// Name is kept in the store's record, so that a store is not used with a driver that did not make it.
	Name() string

	// Probe finds out, by trying in the scratch layer and mount point it is given, what this host and file system can do. It is slow
	// (milliseconds) and called once per boot. An error means the store cannot be used at all and says why in the
	// operator's words. Probe leaves nothing mounted; the store removes the scratch directories.
	Probe(ctx context.Context, scratch View) (Features, error)

	// CanMap says whether, with these features, Mount can show a layer under the other ownership.
	CanMap(f Features) bool

	// New makes room for the trees of new layers, whose directories below layers exist and hold nothing but the store's files. container is the
	// handle that they are for, "" if there is none: a driver may note it, and decides nothing by it. It is called before anything else
	// is done with a layer, and once. After a failure something may be left of any of them, for Remove.
	New(ctx context.Context, layers string, names []string, container string) error

	// Tree returns the directory whose subdirectory fs holds what the layer shows. ErrNotFound: no room was made for it.
	Tree(layers, name string) (string, error)

	// Home returns a directory of the file system that trees are on. It may not exist yet.
	Home(layers string) string

	// Holds says whether path, absolute and without symlinks, is inside of a layer's tree, of this store or of another one.
	Holds(layers, path string) bool

	// Mount fills the tree of View.Upper and mounts the merged view on View.Target, an existing empty directory. The merged
	// root has mode, owner, extended attributes and ACL of the topmost lower (mapped if that layer is); without a lower it is
	// an empty directory of mode 0755 owned by the container's root.
	//
	// When Mount returns nil, the view is complete, writable and attached. When it fails, something may be left at Target and in
	// the upper. An error that wraps [ErrCannotMap] names a lower that would have to be mapped and cannot be.
	Mount(ctx context.Context, f Features, v View) error

	// Freeze makes the view that is mounted on target read-only for ever, for whoever has it in whichever mount namespace, before it is unmounted. ErrBusy:
	// somebody has a file in it open for writing until ctx is done, and can go on. Nothing mounted there is success.
	Freeze(ctx context.Context, target string) error

	// Unmount takes everything off the directory dir, which holds the mount points of one container, and off what is below it. Nothing
	// mounted there is success. A view in use is tried again until ctx is done; the error then wraps [ErrBusy], and
	// nothing was removed.
	Unmount(ctx context.Context, dir string) error

	// Usage is what a layer takes on disk of its own. It answers within ctx, if need be with a part, see Usage.Partial.
	Usage(ctx context.Context, layers, name string) (LayerUsage, error)

	// Changed says whether an unmounted upper differs from the layer below it ("": from an empty directory): a name in it, or other
	// attributes of its top directory than its times.
	Changed(layers, upper, below string) (bool, error)

	// Seal makes an unmounted upper an immutable layer, in place: it becomes what a lower layer needs and nothing more. Doing it twice is the same.
	Seal(ctx context.Context, layers, upper string) error

	// Merge fills the layer into, for which New made room, with the layers from, top first: in their place, on
	// the layers below, it shows the same. All are unmounted or immutable, and it may share inodes with from.
	Merge(ctx context.Context, layers string, from, below []string, into string) error

	// Remove removes the trees of the layer, and of those whose directories are below its own, which nobody has mounted, and its directory. Absent is
	// success. It needs no free space.
	Remove(ctx context.Context, layers, name string) error
}

// Finder is a [Driver] whose trees are kept by somebody who lists them: what a lost store directory said about containers can be found there.
type Finder interface {
	// Find tells of every tree that was made for a container by the store whose layers' directory is layers: of one container, or of all if
	// container is "". The name is that of its layer when New made room for it. adopt returns false for a layer that shall not be
	// known; else its directory exists now, and Find makes it lead to its tree.
	Find(ctx context.Context, layers, container string, adopt func(container, name string) (bool, error)) error
}

// Examiner is a [Driver] that has something to say to Doctor about whom it depends on.
type Examiner interface {
	Examine(ctx context.Context, layers string) []Finding
}

// Sweeper is a [Driver] whose trees are kept by somebody who lists them: there may be some that no layer leads to any more.
type Sweeper interface {
	// Strays returns those trees that were made for the store whose layers' directory is layers, and that nothing in it leads to. A tree that is being
	// made or removed meanwhile is not among them, or its Remove finds nothing.
	Strays(ctx context.Context, layers string) ([]Stray, error)
}

// Stray is a tree that nobody needs.
type Stray struct {
	Name   string // what it is and where, for messages
	Remove func(context.Context) error
}

// Features is what a driver's Probe found out about host and file system. It is kept in the store's record for the rest of the boot.
type Features struct {
	LayerFDs  bool `json:"layer_fds"`  // layers are given to the kernel as descriptors, also of id-mapped mounts
	IDMap     bool `json:"id_map"`     // layers can be id-mapped
	Volatile  bool `json:"volatile"`   // uppers need not be flushed when they are unmounted
	UserXattr bool `json:"user_xattr"` // inside a user namespace: overlay attributes are user.overlay.*
}

// View is a merged tree that a driver is asked to make.
type View struct {
	Target string  // absolute path of an empty directory to mount on
	Layers string  // absolute path of the directory that holds the layers
	Upper  string  // name of the writable layer below Layers; New made room for it
	Lowers []Lower // top first; may be empty

	// Mapped: the container's root is MaxID, not 0. UpperMapped: the upper is canonical on disk and must be mapped as well (always with
	// Mapped, where the driver can map).
	Mapped      bool
	UpperMapped bool
	MaxID       uint32

	// UserNS has the id map 0↔MaxID. It is set if anything in the view has to be mapped.
	UserNS *os.File

	// Warn is told what was done with less than was asked for. It may be nil.
	Warn func(error)
}

// Root is the owner of a file of the container's root in the merged view.
func (v View) Root() uint32 {
	if v.Mapped {
		return v.MaxID
	}
	return 0
}

// Lower is one immutable layer of a view.
type Lower struct {
	// Dir is an O_PATH directory, outside of the store or in it; Dir.Name() is a path that leads to it. Map: it has to be shown under the
	// other ownership.
	Dir *os.File
	Map bool

	// Layer, instead of Dir, is a layer of this driver below View.Layers, owned as the upper is.
	Layer string
}

// LayerUsage is what one layer takes on disk.
type LayerUsage struct {
	Bytes   uint64 // of blocks: holes not counted, a file with several links once
	Entries uint64 // files and directories
	Partial bool   // a lower bound: the tree was too large for the time there was
}
