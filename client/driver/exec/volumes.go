package exec

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/process"
	"github.com/muster-sched/muster/client/supervisor"
)

// MountsVolumes implements driver.VolumeMounter.
func (d *Driver) MountsVolumes() bool { return true }

// stages is the directory, below the allocation's, in which volumes are bound until the rest of the task's view is
// built.
const stages = ".volumes"

// volumes prepares the mount points. A relative target is below the task's directory. An absolute one is in the task's
// root; on the host's own root it must exist, as far as the task's user can see: the driver leaves no directories on the
// host.
func volumes(cfg *driver.TaskConfig, ownRoot bool, cred *supervisor.Credential) ([]supervisor.Volume, error) {
	var out []supervisor.Volume
	alloc := allocdir.Dir{Root: cfg.Dirs.AllocRoot}
	for i, m := range cfg.Mounts {
		v := supervisor.Volume{Source: m.Source, ReadOnly: m.ReadOnly}
		if m.Propagation == "bidirectional" {
			return nil, driver.Permanent(errors.New("exec: a volume cannot be mounted with propagation_mode bidirectional: nothing leads out of the task's view"))
		}
		if cfg.Dirs.AllocRoot == "" || cfg.Dirs.TaskDir == "" {
			return nil, driver.Permanent(errors.New("exec: without an allocation directory no volume can be mounted"))
		}
		target := filepath.Clean(m.Target)
		if !filepath.IsAbs(target) {
			target = filepath.Join(cfg.Dirs.TaskDir, target)
		}
		if rel, err := filepath.Rel(cfg.Dirs.AllocRoot, target); err == nil && filepath.IsLocal(rel) && rel != "." {
			dir, err := alloc.MakeDir(rel)
			if err != nil {
				return nil, driver.Permanent(fmt.Errorf("exec: volume destination %q: %w", m.Target, err))
			}
			dir.Close()
			v.Stage = target
			out = append(out, v)
			continue
		}
		if !filepath.IsAbs(m.Target) {
			return nil, driver.Permanent(fmt.Errorf("exec: volume destination %q leads out of the task's directory", m.Target))
		}
		stage := filepath.Join(stages, cfg.Name, strconv.Itoa(i))
		dir, err := alloc.Private(stage, 0o755)
		if err != nil {
			return nil, fmt.Errorf("exec: volume: %w", err)
		}
		dir.Close()
		v.Stage, v.Target = filepath.Join(cfg.Dirs.AllocRoot, stage), target
		v.Make = ownRoot
		below, inTmp := strings.CutPrefix(target, "/tmp/")
		if inTmp && !ownRoot { // made by handle: a task of the allocation may have put links there
			rel, err := filepath.Rel(cfg.Dirs.AllocRoot, filepath.Join(cfg.Dirs.TaskDir, allocdir.Tmp, below))
			if err != nil {
				return nil, err
			}
			dir, err := alloc.MakeDir(rel)
			if err != nil {
				return nil, driver.Permanent(fmt.Errorf("exec: volume destination %q: %w", m.Target, err))
			}
			dir.Close()
		} else if !ownRoot && !process.IsDir(target, cred) {
			return nil, driver.Permanent(fmt.Errorf("exec: volume destination %q is not a directory that the task's user sees on this node, whose root tasks of this driver have; name one that is, a path below the task's directory (such as \"data\"), or a rootfs", m.Target))
		}
		out = append(out, v)
	}
	return out, nil
}
