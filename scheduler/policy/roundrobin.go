package policy

import "github.com/muster-sched/muster/scheduler/search"

// roundRobin takes nodes in turn, in ID order, starting after the last one used, regardless of their fit. A node that
// has fewer allocations of the same group comes before one with more.
type roundRobin struct{ firstFit }

func (roundRobin) Name() string                      { return "round-robin" }
func (roundRobin) Rotates() bool                     { return true }
func (roundRobin) Capabilities() search.Capabilities { return search.Capabilities{Advances: true} }
func (roundRobin) Weights() search.Weights           { return search.DefaultWeights }
