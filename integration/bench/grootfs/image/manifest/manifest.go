package manifest

const (
	DockerV2Schema1MediaType       = "application/vnd.docker.distribution.manifest.v1+json"
	DockerV2Schema1SignedMediaType = "application/vnd.docker.distribution.manifest.v1+prettyjws"
	DockerV2Schema2MediaType       = "application/vnd.docker.distribution.manifest.v2+json"
)
