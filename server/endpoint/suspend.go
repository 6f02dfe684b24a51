package endpoint

import (
	"context"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// jobSuspend freezes all running allocations of a job, or resumes them.
func (s *Set) jobSuspend(ctx context.Context, c *rpc.Call, req *methods.JobSuspendRequest) (*methods.SuspendResponse, error) {
	k, _, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	return s.suspend(ctx, &structs.SuspendCommand{Namespace: k.Namespace, JobID: k.ID, Resume: req.Resume, Reason: req.Reason}, k, nil)
}

// allocSuspend suspends or resumes one allocation, and those that run as one with it.
func (s *Set) allocSuspend(ctx context.Context, c *rpc.Call, req *methods.AllocSuspendRequest) (*methods.SuspendResponse, error) {
	a, err := s.AllocFor(ctx, req.AllocID, acl.CapAllocLifecycle)
	if err != nil {
		return nil, err
	}
	return s.suspend(ctx, &structs.SuspendCommand{Alloc: a.ID, Resume: req.Resume, Reason: req.Reason}, a.JobKey(), a)
}

// suspend applies the command, unless a driver could not carry it out. It affects all allocations of a job, or one (nil:
// all) and those that run as one with it.
func (s *Set) suspend(ctx context.Context, cmd *structs.SuspendCommand, k structs.JobKey, one *structs.Allocation) (*methods.SuspendResponse, error) {
	if err := checkReason(cmd); err != nil {
		return nil, err
	}
	about := func(a *structs.Allocation) bool {
		return !a.Terminal() && (one == nil || a.ID == one.ID || one.Job != nil && one.Job.Together(one.Group, a.Group))
	}
	snap := s.published().Snapshot
	for _, a := range snap.AllocsByJob(k) {
		if cmd.Resume || !about(a) {
			continue
		}
		if err := mayFreeze(a, snap.NodeByID(a.NodeID)); err != nil {
			return nil, err
		}
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: cmd})
	if err != nil {
		return nil, err
	}
	resp := &methods.SuspendResponse{Index: res.Index, EvalID: res.EvalID}
	for _, a := range s.published().Snapshot.AllocsByJob(k) {
		if about(a) && a.Suspended() != cmd.Resume {
			resp.AllocIDs = append(resp.AllocIDs, a.ID)
			resp.Amount = resp.Amount.Add(structs.AmountOf(a))
		}
	}
	return resp, nil
}

func checkReason(cmd *structs.SuspendCommand) error {
	switch {
	case cmd.Resume && cmd.Reason != "":
		return structs.Errorf(structs.CodeInvalid, "a resume has no reason")
	case len(cmd.Reason) > structs.SuspendReasonMax:
		return structs.Errorf(structs.CodeInvalid, "the reason has %d bytes; at most %d are kept", len(cmd.Reason), structs.SuspendReasonMax)
	case strings.ContainsFunc(cmd.Reason, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return structs.Errorf(structs.CodeInvalid, "the reason has control characters; give one line of text")
	}
	return nil
}

// mayFreeze returns an error if an allocation cannot be frozen on its node, whose attributes say what its drivers
// support. n may be nil.
func mayFreeze(a *structs.Allocation, n *structs.Node) error {
	if a.Job == nil || n == nil || a.IsStandby() {
		return nil
	}
	g := a.Job.Group(a.Group)
	if g == nil {
		return nil
	}
	for _, t := range g.Tasks {
		if n.Attributes[structs.SuspendAttribute(t.Driver)] == "" {
			return structs.Errorf(structs.CodeConflict, "allocation %s cannot be suspended: on node %s the driver %q of its task %q cannot freeze tasks", a.ID.Short(), n.Name, t.Driver, t.Name)
		}
	}
	return nil
}

// SuspendedOf counts the suspended allocations of a job; nil if there are none.
func SuspendedOf(snap *state.Snapshot, k structs.JobKey) *methods.Suspended {
	out := methods.Suspended{}
	if w := snap.Workload(k); w != nil {
		out.All, out.Since = w.Suspended != 0, w.Suspended
	}
	last := structs.LogTime(0)
	for _, a := range snap.AllocsByJob(k) {
		if !a.Suspended() || a.Terminal() && (!out.All || a.Suspension.Since < out.Since) {
			continue
		}
		s := a.Suspension
		if a.Terminal() { // ended since, but still says who suspended the job and why
			if s.Since >= last {
				last, out.By, out.Reason = s.Since, s.By, s.Reason
			}
			continue
		}
		if out.Allocs++; a.Frozen != 0 {
			out.Frozen++
		}
		if s.Since >= last {
			last, out.By, out.Reason = s.Since, s.By, s.Reason
		}
		if out.Since == 0 || !out.All && s.Since < out.Since {
			out.Since = s.Since
		}
	}
	if out == (methods.Suspended{}) {
		return nil
	}
	return &out
}
