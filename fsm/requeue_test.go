package fsm

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// What comes back from the queue is counted by reason, a gang once; what has returned too often ends with a reason that
// outlives its queue entry.
func TestReturned(t *testing.T) {
	c := newCluster(t, 3)
	j := benchJob("train", 2)
	j.Type = structs.JobBatch
	j.Requeue = &structs.Requeue{On: []string{structs.RequeueNodeLost}, Max: 2}
	j.Groups[0].Gang = &structs.Gang{}
	res := c.register(j)
	k := j.Key()
	place := func(eval structs.EvalID, requeues int64, reason string, prev []structs.AllocID) []structs.AllocID {
		t.Helper()
		p := c.planFor("train", eval, 0, 2)
		p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
		for i := range p.Parts[0].Places {
			x := &p.Parts[0].Places[i]
			x.Requeues, x.Restarts, x.Reason = requeues, requeues, reason
			if prev != nil {
				x.Previous = prev[i]
			}
		}
		p.LinkNext, p.JobCreate = true, c.f.Snapshot().JobByKey(k).CreateIndex
		if r := c.apply(p).Plan; !r.Accepted[0] {
			t.Fatal(r.Refused)
		}
		var ids []structs.AllocID
		for _, x := range p.Parts[0].Places {
			ids = append(ids, structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, j.Groups[0].Name, x.Index))
		}
		return ids
	}
	end := func(ids []structs.AllocID) {
		var ups []structs.AllocObserved
		for _, id := range ids {
			ups = append(ups, structs.AllocObserved{ID: id, Client: structs.ClientFailed})
		}
		c.apply(&structs.AllocObservedCommand{Updates: ups})
	}
	ids := place(res.EvalID, 0, "", nil)
	for n, reason := range []string{structs.RequeueNodeLost, structs.RequeuePreempt} {
		end(ids)
		ids = place(structs.EvalID{byte(n + 1)}, int64(n+1), reason, ids)
	}
	w := c.f.Snapshot().Workload(k)
	if want := (structs.RequeueCounts{NodeLost: 1, Preempt: 1}); w.Returned != want || w.Requeued != 2 {
		t.Errorf("counted %+v, %d in all; want %+v", w.Returned, w.Requeued, want)
	}
	if by := w.Returned.By(); by != "preempt 1, node_lost 1" {
		t.Errorf("in words: %q", by)
	}
	// It ends for good: the decision says why, and every open evaluation is answered.
	end(ids)
	var evals []*structs.Evaluation
	for _, e := range c.f.Snapshot().EvalsByJob(k) {
		if !e.Terminal() {
			n := *e
			n.Status = structs.EvalComplete
			evals = append(evals, &n)
		}
	}
	spent := *w
	spent.Spent = "returned too often"
	c.apply(&structs.PlanEntry{Namespace: k.Namespace, JobID: k.ID, JobVersion: 0, JobCreate: c.f.Snapshot().JobByKey(k).CreateIndex, EvalID: evals[0].ID, Evals: evals, Workload: &spent})
	got := c.f.Snapshot().JobByKey(k)
	if got.Status != structs.JobDead || got.StatusDesc != "returned too often" {
		t.Errorf("the job is %s, %q", got.Status, got.StatusDesc)
	}
	for r := range c.f.Snapshot().AcctBack() {
		if r.Returned != w.Returned || r.Requeues != 2 {
			t.Errorf("the record says %+v", r)
		}
	}
	// Registered again, it starts afresh.
	again := *j
	again.Priority = 51
	c.register(&again)
	if got := c.f.Snapshot().JobByKey(k); got.StatusDesc != "" || got.Status != structs.JobPending {
		t.Errorf("registered again it is %s, %q", got.Status, got.StatusDesc)
	}
	if w := c.f.Snapshot().Workload(k); w.Returned != (structs.RequeueCounts{}) || w.Spent != "" {
		t.Errorf("registered again its queue entry is %+v", w)
	}
}
