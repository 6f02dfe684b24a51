package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/jobdiff"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// jobPlan runs the very pass that registering the job would cause, on the newest state, and throws the plan away.
func (s *Server) jobPlan(ctx context.Context, c *rpc.Call, req *methods.JobPlanRequest) (resp *methods.JobPlanResponse, err error) {
	j, errs, err := s.prepareJob(ctx, c, req.Job, acl.CapPlanJob)
	if err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		return nil, oneError("job validation failed", errs)
	}
	warnings := s.normalize(j)
	p := s.Published()
	snap := p.Snapshot
	k := j.Key()
	j.Submitter = auth.Who(ctx).By
	old := snap.JobByKey(k)
	resp = &methods.JobPlanResponse{Index: p.Index, Warnings: strings.Join(warnings, "\n")}
	j.SpecIndex, j.CreateIndex, j.Version = p.Index+1, p.Index+1, 0
	if old != nil {
		resp.JobModifyIndex = old.SpecIndex
		j.CreateIndex, j.Version = old.CreateIndex, old.Version+1
		if old.Type != j.Type {
			return nil, structs.Errorf(structs.CodeInvalid, "cannot update job %q from type %q to %q; stop and purge it first", j.ID, old.Type, j.Type)
		}
		if fsm.SameSpec(j, old) { // registering it would change nothing
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
		if s.Hooks.NextLaunch != nil && j.Periodic.Enabled {
			at, err := s.Hooks.NextLaunch(j.Periodic, s.cfg.Now())
			if err != nil {
				return nil, structs.Errorf(structs.CodeInvalid, "periodic: %v", err)
			}
			resp.NextPeriodicLaunch = structs.LogTimeOf(at)
		}
	}
	resp.Desired = map[string]*methods.DesiredUpdates{}
	if !j.Placeable() {
		return resp, nil
	}
	if err := s.mayQueue(snap, j, old, auth.Who(ctx).By.Name); err != nil {
		return nil, err
	}
	if err := s.decide.dry.enter(ctx); err != nil {
		return nil, err
	}
	defer s.decide.dry.leave()
	var seed structs.Seed
	rand.Read(seed[:])
	eval := newEvalOf(j, structs.TriggerJobRegister)
	eval.ID = structs.DeriveID[structs.EvalID](seed, "plan", k.String(), 0)
	eval.AnnotatePlan, eval.CreateIndex, eval.ModifyIndex = true, p.Index+1, p.Index+1
	eval.CreateTime = max(s.replica.Now(), p.Time)
	eval.ModifyTime = eval.CreateTime
	in, at := s.dryPass(p, j, eval)
	pol := policy.For(p.View.Pool(j.NodePool), in.Config)
	plan, w := dryRun(in, at, pol)
	if w == nil {
		return nil, structs.Errorf(structs.CodeInternal, "the dry run did not decide about job %q", j.ID)
	}
	if w.Refused != "" {
		return nil, structs.Errorf(structs.CodeUnprocessable, "%s", w.Refused)
	}
	resp.Why = dryWhy(in, at, w, s.startEstimates(snap, in.Now), func(k structs.JobKey) []*structs.GroupReport {
		last, _ := lastDecision(snap, k)
		return s.reportsOf(k, last)
	}, visible(ctx, "*", acl.CapListJobs))
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
		if s.decide.advising.Add(1) <= adviceMax {
			load := in.Pending[at]
			if load.Gate == nil {
				load.Gate = passedOver(resp.Why.Workload, w.Groups)
			}
			resp.Advice = adviceOf(suggest.Find(*in, pol, load))
		}
		s.decide.advising.Add(-1)
	}
	resp.Why.Advice = resp.Advice
	for _, e := range plan.Entries {
		if e.Namespace != k.Namespace || e.JobID != k.ID {
			continue // what would become of others
		}
		for _, part := range e.Parts {
			for _, st := range part.Stops {
				if st.Desired == structs.DesiredEvict || !st.Preempt.IsZero() {
					if a := snap.AllocByID(st.ID); a != nil {
						resp.Preempted = append(resp.Preempted, a)
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
