package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

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
		at := slices.IndexFunc(g.Volumes, func(v structs.VolumeRequest) bool { return v.Name == m.Volume })
		if at < 0 {
			return driver.Permanent(fmt.Errorf("the group has no volume %q", m.Volume))
		}
		v, err := g.Volumes[at].Host()
		if err != nil {
			return driver.Permanent(err)
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
