package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// leastLoaded prefers the node with the fewest allocations for each of its GPUs (for the whole node, if it has none).
// It counts a node's failures as load: a node on which all recent work failed counts as having one allocation more for
// each GPU. The history of a node is a moving average (search.Past); most nodes have none. An allocation that failed on
// a node only returns there if no other node is free: that is the penalty of the load term.
type leastLoaded struct{}

func (leastLoaded) Name() string            { return "least-loaded" }
func (leastLoaded) Weights() search.Weights { return search.DefaultWeights }
func (leastLoaded) Rotates() bool           { return false }
func (leastLoaded) Capabilities() search.Capabilities {
	return search.Capabilities{CountsAllocs: true, UsesHistory: true}
}

// Fit returns 1 for an idle node and 1/(1+x+f) with x allocations a GPU, of which the share f fails.
func (leastLoaded) Fit(u *search.Use) int64 {
	gpus, fails := max(u.GPUs, 1), int64(0)
	if u.Past.Ends > 0 {
		fails = max(0, model.Micro-u.Past.Success)
	}
	if fails == 0 {
		return clampMicro(gpus * model.Micro / (gpus + max(u.Allocs, 0)))
	}
	load := (gpus+max(u.Allocs, 0))*model.Micro + gpus*fails
	return clampMicro(gpus * model.Micro * model.Micro / load)
}
