package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// worstFit prefers the node that a placement leaves emptiest, so that load is spread over all nodes.
type worstFit struct{ name string }

func (w worstFit) Name() string          { return w.name }
func (worstFit) Weights() search.Weights { return search.DefaultWeights }
func (worstFit) Rotates() bool           { return false }

func (worstFit) Fit(u *search.Use) int64 {
	sum, n := emptiness(u)
	return clampMicro((sum - n*model.Micro) / (9 * n))
}

// Capabilities returns none.
func (worstFit) Capabilities() search.Capabilities { return search.Capabilities{} }
