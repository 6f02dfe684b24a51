package endpoint

import (
	"context"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// jobWorkload holds, releases, requeues or retries a job.
func (s *Set) jobWorkload(ctx context.Context, c *rpc.Call, req *methods.JobWorkloadRequest) (*methods.JobRegisterResponse, error) {
	k, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	switch req.Action {
	case structs.ActionHold, structs.ActionRelease, structs.ActionRequeue, structs.ActionRetry:
	default:
		return nil, structs.Errorf(structs.CodeInvalid, "%.64q cannot be done to a job; want hold, release, requeue or retry", req.Action)
	}
	if req.Action == structs.ActionRequeue && j.Type != structs.JobBatch {
		return nil, structs.Errorf(structs.CodeConflict, "job %q is of type %s, and only batch jobs return to the queue; muster job restart %s restarts what runs of it", k.ID, j.Type, k.ID)
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.WorkloadCommand{
		Namespace: k.Namespace, JobID: k.ID, Action: req.Action,
	}})
	if err != nil {
		return nil, err
	}
	res.SpecIndex, res.Version = j.SpecIndex, j.Version
	return registered(res, nil), nil
}

// jobPriority changes the priority of a waiting or running job.
func (s *Set) jobPriority(ctx context.Context, c *rpc.Call, req *methods.JobPriorityRequest) (*methods.JobRegisterResponse, error) {
	k, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	snap := s.published().Snapshot
	if refused := s.refusePriority(snap, j, snap.Namespace(k.Namespace), req.Priority); len(refused) > 0 {
		return nil, refused[0]
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.JobPriorityCommand{
		Namespace: k.Namespace, JobID: k.ID, Priority: req.Priority,
	}})
	if err != nil {
		return nil, err
	}
	return registered(res, nil), nil
}
