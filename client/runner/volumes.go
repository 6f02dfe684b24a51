package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"

	"github.com/muster-sched/muster/client/driver"
)

// volumeRequest is the part of a group's volume block that the client uses.
type volumeRequest struct {
	Type, Source string
	ReadOnly     bool
}

// volumeMount is the part of a task's volume_mount block that the client uses.
type volumeMount struct {
	Volume, Destination, PropagationMode string
	ReadOnly                             bool
}

// mountVolumes adds the node's host volumes that the task mounts.
func mountVolumes(_ context.Context, a *attempt) error {
	if len(a.spec.VolumeMounts) == 0 {
		return nil
	}
	if m, ok := a.driver.(driver.VolumeMounter); !ok || !m.MountsVolumes() {
		return driver.Permanent(fmt.Errorf("tasks of driver %q see the node's own file system: volumes cannot be mounted for them", a.spec.Driver))
	}
	node, g := a.task.r.cfg.Host.Node(), a.task.r.group()
	for i, raw := range a.spec.VolumeMounts {
		var m volumeMount
		if err := json.Unmarshal(raw.Raw, &m); err != nil {
			return driver.Permanent(fmt.Errorf("volume_mount %d: %w", i+1, err))
		}
		var v *volumeRequest
		for _, have := range g.Volumes {
			if have.Name == m.Volume {
				v = &volumeRequest{}
				if err := json.Unmarshal(have.Raw, v); err != nil {
					return driver.Permanent(fmt.Errorf("volume %q: %w", m.Volume, err))
				}
			}
		}
		if v == nil {
			return driver.Permanent(fmt.Errorf("the group has no volume %q", m.Volume))
		}
		host, ok := node.HostVolumes[v.Source]
		if !ok {
			return driver.Permanent(fmt.Errorf("this node has no host volume %q", v.Source))
		}
		if host.ReadOnly && !v.ReadOnly {
			return driver.Permanent(fmt.Errorf("host volume %q can only be read on this node, and volume %q is not read_only", v.Source, m.Volume))
		}
		info, err := os.Stat(host.Path)
		if err != nil {
			return fmt.Errorf("host volume %q: %w", v.Source, err)
		}
		if !info.IsDir() {
			return driver.Permanent(fmt.Errorf("host volume %q: %s is not a directory", v.Source, host.Path))
		}
		dest := a.env.Replace(m.Destination)
		if dest == "" || path.Clean(dest) == "/" || path.Clean(dest) == "." {
			return driver.Permanent(fmt.Errorf("volume_mount %q: destination %q is not a place for a volume", m.Volume, m.Destination))
		}
		a.config.Mounts = append(a.config.Mounts, driver.Mount{Source: host.Path, Target: dest, ReadOnly: v.ReadOnly || m.ReadOnly || host.ReadOnly, Propagation: m.PropagationMode})
	}
	return nil
}
