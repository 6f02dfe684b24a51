package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// bestFit prefers the node with the least CPU and GPUs left. Each counts for one half, measured against the largest
// node of the published comparison (128 CPUs, 8 GPUs); the score is cut to a whole percent (Weng et al., ATC'23,
// "BestFit"). Shares go to the tightest GPU. MHz count as thousandths of CPUs.
type bestFit struct{ published }

func (bestFit) Name() string { return "bestfit" }

func (bestFit) Fit(u *search.Use) int64 {
	cpu, gpu := u.Total.CPU-u.Used.CPU, u.GPU.Free-u.GPU.Milli
	// 100 (1 - cpu/256000 - gpu/16000), cut
	return cut((256_000-cpu-16*gpu)*100, 256_000)
}

// The reference node of the published policies.
const (
	largestCPU = 128_000
	largestGPU = 8_000
)

// published is what the policies of the published comparison have in common: only the fit counts, and ties go to the
// first node.
type published struct{}

func (published) Weights() search.Weights           { return search.Weights{Fit: 30} }
func (published) Rotates() bool                     { return false }
func (published) Capabilities() search.Capabilities { return search.Capabilities{SeesGPUs: true} }

// cut returns the percentage num/den, cut to a whole number from 0 to 100, in millionths.
func cut(num, den int64) int64 {
	return min(max(num/den, 0), 100) * (model.Micro / 100)
}
