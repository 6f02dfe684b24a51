package policy

import "github.com/muster-sched/muster/scheduler"

// leastLoaded prefers the node with the fewest allocations for each of its GPUs (for the whole node, if it has none). An
// allocation that failed on a node goes back there only if no other is free: that is the penalty of the term load.
type leastLoaded struct{}

func (leastLoaded) Name() string               { return "least-loaded" }
func (leastLoaded) Weights() scheduler.Weights { return scheduler.DefaultWeights }
func (leastLoaded) Rotates() bool              { return false }
func (leastLoaded) CountsAllocs() bool         { return true }

// Fit is 1 for an idle node and 1/(1+x) with x allocations a GPU.
func (leastLoaded) Fit(u *scheduler.Use) int64 {
	gpus := max(u.GPUs, 1)
	return clampMicro(gpus * scheduler.Micro / (gpus + max(u.Allocs, 0)))
}
