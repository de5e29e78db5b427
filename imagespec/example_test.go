package imagespec_test

import (
	"fmt"

	"github.com/concourse/bc-image-plugin/imagespec"
)

// A scheduler asks for a container with the image in a BaggageClaim volume and a cache for the check.
func ExampleRef_String() {
	key := `{"team":"main","type":"git","source":{"uri":"https://example.com/a.git"}}`
	ref := imagespec.Ref{
		Volume:  "6f1d2c3e-image",
		SubPath: "rootfs",
		Caches:  []imagespec.Cache{{Key: key, Path: "/tmp/git-resource-repo-cache"}},
	}
	rootfs := ref.String()
	fmt.Println(rootfs[:50] + "…")

	// The plugin on the worker reads it.
	again, err := imagespec.ParseRef(rootfs)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(again.Caches[0].Key == key, again.Caches[0].Promote)
	fmt.Println(again.Redacted())
	// Output:
	// baggageclaim://6f1d2c3e-image/rootfs?cache=%7B%22t…
	// true on-commit
	// baggageclaim://6f1d2c3e-image/rootfs (1 cache)
}

// What cannot be an image is refused with a sentence that says what to do.
func ExampleParseRef() {
	_, err := imagespec.ParseRef("docker:///busybox:1.36")
	fmt.Println(err)
	// Output:
	// rootfs URL "docker:///busybox:1.36": scheme "docker" is not supported by this version: use baggageclaim://VOLUME[/SUB/PATH] or file:///ABS/DIR
}

// A worker and a scheduler agree on the name of a cache without either telling its key.
func ExampleCacheID() {
	fmt.Println(imagespec.CacheID("key"))
	// Output:
	// 2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683
}
