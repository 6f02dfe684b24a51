package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Chooser says who of a queue's running and pending work should hold places (structs.PreemptOrder). The ones of
// scheduler/queue are pure: equal races have equal outcomes.
type Chooser interface {
	// Choose is asked when there is a rival that may be stopped; one with a method Always, in every pass. It gives positions in Race.Rivals, each at most once: who should hold places, in the order in which those that
	// do not hold any get them. wake is when the answer may change though nothing happens; 0 for never.
	Choose(r *Competition) (chosen []int, wake structs.LogTime)
}

// Competition is the competition for places within one queue and node pool.
type Competition struct {
	Queue      structs.Queue // with every setting filled in
	Pool       structs.PoolName
	Now        structs.LogTime
	Contenders []Contender // in the order of their submission
	Room       []int64     // units on each node, in the order of node ids: those that are free or that rivals hold
}

// Contender is a workload that competes. What it asks for is counted in units: whole GPUs, or, where no rival asks for any, equal
// parts of the CPU.
type Contender struct {
	Load  *Workload
	Holds bool          // it has its places
	Fixed bool          // and keeps them: it began too lately, or it waits for others to end
	Each  int64         // units of one place (the largest, if they differ)
	Count int64         // places
	Ran   time.Duration // it ran for so long already
	Left  time.Duration // it is expected to run for so much longer; 0: unknown
}

// Units is what the rival holds, or would.
func (r *Contender) Units() int64 { return r.Each * r.Count }

// competition is a Race with what the pass needs to carry out its outcome.
type competition struct {
	Competition
	runs     []*contenderRun // per rival; nil for pending ones
	pending  []int           // per rival: its place in Input.Pending; -1 for running ones
	unit     int64
	gpu      bool
	coming   int64           // units that are about to be free and that nobody waits for
	patience structs.LogTime // when the first of those who wait too briefly to compete may (Queue.PreemptAfter); 0: nobody
	left     int64           // jobs that the queue's rate allows to be evicted yet; counts only where there is a rate
	missed   bool            // somebody who should hold places found none
	moved    bool            // somebody who should hold places gave them up for a wider one, and gets others in the next pass
}

// contenderRun is a rival that holds places.
type contenderRun struct {
	allocs []*structs.Allocation
	chosen bool
	fixed  bool
	gone   bool // told to stop by this pass
	rank   int  // place among the chosen
	units  int64
}

// races is the competition for places in a pass: who is decided first, and who may lose his places.
type races struct {
	in    *Input
	first []int                // in Input.Pending: those who should hold places, in order
	by    map[int]*competition // by place in Input.Pending: every one that competes
	wake  structs.LogTime
	// skipped tells that somebody waits who was not decided about (settled).
	skipped bool
}

// newRaces holds the races of all queues whose running work competes with pending work. nil when there is none:
// where no work may be stopped, the line alone tells who is next.
func newRaces(in *Input, w *search.Pass) *races {
	if in.Chooser == nil {
		return nil
	}
	type key struct {
		queue structs.QueuePath
		pool  structs.PoolName
	}
	byKey := map[key]*competition{}
	var order []*competition
	settings := map[structs.QueuePath]*structs.Queue{}
	find := func(l *Workload) *competition {
		if l.Job == nil || l.Job.Type != structs.JobBatch && l.Job.Type != structs.JobService || in.Flight.HasJob(l.Key) {
			return nil
		}
		path := l.QueueName()
		q := settings[path]
		if q == nil {
			s := in.Queues.Settings(path, &in.Config)
			s.PreemptMax = in.Queues.Configured(path).PreemptMax // who gives way often is one whose turn comes back: no default
			q = &s
			settings[path] = q
		}
		if q.Preempt != structs.PreemptOrder {
			return nil
		}
		k := key{path, l.Job.NodePool}
		r := byKey[k]
		if r == nil {
			r = &competition{Competition: Competition{Queue: *q, Pool: l.Job.NodePool, Now: in.Now}}
			byKey[k] = r
			order = append(order, r)
		}
		return r
	}
	rs := &races{in: in, by: map[int]*competition{}}
	waiting := make(map[structs.JobKey]bool, len(in.Pending))
	for i := range in.Pending {
		l := &in.Pending[i]
		waiting[l.Key] = true
		if l.Gate != nil || len(l.Evals) == 0 && l.Blocked == nil || l.Job != nil && !l.Job.Placeable() || slices.ContainsFunc(l.Allocs, structs.Holds) {
			continue
		}
		if r := find(l); r != nil {
			if since := l.WaitingSince(); since > 0 && r.Queue.PreemptAfter > 0 && in.Now < since.Add(r.Queue.PreemptAfter) {
				r.patience = earlier(r.patience, since.Add(r.Queue.PreemptAfter)) // it takes what is free, and nobody's place
				continue
			}
			r.add(l, nil, i)
			rs.by[i] = r
		}
	}
	for i := range in.Running {
		l := &in.Running[i]
		if waiting[l.Key] || l.Job == nil || !l.Job.MayPreempt() {
			continue
		}
		run := &contenderRun{}
		for _, a := range l.Allocs {
			if !structs.Holds(a) || a.ServerTerminal() {
				continue
			}
			if in.Flight.Stopping(a.ID) { // it goes, though that is not committed yet: it is nobody's place to take
				run = nil
				break
			}
			row := w.View.Row(a.NodeID)
			if row < 0 {
				run = nil
				break
			}
			if c, at := w.View.At(row); !c.Ready[at] {
				run = nil
				break
			}
			run.allocs = append(run.allocs, a)
			run.fixed = run.fixed || len(a.WaitsOn) > 0 && !a.ClientTerminal() && a.StartedAt == 0
		}
		if run == nil || len(run.allocs) == 0 {
			continue
		}
		if r := find(l); r != nil {
			r.add(l, run, -1)
		}
	}
	any := false
	_, always := in.Chooser.(interface{ Always() })
	for _, r := range order {
		if !always && !slices.ContainsFunc(r.Contenders, func(v Contender) bool { return v.Load.Job.MayPreempt() }) {
			for _, i := range r.pending {
				delete(rs.by, i)
			}
			continue
		}
		any = true
		r.hold(rs, w)
	}
	if !any {
		return nil
	}
	return rs
}

// Add lets a workload compete; run is nil for a pending one, which is at place i.
func (r *competition) add(l *Workload, run *contenderRun, i int) {
	r.Contenders = append(r.Contenders, Contender{Load: l, Holds: run != nil})
	r.runs = append(r.runs, run)
	r.pending = append(r.pending, i)
}

// Hold asks who should hold places and notes what follows.
func (r *competition) hold(rs *races, w *search.Pass) {
	order := make([]int, len(r.Contenders))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmpSubmitted(r.Contenders[a].Load, r.Contenders[b].Load) })
	rivals, runs, pending := r.Contenders, r.runs, r.pending
	r.Contenders, r.runs, r.pending = make([]Contender, len(order)), make([]*contenderRun, len(order)), make([]int, len(order))
	for i, k := range order {
		r.Contenders[i], r.runs[i], r.pending[i] = rivals[k], runs[k], pending[k]
	}
	r.measure(w)
	mine := map[structs.AllocID]bool{}
	var ripe structs.LogTime // when the first of those may be stopped who began too lately
	spent := false           // the queue has had as many evicted in the last hour as it may
	if q := &r.Queue; q.PreemptRate > 0 {
		if r.left = q.PreemptRate - rs.in.evicted(q.Path); r.left <= 0 {
			spent = true
			if at, ok := rs.in.rateFree(q.Path); ok {
				ripe = at
			}
		}
	}
	for i := range r.Contenders {
		v := &r.Contenders[i]
		v.Ran, v.Left = v.Load.Served(r.Now), 0
		if v.Load.Expect > v.Ran {
			v.Left = v.Load.Expect - v.Ran
		}
		run := r.runs[i]
		if run == nil {
			continue
		}
		run.units = v.Units()
		var young structs.LogTime // until when it may not be stopped because it began lately
		for _, a := range run.allocs {
			mine[a.ID] = true
			if at := cmp.Or(a.StartedAt, a.CreateTime).Add(r.Queue.PreemptMinRuntime); at > r.Now {
				young = max(young, at)
			}
		}
		if young > 0 && r.Queue.PreemptMinRuntime < runtimeAwaited { // it begins at this very moment: nothing to come back for
			run.fixed, young = true, 0
		}
		if q := v.Load.Queue; q != nil && r.Queue.PreemptMax > 0 && q.Preempted >= r.Queue.PreemptMax {
			run.fixed = true
		}
		if young > 0 && !run.fixed {
			ripe = earlier(ripe, young)
		}
		run.fixed = run.fixed || young > 0 || spent
		v.Fixed = run.fixed
	}
	r.room(w, mine)
	chosen, wake := rs.in.Chooser.Choose(&r.Competition)
	wake = earlier(wake, r.patience)
	if len(chosen) < len(r.Contenders) { // somebody waits, and might not have to when others may be stopped
		wake = earlier(wake, ripe)
	}
	if wake > r.Now {
		rs.wake = earlier(rs.wake, wake)
	}
	for rank, i := range chosen {
		if run := r.runs[i]; run != nil {
			run.chosen, run.rank = true, rank
		} else {
			rs.first = append(rs.first, r.pending[i])
		}
	}
}

// runtimeAwaited is the least time before preemption that is worth a pass of its own at its end.
const runtimeAwaited = time.Second

// earlier is the earlier of two moments; 0 is none.
func earlier(a, b structs.LogTime) structs.LogTime {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func cmpSubmitted(a, b *Workload) int {
	at := func(w *Workload) structs.Index {
		switch {
		case w.Queue != nil:
			return w.Queue.SubmitIndex
		case w.Job != nil:
			return w.Job.CreateIndex
		}
		return 0
	}
	return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.ID, b.Key.ID))
}

// Served is how long the workload has run, in all its runs.
func (w *Workload) Served(now structs.LogTime) time.Duration {
	if w.Ran > 0 {
		return w.Ran
	}
	var sum time.Duration
	if w.Queue != nil {
		sum = time.Duration(w.Queue.Attained) * time.Second / time.Duration(max(w.Units(), 1))
	}
	var live time.Duration
	for _, a := range w.Allocs {
		if structs.Holds(a) && a.StartedAt > 0 {
			live = max(live, now.Sub(a.StartedAt))
		}
	}
	return sum + live
}

// Units is how many GPUs the workload asks for, parts of GPUs together; 1 for work without any.
func (w *Workload) Units() int64 { return max(1, (w.Asks().GPUMilli+999)/1000) }

// measure counts what the rivals ask for in units.
func (r *competition) measure(w *search.Pass) {
	amounts := make([]structs.Amount, len(r.Contenders))
	for i := range r.Contenders {
		v := &r.Contenders[i]
		if run := r.runs[i]; run != nil {
			v.Count = int64(len(run.allocs))
			for _, a := range run.allocs {
				amounts[i] = larger(amounts[i], structs.AmountOf(a))
			}
		} else {
			for _, g := range v.Load.Job.Groups {
				v.Count += int64(max(g.Count, 0))
				amounts[i] = larger(amounts[i], structs.GroupAmount(g))
			}
		}
		r.gpu = r.gpu || amounts[i].GPUMilli > 0
	}
	r.unit = 1000
	if !r.gpu { // a thousandth of the largest node's CPU is fine enough
		for _, c := range w.View.Chunks {
			for i := range c.Total {
				r.unit = max(r.unit, c.Total[i].CPU)
			}
		}
		r.unit = max(1, r.unit/1000)
	}
	for i := range r.Contenders {
		r.Contenders[i].Each = (r.of(amounts[i]) + r.unit - 1) / r.unit
	}
}

func (r *competition) of(a structs.Amount) int64 {
	if r.gpu {
		return a.GPUMilli
	}
	return a.CPU
}

func larger(a, b structs.Amount) structs.Amount {
	return structs.Amount{GPUMilli: max(a.GPUMilli, b.GPUMilli), GPUMemoryMiB: max(a.GPUMemoryMiB, b.GPUMemoryMiB), CPU: max(a.CPU, b.CPU), MemoryMiB: max(a.MemoryMiB, b.MemoryMiB)}
}

// Room counts, for every node of the pool, the units that are not others'. What is about to be free counts as free.
func (r *competition) room(w *search.Pass, mine map[structs.AllocID]bool) {
	row := -1
	for _, c := range w.View.Chunks {
		for i := range c.IDs {
			row++
			n := c.Nodes[i]
			if !c.Ready[i] || r.Pool != structs.NodePoolAll && r.Pool != "" && n.Pool != r.Pool {
				continue
			}
			total := c.Total[i].CPU
			if r.gpu {
				total = 1000 * healthyGPUs(n)
			}
			for h := range w.Get(row).Hold.All() {
				use := r.of(h.Amount())
				if h.Work.Ending {
					r.coming += use
					continue
				}
				if h.Rare != nil && len(h.Rare.Waits) > 0 {
					r.coming -= use
				}
				if !mine[h.ID] {
					total -= use
				}
			}
			r.Room = append(r.Room, max(0, total/r.unit))
		}
	}
	r.coming = max(0, r.coming/r.unit)
}

func healthyGPUs(n *structs.Node) int64 {
	sum := int64(0)
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if g.Type != "gpu" {
			continue
		}
		for k := range g.Instances {
			if g.Instances[k].Healthy {
				sum++
			}
		}
	}
	return sum
}

// settled reports whether nothing can have changed for a pending workload that waits: all room goes to those who should
// hold places, and they got it.
func (rs *races) settled(i int) bool {
	r := rs.by[i]
	return r != nil && !r.missed && !r.moved && len(rs.in.Pending[i].Evals) == 0 && rs.in.Pending[i].Blocked != nil
}

// served reports whether a pending workload's turn comes through its race: there would be room for it if all who may be
// stopped were. Capacity need not be promised to it.
func (rs *races) served(i int) bool {
	r := rs.of(i)
	if r == nil {
		return false
	}
	v := &r.Contenders[slices.Index(r.pending, i)]
	left := v.Count
	for _, n := range r.Room {
		if v.Each > 0 {
			left -= n / v.Each
		}
	}
	return left <= 0
}

// competitionLine is a pass's line with those in front who should hold places.
type competitionLine struct {
	rs   *races
	line Line
	at   int
	told map[int]*contenderResult
}

// contenderResult is what one of those in front was given, until the line comes to him.
type contenderResult struct {
	use     structs.Amount
	blocked bool
}

func (l *competitionLine) Next() int {
	if l.at < len(l.rs.first) {
		l.at++
		i := l.rs.first[l.at-1]
		l.told[i] = &contenderResult{}
		return i
	}
	l.at++ // from now on, what is told is told of the line's own
	for {
		i := l.line.Next()
		if i < 0 {
			return i
		}
		t := l.told[i]
		if t == nil && !l.rs.settled(i) {
			return i
		}
		if t == nil {
			t, l.rs.skipped = &contenderResult{blocked: true}, true
		}
		if t.blocked {
			noteBlocked(l.line, i)
		}
		l.line.Placed(i, t.use)
	}
}

func (l *competitionLine) Placed(i int, use structs.Amount) {
	if t := l.told[i]; t != nil && l.at <= len(l.rs.first) {
		t.use = use
		return
	}
	l.line.Placed(i, use)
}

func (l *competitionLine) Blocked(i int) {
	if t := l.told[i]; t != nil && l.at <= len(l.rs.first) {
		t.blocked = true
		return
	}
	noteBlocked(l.line, i)
}
