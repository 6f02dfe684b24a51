package endpoint

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// silentNodesMax limits the names in methods.Silent.
const silentNodesMax = 10

// silentOf counts the allocations of a job that wait for silent nodes to end their tasks; nil if there are none.
func silentOf(snap *state.Snapshot, k structs.JobKey) *methods.Silent {
	out := methods.Silent{}
	for _, a := range snap.AllocsByJob(k) {
		n := snap.NodeByID(a.NodeID)
		if n == nil {
			continue
		}
		until := a.SilentUntil(n)
		if until == 0 {
			continue
		}
		out.Allocs++
		if out.Until == 0 || until < out.Until {
			out.Until = until
			out.Limit, _ = a.Job.Group(a.Group).StopOnClient()
		}
		if !slices.Contains(out.Nodes, n.Name) {
			out.Nodes = append(out.Nodes, n.Name)
		}
	}
	if out.Allocs == 0 {
		return nil
	}
	slices.Sort(out.Nodes)
	out.Nodes = out.Nodes[:min(len(out.Nodes), silentNodesMax)]
	return &out
}
