package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/gpu"
)

// openGPUs starts to look for NVIDIA GPUs, if configured.
func (a *Agent) openGPUs(cc *client.Config) {
	cfg := a.cfg.Client.GPU
	if cfg == nil {
		return
	}
	log := a.log.Named("client.gpu")
	if gpu.Built != "" {
		log.Info("no NVIDIA GPUs: this program was " + gpu.Built)
		return
	}
	if cfg.Exe == "" && !gpu.CanRun() {
		log.Info("no NVIDIA GPUs: this program cannot be its own child process")
		return
	}
	changed := make(chan struct{}, 1)
	gc := *cfg
	gc.Log = log
	if err := os.MkdirAll(cc.Storage.DataDir, 0o711); err != nil {
		log.Warn("no place to write down power limits", "error", err)
	}
	gc.PowerFile = filepath.Join(cc.Storage.DataDir, "gpu-power.json")
	gc.OnChange = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	reports := make(chan gpu.Report, 256)
	gc.OnError = func(r gpu.Report) {
		select {
		case reports <- r:
		default: // the driver's log has it
		}
	}
	cc.GPU.Device.Reports = reports
	layout, err := a.super.Groups()
	gc.Groups = err == nil && layout.V2 != "" && os.Geteuid() == 0
	a.gpus = gpu.New(gc)
	cc.Host.Fingerprint.Devices = append(cc.Host.Fingerprint.Devices, a.gpus)
	cc.Host.Fingerprint.Changed = changed
	cc.Host.DeviceStats = a.gpus.Stats
	cc.Host.DeviceNodes = a.gpus.Nodes
	cc.GPU.Device.Samples, cc.Host.ReleaseGPUs = a.gpus.Refresh, a.gpus.Release
	cc.GPU.Device.Instance = a.gpus.Instance
	if os.Geteuid() == 0 {
		cc.GPU.Device.LimitPower, cc.GPU.Device.RestorePower = a.gpus.LimitPower, a.gpus.RestorePower
	}
	if gc.Groups {
		cc.GPU.Device.LimitMemory, cc.GPU.Device.MemoryLimit = a.limitGPUMemory, a.gpuMemoryLimit
	}
}

// limitGPUMemory makes the driver limit the control group of a task that is about to start. The group is created here,
// because the limit must be in force before the group has a process. The supervisor uses an existing group.
func (a *Agent) limitGPUMemory(ctx context.Context, taskID, uuid string, bytes int64) error {
	dir := a.super.LeafV2(taskID)
	if dir == "" {
		return errors.New("tasks have no control group on this node that the driver could limit")
	}
	if bytes >= 0 {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
	}
	return a.gpus.Limit(ctx, dir, uuid, bytes)
}

func (a *Agent) gpuMemoryLimit(ctx context.Context, taskID, uuid string) (gpu.MemoryLimit, error) {
	return a.gpus.LimitOf(ctx, a.super.LeafV2(taskID), uuid)
}

// GPUs returns the watcher of the NVIDIA GPUs, or nil.
func (a *Agent) GPUs() *gpu.NVIDIA { return a.gpus }
