package contend

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Limits are the hard limits, quotas and caps that a pass respects. They count what queues and namespaces hold: the
// usage in the state, plans in flight, and what the pass has placed. Apply counts again and refuses what exceeds a
// limit (D6). Counting here avoids such plans, and reports by how much a limit would be exceeded.
//
// Naive: place, count exactly, and undo the placement if it exceeds a limit. But a placement changes the heaps of the
// search. So the amount is estimated before the search, and never too low: see GPUSizes.Estimate.
type Limits struct {
	Sizes   GPUSizes
	queues  *QueueTable
	lends   bool         // some queue has Lend
	byModel bool         // some limit is by GPU model
	models  match.Models // with byModel
	now     structs.LogTime
	tenants map[string]*Tenant // by namespace
	extra   map[structs.UseRow]extraUse
}

// extraUse is what a row holds beyond the usage in the state.
type extraUse struct {
	amount structs.Amount
	jobs   int64
	ahead  int64                 // thousandths of GPUs times seconds that those jobs may use within their limits
	models []structs.ModelAmount // with Limits.byModel
}

// NewLimits returns nil when there are no limits or guarantees.
func NewLimits(queues *QueueTable, v *model.View, flight model.Overlay, now structs.LogTime) *Limits {
	if queues == nil {
		return nil
	}
	byModel := queues.limitsModels()
	any, lends := len(queues.Tenants) > 0 || byModel, false
	for _, q := range queues.Queues {
		lends = lends || q.Lend != nil
		any = any || q.Most() != nil || q.UserLimit != nil || q.Guarantee != nil || q.RunningMax > 0 || q.RunningUserMax > 0 || q.GPUMinutesMax > 0 || q.GPUMinutesUserMax > 0 || q.BudgetPeriod() != ""
	}
	if !any {
		return nil
	}
	l := &Limits{Sizes: GPUSizesOf(v), queues: queues, lends: lends, byModel: byModel, now: now, extra: map[structs.UseRow]extraUse{}, tenants: map[string]*Tenant{}}
	for i := range queues.Tenants {
		l.tenants[queues.Tenants[i].Namespace] = &queues.Tenants[i]
	}
	if byModel {
		l.models = gpuModels(v)
	}
	l.addFlight(v, flight)
	return l
}

// addFlight charges what plans in flight will hold and the view does not show yet.
func (l *Limits) addFlight(v *model.View, flight model.Overlay) {
	type jobRow struct {
		job structs.JobKey
		row structs.UseRow
	}
	counted := map[jobRow]bool{}
	flight.Each(func(node structs.NodeID) {
		c, i, found := v.Locate(node)
		for _, f := range flight.On(node) {
			if found && v.Chunks[c].Hold[i].Has(f.Held.ID) || f.Held.Work.Job == nil {
				continue
			}
			a := f.Held.Alloc()
			key := a.Job.Key()
			for _, r := range structs.UseRows(a) {
				e := l.extra[r]
				e.amount = e.amount.Add(structs.AmountOf(a))
				if l.byModel {
					e.models = structs.AddModels(e.models, structs.ModelsOf(a), 1)
				}
				if !counted[jobRow{key, r}] {
					counted[jobRow{key, r}] = true
					e.jobs++
					e.ahead += aheadOf(a.Job, nil, model.Never.Sub(l.now))
				}
				l.extra[r] = e
			}
		}
	})
}

// GPUSizes are the memory sizes of the GPUs of a cluster, in MiB.
type GPUSizes struct {
	largest int64
	all     []int64
}

// GPUSizesOf collects the sizes of the GPUs of a view.
func GPUSizesOf(v *model.View) (s GPUSizes) {
	seen := map[int64]bool{}
	for _, c := range v.Chunks {
		for _, n := range c.Nodes {
			for _, g := range n.Resources.Devices {
				if g.Type != "gpu" {
					continue
				}
				for i := range g.Instances {
					if m := g.Instances[i].MemoryMiB; m > 0 && !seen[m] {
						seen[m] = true
						s.all = append(s.all, m)
						s.largest = max(s.largest, m)
					}
				}
			}
		}
	}
	return s
}

// Estimate returns the most that one more allocation of a group can be charged. Where the charge depends on the GPU
// that is chosen, it takes the dearest alternative: for a whole GPU the largest memory in the cluster, and for a share
// the smallest GPU that has the memory.
func (s GPUSizes) Estimate(g *structs.Group) structs.Amount {
	v := structs.GroupVector(g)
	out := structs.Amount{CPU: v.CPU, MemoryMiB: v.MemoryMiB}
	for _, t := range g.Tasks {
		for i := range t.Resources.Devices {
			d := &t.Resources.Devices[i]
			if structs.IsGPUDevice(d.Name) {
				n := max(d.Count, 1)
				out = out.Add(structs.Amount{GPUMilli: 1000 * n, GPUMemoryMiB: s.largest * n})
			}
		}
		var most structs.Amount
		for i := range t.Resources.GPU {
			one := s.estimateGPU(&t.Resources.GPU[i])
			most.GPUMilli, most.GPUMemoryMiB = max(most.GPUMilli, one.GPUMilli), max(most.GPUMemoryMiB, one.GPUMemoryMiB)
		}
		out = out.Add(most)
	}
	return out
}

// estimateGPU is Estimate for one alternative of a GPU request.
func (s GPUSizes) estimateGPU(r *structs.GPURequest) structs.Amount {
	one := structs.Amount{GPUMilli: 1000, GPUMemoryMiB: s.largest}
	if r.Shared() {
		one = structs.Amount{GPUMilli: 10 * max(r.Share, r.Compute), GPUMemoryMiB: r.MemoryOn(s.largest)}
		if r.MemoryMiB > 0 {
			smallest := int64(0)
			for _, m := range s.all {
				if m >= r.MemoryMiB && (smallest == 0 || m < smallest) {
					smallest = m
				}
			}
			if smallest > 0 {
				one.GPUMilli = max(one.GPUMilli, (1000*r.MemoryMiB+smallest-1)/smallest)
			}
		}
	}
	return one.Times(max(r.Count, 1))
}

// Held returns the amount that a row holds and the number of its jobs, including what the pass has placed.
func (l *Limits) Held(r structs.UseRow) (structs.Amount, int64) {
	e := l.extra[r]
	if u := l.queues.Use(r.Path, r.User); u != nil {
		return u.Held.Add(e.amount), u.Jobs + e.jobs
	}
	return e.amount, e.jobs
}

// Over returns which limit of a row an amount would exceed, added to what the row holds and to what the decision has
// placed (took); nil: none.
func (l *Limits) Over(r structs.UseRow, took, add structs.Amount) *structs.Refusal {
	if ns, ok := r.Path.Namespace(); ok {
		t := l.tenants[ns]
		if t == nil {
			return nil
		}
		what, over := structs.Breaks(took.Add(l.heldOf(t.Quota)), add, t.Hard)
		return limitRefusal(structs.Holder{Kind: structs.HolderQuota, Name: t.Quota}, "", what, over)
	}
	q := l.queues.Queue(r.Path)
	if q == nil {
		return nil
	}
	most := q.UserLimit
	if r.User == "" {
		most = q.Most()
	}
	if most == nil {
		return nil
	}
	held, _ := l.Held(r)
	what, over := structs.Breaks(held.Add(took), add, *most)
	return limitRefusal(QueueHolder(q.Path), r.User, what, over)
}

// OverSoft reports whether a workload would take its namespace beyond the soft limit of its quota. Such work comes after
// all other work, so it takes the places of others only to reclaim what its queue is guaranteed.
func (l *Limits) OverSoft(w *Workload) bool {
	if l == nil {
		return false
	}
	t := l.tenants[w.Key.Namespace]
	if t == nil {
		return false
	}
	if len(t.SoftModels) > 0 {
		x := modelLimits{}
		for i := range l.queues.Tenants {
			if o := &l.queues.Tenants[i]; o.Quota == t.Quota {
				x.held = structs.AddModels(x.held, l.heldModels(structs.UseRow{Path: structs.UseNamespace(o.Namespace)}), 1)
			}
		}
		if l.queues.OverSoftModels(w, x.held, t.SoftModels) {
			return true
		}
	}
	if t.Soft == nil {
		return false
	}
	_, over := structs.Breaks(l.heldOf(t.Quota), w.Asks(), *t.Soft)
	return over > 0
}

// heldOf returns what the namespaces with a quota hold together.
func (l *Limits) heldOf(quota string) (sum structs.Amount) {
	for i := range l.queues.Tenants {
		if o := &l.queues.Tenants[i]; o.Quota == quota {
			h, _ := l.Held(structs.UseRow{Path: structs.UseNamespace(o.Namespace)})
			sum = sum.Add(h)
		}
	}
	return sum
}

// OverGroup returns which limit one more allocation of a group would exceed, or nil. With prev, the allocation takes
// the place of prev, or prev moves (structs.Moves), and it is charged only for what it needs beyond prev.
func (l *Limits) OverGroup(load *Workload, took map[structs.UseRow]structs.Amount, g *structs.Group, prev *structs.Allocation) *structs.Refusal {
	est := l.Sizes.Estimate(g)
	for _, r := range structs.UseRowsOf(load.Key.Namespace, load.Job.QueueName(), load.User()) {
		add := est
		if prev != nil {
			for _, x := range structs.UseRows(prev) {
				if x == r {
					add = est.Sub(structs.AmountOf(prev))
				}
			}
		}
		if why := l.Over(r, took[r], add); why != nil {
			return why
		}
		if r.User == "" && !load.Job.MayPreempt() {
			if why := l.Kept(r, took, add); why != nil {
				return why
			}
		}
	}
	return nil
}

// limitRefusal returns the refusal for exceeding a limit, of one user or ("") of all; nil if over is not positive.
func limitRefusal(of structs.Holder, user string, what structs.Dimension, over int64) *structs.Refusal {
	if over <= 0 {
		return nil
	}
	unit := structs.UnitMiB
	switch what {
	case structs.DimensionCPU:
		unit = structs.UnitMHz
	case structs.DimensionGPU:
		over, unit = structs.GPUsShort(over)
	}
	return &structs.Refusal{Code: structs.ReasonQuota, Obstacle: structs.Obstacle{Dimension: what, Holder: of, Subject: user}, Short: over, Unit: unit, CuredBy: structs.EventQueueUsage}
}

// Capped returns which cap on running jobs, GPU minutes or GPU hours keeps a whole workload from starting, or nil.
func (l *Limits) Capped(load *Workload) *structs.Refusal {
	if load.Runs() {
		return nil
	}
	user := load.User()
	for p := range load.Job.QueueName().Lineage() {
		q := l.queues.Queue(p)
		if q == nil {
			continue
		}
		for _, c := range [...]struct {
			row     structs.UseRow
			most    int64
			minutes int64
			hours   int64
		}{{structs.UseRow{Path: p}, q.RunningMax, q.GPUMinutesMax, q.GPUHoursMax}, {structs.UseRow{Path: p, User: user}, q.RunningUserMax, q.GPUMinutesUserMax, q.GPUHoursUserMax}} {
			beyond := func(what structs.Dimension, by int64, unit structs.Unit) *structs.Refusal {
				return &structs.Refusal{Code: structs.ReasonQuota, Obstacle: structs.Obstacle{Dimension: what, Holder: QueueHolder(p), Subject: c.row.User}, Short: by, Unit: unit, CuredBy: structs.EventQueueUsage}
			}
			if _, jobs := l.Held(c.row); c.most > 0 && jobs >= c.most {
				return beyond(structs.DimensionRunningJobs, jobs-c.most+1, structs.UnitJobs)
			}
			if c.minutes > 0 {
				if over := minutes(l.ahead(c.row)+aheadOf(load.Job, nil, model.Never.Sub(l.now))) - c.minutes; over > 0 {
					return beyond(structs.DimensionGPUMinutes, over, structs.UnitMinutes)
				}
			}
			if c.hours > 0 {
				if why := l.budget(load, q, c.row, c.hours); why != nil {
					return why
				}
			}
		}
	}
	return nil
}

// budget returns why a workload may not start under a budget of GPU hours, or nil: what was used in the period, what running
// work may still use in it, and what the workload may use in it would exceed the budget. Work without a limit of its run time
// counts as predicted, or not at all.
func (l *Limits) budget(load *Workload, q *structs.Queue, r structs.UseRow, hours int64) *structs.Refusal {
	period := q.BudgetPeriod()
	_, end := structs.PeriodOf(l.now, period)
	left := end.Sub(l.now)
	used := int64(0)
	if u := l.queues.Use(r.Path, r.User); u != nil {
		used = u.PeriodUse(l.now, period)
	}
	held, _ := l.Held(r)
	ahead := min(l.ahead(r), held.GPUMilli*int64(left/time.Second))
	over := used + ahead + aheadOf(load.Job, load, left) - structs.OfGPUHours(hours)
	if over <= 0 && used < structs.OfGPUHours(hours) || load.asksNoGPU() {
		return nil
	}
	return &structs.Refusal{Code: structs.ReasonQuota, Obstacle: structs.Obstacle{Dimension: structs.DimensionGPUHours, Holder: QueueHolder(r.Path), Subject: r.User,
		Count: used / structs.OfGPUHours(1), Of: hours, Detail: end.Time().UTC().Format(time.RFC3339)}, Short: max(structs.GPUHours(over), 1), Unit: structs.UnitGPUHours, CuredBy: structs.EventQueueUsage}
}

// asksNoGPU reports whether nothing of the workload asks for a GPU.
func (w *Workload) asksNoGPU() bool {
	return !slices.ContainsFunc(w.Job.Groups, func(g *structs.Group) bool { return structs.GroupAmount(g).GPUMilli > 0 })
}

// Wake returns when a budget begins a new period, the earliest; 0 if there is none.
func (l *Limits) Wake() (at structs.LogTime) {
	if l == nil {
		return 0
	}
	for _, q := range l.queues.Queues {
		if period := q.BudgetPeriod(); period != "" {
			_, end := structs.PeriodOf(l.now, period)
			at = earlier(at, end)
		}
	}
	return at
}

// ahead returns how many thousandths of GPUs times seconds the running work of a row may still use within its run time limits.
func (l *Limits) ahead(r structs.UseRow) int64 {
	sum := l.extra[r].ahead
	if u := l.queues.Use(r.Path, r.User); u != nil {
		now := int64(l.now / 1e9)
		sum += max(0, u.Ends-now*u.Ending)
	}
	return sum
}

// aheadOf returns how many thousandths of GPUs times seconds a whole job may use within its limits in a time. Where it has no
// limit, it counts as load expects; nil: as nothing.
func aheadOf(j *structs.Job, load *Workload, within time.Duration) (sum int64) {
	for _, g := range j.Groups {
		runs := j.RunLimit(g)
		if runs <= 0 && load != nil {
			runs = cmp.Or(max(j.Runtime.Expected, 0), max(load.Expect, 0))
		}
		sum += structs.GroupAmount(g).GPUMilli * int64(g.Count) * int64(min(runs, within)/time.Second)
	}
	return sum
}

// minutes returns GPU minutes, rounded up.
func minutes(milliSeconds int64) int64 { return (milliSeconds + 59_999) / 60_000 }

// Charges counts what a decision has placed so far, by row. The zero value has counted nothing.
type Charges struct {
	counted       int // of the placements
	rows          map[structs.UseRow]structs.Amount
	models        map[structs.UseRow][]structs.ModelAmount
	settled       map[structs.UseRow]structs.Amount // charged to the pass; nil: nothing yet
	settledModels map[structs.UseRow][]structs.ModelAmount
}

// Count returns the charges of all that is placed. It only looks at what was added since the last call.
func (c *Charges) Count(load *Workload, placed Placed) map[structs.UseRow]structs.Amount {
	if c.rows == nil || placed.Len() < c.counted {
		c.counted, c.rows, c.models = 0, map[structs.UseRow]structs.Amount{}, map[structs.UseRow][]structs.ModelAmount{}
	}
	for ; c.counted < placed.Len(); c.counted++ {
		a := load.AllocOf(placed.Held(c.counted))
		for _, r := range structs.UseRows(a) {
			c.rows[r] = c.rows[r].Add(structs.Charge(a, r, load.Alloc, nil))
			if len(a.Grants) > 0 {
				c.models[r] = structs.AddModels(c.models[r], structs.ChargeModels(a, r, load.Alloc), 1)
			}
		}
	}
	return c.rows
}

// CountModels is Count for the GPUs by model.
func (c *Charges) CountModels(load *Workload, placed Placed) map[structs.UseRow][]structs.ModelAmount {
	c.Count(load, placed)
	return c.models
}

// Settle charges what a decision has placed, so that later decisions of the pass count it.
func (l *Limits) Settle(load *Workload, c *Charges, placed Placed) {
	if l == nil || placed.Len() == 0 {
		return
	}
	rows, first := c.Count(load, placed), c.settled == nil
	if first {
		c.settled, c.settledModels = map[structs.UseRow]structs.Amount{}, map[structs.UseRow][]structs.ModelAmount{}
	}
	for _, r := range structs.UseRowsOf(load.Key.Namespace, load.Job.QueueName(), load.User()) {
		e := l.extra[r]
		e.amount = e.amount.Add(rows[r]).Sub(c.settled[r])
		c.settled[r] = rows[r]
		if l.byModel {
			e.models = structs.AddModels(structs.AddModels(e.models, c.models[r], 1), c.settledModels[r], -1)
			c.settledModels[r] = c.models[r]
		}
		if first && !load.Runs() {
			e.jobs++
			e.ahead += aheadOf(load.Job, nil, model.Never.Sub(l.now))
		}
		l.extra[r] = e
	}
}
