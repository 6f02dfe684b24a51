package fsm

import (
	"maps"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// GPU time that queues lose. The decision log has what a preemption loses if the work does not save its state first. Here the
// loss is counted when the work ends, with what it saved while it was ending. The rest of a gang that ends because a node
// was lost gets no time to save, and is counted with that member.

// loses counts what an allocation loses that has just ended: a is as it ended, and wanted says whether it was still to run
// before. The rosters must have the checkpoints that were reported with its end.
func (x *tx) loses(a *structs.Allocation, wanted bool) {
	switch cause := a.EndCause(); {
	case cause == structs.CausePreempt:
		x.lose(a, structs.QueueLoss{Preempt: x.unsavedAtEnd(a)})
	case cause == structs.CauseDrain:
		x.lose(a, structs.QueueLoss{Drain: x.unsavedAtEnd(a)})
	case a.Client == structs.ClientLost && wanted:
		x.lose(a, structs.QueueLoss{Node: x.unsavedAtEnd(a)})
	}
}

// losesWith counts what the rest of a gang, or of the joint groups of a job, loses if it ends because a member was lost with
// its node. was is the roster of that member, and reason the one in its next roster. It is called before the rest is stopped.
func (x *tx) losesWith(was *structs.Roster, reason string, rest []structs.AllocID) {
	if was == nil || reason != structs.RosterLost || !slices.ContainsFunc(was.Members, func(m structs.RosterMember) bool {
		a := state.Allocs.Get(x, m.Alloc)
		return a != nil && a.Client == structs.ClientLost
	}) {
		return
	}
	for _, id := range rest {
		if a := state.Allocs.Get(x, id); a.Desired == structs.DesiredRun && !a.ClientTerminal() {
			x.lose(a, structs.QueueLoss{Node: x.unsavedAtEnd(a)})
		}
	}
}

// unsavedAtEnd returns the GPU-seconds that an allocation did since its newest checkpoint, or since it started; if it has not
// ended, up to now. What a gang's member saved after it was asked to end counts although the others may not have ended:
// their checkpoint is complete only when they have.
func (x *tx) unsavedAtEnd(a *structs.Allocation) int64 {
	until := x.time
	if a.FinishedAt != 0 {
		until = min(until, a.FinishedAt)
	}
	saved := a.SavedAs(state.Rosters.Get(x, structs.RosterKey{Job: a.JobKey(), Group: a.Group}))
	if asked := a.Lineage().Asked; asked != 0 && a.Saved != nil && a.Saved.Time >= asked {
		saved = saved.Newer(a.Saved)
	}
	ran := *a
	ran.Client = structs.ClientRunning
	return ran.Unsaved(saved, until)
}

// lose adds to what the queue of an allocation's job has lost. Services and system jobs lose nothing: what they did, they
// have served.
func (x *tx) lose(a *structs.Allocation, n structs.QueueLoss) {
	if n == (structs.QueueLoss{}) || !x.Has(feature.QueueLosses) {
		return
	}
	j := state.Jobs.Get(x, a.JobKey())
	if j == nil {
		j = a.Job // purged
	}
	if j == nil || j.Type != structs.JobBatch && j.Type != structs.JobSysBatch {
		return
	}
	if x.lost == nil {
		x.lost = map[structs.QueuePath]structs.QueueLoss{}
	}
	x.lost[j.QueueName()] = x.lost[j.QueueName()].Add(n)
}

// settleLosses writes what queues have lost in this entry.
func (x *tx) settleLosses() {
	for _, queue := range slices.Sorted(maps.Keys(x.lost)) {
		row := structs.Preemptions{Queue: queue}
		if old := state.Preemptions.Get(x, queue); old != nil {
			row = *old
		}
		row.Lost, row.ModifyIndex = row.Lost.Add(x.lost[queue]), x.index
		state.Preemptions.Put(x, &row)
	}
}
