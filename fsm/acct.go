package fsm

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// Accounting. A job's run begins with its queue entry. It ends when the job is dead, or has been purged and none of its
// allocations holds, and leaves one record. The usage is summed up at the end from the allocations, so that a placement
// costs nothing. Allocations that are collected before the end are added to an open record.

// tally sums the usage of allocations in units that sums do not overflow or round: thousandths of GPUs times seconds,
// MHz times seconds. 100,000 allocations of 8 GPUs for ten years stay within 64 bits.
type tally struct {
	rec     *structs.AcctRecord
	gpu     int64
	cpu     int64
	lasts   map[slot]*structs.Allocation // newest allocation of each place
	preempt int64
	losses  bool // losses are counted, and the time that allocations ran
}

// used adds an allocation to the tally. If it has not ended, it counts up to now.
func (t *tally) used(a *structs.Allocation, now structs.LogTime) {
	t.rec.Allocs++
	if !a.Lineage().PreemptedBy.IsZero() {
		t.preempt++
	}
	t.rec.GPUUse = t.rec.GPUUse.Add(structs.SumGPUUse(a.GPUUse))
	if t.losses && a.Client == structs.ClientLost {
		t.rec.Lost++
	}
	from := a.StartedAt
	standby := a.IsStandby()
	switch {
	case standby:
		from = a.CreateTime // it held resources for its gang without a start
	case from == 0:
		return // it held resources, but nothing used them
	}
	to := now
	if a.FinishedAt != 0 {
		to = a.FinishedAt
	}
	ran := max(to.Sub(from), 0) // agents' clocks may differ
	if !standby {
		t.rec.Start = earliest(t.rec.Start, from)
		t.rec.Longest = max(t.rec.Longest, ran-a.Stood(to))
	}
	if t.losses {
		t.rec.AllocTime += ran
	}
	amount, ms := structs.AmountOf(a), ran.Milliseconds()
	t.gpu += amount.GPUMilli * ms / 1000
	t.cpu += amount.CPU * ms / 1000
}

func earliest(a, b structs.LogTime) structs.LogTime {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// acctCollected adds a collected allocation to the open record of its job's run.
func (x *tx) acctCollected(a *structs.Allocation) {
	k := a.JobKey()
	rec := structs.AcctRecord{Namespace: k.Namespace, JobID: k.ID}
	open := state.AcctOpen.Get(x, k)
	switch w := state.Workloads.Get(x, k); {
	case open != nil && a.CreateIndex >= open.CreateIndex:
		rec = *open
	case open == nil && w != nil && a.CreateIndex >= w.CreateIndex:
		rec.CreateIndex = w.CreateIndex
	default:
		return // it belongs to a run that has its record
	}
	t := tally{rec: &rec, gpu: rec.GPUSeconds, cpu: rec.CPUSeconds, preempt: rec.Preemptions, losses: x.Has(feature.AcctLosses)}
	t.used(a, x.time)
	rec.GPUSeconds, rec.CPUSeconds, rec.Preemptions = t.gpu, t.cpu, t.preempt // an open record still has the tally's units
	state.AcctOpen.Put(x, &rec)
}

// acctPurged opens the record of a purged job, with the fields from the job; it is closed when none of its allocations
// holds.
func (x *tx) acctPurged(j *structs.Job) {
	w := state.Workloads.Get(x, j.Key())
	if w == nil {
		return // dead before, or a template
	}
	rec := structs.AcctRecord{Namespace: j.Namespace, JobID: j.ID, CreateIndex: w.CreateIndex}
	if open := state.AcctOpen.Get(x, j.Key()); open != nil {
		rec = *open
	}
	describe(&rec, j, w, x.time)
	rec.Preemptions = max(rec.Preemptions, w.Preempted)
	state.AcctOpen.Put(x, &rec)
}

// describe fills in the fields that come from the job and its queue entry.
func describe(rec *structs.AcctRecord, j *structs.Job, w *structs.Workload, now structs.LogTime) {
	rec.Namespace, rec.JobID, rec.Name, rec.User = j.Namespace, j.ID, j.Name, j.Submitter.Name
	rec.Queue, rec.Domain, rec.Priority, rec.Type = j.QueueName(), j.NodePool, j.Priority, j.Type
	rec.Submit, rec.Requeues, rec.Returned = w.SubmitTime, w.Requeued, w.Returned
	rec.Deadline, rec.Missed = j.Deadline, j.Deadline != 0 && (w.Missed != 0 || now > j.Deadline)
	rec.Expected = j.Runtime.Expected
	rec.Asked = structs.Amount{}
	for _, g := range j.Groups {
		n := g.Count + g.Standbys()
		rec.Asked = rec.Asked.Add(structs.GroupAmount(g).Times(int64(n)))
		rec.Limit = max(rec.Limit, j.RunLimit(g))
	}
}

// acctEnded writes the record of a run that has ended: of a job that became dead, with its queue entry, or of a purged
// one.
func (x *tx) acctEnded(k structs.JobKey, j *structs.Job, w *structs.Workload) {
	open := state.AcctOpen.Get(x, k)
	rec := structs.AcctRecord{}
	if open != nil {
		rec = *open
		state.AcctOpen.Delete(x, k)
	} else if w != nil {
		rec.CreateIndex = w.CreateIndex
	}
	from := rec.CreateIndex
	if j != nil && w != nil {
		describe(&rec, j, w, x.time)
	}
	if rec.Submit == 0 {
		return // unknown: allocations of an earlier job of this name
	}
	t := tally{rec: &rec, gpu: rec.GPUSeconds, cpu: rec.CPUSeconds, preempt: rec.Preemptions, losses: x.Has(feature.AcctLosses), lasts: map[slot]*structs.Allocation{}}
	for _, a := range x.AllocsByJob(k) {
		if a.CreateIndex < from {
			continue
		}
		t.used(a, x.time)
		if a.IsStandby() {
			continue // does not affect how the run ended
		}
		rec.Predicted = max(rec.Predicted, a.Expect)
		at := slot{a.Group, a.NameIndex}
		if last := t.lasts[at]; last == nil || newer(a, last) {
			t.lasts[at] = a
		}
	}
	rec.End, rec.CreateIndex = x.time, x.index
	if rec.Start != 0 {
		rec.Start = min(max(rec.Start, rec.Submit), rec.End)
	}
	rec.GPUSeconds, rec.CPUSeconds, rec.Preemptions = t.gpu/1000, t.cpu/1000, t.preempt
	if w != nil && w.Preempted > 0 {
		rec.Preemptions = w.Preempted // a gang that gives way counts once
	}
	rec.Exit, rec.ExitCode = t.exit(j)
	state.Acct.Put(x, &rec)
	if state.Acct.Len(x) > structs.AcctKept {
		x.DropAcct()
	}
}

func newer(a, b *structs.Allocation) bool {
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), slices.Compare(a.ID[:], b.ID[:])) > 0
}

// exit returns how the run ended, from the last allocation of each place and from the job, and the exit code. j is nil
// for a purged job.
func (t *tally) exit(j *structs.Job) (string, int64) {
	var failed, lost, limit, preempted, stopped, done bool
	var worst *structs.Allocation // the newest failed one
	for _, a := range t.lasts {   // in any order: the newest of them is the same
		switch {
		case a.Transition.Expire:
			limit = true
		case a.Client == structs.ClientLost:
			lost = true
		case a.Client == structs.ClientFailed && a.Desired == structs.DesiredRun:
			failed = true
			if worst == nil || newer(a, worst) {
				worst = a
			}
		case !a.Lineage().PreemptedBy.IsZero():
			preempted = true
		case a.ServerTerminal():
			stopped = true
		default:
			done = true
		}
	}
	code := int64(0)
	if worst != nil {
		code = exitCode(worst)
	}
	switch {
	case limit:
		return structs.ExitLimit, code
	case failed:
		return structs.ExitFailed, code
	case j == nil || j.Stop:
		return structs.ExitStopped, 0
	case lost:
		return structs.ExitLost, 0
	case preempted:
		return structs.ExitPreempted, 0
	case stopped && !done: // places removed by a smaller count do not affect the outcome
		return structs.ExitStopped, 0
	}
	return structs.ExitSuccess, 0
}

// exitCode returns the first nonzero exit code of the allocation's tasks, in the order of their names.
func exitCode(a *structs.Allocation) int64 {
	for _, ts := range a.TaskStates.All() {
		if ts != nil {
			for i := len(ts.Events) - 1; i >= 0; i-- {
				if e := &ts.Events[i]; e.ExitCode != 0 {
					return e.ExitCode
				}
			}
		}
	}
	return 0
}

// acctCollectMax limits the records that one AcctCollectCommand deletes; the service sends another while there are
// more.
const acctCollectMax = 10_000

func applyAcctCollect(x *tx, c *structs.AcctCollectCommand) *structs.Error {
	for range acctCollectMax {
		r := state.Acct.First(x)
		if r == nil || r.End >= c.Before && (c.Keep <= 0 || int64(state.Acct.Len(x)) <= c.Keep) {
			break
		}
		x.DropAcct()
	}
	return nil
}
