package endpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/jobdiff"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// jobPlan runs the pass that registering the job would cause, on the newest state. It does not write the plan.
func (s *Set) jobPlan(ctx context.Context, c *rpc.Call, req *methods.JobPlanRequest) (resp *methods.JobPlanResponse, err error) {
	j, errs, err := s.prepareJob(ctx, c, req.Job, acl.CapPlanJob)
	if err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		return nil, structs.InvalidAll(errs, 0)
	}
	warnings := s.normalize(j)
	if err := s.checkBundles(ctx, j); err != nil { // `muster run -pack` asks for a plan before it sends the directory
		warnings = append(warnings, err.Error())
	}
	p := s.published()
	snap := p.Snapshot
	k := j.Key()
	old := snap.JobByKey(k)
	resp = &methods.JobPlanResponse{Index: p.Index, Warnings: strings.Join(warnings, "\n")}
	j.SpecIndex, j.CreateIndex, j.Version = p.Index+1, p.Index+1, 0
	if old != nil {
		resp.JobModifyIndex = old.SpecIndex
		j.CreateIndex, j.Version = old.CreateIndex, old.Version+1
		if old.Type != j.Type {
			return nil, structs.Errorf(structs.CodeInvalid, "cannot update job %q from type %q to %q; stop and purge it first", j.ID, old.Type, j.Type)
		}
		if fsm.SameSpec(j, old) { // registering the job would change nothing
			j = old
		}
	}
	var diff *jobdiff.Job
	if req.Diff {
		if diff, err = jobdiff.Diff(old, j, true); err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "comparing the job with its last version: %v", err)
		}
		defer func() {
			if err == nil && resp != nil {
				resp.Diff, err = json.Marshal(diff)
			}
		}()
	}
	if j.IsPeriodic() {
		if j.Periodic.Enabled {
			at, err := duty.NextLaunch(j.Periodic, s.env.Replica.Now().Time())
			if err != nil {
				return nil, structs.Errorf(structs.CodeInvalid, "periodic: %v", err)
			}
			resp.NextPeriodicLaunch = structs.LogTimeOf(at)
		}
	}
	resp.Desired = map[structs.GroupName]*methods.DesiredUpdates{}
	if !j.Placeable() {
		return resp, nil
	}
	if err := s.mayQueue(snap, j, old, auth.Who(ctx).By.Name); err != nil {
		return nil, err
	}
	run, err := s.env.Decide.NewDryRun(ctx)
	if err != nil {
		return nil, err
	}
	defer run.Close()
	var seed structs.Seed
	rand.Read(seed[:])
	eval := NewEvalOf(j, structs.TriggerJobRegister)
	eval.ID = structs.DeriveID[structs.EvalID](seed, "plan", k.String(), 0)
	eval.AnnotatePlan, eval.CreateIndex, eval.ModifyIndex = true, p.Index+1, p.Index+1
	eval.CreateTime = max(s.env.Replica.Now(), p.Time)
	eval.ModifyTime = eval.CreateTime
	run.Decide(p, j, eval)
	w := run.Report
	if w == nil {
		return nil, structs.Errorf(structs.CodeInternal, "the dry run did not decide about job %q", j.ID)
	}
	if w.Refused != "" {
		return nil, structs.Errorf(structs.CodeUnprocessable, "%s", w.Refused)
	}
	may := visible(ctx, "*", acl.CapListJobs)
	resp.Why = s.whyOf(run, snap, may)
	resp.Why.Topology = plannedReach(p, j, &run.Plan)
	for _, g := range w.Groups {
		if g.Code != structs.ReasonNone || g.Placed < g.Wanted {
			resp.Failed = append(resp.Failed, g)
		} else {
			resp.Placed = append(resp.Placed, g)
		}
	}
	if diff != nil {
		jobdiff.Annotate(diff, w.Updates)
	}
	for _, u := range w.Updates {
		resp.Desired[u.Group] = &methods.DesiredUpdates{
			Ignore: uint64(u.Ignore), Place: uint64(u.Place), Migrate: uint64(u.Migrate), Stop: uint64(u.Stop),
			InPlaceUpdate: uint64(u.InPlace), DestructiveUpdate: uint64(u.Destructive), Canary: uint64(u.Canary), Preemptions: uint64(u.Preemptions),
			RescheduleNow: uint64(u.Reschedule), RescheduleLater: uint64(u.Delayed), Disconnect: uint64(u.Disconnect), Reconnect: uint64(u.Reconnect),
		}
	}
	if len(resp.Failed) > 0 {
		resp.Advice = adviceOf(run.Advise(resp.Why.Workload), may)
	}
	resp.Why.Advice = resp.Advice
	entries := entriesOf(&run.Plan, k)
	resp.Risk = s.env.Decide.RiskOf(snap, j, cmp.Or(j.Runtime.Expected, run.Input.Pending[run.At].Expect, j.Runtime.Limit), decide.SpotsOf(snap, k, entries), s.env.Replica.Now())
	resp.Places, resp.MorePlaces = plannedPlaces(snap, entries)
	resp.Use = plannedUse(snap, j, entries, w.Groups, s.env.Region, auth.Who(ctx).ACL)
	for _, e := range entries {
		for _, part := range e.Parts {
			for _, st := range part.Stops {
				if st.Desired == structs.DesiredEvict || !st.Preempt.IsZero() {
					if a := snap.AllocByID(st.ID); a != nil {
						would := *a
						would.Desired, would.DesiredDesc = cmp.Or(st.Desired, would.Desired), st.Desc
						resp.Preempted = append(resp.Preempted, &would)
						resp.Lost += a.Unsaved(a.SavedAs(snap.RosterByKey(structs.RosterKey{Job: a.JobKey(), Group: a.Group})), s.env.Replica.Now())
					}
				}
			}
		}
		for _, ev := range e.Evals {
			if ev.ID != eval.ID {
				resp.CreatedEvals = append(resp.CreatedEvals, ev)
			}
		}
	}
	return resp, nil
}

// mayQueue returns the error with which registration would refuse the job because of its queue.
func (s *Set) mayQueue(snap *state.Snapshot, j, old *structs.Job, by string) error {
	seen := fsm.Submissions{Queue: snap.QueueByPath, Submitted: func(r structs.UseRow) (n int64) {
		for o := range snap.Jobs("", "") {
			if o.Status != structs.JobDead && !o.IsPeriodic() && !o.IsParameterized() && slices.Contains(structs.UseRowsOf(o.Namespace, o.QueueName(), o.Submitter.Name), r) {
				n++
			}
		}
		return n
	}}
	if err := fsm.Admit(j, old, by, seen); err != nil {
		return err
	}
	return nil
}

// whyOf returns what `job why` would report about the job after a dry run.
func (s *Set) whyOf(run *decide.DryRun, snap *state.Snapshot, may func(string) bool) *methods.JobWhyResponse {
	in, rep := run.Input, run.Report
	load := &in.Pending[run.At]
	w := *load.Queue
	w.StartEst, w.Waiting, w.Reason = rep.Start, 0, structs.ReasonNone
	why := &methods.JobWhyResponse{Job: load.Job, Workload: &w, Reports: rep.Groups, NodeNames: nodeNames(snap, rep.Groups)}
	for _, g := range rep.Groups {
		if n := g.Wanted - g.Placed; n > 0 {
			w.Waiting += n
			if w.Reason == structs.ReasonNone {
				w.Reason = g.Code
			}
		}
	}
	if w.Waiting == 0 {
		return why
	}
	why.Asks = decide.WaitingAsk(load.Job, &w)
	starts := s.env.Decide.StartEstimates(snap, in.Now)
	line := queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	for i := line.Next(); i >= 0; i = line.Next() {
		o := &in.Pending[i]
		switch {
		case i == run.At:
			why.Terms = line.Terms(i)
			if w.StartEst == 0 {
				why.StartEst, why.Starts = starts.Of(load.Job, &w, rep.Groups)
			}
		case why.Position == 0 && o.Job != nil && o.Queue != nil && o.Queue.Reason == structs.ReasonQuota && o.Queue.StartEst == 0:
			last, _ := LastDecision(snap, o.Key) // it is served before the job
			starts.Of(o.Job, o.Queue, s.ReportsOf(o.Key, last))
		}
		line.Placed(i, structs.Amount{})
		why.QueueLen++
		switch {
		case i == run.At:
			why.Position = why.QueueLen
		case why.Position == 0 && len(why.Ahead) < 10 && may(o.Key.Namespace):
			why.Ahead = append(why.Ahead, o.Key)
			why.AheadAsk = append(why.AheadAsk, decide.WaitingAsk(o.Job, o.Queue))
		}
	}
	return why
}

// nodeNames returns the names of the nodes that have scores in reports.
func nodeNames(snap *state.Snapshot, reports []*structs.GroupReport) map[string]string {
	names := map[string]string{}
	for _, r := range reports {
		for _, sc := range r.Scores {
			if n := snap.NodeByID(sc.NodeID); n != nil {
				names[n.ID.String()] = n.Name
			}
		}
	}
	return names
}

// holdersNamed limits the names in methods.AdviceHolders.
const holdersNamed = 5

// adviceOf converts advice for the API; nil stays nil. may reports whether the caller may see the jobs of a namespace.
func adviceOf(a *suggest.Advice, may func(namespace string) bool) *methods.Advice {
	if a == nil {
		return nil
	}
	out := &methods.Advice{Starts: a.Starts, Never: a.Never}
	for i := range a.Changes {
		c := &a.Changes[i]
		out.Changes = append(out.Changes, methods.AdviceChange{Kind: c.Kind, Text: c.Text, Cost: c.Cost, Job: c.Job})
	}
	if h := a.Holders; h != nil {
		out.Holders = &methods.AdviceHolders{Allocs: h.Allocs, Jobs: int64(len(h.Jobs)), Until: h.Until}
		for _, k := range h.Jobs {
			if len(out.Holders.Names) < holdersNamed && may(k.Namespace) {
				out.Holders.Names = append(out.Holders.Names, k)
			}
		}
	}
	return out
}
