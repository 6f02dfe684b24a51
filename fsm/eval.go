package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// newEval creates the evaluation of a job that follows from the command, at most one per job and command: the same
// decision answers a second cause within one command.
func (x *tx) newEval(j *structs.Job, trigger structs.Trigger, edit func(*structs.Evaluation)) structs.EvalID {
	k := j.Key()
	x.touch(k)
	if id, ok := x.evals[k]; ok {
		return id
	}
	e := &structs.Evaluation{
		ID: structs.DeriveID[structs.EvalID](x.cmd.Seed, "eval", k.String(), 0), Namespace: j.Namespace, JobID: j.ID,
		Type: j.Type, Priority: j.Priority, Trigger: trigger, JobSpecIndex: j.SpecIndex, Status: structs.EvalPending,
		CreateIndex: x.index, ModifyIndex: x.index, CreateTime: x.time, ModifyTime: x.time,
	}
	if trigger.Acted() && x.Has(feature.DecisionActors) {
		e.By = actor(&x.cmd.By)
	}
	for n := uint64(1); state.Evals.Get(x, e.ID) != nil; n++ { // the same seed again: a replayed entry, or a test
		e.ID = structs.DeriveID[structs.EvalID](x.cmd.Seed, "eval", k.String(), uint64(x.index)<<16+n)
	}
	if edit != nil {
		edit(e)
	}
	state.Evals.Put(x, e)
	x.evals[k] = e.ID
	x.result.Evals = append(x.result.Evals, e.ID)
	if x.result.EvalID.IsZero() {
		x.result.EvalID = e.ID
	}
	return e.ID
}

// evalOf is newEval for a job that may have been purged: its allocations still need a decision (to stop them). It reads
// the job from the tables: what an allocation points to may be older, if its priority was changed after the allocation was
// linked, and differs on a server that was restored in between.
func (x *tx) evalOf(a *structs.Allocation, trigger structs.Trigger, edit func(*structs.Evaluation)) {
	j := state.Jobs.Get(x, a.JobKey())
	if j == nil {
		j = x.JobVersion(a.JobKey(), a.JobVersion)
	}
	if j == nil {
		j = &structs.Job{Namespace: a.Namespace, ID: a.JobID, Type: structs.JobService, Priority: structs.JobPriorityDefault}
	}
	x.newEval(j, trigger, edit)
}

// putEval writes an evaluation that a server made. A terminal one is not changed. One for a job of which nothing is
// left is dropped: each answer to it would create the next one, endlessly for a purged job.
func (x *tx) putEval(in *structs.Evaluation, n int) structs.EvalID {
	e := *in
	k := e.JobKey()
	if e.ID.IsZero() {
		e.ID = structs.DeriveID[structs.EvalID](x.cmd.Seed, "eval-upsert", k.String(), uint64(n))
	}
	old := state.Evals.Get(x, e.ID)
	switch {
	case old != nil && old.Terminal():
		return e.ID
	case old == nil && !e.Terminal() && state.Jobs.Get(x, k) == nil && x.Counts(k).Allocs == 0:
		return structs.EvalID{}
	case old != nil:
		e.CreateIndex, e.CreateTime = old.CreateIndex, old.CreateTime
		e.Namespace, e.JobID = old.Namespace, old.JobID
		e.JobSpecIndex = max(e.JobSpecIndex, old.JobSpecIndex) // a speculative plan does not know it (D25)
	default:
		e.CreateIndex = x.index
		if e.CreateTime == 0 {
			e.CreateTime = x.time
		}
	}
	if e.Status == "" {
		e.Status = structs.EvalPending
	}
	e.ModifyIndex, e.ModifyTime = x.index, x.time
	e.ClassEligible = nil
	state.Evals.Put(x, &e)
	x.touch(e.JobKey())
	return e.ID
}

func applyEvalUpsert(x *tx, c *structs.EvalUpsertCommand) *structs.Error {
	for i, e := range c.Evals {
		if e == nil || e.JobID == "" || e.Namespace == "" {
			return structs.Errorf(structs.CodeInvalid, "evaluation %d of %d names no job", i+1, len(c.Evals))
		}
		id := x.putEval(e, i)
		if id.IsZero() {
			continue
		}
		x.result.Evals = append(x.result.Evals, id)
		if x.result.EvalID.IsZero() {
			x.result.EvalID = id
		}
	}
	if len(c.Evals) > 0 && len(x.result.Evals) == 0 {
		return structs.Errorf(structs.CodeNotFound, "job %q of namespace %q does not exist and has no allocations", c.Evals[0].JobID, c.Evals[0].Namespace)
	}
	return nil
}

func applyEvalDelete(x *tx, c *structs.EvalDeleteCommand) *structs.Error {
	x.keep = true
	for _, id := range c.IDs {
		e := state.Evals.Get(x, id)
		switch {
		case e == nil:
			return structs.Errorf(structs.CodeNotFound, "evaluation %s does not exist", id)
		case !e.Terminal():
			return structs.Errorf(structs.CodeConflict, "evaluation %s is %s; only those that are over can be deleted", id, e.Status)
		}
		state.Evals.Delete(x, id)
		x.touch(e.JobKey())
	}
	return nil
}
