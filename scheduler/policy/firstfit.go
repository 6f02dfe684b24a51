package policy

import (
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
)

// firstFit takes the first node, in the order of ids, on which the group fits. Wishes of the job (affinity, spread)
// still come first; how many allocations of the group a node has already does not count.
type firstFit struct{}

func (firstFit) Name() string             { return "first-fit" }
func (firstFit) Rotates() bool            { return false }
func (firstFit) Fit(*scheduler.Use) int64 { return model.Micro }

func (firstFit) Weights() scheduler.Weights {
	w := scheduler.DefaultWeights
	w.Load = 0
	return w
}
