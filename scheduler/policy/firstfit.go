package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// firstFit takes the first node, in ID order, on which the group fits. Preferences of the job (affinity, spread) still
// come first; how many allocations of the group a node has already does not count.
type firstFit struct{}

func (firstFit) Name() string          { return "first-fit" }
func (firstFit) Rotates() bool         { return false }
func (firstFit) Fit(*search.Use) int64 { return model.Micro }

func (firstFit) Weights() search.Weights {
	w := search.DefaultWeights
	w.Load = 0
	return w
}

// Capabilities returns none.
func (firstFit) Capabilities() search.Capabilities { return search.Capabilities{} }
