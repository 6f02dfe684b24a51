package endpoint

import (
	"context"
	"fmt"
	"strings"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// prepareJob applies defaults to a copy of a job of the caller, checks it and what the caller may do with it. It returns the copy, or
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
	j.Submitter = id.By
	if err := auth.Allow(id, methods.Need{Namespace: capability}, j.Namespace); err != nil {
		s.env.Denied()
		return nil, nil, err
	}
	snap := s.published().Snapshot
	ns := snap.Namespace(j.Namespace)
	applyNamespace(j, ns)
	if j.Priority == 0 {
		j.Priority = s.defaultPriority(snap, j, ns)
	}
	DefaultJob(j, s.env.Region)
	errs := append(s.CheckJob(j), s.namespaceProblems(snap, j, ns)...)
	if why := missingQueue(snap, j); why != "" {
		errs = append(errs, why)
	}
	if err := s.maySubmit(id, j); err != nil {
		return nil, nil, err
	}
	if len(errs) > 0 {
		return nil, errs, nil
	}
	return j, nil, nil
}

// maySubmit reports whether the caller may submit a version of a job: to its queue, and with its host volumes. Calls
// that let the caller choose what runs ask it (register, plan, revert). A dispatch, a launch or a change of count runs what
// the job's author was allowed to submit, so it asks for the queue alone, which the caller's work is charged to.
func (s *Set) maySubmit(id *auth.Identity, j *structs.Job) error {
	if err := s.mayUseQueue(id, j); err != nil {
		return err
	}
	for _, g := range j.Groups {
		if g == nil {
			continue
		}
		for i := range g.Volumes {
			v, err := g.Volumes[i].Host()
			if err != nil {
				continue // CheckJob refuses it, and no agent mounts it
			}
			capability := acl.CapMountReadWrite
			if v.ReadOnly {
				capability = acl.CapMountReadOnly
			}
			if !id.ACL.AllowHostVolume(v.Source, capability) {
				s.env.Denied()
				return structs.Denied("host_volume capability %s on volume %q", capability, v.Source)
			}
		}
	}
	return nil
}

// mayUseQueue reports whether the caller may submit to a job's queue.
func (s *Set) mayUseQueue(id *auth.Identity, j *structs.Job) error {
	if id.ACL.AllowQueue(string(j.QueueName()), acl.CapQueueSubmit) {
		return nil
	}
	s.env.Denied()
	return structs.Denied("queue capability %s on queue %q", acl.CapQueueSubmit, j.QueueName())
}

// mayRegister refuses new work while the cluster takes it from management tokens only.
func (s *Set) mayRegister(id *auth.Identity) error {
	if !s.published().Snapshot.SchedulerConfig().RejectRegister || id.ACL.IsManagement() {
		return nil
	}
	s.env.Denied()
	return structs.Denied("a management token while job registration is disabled (RejectJobRegistration of the scheduler configuration)")
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
