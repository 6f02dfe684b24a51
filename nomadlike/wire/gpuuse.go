package wire

import "github.com/muster-sched/muster/structs"

// GPUUse is what tasks used of GPUs, as their agents measured it. A sum has neither task nor GPU, and its peak is the
// largest on one GPU.
type GPUUse struct {
	Task         string `json:",omitempty"`
	GPU          string `json:",omitempty"` // UUID
	PeakMiB      int64
	MiBSeconds   int64   // memory held, over time
	SMSeconds    float64 // seconds with all multiprocessors busy: half of them for 2 s is 1
	EnergyJoules float64
	Refused      int64 // allocations beyond a share
	// SMActivity is the mean activity of the multiprocessors, in percent, over SMActivitySeconds: the time for which it
	// is known, on GPUs that report it, of tasks that have them whole. Absent if unknown.
	SMActivity        *float64 `json:",omitempty"`
	SMActivitySeconds float64  `json:",omitempty"`
}

// GPUUseOf converts a use; nil when nothing was used.
func GPUUseOf(u structs.GPUUse) *GPUUse {
	if u.IsZero() {
		return nil
	}
	out := &GPUUse{
		Task: u.Task, GPU: u.GPU, PeakMiB: u.PeakMiB, MiBSeconds: u.MiBSeconds, SMSeconds: float64(u.SMMillis) / 1000,
		EnergyJoules: float64(u.EnergyMJ) / 1000, Refused: u.Denied,
	}
	if u.SMKnownMillis > 0 {
		mean := 100 * float64(min(u.SMActiveMillis, u.SMKnownMillis)) / float64(u.SMKnownMillis)
		out.SMActivity, out.SMActivitySeconds = &mean, float64(u.SMKnownMillis)/1000
	}
	return out
}
