package imagespec

import (
	"encoding/json"
	"path"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/concourse/bc-image-plugin/internal/appendjson"
)

// Spec is the part of an OCI runtime Spec (specs.Spec) that an image plugin fills; its JSON decodes into that.
//
// It is a type of its own because encoding/json examines every field of a type, with all types below, before it
// encodes the first value: for specs.Spec that takes longer than everything else a small command does.
type Spec struct {
	Version string        `json:"ociVersion"`
	Root    Root          `json:"root"`
	Process Process       `json:"process"`
	Mounts  []specs.Mount `json:"mounts,omitempty"`
}

// Root is the part of specs.Root that we fill.
type Root struct {
	// Path is the absolute path of the container's root file system on the host.
	Path string `json:"path"`
}

// Process is the part of specs.Process that we fill.
type Process struct {
	// Env is the image's environment, never nil. The client's own comes after it and wins.
	Env []string `json:"env"`
}

// NewSpec returns the Spec for the root file system at root, with the image's environment and our mounts in their
// order. A mount on "/" is left out, however it is spelt: root is there already, and newer runc refuses it.
func NewSpec(root string, env []string, mounts []specs.Mount) Spec {
	s := Spec{
		Version: specs.Version,
		Root:    Root{Path: root},
		Process: Process{Env: append([]string{}, env...)},
	}
	for _, m := range mounts {
		if path.Clean("/"+m.Destination) != "/" {
			s.Mounts = append(s.Mounts, m)
		}
	}
	return s
}

// CacheMount returns the bind mount of a cache: source on the host, destination in the container. Containers of
// different trust may write one cache after the other, so set-user-id files and device nodes in it have no effect.
func CacheMount(destination, source string) specs.Mount {
	return specs.Mount{
		Destination: destination,
		Type:        "bind",
		Source:      source,
		Options:     []string{"rbind", "rw", "nosuid", "nodev"},
	}
}

// AppendJSON appends s as json.Marshal writes it, without reflection over the types of a mount: that takes as long as a fifth of a create.
func (s Spec) AppendJSON(b []byte) ([]byte, error) {
	b = appendjson.String(append(b, `{"ociVersion":`...), s.Version)
	b = appendjson.String(append(b, `,"root":{"path":`...), s.Root.Path)
	b = appendjson.Strings(append(b, `},"process":{"env":`...), s.Process.Env)
	b = append(b, '}')
	for i, m := range s.Mounts {
		if i == 0 {
			b = append(b, `,"mounts":[`...)
		} else {
			b = append(b, ',')
		}
		if m.Type == "" || m.Source == "" || len(m.Options) == 0 || m.UIDMappings != nil || m.GIDMappings != nil { // not of CacheMount
			other, err := json.Marshal(m)
			if err != nil {
				return b, err
			}
			b = append(b, other...)
			continue
		}
		b = appendjson.String(append(b, `{"destination":`...), m.Destination)
		b = appendjson.String(append(b, `,"type":`...), m.Type)
		b = appendjson.String(append(b, `,"source":`...), m.Source)
		b = appendjson.Strings(append(b, `,"options":`...), m.Options)
		b = append(b, '}')
	}
	if len(s.Mounts) > 0 {
		b = append(b, ']')
	}
	return append(b, '}'), nil
}
