package duty

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// Arrays collects the ended allocations of arrays, except the newest ones; Apply keeps the results of the others as
// runs. Ordinary collection runs every few minutes and keeps the ended work of live jobs. By then an array of 100,000
// short tasks would fill the state, and every decision about it would look at all of them. So this duty follows the
// ends.
type Arrays struct {
	ended map[structs.JobKey]int // allocations that ended since the last check
	queue *Queue[structs.JobKey] // arrays to check
}

const (
	arrayLook    = structs.ArrayKept / 4 // ended allocations of an array that cause a check
	arrayCollect = 4_000                 // allocation IDs in one command
)

// NewArrays returns the duty. Call Load first.
func NewArrays() *Arrays { return &Arrays{map[structs.JobKey]int{}, NewQueue(compareJobs)} }

// Load implements Duty.
func (a *Arrays) Load(snap *state.Snapshot, now structs.LogTime) {
	clear(a.ended)
	a.queue.Clear()
	for j := range snap.Jobs("", "") {
		if j.Array != nil {
			a.queue.Set(j.Key(), now)
		}
	}
}

// Feed implements Duty.
func (a *Arrays) Feed(_ *state.Snapshot, d *structs.Delta, now structs.LogTime) {
	for i := range d.Allocs {
		c := &d.Allocs[i]
		if c.After == nil || c.After.Job == nil || c.After.Job.Array == nil || !c.After.ClientTerminal() || c.Before != nil && c.Before.ClientTerminal() {
			continue
		}
		k := c.After.JobKey()
		if a.ended[k]++; a.ended[k] >= arrayLook {
			a.queue.Set(k, now)
		}
	}
}

// Due implements Duty.
func (a *Arrays) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	for k, _, ok := a.queue.Take(now); ok; k, _, ok = a.queue.Take(now) {
		delete(a.ended, k)
		j := snap.JobByKey(k)
		if j == nil || j.Array == nil {
			continue
		}
		for ids := range slices.Chunk(surplus(snap, j), arrayCollect) {
			cmds = append(cmds, Command{Subject: "job " + k.String(), Command: structs.Command{By: structs.Submitter{Name: "gc"}, Body: &structs.CollectCommand{Allocs: ids}}})
		}
	}
	return cmds, a.queue.Next()
}

// surplus returns the ended allocations of an array beyond those to keep, oldest first.
func surplus(snap *state.Snapshot, j *structs.Job) []structs.AllocID {
	var ended []*structs.Allocation
	for _, a := range snap.AllocsByJob(j.Key()) {
		if reconcile.Settled(j, a) {
			ended = append(ended, a)
		}
	}
	if len(ended) <= structs.ArrayKept {
		return nil
	}
	slices.SortFunc(ended, func(a, b *structs.Allocation) int {
		return cmp.Or(cmp.Compare(a.ModifyIndex, b.ModifyIndex), slices.Compare(a.ID[:], b.ID[:]))
	})
	ids := make([]structs.AllocID, 0, len(ended)-structs.ArrayKept)
	for _, a := range ended[:len(ended)-structs.ArrayKept] {
		ids = append(ids, a.ID)
	}
	return ids
}
