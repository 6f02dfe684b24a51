package fsm

import (
	"cmp"
	"maps"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// GPU time that queues and their submitters lose. The decision log has what a preemption loses if the work does not save its state first. Here the
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
	if j := x.jobOf(a); n != (structs.QueueLoss{}) && j != nil && (j.Type == structs.JobBatch || j.Type == structs.JobSysBatch) {
		x.count(j, structs.UserLoss{Lost: n})
	}
}

// jobOf returns an allocation's job, also if it was purged; nil if nothing knows it.
func (x *tx) jobOf(a *structs.Allocation) *structs.Job {
	return cmp.Or(state.Jobs.Get(x, a.JobKey()), a.Job)
}

// count adds to what is counted for a job's queue and submitter.
func (x *tx) count(j *structs.Job, n structs.UserLoss) {
	if !x.Has(feature.QueueLosses) {
		return
	}
	if x.losses == nil {
		x.losses = map[lossKey]structs.UserLoss{}
	}
	who := lossKey{j.QueueName(), j.Submitter.Name}
	old := x.losses[who]
	x.losses[who] = structs.UserLoss{User: who.user, Preempted: old.Preempted + n.Preempted, Lost: old.Lost.Add(n.Lost)}
}

// lossKey is a submitter in a queue; user "" stands for jobs without a submitter.
type lossKey struct {
	queue structs.QueuePath
	user  string
}

// settleLosses writes what was counted for queues and submitters in this entry.
func (x *tx) settleLosses() {
	order := func(a, b lossKey) int { return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.user, b.user)) }
	for _, who := range slices.SortedFunc(maps.Keys(x.losses), order) {
		row, n := structs.Preemptions{Queue: who.queue}, x.losses[who]
		if old := state.Preemptions.Get(x, who.queue); old != nil {
			row = *old
		}
		row.Lost, row.ModifyIndex = row.Lost.Add(n.Lost), x.index
		row.Count(n)
		state.Preemptions.Put(x, &row)
	}
}
