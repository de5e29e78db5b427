module github.com/containers/image

go 1.26.0

require (
	github.com/opencontainers/go-digest v1.0.0-rc1
	github.com/opencontainers/image-spec v1.0.1
)
