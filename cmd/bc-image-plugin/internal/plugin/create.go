package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/imagespec"
	"github.com/concourse/bc-image-plugin/volumes"
)

// create makes a container's root file system and answers with the runtime Spec that names it.
func create(ctx context.Context, c *call) (answer, error) {
	args, err := parseCreate(c.args)
	if err != nil {
		return answer{}, usageError{err}
	}
	c.fact("handle", args.handle)
	handle, err := volumes.ParseHandle(args.handle)
	if err != nil {
		return answer{}, Usagef("create: %w", err)
	}
	ref, err := imagespec.ParseRef(args.image)
	if err != nil {
		return answer{}, Usagef("create %s: %w", Quote(args.handle), err)
	}
	ref = ref.Within(c.config.baggageclaimVolumes)
	c.fact("image", ref.Redacted())
	c.fact("privileged", c.config.privileged)

	if err := refuseUnsupported(c, args); err != nil {
		return answer{}, fmt.Errorf("create %s: %w", Quote(args.handle), err)
	}
	image, env, err := openImage(ctx, c, ref)
	if err != nil {
		return answer{}, fmt.Errorf("create %s: image %s: %w", Quote(args.handle), ref.Redacted(), err)
	}
	defer image.Close() // only read from

	caches := c.caches()
	volume, err := caches.Create(ctx, handle, volumes.Request{Image: image, Privileged: c.config.privileged}, cachesOf(ref)...)
	if err != nil {
		return answer{}, err // says what and of which handle, as all errors of the store do
	}
	undo := func(ctx context.Context) error {
		_, err := caches.Store().Delete(ctx, handle)
		return err
	}
	c.fact("id", volume.ID)
	var mounts []specs.Mount
	for i, source := range volume.Copies {
		mounts = append(mounts, imagespec.CacheMount(ref.Caches[i].Path, source))
	}
	spec, err := imagespec.NewSpec(volume.Root, env, mounts).AppendJSON(nil)
	if err != nil {
		return answer{}, errors.Join(err, undo(ctx))
	}
	return answer{stdout: append(spec, '\n'), undo: undo, did: "created"}, nil
}

// cachesOf returns the caches that the rootfs URL asks for. Their keys go no further than to be hashed.
func cachesOf(ref imagespec.Ref) []cachecopy.Cache {
	var caches []cachecopy.Cache
	for _, r := range ref.Caches {
		caches = append(caches, cachecopy.Cache{Key: r.Key, Path: r.Path, Promote: cachecopy.Promote(r.Promote)})
	}
	return caches
}

// refuseUnsupported refuses what was asked for and would not be given. To start the container without it would
// look like success.
func refuseUnsupported(c *call, args createArgs) error {
	if args.diskLimitBytes == 0 {
		return nil
	}
	if !c.config.ignoreDiskLimit {
		return fmt.Errorf("a disk limit (%d bytes) is %w, as nothing would enforce it: ask for none, or give this slot of gdn the extra arg --ignore-disk-limit",
			args.diskLimitBytes, volumes.ErrUnsupported)
	}
	c.fact("ignored-disk-limit-bytes", args.diskLimitBytes)
	return nil
}

// openImage opens the directory that ref names, and returns the environment that a Concourse image brings along.
func openImage(ctx context.Context, c *call, ref imagespec.Ref) (*volumes.Image, []string, error) {
	image, err := openRef(ctx, c, ref)
	if errors.Is(err, fs.ErrNotExist) && strings.Contains(ref.Dir+ref.SubPath, ":") {
		err = fmt.Errorf(`%w (gdn makes ":" of the first "#" of a rootfs URL: write a "#" in a name as %%23)`, err)
	}
	if err != nil {
		return nil, nil, err
	}
	env, err := imageEnv(image)
	if err != nil {
		return nil, nil, errors.Join(err, image.Close())
	}
	return image, env, nil
}

func openRef(ctx context.Context, c *call, ref imagespec.Ref) (*volumes.Image, error) {
	if ref.Dir != "" {
		return volumes.OpenImage(ref.Dir)
	}
	dir := c.config.baggageclaimVolumes
	if server, ok := c.driver().(interface {
		VolumesOf(context.Context, string) (string, error)
	}); ok && dir == "" {
		var err error
		if dir, err = server.VolumesOf(ctx, ref.Volume); err != nil {
			return nil, err
		}
	}
	if dir == "" {
		return nil, Usagef("to find it, set --baggageclaim-volumes (or %s) to the worker's BaggageClaim volumes directory",
			EnvVar("baggageclaim-volumes"))
	}
	return volumes.OpenVolumeImage(dir, ref.Volume, ref.SubPath)
}

func imageEnv(image *volumes.Image) ([]string, error) {
	b, err := image.Metadata(imagespec.MaxMetadataBytes)
	if err != nil || b == nil {
		return nil, err
	}
	m, err := imagespec.ParseMetadata(b)
	return m.Env, err
}
