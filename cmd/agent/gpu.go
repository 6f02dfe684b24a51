package agent

import (
	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/gpu"
)

// openGPUs begins to look for NVIDIA GPUs, if that is wanted.
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
	gc.OnChange = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	a.gpus = gpu.New(gc)
	cc.Fingerprint.Devices = append(cc.Fingerprint.Devices, a.gpus)
	cc.Fingerprint.Changed = changed
	cc.DeviceStats = a.gpus.Stats
	cc.DeviceNodes = a.gpus.Nodes
	cc.GPUSamples = a.gpus.Refresh
}

// GPUs is what watches the NVIDIA GPUs, or nil.
func (a *Agent) GPUs() *gpu.NVIDIA { return a.gpus }
