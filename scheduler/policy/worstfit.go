package policy

import (
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
)

// worstFit prefers the node that a placement leaves emptiest, so that load is spread over all nodes.
type worstFit struct{ name string }

func (w worstFit) Name() string             { return w.name }
func (worstFit) Weights() scheduler.Weights { return scheduler.DefaultWeights }
func (worstFit) Rotates() bool              { return false }

func (worstFit) Fit(u *scheduler.Use) int64 {
	sum, n := emptiness(u)
	return clampMicro((sum - n*model.Micro) / (9 * n))
}
