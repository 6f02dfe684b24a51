package fsm

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// held checks, after every entry, what hold, release, requeue and fail must leave behind.
func (r *run) held(before, after *state.Snapshot, cmd structs.Command, res structs.Result) {
	for j := range after.Jobs("", "") {
		for i := range j.Depends {
			k := j.Depends[i].On(j)
			other := after.JobByKey(k)
			if other == nil || other.Stop || other.Status == structs.JobDead || j.Stop || j.Status == structs.JobDead {
				continue
			}
			for n := range other.Depends {
				// One of them may have been dead when the other was registered.
				if other.Depends[n].On(other) == j.Key() && isA[*structs.JobRegisterCommand](cmd) && res.Err == nil && (j.SpecIndex == res.Index || other.SpecIndex == res.Index) {
					r.check(false, "%s and %s wait for each other", j.ID, other.ID)
				}
			}
		}
	}
	r.arrays(before, after, cmd)
	if c, ok := cmd.Body.(*structs.JobPriorityCommand); ok {
		r.reprioritized(before, after, c, res)
	}
	if c, ok := cmd.Body.(*structs.SuspendCommand); ok {
		r.suspended(before, after, c, res)
	}
	c, ok := cmd.Body.(*structs.WorkloadCommand)
	if !ok {
		return
	}
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	if res.Err != nil {
		r.saw("workload command refused")
		return
	}
	w, was := after.Workload(k), before.Workload(k)
	switch c.Action {
	case structs.ActionHold:
		r.check(w.Held && !res.EvalID.IsZero(), "%s is not held", k)
		r.saw("held")
	case structs.ActionRelease:
		r.check(!w.Held && w.NotBefore == 0, "%s is not released", k)
		r.saw("released")
	case structs.ActionRequeue:
		r.check(w.Requeued == was.Requeued+1 && w.SubmitIndex == was.SubmitIndex, "%s was requeued and lost its place", k)
		for _, a := range after.AllocsByJob(k) {
			r.check(a.Terminal() || a.Transition.Requeue, "allocation %s of requeued %s goes on", a.ID, k)
		}
		r.saw("requeued")
	case structs.ActionRetry:
		_, failed := after.ArrayByKey(k).Count()
		r.check(failed == 0, "%s was retried and still has %d failed indices", k, failed)
		r.saw("retried")
	case structs.ActionFail:
		j := after.JobByKey(k)
		r.check(j.Stop && j.StatusDesc == c.Reason, "%s was failed and goes on", k)
		r.saw("failed by the server")
	default:
		r.check(false, "%q was accepted", c.Action)
	}
}

// arrays checks that collecting allocations of an array forgets no end.
func (r *run) arrays(before, after *state.Snapshot, cmd structs.Command) {
	if !isA[*structs.CollectCommand](cmd) {
		return
	}
	for j := range before.Jobs("", "") {
		if j.Array == nil || after.JobByKey(j.Key()) == nil {
			continue
		}
		ended := after.ArrayByKey(j.Key())
		for _, a := range before.AllocsByJob(j.Key()) {
			if a.CreateIndex < j.CreateIndex || !a.Lineage().Next.IsZero() || a.Desired != structs.DesiredRun || a.Transition.Requeue || after.AllocByID(a.ID) != nil {
				continue
			}
			if a.Client == structs.ClientComplete || a.Client == structs.ClientFailed {
				r.check(ended.Has(a.NameIndex), "index %d of array %s ended as %s and was forgotten", a.NameIndex, j.ID, a.Client)
				r.saw("end of an index kept")
			}
		}
	}
}

func TestDependencyCircle(t *testing.T) {
	jobs := map[structs.JobKey]*structs.Job{}
	add := func(ns, id string, deps ...structs.Dependency) *structs.Job {
		j := &structs.Job{Namespace: ns, ID: id, Depends: deps}
		jobs[j.Key()] = j
		return j
	}
	get := func(k structs.JobKey) *structs.Job { return jobs[k] }
	add("default", "b", structs.Dependency{Name: "c"})
	add("default", "c", structs.Dependency{Name: "x", JobID: "d", Namespace: "team"}, structs.Dependency{Name: "b2"})
	d := add("team", "d")
	a := &structs.Job{Namespace: "default", ID: "a", Depends: []structs.Dependency{{Name: "b"}}}
	if got := structs.DependencyCircle(a, get); got != nil {
		t.Errorf("a circle where there is none: %v", got)
	}
	d.Depends = []structs.Dependency{{Name: "a", Namespace: "default"}}
	if got := structs.CircleText(structs.DependencyCircle(a, get)); got != "a -> b -> c -> team/d -> a" {
		t.Errorf("got %q", got)
	}
	jobs[structs.JobKey{Namespace: "default", ID: "c"}].Status = structs.JobDead
	if got := structs.DependencyCircle(a, get); got != nil {
		t.Errorf("a job that has ended waits for nobody: %v", got)
	}
	self := &structs.Job{Namespace: "default", ID: "s", Depends: []structs.Dependency{{Name: "s"}}}
	if got := structs.CircleText(structs.DependencyCircle(self, get)); !strings.Contains(got, "s -> s") {
		t.Errorf("got %q", got)
	}
}

// reprioritized checks what a change of priority must leave behind: no version, and everything that holds of the newest
// version sees the job as it is.
func (r *run) reprioritized(before, after *state.Snapshot, c *structs.JobPriorityCommand, res structs.Result) {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	if res.Err != nil {
		r.saw("priority refused")
		return
	}
	j, was, w := after.JobByKey(k), before.JobByKey(k), after.Workload(k)
	r.check(j.Priority == c.Priority && j.Version == was.Version && w != nil && w.Priority == c.Priority, "%s has priority %d, want %d", k, j.Priority, c.Priority)
	r.check(was.Priority == c.Priority || !res.EvalID.IsZero(), "%s has another priority and no evaluation", k)
	for _, a := range after.AllocsByJob(k) {
		if structs.Holds(a) && a.JobVersion == j.Version {
			r.check(a.Job.Priority == c.Priority, "allocation %s of %s has priority %d", a.ID, k, a.Job.Priority)
			r.saw("priority of what runs changed")
		}
	}
}

// TestJobPriority changes the priority of running work: no allocation is updated, and the search for victims uses the
// new one.
func TestJobPriority(t *testing.T) {
	c := newCluster(t, 3)
	set := func(n int) *structs.JobPriorityCommand {
		return &structs.JobPriorityCommand{Namespace: key.Namespace, JobID: key.ID, Priority: n}
	}
	c.refused(set(60), "not found")
	c.placeAll(c.register(service("1", 2)).EvalID, 0, 2)
	c.report()
	before := c.f.Snapshot()
	c.refused(set(0), "priority is 0; want 1 to 100")
	c.refused(set(101), "priority is 101")
	res := c.apply(set(60))
	s := c.f.Snapshot()
	j, was := s.JobByKey(key), before.JobByKey(key)
	if j.Priority != 60 || j.Version != was.Version || j.SpecIndex != res.Index || res.SpecIndex != res.Index || s.Workload(key).Priority != 60 {
		t.Errorf("job %+v, queue entry %+v", j, s.Workload(key))
	}
	if e := s.EvalByID(res.EvalID); e == nil || e.Trigger != structs.TriggerPriority || e.Priority != 60 || e.Status != structs.EvalPending {
		t.Errorf("evaluation %+v", e)
	}
	for _, a := range s.AllocsByJob(key) {
		if old := before.AllocByID(a.ID); a.Job.Priority != 60 || a.AllocIndex != old.AllocIndex || a.JobVersion != old.JobVersion {
			t.Errorf("allocation %+v was %+v", a, old)
		}
	}
	if res = c.apply(set(60)); !res.EvalID.IsZero() {
		t.Error("the same priority again made an evaluation")
	}
	c.apply(&structs.JobDeregisterCommand{Namespace: key.Namespace, JobID: key.ID})
	c.refused(set(70), "is stopped or a template")
}

// TestFailedJobKeepsItsSubmitter: a job that the scheduler stops stays the job of who submitted it.
func TestFailedJobKeepsItsSubmitter(t *testing.T) {
	c := newCluster(t, 3)
	c.register(service("1", 2))
	was := c.f.Snapshot().JobByKey(key).Submitter
	c.f.ApplyBatch([]Entry{c.entryBy(&structs.WorkloadCommand{Namespace: key.Namespace, JobID: key.ID, Action: structs.ActionFail, Reason: "job a never ended well"},
		structs.Submitter{Name: "scheduler"})})
	if j := c.f.Snapshot().JobByKey(key); !j.Stop || j.Submitter != was {
		t.Errorf("the job is %+v's, stopped %v; want it to stay %+v's", j.Submitter, j.Stop, was)
	}
}
