package wire

import "github.com/muster-sched/muster/structs"

// GPUUse is what tasks used of GPUs, as their agents measured it. A sum names neither task nor GPU, and its peak is the
// largest on one GPU.
type GPUUse struct {
	Task         string `json:",omitempty"`
	GPU          string `json:",omitempty"` // UUID
	PeakMiB      int64
	MiBSeconds   int64   // memory held, over time
	SMSeconds    float64 // time in which all multiprocessors were busy, or half of them for twice as long
	EnergyJoules float64
	Refused      int64 // allocations beyond a share
}

// GPUUseOf converts a use; nil when nothing was used.
func GPUUseOf(u structs.GPUUse) *GPUUse {
	if u.IsZero() {
		return nil
	}
	return &GPUUse{
		Task: u.Task, GPU: u.GPU, PeakMiB: u.PeakMiB, MiBSeconds: u.MiBSeconds, SMSeconds: float64(u.SMMillis) / 1000,
		EnergyJoules: float64(u.EnergyMJ) / 1000, Refused: u.Denied,
	}
}
