package endpoint

import (
	"context"
	"fmt"
	"strings"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// prepareJob applies defaults to a copy of a job, checks it and what the caller may do with it. It returns the copy, or
// what is wrong with the job.
func (s *Set) prepareJob(ctx context.Context, c *rpc.Call, in *structs.Job, capability string) (*structs.Job, []string, error) {
	if in == nil {
		return nil, nil, structs.Errorf(structs.CodeInvalid, "missing job")
	}
	copied := *in
	j := &copied
	if j.Namespace == "" {
		j.Namespace = auth.NamespaceOf(c)
	}
	id := auth.Who(ctx)
	if !id.ACL.AllowNamespaceOp(j.Namespace, capability) {
		s.env.Denied()
		return nil, nil, structs.ErrPermissionDenied
	}
	DefaultJob(j, s.env.Region)
	if j.Queue != "" && !id.ACL.AllowQueue(string(j.Queue), "submit") {
		return nil, nil, structs.Errorf(structs.CodeDenied, "Permission denied: no policy allows submitting to queue %q", j.Queue)
	}
	errs := s.CheckJob(j)
	if why := missingQueue(s.published().Snapshot, j); why != "" {
		errs = append(errs, why)
	}
	if len(errs) > 0 {
		return nil, errs, nil
	}
	return j, nil, nil
}

func oneError(what string, errs []string) error {
	shown := errs
	more := ""
	if len(shown) > 20 {
		more = fmt.Sprintf("; and %d more", len(errs)-20)
		shown = shown[:20]
	}
	return structs.Errorf(structs.CodeInvalid, "%s: %s%s", what, strings.Join(shown, "; "), more)
}

// DefaultJob sets defaults that every job has.
func DefaultJob(j *structs.Job, region string) {
	if j.Region == "" || j.Region == structs.RegionDefault {
		j.Region = region
	}
	if j.Name == "" {
		j.Name = j.ID
	}
	if j.Type == "" {
		j.Type = structs.JobService
	}
	if j.Priority == 0 {
		j.Priority = structs.JobPriorityDefault
	}
	if len(j.Datacenters) == 0 {
		j.Datacenters = []string{"*"}
	}
	if j.NodePool == "" {
		j.NodePool = structs.NodePoolDefault
	}
	j.ConsulToken, j.VaultToken = "", ""
}

// NewEvalOf returns a pending evaluation of a job.
func NewEvalOf(j *structs.Job, trigger structs.Trigger) *structs.Evaluation {
	return &structs.Evaluation{Namespace: j.Namespace, JobID: j.ID, Type: j.Type, Priority: j.Priority, Trigger: trigger,
		JobSpecIndex: j.SpecIndex, Status: structs.EvalPending}
}
