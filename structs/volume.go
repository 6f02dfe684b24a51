package structs

import (
	"encoding/json"
	"fmt"
)

// HostVolumeRequest is what a group asks of a host volume.
type HostVolumeRequest struct {
	Source   string // the volume's name on the node
	ReadOnly bool
}

// Host returns the host volume that the request names. Servers authorise it, the scheduler places it and agents mount
// it, so all of them must read the request in the same way.
func (v *VolumeRequest) Host() (HostVolumeRequest, error) {
	var raw struct {
		Type     string
		Source   string
		ReadOnly bool
	}
	if err := json.Unmarshal(v.Raw, &raw); err != nil {
		return HostVolumeRequest{}, fmt.Errorf("volume %q: %w", v.Name, err)
	}
	if raw.Type != "" && raw.Type != "host" {
		return HostVolumeRequest{}, fmt.Errorf("volume %q has type %q; only \"host\" is supported", v.Name, raw.Type)
	}
	if raw.Source == "" {
		return HostVolumeRequest{}, fmt.Errorf("volume %q names no source", v.Name)
	}
	return HostVolumeRequest{Source: raw.Source, ReadOnly: raw.ReadOnly}, nil
}
