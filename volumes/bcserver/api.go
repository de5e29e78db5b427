package bcserver

import "encoding/json"

// The types of BaggageClaim's HTTP API, as github.com/concourse/baggageclaim v1.11.0 has them (resources.go). They are not taken from there as that package
// comes with net/http, see http.go; a test holds them against it.

// VolumeRequest asks for a volume.
type VolumeRequest struct {
	Handle     string            `json:"handle"`
	Strategy   *json.RawMessage  `json:"strategy"`
	Properties map[string]string `json:"properties"`
	Privileged bool              `json:"privileged,omitempty"`
}

// emptyStrategy is the Strategy of a volume that begins empty.
var emptyStrategy = json.RawMessage(`{"type":"empty"}`)

// VolumeResponse is a volume.
type VolumeResponse struct {
	Handle     string            `json:"handle"`
	Path       string            `json:"path"`
	Properties map[string]string `json:"properties"`
}

type volumeFutureResponse struct {
	Handle string `json:"handle"`
}

type propertyRequest struct {
	Value string `json:"value"`
}
