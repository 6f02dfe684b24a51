package endpoint

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// arraySummary counts each index of an array once.
func arraySummary(snap *state.Snapshot, j *structs.Job, sum *methods.Summary) *methods.Summary {
	ended := snap.ArrayByKey(j.Key())
	var g methods.GroupSummary
	g.Complete, g.Failed = ended.Count()
	seen := make(map[int]bool)
	for _, a := range snap.AllocsByJob(j.Key()) {
		if a.CreateIndex < j.CreateIndex || !a.Lineage().Next.IsZero() || a.NameIndex >= j.Array.Count || seen[a.NameIndex] || ended.Has(a.NameIndex) {
			continue
		}
		switch {
		case a.Client == structs.ClientComplete && a.ServerTerminal(), a.Client == structs.ClientLost:
			continue // will run again
		case a.Client == structs.ClientPending:
			g.Starting++
		case a.Client == structs.ClientRunning:
			g.Running++
		case a.Client == structs.ClientComplete:
			g.Complete++
		case a.Client == structs.ClientFailed:
			g.Failed++
		case a.Client == structs.ClientUnknown:
			g.Unknown++
		}
		seen[a.NameIndex] = true
	}
	if ended != nil {
		sum.ModifyIndex = max(sum.ModifyIndex, ended.ModifyIndex)
	}
	if !j.Stop {
		g.Queued = max(0, j.Array.Count-g.Starting-g.Running-g.Complete-g.Failed-g.Unknown)
	}
	sum.Groups[j.Groups[0].Name] = g
	return sum
}
