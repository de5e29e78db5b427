// Package types, with the other packages of this module, stands in for github.com/containers/image as it was in 2017, which no module proxy has.
// GrootFS fetches images from registries by it; the benchmark gives it a tar file, so all that is needed is that it compiles.
package types

import (
	"io"

	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

type SystemContext struct {
	DockerInsecureSkipTLSVerify bool
	DockerAuthConfig            *DockerAuthConfig
	OCICertPath                 string
}

type DockerAuthConfig struct{ Username, Password string }

type BlobInfo struct {
	Digest      digest.Digest
	Size        int64
	URLs        []string
	Annotations map[string]string
	MediaType   string
}

type Image interface {
	Close() error
	ConfigBlob() ([]byte, error)
	OCIConfig() (*specs.Image, error)
	LayerInfos() []BlobInfo
	Manifest() ([]byte, string, error)
	UpdatedImage(ManifestUpdateOptions) (Image, error)
}

type ImageSource interface {
	GetBlob(BlobInfo) (io.ReadCloser, int64, error)
}

type ImageReference interface {
	NewImage(*SystemContext) (Image, error)
	NewImageSource(*SystemContext) (ImageSource, error)
}

type ImageTransport interface {
	ParseReference(string) (ImageReference, error)
}

type ManifestUpdateOptions struct {
	ManifestMIMEType string
	InformationOnly  ManifestUpdateInformation
}

type ManifestUpdateInformation struct{ LayerDiffIDs []digest.Digest }
