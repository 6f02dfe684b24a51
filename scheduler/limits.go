package scheduler

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// limits are the hard limits, quotas and caps that a pass keeps: what queues and namespaces hold by the usage of the
// state, with what is in flight and what the pass has placed. Apply counts again and refuses what is too much (D6); here
// the same rule keeps such plans from being made, and says by how much.
//
// Naive: place, count exactly, and take the placement back when it was too much. But a placement changes the scan's
// heaps. So the amount is estimated before the search, and never too low: of GPU alternatives the dearest, of a whole GPU
// the largest memory in the cluster, of a share the smallest GPU that has it.
type limits struct {
	in      *Input
	tenants map[string]*Tenant // by namespace
	extra   map[structs.UseRow]useExtra
	largest int64 // memory of the largest GPU of the cluster, MiB
	sizes   []int64
}

type useExtra struct {
	amount structs.Amount
	jobs   int64
}

// Tenant is a namespace with a quota.
type Tenant struct {
	Namespace string
	Quota     string
	Hard      structs.Amount  // of all namespaces with this quota together
	Soft      *structs.Amount // nil: none
}

// newLimits gives nil when nothing is limited or guaranteed.
func newLimits(in *Input) *limits {
	t := in.Queues
	if t == nil {
		return nil
	}
	any := len(t.Tenants) > 0
	for _, q := range t.Queues {
		any = any || q.Limit != nil || q.Guarantee != nil || q.RunningMax > 0 || q.RunningUserMax > 0 || q.GPUMinutesMax > 0 || q.GPUMinutesUserMax > 0
	}
	if !any {
		return nil
	}
	l := &limits{in: in, extra: map[structs.UseRow]useExtra{}, tenants: map[string]*Tenant{}}
	for i := range t.Tenants {
		l.tenants[t.Tenants[i].Namespace] = &t.Tenants[i]
	}
	l.gpuSizes()
	l.flight()
	return l
}

// gpuSizes notes the sizes of the GPUs of the cluster.
func (l *limits) gpuSizes() {
	seen := map[int64]bool{}
	for _, c := range l.in.View.Chunks {
		for _, n := range c.Nodes {
			for _, g := range n.Resources.Devices {
				if g.Type != "gpu" {
					continue
				}
				for i := range g.Instances {
					if m := g.Instances[i].MemoryMiB; m > 0 && !seen[m] {
						seen[m] = true
						l.sizes = append(l.sizes, m)
						l.largest = max(l.largest, m)
					}
				}
			}
		}
	}
}

// flight charges what plans in flight will hold and the view does not have yet.
func (l *limits) flight() {
	jobs := map[useKey]bool{}
	l.in.Flight.Each(func(node structs.NodeID) {
		c, i, found := l.in.View.Locate(node)
		for _, f := range l.in.Flight.On(node) {
			if found && l.in.View.Chunks[c].Hold[i].Has(f.Held.ID) || f.Held.Work.Job == nil {
				continue
			}
			a := f.Held.Alloc()
			key := a.Job.Key()
			for _, r := range structs.UseRows(a) {
				e := l.extra[r]
				e.amount = e.amount.Add(structs.AmountOf(a))
				if !jobs[useKey{key, r}] {
					jobs[useKey{key, r}] = true
					e.jobs++
				}
				l.extra[r] = e
			}
		}
	})
}

type useKey struct {
	job structs.JobKey
	row structs.UseRow
}

// estimate is what one more allocation of a group will be charged at most.
func (l *limits) estimate(g *structs.Group) structs.Amount {
	v := structs.GroupVector(g)
	out := structs.Amount{CPU: v.CPU, MemoryMiB: v.MemoryMiB}
	for _, t := range g.Tasks {
		for i := range t.Resources.Devices {
			d := &t.Resources.Devices[i]
			if structs.IsGPUDevice(d.Name) {
				n := max(d.Count, 1)
				out = out.Add(structs.Amount{GPUMilli: 1000 * n, GPUMemoryMiB: l.largest * n})
			}
		}
		var most structs.Amount
		for i := range t.Resources.GPU {
			r := &t.Resources.GPU[i]
			one := structs.Amount{GPUMilli: 1000, GPUMemoryMiB: l.largest}
			if r.Shared() {
				one = structs.Amount{GPUMilli: 10 * max(r.Share, r.Compute), GPUMemoryMiB: r.MemoryOn(l.largest)}
				if r.MemoryMiB > 0 {
					smallest := int64(0)
					for _, s := range l.sizes {
						if s >= r.MemoryMiB && (smallest == 0 || s < smallest) {
							smallest = s
						}
					}
					if smallest > 0 {
						one.GPUMilli = max(one.GPUMilli, (1000*r.MemoryMiB+smallest-1)/smallest)
					}
				}
			}
			one = one.Times(max(r.Count, 1))
			most.GPUMilli, most.GPUMemoryMiB = max(most.GPUMilli, one.GPUMilli), max(most.GPUMemoryMiB, one.GPUMemoryMiB)
		}
		out = out.Add(most)
	}
	return out
}

// Held is what a row holds as the pass sees it.
func (l *limits) held(r structs.UseRow) (structs.Amount, int64) {
	e := l.extra[r]
	if u := l.in.Queues.Use(r.Path, r.User); u != nil {
		return u.Held.Add(e.amount), u.Jobs + e.jobs
	}
	return e.amount, e.jobs
}

// Taken is what a decision has placed so far, by row.
type taken struct {
	n       int
	rows    map[structs.UseRow]structs.Amount
	charged map[structs.UseRow]structs.Amount // to the pass; nil: nothing yet
}

func (d *decision) taken() map[structs.UseRow]structs.Amount {
	t := &d.took
	if t.rows == nil || len(d.placed) < t.n {
		t.n, t.rows = 0, map[structs.UseRow]structs.Amount{}
	}
	for ; t.n < len(d.placed); t.n++ {
		a := d.allocOf(d.placed[t.n].at.Held)
		for _, r := range structs.UseRows(a) {
			t.rows[r] = t.rows[r].Add(structs.Charge(a, r, d.waitedOn, nil))
		}
	}
	return t.rows
}

func (d *decision) allocOf(h *model.Held) *structs.Allocation {
	a := h.Alloc()
	a.Job, a.Namespace, a.JobID = d.load.Job, d.load.Key.Namespace, d.load.Key.ID
	return a
}

// waitedOn finds an allocation of the job that a placement waits on; those of others stay on the books of their own
// queues.
func (d *decision) waitedOn(id structs.AllocID) *structs.Allocation {
	for _, a := range d.load.Allocs {
		if a.ID == id {
			return a
		}
	}
	return nil
}

// overLimit says which limit one more allocation of a group would break, or nil. With a previous one it is asked whether
// it may wait for that one's place.
func (d *decision) overLimit(g *structs.Group, prev *structs.Allocation) *structs.Refusal {
	l := d.limits
	if l == nil || d.load.Job == nil || g == nil {
		return nil
	}
	took := d.taken()
	est := l.estimate(g)
	for _, r := range structs.UseRowsOf(d.load.Key.Namespace, d.load.Job.QueueName(), "") {
		add := est
		if prev != nil {
			for _, x := range structs.UseRows(prev) {
				if x == r {
					add = est.Sub(structs.AmountOf(prev))
				}
			}
		}
		if why := l.over(r, took[r], add); why != nil {
			return why
		}
	}
	return nil
}

// withinLimits reports whether a want may be looked for: anywhere, or at least in the place of what it replaces. It notes
// with the group what stands in the way.
func (d *decision) withinLimits(tg *structs.Group, w *reconcile.Want) bool {
	w.MustWait = false
	if d.limits == nil {
		return true
	}
	why := d.overLimit(tg, nil)
	if why == nil {
		return true
	}
	for _, g := range d.groups {
		if g.Tg == tg {
			g.over = why
		}
	}
	w.MustWait = true
	return w.MayWait && d.overLimit(tg, w.Prev) == nil
}

// heldBack reports whether a limit, or a power budget, is what the decision waits for: capacity is then not what should be promised to it.
func (d *decision) heldBack() bool {
	for _, g := range d.groups {
		if (g.over != nil || g.search != nil && g.search.NoPower) && d.misses[g.Name] > 0 {
			return true
		}
	}
	return false
}

func (l *limits) over(r structs.UseRow, took, add structs.Amount) *structs.Refusal {
	if ns, ok := r.Path.Namespace(); ok {
		t := l.tenants[ns]
		if t == nil {
			return nil
		}
		held := took
		for i := range l.in.Queues.Tenants {
			if o := &l.in.Queues.Tenants[i]; o.Quota == t.Quota {
				h, _ := l.held(structs.UseRow{Path: structs.UseNamespace(o.Namespace)})
				held = held.Add(h)
			}
		}
		what, over := structs.Breaks(held, add, t.Hard)
		return limitRefusal(structs.Holder{Kind: structs.HolderQuota, Name: t.Quota}, what, over)
	}
	q := l.in.Queues.Queue(r.Path)
	if q == nil || q.Limit == nil {
		return nil
	}
	held, _ := l.held(r)
	what, over := structs.Breaks(held.Add(took), add, *q.Limit)
	return limitRefusal(queueHolder(q.Path), what, over)
}

func queueHolder(path structs.QueuePath) structs.Holder {
	return structs.Holder{Kind: structs.HolderQueue, Name: string(path)}
}

// limitRefusal tells whose limit binds, in what, and how much is missing; nil when none binds.
func limitRefusal(of structs.Holder, what structs.Dimension, over int64) *structs.Refusal {
	if over <= 0 {
		return nil
	}
	unit := structs.UnitMiB
	switch what {
	case structs.DimensionCPU:
		unit = structs.UnitMHz
	case structs.DimensionGPU:
		if unit = structs.UnitMilliGPUs; over%1000 == 0 {
			unit, over = structs.UnitGPUs, over/1000
		}
	}
	return &structs.Refusal{Code: structs.ReasonQuota, Obstacle: structs.Obstacle{Dimension: what, Holder: of}, Short: over, Unit: unit, CuredBy: structs.EventQueueUsage}
}

// Capped says which cap on running work stands in the way of the job as a whole, or nil.
func (d *decision) capped() *structs.Refusal {
	l := d.limits
	if l == nil || d.load.Job == nil {
		return nil
	}
	for _, a := range d.load.Allocs {
		if structs.Holds(a) {
			return nil // it runs already
		}
	}
	user := d.load.User()
	for p := range d.load.Job.QueueName().Lineage() {
		q := l.in.Queues.Queue(p)
		if q == nil {
			continue
		}
		for _, c := range [...]struct {
			row     structs.UseRow
			most    int64
			minutes int64
		}{{structs.UseRow{Path: p}, q.RunningMax, q.GPUMinutesMax}, {structs.UseRow{Path: p, User: user}, q.RunningUserMax, q.GPUMinutesUserMax}} {
			beyond := func(what structs.Dimension, by int64, unit structs.Unit) *structs.Refusal {
				return &structs.Refusal{Code: structs.ReasonQuota, Obstacle: structs.Obstacle{Dimension: what, Holder: queueHolder(p), Subject: c.row.User}, Short: by, Unit: unit, CuredBy: structs.EventQueueUsage}
			}
			if _, jobs := l.held(c.row); c.most > 0 && jobs >= c.most {
				return beyond(structs.DimensionRunningJobs, jobs-c.most+1, structs.UnitJobs)
			}
			if c.minutes > 0 {
				if over := l.minutes(c.row) + d.asksMinutes() - c.minutes; over > 0 {
					return beyond(structs.DimensionGPUMinutes, over, structs.UnitMinutes)
				}
			}
		}
	}
	return nil
}

// minutes is how many GPU-minutes the running work of a row may still use by its limits.
func (l *limits) minutes(r structs.UseRow) int64 {
	u := l.in.Queues.Use(r.Path, r.User)
	if u == nil {
		return 0
	}
	now := int64(l.in.Now / 1e9)
	return max(0, u.Ends-now*u.Ending) / 60_000
}

// asksMinutes is how many GPU-minutes the whole job may use.
func (d *decision) asksMinutes() (sum int64) {
	for _, g := range d.load.Job.Groups {
		sum += structs.GroupAmount(g).GPUMilli * int64(g.Count) * int64(d.load.Job.RunLimit(g)/1e9)
	}
	return (sum + 59_999) / 60_000
}

// settle charges what a decision has placed, for those after it in the pass.
func (l *limits) settle(d *decision) {
	if l == nil || len(d.placed) == 0 {
		return
	}
	holds := false
	for _, a := range d.load.Allocs {
		holds = holds || structs.Holds(a)
	}
	took, first := d.taken(), d.took.charged == nil
	if first {
		d.took.charged = map[structs.UseRow]structs.Amount{}
	}
	for _, r := range structs.UseRowsOf(d.load.Key.Namespace, d.load.Job.QueueName(), d.load.User()) {
		e := l.extra[r]
		e.amount = e.amount.Add(took[r]).Sub(d.took.charged[r])
		d.took.charged[r] = took[r]
		if !holds && first {
			e.jobs++
		}
		l.extra[r] = e
	}
}
