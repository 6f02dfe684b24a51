package sim

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// usage keeps the current and past use of queues and of their submitters, as the state machine does.
type usage struct {
	table contend.QueueTable
	rows  map[usageKey]*structs.QueueUsage
	woke  []structs.UseRow // rows that held nothing before the plan that is applied
}

type usageKey struct {
	path structs.QueuePath
	user string
}

func (u *usage) row(e *Engine, path structs.QueuePath, user string) *structs.QueueUsage {
	k := usageKey{path, user}
	r := u.rows[k]
	if r == nil {
		r = &structs.QueueUsage{Path: path, User: user, At: e.now}
		if path == structs.QueueRoot {
			r.Draw = structs.Index(e.cfg.Seed << 32)
		}
		if u.rows == nil {
			u.rows = map[usageKey]*structs.QueueUsage{}
		}
		u.rows[k] = r
		at, _ := slices.BinarySearchFunc(u.table.Usage, r, func(a, b *structs.QueueUsage) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.User, b.User))
		})
		u.table.Usage = slices.Insert(u.table.Usage, at, r)
	}
	return r
}

// charge accounts what a run holds to its queue, the queues above it, and its submitter.
func (u *usage) charge(e *Engine, r *run, n int64) {
	job := r.live.Job.Job
	jobs := int64(0)
	if r.live.holds == 0 && n < 0 || r.live.holds == 1 && n > 0 {
		jobs = n
	}
	settings := u.table.Settings(job.QueueName(), &e.cfg.Scheduler)
	amount := structs.AmountOf(r.alloc)
	amount.Billed = settings.Billing.Of(r.alloc)
	amount = amount.Times(n)
	models := structs.ModelsOf(r.alloc)
	if n > 0 {
		r.less = u.lessOf(e, r)
		defer u.lessen(e, r, -1)
	} else {
		u.lessen(e, r, 1)
		r.less = nil
	}
	add := func(row *structs.QueueUsage) {
		if row.Allocs == 0 && n > 0 {
			u.woke = append(u.woke, structs.UseRow{Path: row.Path, User: row.User})
		}
		row.Settle(e.now, settings.HalfLife, u.table.Queue(row.Path).BudgetPeriod())
		row.Held, row.Jobs, row.Allocs = row.Held.Add(amount), row.Jobs+jobs, row.Allocs+n
		row.Models = structs.AddModels(row.Models, models, n)
		if n > 0 && row.Path == structs.QueueRoot {
			row.Draw++ // what starts ends the draw
		}
	}
	if len(u.table.Tenants) > 0 {
		add(u.row(e, structs.UseNamespace(job.Namespace), ""))
	}
	for path := range job.QueueName().Lineage() {
		add(u.row(e, path, ""))
		if job.Submitter.Name != "" && path != structs.QueueRoot {
			add(u.row(e, path, job.Submitter.Name))
		}
	}
}

// settle ends the changes of a plan, which a server writes as one: what held nothing before is raised to the least service of those it takes turns with
// (structs.LiftCredit).
func (u *usage) settle(e *Engine) {
	order := func(path structs.QueuePath) structs.Order { return u.table.Settings(path, &e.cfg.Scheduler).Order }
	weight := func(r *structs.QueueUsage) int64 {
		q := u.table.Settings(r.Path, &e.cfg.Scheduler)
		if r.User != "" {
			return q.UserWeight(r.User)
		}
		return q.Weight
	}
	for _, r := range structs.LiftCredit(u.woke, slices.Values(u.table.Usage), e.now, order, weight) {
		u.row(e, r.Path, r.User).Credit = r.Credit
	}
	u.woke = u.woke[:0]
}

// lessCharge is what a run that waits for the places of others is not charged in a row, because they are.
type lessCharge struct {
	structs.UseRow
	amount structs.Amount
	models []structs.ModelAmount
}

// lessOf returns what a run is not charged while it waits; nil for nothing. Without notice nothing waits for longer than an instant.
func (u *usage) lessOf(e *Engine, r *run) (out []lessCharge) {
	if !e.cfg.Notice || r.waits == 0 {
		return nil
	}
	get := func(id structs.AllocID) *structs.Allocation {
		if v := e.runs[id]; v != nil {
			return v.alloc
		}
		return nil
	}
	bill := u.table.Settings(r.live.Job.Job.QueueName(), &e.cfg.Scheduler).Billing
	all, models := structs.AmountOf(r.alloc), structs.ModelsOf(r.alloc)
	all.Billed = bill.Of(r.alloc)
	for _, row := range structs.UseRows(r.alloc) {
		if u.rows[usageKey{row.Path, row.User}] == nil {
			continue // what it waits for is not counted there
		}
		x := lessCharge{UseRow: row, amount: all.Sub(structs.Charge(r.alloc, row, get, bill.Of)), models: structs.AddModels(models, structs.ChargeModels(r.alloc, row, get), -1)}
		out = append(out, x)
	}
	return out
}

// lessen adds so many times what a run is not charged to its rows.
func (u *usage) lessen(e *Engine, r *run, n int64) {
	half := u.table.Settings(r.live.Job.Job.QueueName(), &e.cfg.Scheduler).HalfLife
	for _, x := range r.less {
		row := u.row(e, x.Path, x.User)
		row.Settle(e.now, half, u.table.Queue(row.Path).BudgetPeriod())
		row.Held, row.Models = row.Held.Add(x.amount.Times(n)), structs.AddModels(row.Models, x.models, n)
	}
}

// recharge charges a run that waits again, because one that it waits for has ended.
func (u *usage) recharge(e *Engine, r *run) {
	if len(r.less) > 0 {
		u.lessen(e, r, 1)
		r.less = u.lessOf(e, r)
		u.lessen(e, r, -1)
	}
}
