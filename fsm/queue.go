package fsm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

func applyQueueUpsert(x *tx, c *structs.QueueUpsertCommand) *structs.Error {
	for _, in := range c.Queues {
		if in == nil {
			return structs.Errorf(structs.CodeInvalid, "the command carries a queue that is nothing")
		}
		if err := in.Check(); err != nil {
			return err
		}
		parent := in.Path.Parent()
		old := state.Queues.Get(x, in.Path)
		switch {
		case parent == structs.QueueDefault:
			return structs.Errorf(structs.CodeInvalid, "queue %q: queue %q cannot have children, because jobs that name no queue are in it", in.Path, parent)
		case parent != "" && parent != structs.QueueRoot && state.Queues.Get(x, parent) == nil:
			return structs.Errorf(structs.CodeInvalid, "queue %q: its parent %q does not exist; make it first", in.Path, parent)
		case old == nil && state.Queues.Len(x) >= structs.QueuesMax:
			return structs.Errorf(structs.CodeInvalid, "there are %d queues; a cluster may have no more", state.Queues.Len(x))
		}
		x.StartUse()
		if in.LimitsModels() {
			x.StartModels()
		}
		if old == nil && in.HalfLife != 0 || old != nil && in.HalfLife != old.HalfLife {
			x.SettleUse(in.Path)
		}
		n := *in
		n.CreateIndex, n.ModifyIndex, n.Epoch = x.index, x.index, x.index
		var billing *structs.Billing
		if old != nil {
			n.CreateIndex, billing = old.CreateIndex, old.Billing
		}
		x.Rebill(!billing.Equal(n.Billing), func() { state.Queues.Put(x, &n) })
		if old.BudgetPeriod() != n.BudgetPeriod() {
			x.CountBudget(n.Path)
		}
	}
	return nil
}

func applyQueueDelete(x *tx, c *structs.QueueDeleteCommand) *structs.Error {
	for _, path := range c.Paths {
		q := state.Queues.Get(x, path)
		if q == nil {
			return structs.Errorf(structs.CodeNotFound, "queue %q not found", path)
		}
		for c := range state.Queues.All(x) {
			if path != structs.QueueRoot && c.Path.Parent() == path {
				return structs.Errorf(structs.CodeConflict, "queue %q has children, for one %q; delete them first", path, c.Path)
			}
		}
		if path != structs.QueueDefault && path != structs.QueueRoot {
			for j := range state.Jobs.All(x) {
				if j.QueueName() == path && j.Status != structs.JobDead {
					return structs.Errorf(structs.CodeConflict, "queue %q has jobs that are not dead, for one %q of namespace %q; stop or move them first", path, j.ID, j.Namespace)
				}
			}
			if _, jobs := x.HeldNow(structs.UseRow{Path: path}); jobs > 0 {
				return structs.Errorf(structs.CodeConflict, "queue %q has allocations that still hold something", path)
			}
		}
		if q.HalfLife != 0 {
			x.SettleUse(path)
		}
		x.Rebill(q.Billing != nil, func() { state.Queues.Delete(x, path) })
		switch {
		case path != structs.QueueDefault && path != structs.QueueRoot:
			x.DeleteUse(path)
		case q.BudgetPeriod() != "":
			x.CountBudget(path)
		}
	}
	return nil
}

func applyQuotaUpsert(x *tx, c *structs.QuotaUpsertCommand) *structs.Error {
	for _, in := range c.Quotas {
		if in == nil {
			return structs.Errorf(structs.CodeInvalid, "a quota needs a name")
		}
		if err := in.Check(); err != nil {
			return err
		}
		x.StartUse()
		if in.LimitsModels() {
			x.StartModels()
		}
		n := *in
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old := state.Quotas.Get(x, in.Name); old != nil {
			n.CreateIndex = old.CreateIndex
		}
		state.Quotas.Put(x, &n)
	}
	return nil
}

func applyQuotaDelete(x *tx, c *structs.QuotaDeleteCommand) *structs.Error {
	for _, name := range c.Names {
		if state.Quotas.Get(x, name) == nil {
			return structs.Errorf(structs.CodeNotFound, "quota %q not found", name)
		}
		for n := range state.Namespaces.All(x) {
			if n.Quota == name {
				return structs.Errorf(structs.CodeConflict, "quota %q is in use by namespace %q; take it from there first", name, n.Name)
			}
		}
		state.Quotas.Delete(x, name)
	}
	return nil
}

// Submissions is what Admit needs to know about the queues of a cluster.
type Submissions struct {
	Queue     func(path structs.QueuePath) *structs.Queue // nil: there is none
	Submitted func(structs.UseRow) int64                  // number of jobs that are not dead
}

// admit refuses a job by the rules of Admit. A cluster without queue objects accepts every queue name.
func (x *tx) admit(in, old *structs.Job, by string) *structs.Error {
	if state.Queues.Len(x) == 0 {
		return nil
	}
	return Admit(in, old, by, Submissions{state.Queues.Lookup(x), x.Submitted})
}

// Admit refuses a job that its queue does not allow: the queue does not exist, the submitter may not use it, or a limit
// on submitted jobs is reached. old is the job that it replaces, or nil.
func Admit(in, old *structs.Job, by string, x Submissions) *structs.Error {
	path := in.QueueName()
	if err := structs.CheckQueuePath(path); err != nil {
		return err
	}
	if path == structs.QueueRoot {
		return structs.Errorf(structs.CodeInvalid, "job %q: queue %q has no jobs of its own; name one below it", in.ID, path)
	}
	if path != structs.QueueDefault && x.Queue(path) == nil {
		return structs.Errorf(structs.CodeInvalid, "job %q is in nonexistent queue %q", in.ID, path)
	}
	adds := func(r structs.UseRow) bool { // the job is not counted in that row yet
		return old == nil || old.Status == structs.JobDead || !slices.Contains(structs.UseRowsOf(old.Namespace, old.QueueName(), old.Submitter.Name), r)
	}
	var err *structs.Error
	queuesOf(x.Queue, path, func(q *structs.Queue) bool {
		if len(q.AllowedUsers) > 0 && !slices.Contains(q.AllowedUsers, by) {
			err = structs.Errorf(structs.CodeDenied, "job %q: user %q may not use queue %q", in.ID, by, q.Path)
			return false
		}
		if in.IsPeriodic() || in.IsParameterized() || in.Stop {
			return true
		}
		all, own := structs.UseRow{Path: q.Path}, structs.UseRow{Path: q.Path, User: by}
		if q.SubmittedMax > 0 && adds(all) && x.Submitted(all) >= q.SubmittedMax {
			err = structs.Errorf(structs.CodeUnprocessable, "job %q: queue %q has %d jobs and may have %d (submitted_max)", in.ID, q.Path, x.Submitted(all), q.SubmittedMax)
		} else if q.SubmittedUserMax > 0 && adds(own) && x.Submitted(own) >= q.SubmittedUserMax {
			err = structs.Errorf(structs.CodeUnprocessable, "job %q: user %q has %d jobs in queue %q and may have %d (submitted_user_max)", in.ID, by, x.Submitted(own), q.Path, q.SubmittedUserMax)
		} else if q.GPUMinutesMax > 0 || q.GPUMinutesUserMax > 0 {
			for _, g := range in.Groups {
				if in.RunLimit(g) <= 0 && structs.GroupAmount(g).GPUMilli > 0 {
					err = structs.Errorf(structs.CodeInvalid, "job %q, group %q: queue %q caps GPU-minutes (gpu_minutes_max), so the job must say how long it may run (runtime limit or max_run_duration)", in.ID, g.Name, q.Path)
					break
				}
			}
		}
		return err == nil
	})
	return err
}

// queuesOf calls f with the queue of a path and its ancestors, until f returns false.
func queuesOf(at func(structs.QueuePath) *structs.Queue, path structs.QueuePath, f func(*structs.Queue) bool) {
	for p := range path.Lineage() {
		if q := at(p); q != nil && !f(q) {
			return
		}
	}
}

// overLimit returns the hard limit of a queue or tenant that a part would exceed, or "" (D6). It compares integers that
// are exact at this entry, including earlier parts. A part is not refused for a dimension that it does not add to, so
// that a limit that was lowered below the usage only stops growth.
func (pl *planApply) overLimit(part *structs.PlanPart) string {
	if !pl.Counting() || len(part.Places)+len(part.Updates) == 0 {
		return ""
	}
	adds, models := map[structs.UseRow]structs.Amount{}, map[structs.UseRow][]structs.ModelAmount{}
	var rows []structs.UseRow
	byModel := pl.CountsModels()
	add := func(a, moved *structs.Allocation, sign int64) {
		for _, r := range structs.UseRows(a) {
			if _, seen := adds[r]; !seen {
				rows = append(rows, r)
			}
			adds[r] = adds[r].Add(structs.ChargeBeyond(a, moved, r, state.Allocs.Lookup(pl)).Times(sign))
			if byModel {
				models[r] = structs.AddModels(models[r], structs.ChargeModelsBeyond(a, moved, r, state.Allocs.Lookup(pl)), sign)
			}
		}
	}
	moved := pl.moved(part)
	for i := range part.Places {
		p := &part.Places[i]
		at := groupKey{pl.version(p), p.Group}
		pl.group(at) // group fills vector
		add(&structs.Allocation{Namespace: pl.job.Namespace, Job: pl.JobVersion(pl.key, at.version), Resources: pl.vector[at], Grants: p.Grants, WaitsOn: p.WaitsOn}, moved[p.Previous], 1)
		delete(moved, p.Previous) // it is counted off once
	}
	for _, u := range part.Updates {
		old := state.Allocs.Get(pl, u.ID)
		a := *old
		a.Job, a.Resources = pl.job, structs.GroupVector(pl.job.Group(a.Group))
		add(&a, nil, 1)
		add(old, nil, -1)
	}
	for _, r := range rows {
		if why := pl.rowLimit(r, adds[r], len(part.Places) > 0); why != "" {
			return why
		}
		if !byModel {
			continue
		}
		if why := pl.modelLimit(r, models[r]); why != "" {
			return why
		}
	}
	return ""
}

// moved returns the allocations of the job that a part stops and whose replacements are charged only for what they need
// beyond them: if one of them moves (structs.Moves), all, because those of a gang move together. Once stopped, an allocation does
// not count again, so later parts cannot use it. nil for none.
func (pl *planApply) moved(part *structs.PlanPart) map[structs.AllocID]*structs.Allocation {
	if len(part.Places) == 0 || !pl.Has(feature.MoveCharges) {
		return nil
	}
	any := false
	out := map[structs.AllocID]*structs.Allocation{}
	for i := range part.Stops {
		s := &part.Stops[i]
		a := state.Allocs.Get(pl, s.ID)
		if a == nil || a.JobKey() != pl.key || s.Client != "" || !structs.Holds(a) || a.ServerTerminal() {
			continue
		}
		any = any || structs.Moves(a, state.Nodes.Get(pl, a.NodeID))
		out[a.ID] = a
	}
	if !any {
		return nil
	}
	for i := range part.Places {
		for _, id := range part.Places[i].WaitsOn {
			delete(out, id) // it is counted off already
		}
	}
	return out
}

func (pl *planApply) rowLimit(r structs.UseRow, add structs.Amount, places bool) string {
	if ns, ok := r.Path.Namespace(); ok {
		return pl.quotaLimit(ns, add)
	}
	q := state.Queues.Get(pl, r.Path)
	if q == nil {
		return ""
	}
	held, jobs := pl.HeldNow(r)
	if most := q.Most(); most != nil && r.User == "" {
		if what, over := structs.Breaks(held, add, *most); over > 0 {
			return fmt.Sprintf("queue %q would exceed its limit of %s by %d", q.Path, what, over)
		}
	}
	if q.UserLimit != nil && r.User != "" {
		if what, over := structs.Breaks(held, add, *q.UserLimit); over > 0 {
			return fmt.Sprintf("user %q would exceed the limit of each user of queue %q of %s by %d", r.User, q.Path, what, over)
		}
	}
	most := q.RunningMax
	if r.User != "" {
		most = q.RunningUserMax
	}
	if places && most > 0 && jobs >= most && !pl.JobHolds(pl.key, r) {
		return fmt.Sprintf("queue %q runs %d jobs (of user %q) and may run %d", q.Path, jobs, r.User, most)
	}
	return ""
}

// modelLimit returns the limit of a GPU model that a row would exceed, or "".
func (pl *planApply) modelLimit(r structs.UseRow, add []structs.ModelAmount) string {
	if ns, ok := r.Path.Namespace(); ok {
		spec, l := pl.quota(ns)
		if l == nil || len(l.HardModels) == 0 {
			return ""
		}
		var held []structs.ModelAmount
		for o := range state.Namespaces.All(pl) {
			if o.Quota == spec.Name {
				held = structs.AddModels(held, pl.ModelsNow(structs.UseRow{Path: structs.UseNamespace(o.Name)}), 1)
			}
		}
		if model, over := structs.BreaksModels(held, add, l.HardModels); over > 0 {
			return fmt.Sprintf("quota %q would be exceeded in GPUs of model %s by %d", spec.Name, model, over)
		}
		return ""
	}
	q := state.Queues.Get(pl, r.Path)
	if q == nil {
		return ""
	}
	limits := q.LimitModels
	if r.User != "" {
		limits = q.UserLimitModels
	}
	if len(limits) == 0 {
		return ""
	}
	if model, over := structs.BreaksModels(pl.ModelsNow(r), add, limits); over > 0 {
		return fmt.Sprintf("queue %q (user %q) would exceed its limit of GPUs of model %s by %d", q.Path, r.User, model, over)
	}
	return ""
}

// quota returns the quota of a namespace and its limit in the job's region; nil if there is none.
func (pl *planApply) quota(ns string) (*structs.QuotaSpec, *structs.QuotaLimit) {
	n := state.Namespaces.Get(pl, ns)
	if n == nil || n.Quota == "" {
		return nil, nil
	}
	spec := state.Quotas.Get(pl, n.Quota)
	if spec == nil {
		return nil, nil
	}
	return spec, spec.Limit(cmp.Or(pl.job.Region, structs.RegionDefault))
}

func (pl *planApply) quotaLimit(ns string, add structs.Amount) string {
	spec, l := pl.quota(ns)
	if l == nil {
		return ""
	}
	var held structs.Amount
	for o := range state.Namespaces.All(pl) {
		if o.Quota == spec.Name {
			h, _ := pl.HeldNow(structs.UseRow{Path: structs.UseNamespace(o.Name)})
			held = held.Add(h)
		}
	}
	if what, over := structs.Breaks(held, add, l.Hard); over > 0 {
		return fmt.Sprintf("quota %q would be exceeded in %s by %d", spec.Name, what, over)
	}
	return ""
}
