package endpoint

import (
	"context"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// jobOf returns the job that a call names, or an error if it does not exist.
func (s *Set) jobOf(c *rpc.Call, id string) (structs.JobKey, *structs.Job, error) {
	k := structs.JobKey{Namespace: auth.NamespaceOf(c), ID: id}
	if id == "" {
		return k, nil, structs.Errorf(structs.CodeInvalid, "missing job ID")
	}
	j := s.published().Snapshot.JobByKey(k)
	if j == nil {
		return k, nil, structs.Errorf(structs.CodeNotFound, "job %q not found", id)
	}
	return k, j, nil
}

// AllocFor returns an allocation if the caller has the capability in its namespace. To other callers the allocation does
// not exist, so that they cannot learn of it.
func (s *Set) AllocFor(ctx context.Context, id structs.AllocID, capability string) (*structs.Allocation, error) {
	a := s.published().Snapshot.AllocByID(id)
	if a == nil || !auth.Who(ctx).ACL.AllowNamespaceOp(a.Namespace, capability) {
		return nil, structs.Errorf(structs.CodeNotFound, "Unknown allocation %q", id)
	}
	return a, nil
}

// jobsOf returns each job version that allocations refer to, once.
func jobsOf(as []*structs.Allocation) []*structs.Job {
	seen := map[jobVersionKey]bool{}
	var out []*structs.Job
	for _, a := range as {
		if k := (jobVersionKey{a.JobKey(), a.JobVersion}); a.Job != nil && !seen[k] {
			seen[k] = true
			out = append(out, a.Job)
		}
	}
	return out
}

func allocsIndex(snap *state.Snapshot, as []*structs.Allocation) structs.Index {
	return newestOf(snap, state.Allocs, as, func(a *structs.Allocation) structs.Index { return a.ModifyIndex })
}

func evalsIndex(snap *state.Snapshot, es []*structs.Evaluation) structs.Index {
	return newestOf(snap, state.Evals, es, func(e *structs.Evaluation) structs.Index { return e.ModifyIndex })
}

// newestOf returns the index of the newest change of some rows, or that of their table if there are none.
func newestOf[T any](snap *state.Snapshot, table state.AnyTable, rows []*T, at func(*T) structs.Index) structs.Index {
	if len(rows) == 0 {
		return snap.TableIndex(table)
	}
	var idx structs.Index
	for _, r := range rows {
		idx = max(idx, at(r))
	}
	return idx
}

type jobVersionKey struct {
	key     structs.JobKey
	version uint64
}

// LastDecision returns the newest evaluation of a job that decided something, or nil, and the newest index of all its
// evaluations.
func LastDecision(snap *state.Snapshot, k structs.JobKey) (last *structs.Evaluation, idx structs.Index) {
	for _, e := range snap.EvalsByJob(k) {
		idx = max(idx, e.ModifyIndex)
		if decided := len(e.FailedGroups)+len(e.PlacedGroups) > 0; decided && (last == nil || e.ModifyIndex > last.ModifyIndex) {
			last = e
		}
	}
	return last, idx
}

// ReportsOf returns the newest reports of a job: those in the leader's memory, or those of its last decision.
func (s *Set) ReportsOf(k structs.JobKey, last *structs.Evaluation) []*structs.GroupReport {
	if r := s.env.Decide.Reports(k); r != nil {
		return r
	}
	if last == nil {
		return nil
	}
	return append(slices.Clone(last.FailedGroups), last.PlacedGroups...)
}

// Waiting returns the waiting jobs in the order that users see.
func (s *Set) Waiting(p *replica.Published) []*structs.Workload {
	all := decide.Pending(p.Snapshot)
	order := s.env.Decide.Shown(p, all, s.env.Replica.Now(), nil)
	out := make([]*structs.Workload, len(order))
	for n, i := range order {
		out[n] = all[i]
	}
	return out
}
