package scheduler

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// forecastUsage is the usage of queues and submitters in a forecast, counted as the state machine does.
type forecastUsage struct {
	table  contend.QueueTable
	config *structs.SchedulerConfig
	jobs   map[structs.JobKey]int // allocations that hold, by job
	set    map[structs.QueuePath]*structs.Queue
	woke   []structs.UseRow // rows that held nothing before the changes since the last call of settle
}

func newForecastUsage(in *Input) *forecastUsage {
	u := &forecastUsage{config: &in.Config, jobs: map[structs.JobKey]int{}, set: map[structs.QueuePath]*structs.Queue{}}
	if in.Queues != nil {
		u.table = *in.Queues
		u.table.Usage = slices.Clone(u.table.Usage)
	}
	return u
}

// settings returns the settings of the queue of a path.
func (u *forecastUsage) settings(path structs.QueuePath) *structs.Queue {
	if path.IsNamespace() {
		path = structs.QueueRoot
	}
	q := u.set[path]
	if q == nil {
		s := u.table.Settings(path, u.config)
		q = &s
		u.set[path] = q
	}
	return q
}

// charge counts an allocation (n = 1), or counts it no longer (n = -1).
func (u *forecastUsage) charge(a *structs.Allocation, n int64, now structs.LogTime) {
	k, jobs := a.JobKey(), int64(0)
	was := u.jobs[k]
	if u.jobs[k] += int(n); was == 0 || u.jobs[k] == 0 {
		jobs = n
	}
	sum := structs.AmountOf(a)
	if a.Job != nil {
		sum.Billed = u.settings(a.Job.QueueName()).Billing.Of(a)
	}
	models := structs.ModelsOf(a)
	ending, ends := structs.EndingOf(a)
	for _, r := range structs.UseRows(a) {
		at, found := u.row(r)
		row := structs.QueueUsage{Path: r.Path, User: r.User, At: now}
		if found {
			row = *u.table.Usage[at]
		} else {
			u.table.Usage = slices.Insert(u.table.Usage, at, &row)
		}
		if row.Allocs == 0 && n > 0 {
			u.woke = append(u.woke, r)
		}
		row.Settle(now, u.settings(r.Path).HalfLife, u.table.Queue(r.Path).BudgetPeriod())
		row.Held, row.Allocs, row.Jobs = row.Held.Add(sum.Times(n)), row.Allocs+n, row.Jobs+jobs
		row.Ending, row.Ends = row.Ending+n*ending, row.Ends+n*ends
		row.Models = structs.AddModels(row.Models, models, n)
		u.table.Usage[at] = &row
	}
}

// settle ends the changes of one time: what held nothing before is raised to the least service of those it takes turns with
// (structs.LiftCredit).
func (u *forecastUsage) settle(now structs.LogTime) {
	woke := u.woke
	u.woke = nil
	order := func(path structs.QueuePath) structs.Order { return u.settings(path).Order }
	weight := func(r *structs.QueueUsage) int64 {
		if r.User != "" {
			return u.settings(r.Path).UserWeight(r.User)
		}
		return u.settings(r.Path).Weight
	}
	for _, r := range structs.LiftCredit(woke, slices.Values(u.table.Usage), now, order, weight) {
		at, _ := u.row(structs.UseRow{Path: r.Path, User: r.User})
		u.table.Usage[at] = r
	}
}

// row returns the position of a row of usage, or where it would be.
func (u *forecastUsage) row(r structs.UseRow) (at int, found bool) {
	return slices.BinarySearchFunc(u.table.Usage, r, func(o *structs.QueueUsage, r structs.UseRow) int {
		return cmp.Or(cmp.Compare(o.Path, r.Path), cmp.Compare(o.User, r.User))
	})
}
