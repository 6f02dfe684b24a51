package structs

import "math"

// GPUUse is one task's use of one GPU, as its agent measured it. A sum has neither task nor GPU; its peak is the
// largest on one GPU.
type GPUUse struct {
	Task       string // "" in a sum
	GPU        string // UUID; "" in a sum
	PeakMiB    int64  // most memory held at one time
	MiBSeconds int64  // memory held, over time
	SMMillis   int64  // milliseconds with all multiprocessors: half of them for 2 s is 1,000
	EnergyMJ   int64  // millijoules: its share of the GPU's energy
	Denied     int64  // memory allocations that the library refused
	// Mean activity of the multiprocessors, if the task had the whole GPU and the GPU reports it: SMActiveMillis of
	// SMKnownMillis.
	SMActiveMillis, SMKnownMillis int64
}

// IsZero reports whether nothing was used.
func (u GPUUse) IsZero() bool {
	return u.PeakMiB == 0 && u.MiBSeconds == 0 && u.SMMillis == 0 && u.EnergyMJ == 0 && u.Denied == 0 && u.SMActiveMillis == 0 && u.SMKnownMillis == 0
}

// Add returns the sum of two uses. The values come from agents and are not trusted: a sum saturates instead of turning
// negative, and negative values count as 0.
func (u GPUUse) Add(v GPUUse) GPUUse {
	return GPUUse{
		PeakMiB: max(u.PeakMiB, v.PeakMiB, 0), MiBSeconds: addUse(u.MiBSeconds, v.MiBSeconds), SMMillis: addUse(u.SMMillis, v.SMMillis),
		EnergyMJ: addUse(u.EnergyMJ, v.EnergyMJ), Denied: addUse(u.Denied, v.Denied),
		SMActiveMillis: addUse(u.SMActiveMillis, v.SMActiveMillis), SMKnownMillis: addUse(u.SMKnownMillis, v.SMKnownMillis),
	}
}

func addUse(a, b int64) int64 {
	a, b = max(a, 0), max(b, 0)
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// SumGPUUse returns the total of an allocation's uses.
func SumGPUUse(list []GPUUse) GPUUse {
	var sum GPUUse
	for _, u := range list {
		sum = sum.Add(u)
	}
	return sum
}

// GrantedGPUUse returns the part of a report about GPUs that the allocation was granted, once each, in the order of the
// grants, without negative values; nil if there is none.
func GrantedGPUUse(grants []Grant, said []GPUUse) []GPUUse {
	var out []GPUUse
	for i := range grants {
		g := &grants[i]
		if !g.IsGPU() {
			continue
		}
		for _, u := range said {
			if u.Task == g.Task && u.GPU == g.Instance {
				sum := GPUUse{}.Add(u)
				sum.Task, sum.GPU = u.Task, u.GPU
				if !sum.IsZero() {
					out = append(out, sum)
				}
				break
			}
		}
	}
	return out
}
