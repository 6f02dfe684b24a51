package decide

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// contenders indexes, by node pool, the running jobs that waiting work may preempt (structs.PreemptOrder), with the
// resources that they hold. Each pass needs all of them.
//
// Naive: look through all allocations in each pass. With 100,000 of them that takes longer than the pass. Here the
// index follows the changes of the log, job by job.
type contenders struct {
	domains map[structs.PoolName]*contenderPool
	of      map[structs.JobKey]structs.PoolName // domain of each indexed job
	lives   queue.Lifetimes                     // how long ended work ran
}

// contenderPool is the jobs of one node pool that may be preempted.
type contenderPool struct {
	jobs    int                // including jobs that hold nothing
	holders []contend.Workload // jobs that hold something, by key
}

// contendersLearned bounds the ended jobs, newest first, that a new leader learns from.
const contendersLearned = 20_000

func loadContenders(snap *state.Snapshot) *contenders {
	r := &contenders{domains: map[structs.PoolName]*contenderPool{}, of: map[structs.JobKey]structs.PoolName{}}
	for j := range snap.Jobs("", "") {
		if j.MayPreempt() {
			r.set(snap, j.Key())
		}
	}
	left := contendersLearned
	for rec := range snap.AcctBack() {
		r.ended(rec)
		if left--; left == 0 {
			break
		}
	}
	return r
}

// ended learns from the run time of an ended job. The sums do not depend on the order.
func (r *contenders) ended(rec *structs.AcctRecord) {
	if rec.Start == 0 || rec.Type != structs.JobBatch && rec.Type != structs.JobSysBatch {
		return
	}
	if ran := ranOf(rec); ran > 0 {
		r.lives.Ended(max(1, (rec.Asked.GPUMilli+999)/1000), ran)
	}
}

// feed applies a batch of the log; snap is the state after it.
func (r *contenders) feed(d *structs.Delta, snap *state.Snapshot) {
	var last structs.JobKey
	touch := func(k structs.JobKey, may bool) {
		if _, in := r.of[k]; k != last && (in || may) {
			last = k
			r.set(snap, k)
		}
	}
	for i := range d.Jobs {
		if j := d.Jobs[i].Either(); j != nil {
			touch(j.Key(), j.MayPreempt())
		}
	}
	for i := range d.Allocs {
		if a := d.Allocs[i].Either(); a != nil {
			touch(a.JobKey(), false)
		}
	}
	for i := range d.Workloads {
		if w := d.Workloads[i].Either(); w != nil {
			touch(structs.JobKey{Namespace: w.Namespace, ID: w.JobID}, false)
		}
	}
	for i := range d.Acct {
		if c := &d.Acct[i]; c.Before == nil && c.After != nil {
			r.ended(c.After)
		}
	}
}

// set updates the index for one job.
func (r *contenders) set(snap *state.Snapshot, k structs.JobKey) {
	byKey := func(w contend.Workload, k structs.JobKey) int { return compareKeys(w.Key, k) }
	if was, in := r.of[k]; in {
		d := r.domains[was]
		d.jobs--
		if i, found := slices.BinarySearchFunc(d.holders, k, byKey); found {
			d.holders = slices.Delete(d.holders, i, i+1)
		}
		if d.jobs == 0 {
			delete(r.domains, was)
		}
		delete(r.of, k)
	}
	j := snap.JobByKey(k)
	if j == nil || !j.MayPreempt() || j.Status == structs.JobDead || !j.Placeable() || j.Type != structs.JobBatch && j.Type != structs.JobService {
		return
	}
	d := r.domains[j.NodePool]
	if d == nil {
		d = &contenderPool{}
		r.domains[j.NodePool] = d
	}
	d.jobs++
	r.of[k] = j.NodePool
	w := contend.Workload{Key: k, Job: j, Queue: snap.Workload(k), Least: contend.LeastOf(j)}
	for _, a := range snap.AllocsByJob(k) {
		if structs.Holds(a) {
			w.Allocs = append(w.Allocs, a)
			w.Expect = max(w.Expect, a.Expect) // as predicted when it was placed
		}
	}
	if len(w.Allocs) > 0 {
		i, _ := slices.BinarySearchFunc(d.holders, k, byKey)
		d.holders = slices.Insert(d.holders, i, w)
	}
}

func compareKeys(a, b structs.JobKey) int {
	switch {
	case a.Less(b):
		return -1
	case b.Less(a):
		return 1
	}
	return 0
}

// has reports whether jobs of a domain may be preempted, so that they compete with the jobs that wait there.
func (r *contenders) has(domain structs.PoolName) bool { return r.domains[domain] != nil }

// fill adds to a pass's input the jobs of a domain that hold something, and what chooses between them and the waiting
// ones.
func (r *contenders) fill(in *scheduler.Input, domain structs.PoolName) {
	var names []structs.PoolName
	if domain != structs.NodePoolAll {
		if r.has(domain) {
			names = []structs.PoolName{domain}
		}
	} else {
		for name := range r.domains {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	for _, name := range names {
		in.Running = append(in.Running, r.domains[name].holders...)
	}
	if len(names) > 0 {
		lives := r.lives // a copy, because the pass runs concurrently
		in.Chooser = queue.Choosers{Lives: &lives}
	}
}
