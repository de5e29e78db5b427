package cachecopy_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// Examples mount overlays. Where the tests are not root they say what they would have printed.
func asRoot(run func(dir string) error, otherwise string) {
	if os.Geteuid() != 0 {
		fmt.Println(otherwise)
		return
	}
	dir, err := os.MkdirTemp("", "cachecopy-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := run(dir); err != nil {
		log.Fatal(err)
	}
}

// One container fills a cache and commits it; the next one begins with what the first has left.
func Example() {
	asRoot(func(dir string) error {
		ctx := context.Background()
		caches := cachecopy.New(volumes.Options{Dir: filepath.Join(dir, "store"), Driver: overlay.New(overlay.Options{})}, cachecopy.Options{})
		for _, name := range []string{"first", "second"} {
			container, err := volumes.ParseHandle(name)
			if err != nil {
				return err
			}
			// Without an image there is no root file system, only the copy.
			v, err := caches.Create(ctx, container, volumes.Request{}, cachecopy.Cache{Key: "what the cache is for", Path: "/cache"})
			if err != nil {
				return err
			}
			cache := v.Copies[0] // to be mounted at /cache
			found, _ := os.ReadFile(filepath.Join(cache, "last"))
			fmt.Printf("%s finds %q\n", name, found)

			// This is what runs in the container.
			if err := os.WriteFile(filepath.Join(cache, "last"), []byte(name), 0o644); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(cache, cachecopy.Marker), nil, 0o644); err != nil {
				return err
			}

			deleted, _, err := caches.Delete(ctx, container)
			if err != nil {
				return err
			}
			fmt.Printf("generation %d\n", deleted.Copies[0].Generation)
		}
		return nil
	}, "first finds \"\"\ngeneration 1\nsecond finds \"first\"\ngeneration 2")
	// Output:
	// first finds ""
	// generation 1
	// second finds "first"
	// generation 2
}

// A container that did not succeed leaves no marker, and its copy is dropped.
func ExampleCaches_Delete() {
	asRoot(func(dir string) error {
		ctx := context.Background()
		caches := cachecopy.New(volumes.Options{Dir: filepath.Join(dir, "store"), Driver: overlay.New(overlay.Options{})}, cachecopy.Options{})
		container, err := volumes.ParseHandle("check")
		if err != nil {
			return err
		}
		v, err := caches.Create(ctx, container, volumes.Request{}, cachecopy.Cache{Key: "k"})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(v.Copies[0], "half a file"), nil, 0o644); err != nil {
			return err
		}
		deleted, _, err := caches.Delete(ctx, container)
		if err != nil {
			return err
		}
		for _, end := range deleted.Copies {
			fmt.Println(end.Promoted, end.Reason)
		}
		return nil
	}, "false not committed")
	// Output: false not committed
}

// Whoever watches over the container can commit for it, from outside.
func ExampleCaches_Commit() {
	asRoot(func(dir string) error {
		ctx := context.Background()
		opts := cachecopy.Options{MaxBytes: 10 << 30, MaxAge: 24 * time.Hour}
		caches := cachecopy.New(volumes.Options{Dir: filepath.Join(dir, "store"), Driver: overlay.New(overlay.Options{})}, opts)
		container, err := volumes.ParseHandle("check")
		if err != nil {
			return err
		}
		v, err := caches.Create(ctx, container, volumes.Request{}, cachecopy.Cache{Key: "k"})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(v.Copies[0], "file"), nil, 0o644); err != nil {
			return err
		}
		if _, err := caches.Commit(ctx, container); err != nil {
			return err
		}
		if _, _, err := caches.Delete(ctx, container); err != nil {
			return err
		}
		list, err := caches.List(ctx)
		if err != nil {
			return err
		}
		for _, c := range list {
			fmt.Println(c.Name == cachecopy.ID("k"), "generation", c.Generation, "with", c.Entries, "file")
		}
		return nil
	}, "true generation 1 with 1 file")
	// Output: true generation 1 with 1 file
}

// A scheduler finds the workers that have a cache by its ID; the key goes nowhere.
func ExampleID() {
	fmt.Println(cachecopy.ID("team and configuration, secrets included"))
	// Output: b66f84d7ff0214215fae8f0a6e6a68876cfedc7b9e2bbe4771a41a8c58d20aef
}
