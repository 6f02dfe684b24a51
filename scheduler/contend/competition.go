package contend

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Contest is a competition with what the pass needs to apply its outcome.
type Contest struct {
	Competition
	goesBefore func(a, b *Workload) bool // of a queue whose order shares (ShareChooser); else nil
	first      []int                     // in Env.Pending: the workloads that should hold places, in order; none if the order shares
	moved      bool                      // a contender that should hold places gave them up for a wider one, and gets others in the next pass
	missed     bool                      // a contender that should hold places found none
	runs       []*contenderRun           // per contender; nil for pending ones
	pending    []int                     // per contender: its place in Env.Pending; -1 for running ones
	unit       int64
	gpu        bool
	each       []int64         // per contender: the amount of one of its allocations
	rest       []int64         // per node of Competition.Room: the amount that those that should hold places leave
	coming     int64           // units that are about to become free and that no placement waits for
	patience   structs.LogTime // when the first contender that has not waited long enough yet may compete (Queue.PreemptAfter); 0: none
	left       int64           // jobs that the queue's rate still allows to be evicted; only used if there is a rate
}

// contenderRun is a contender that holds places.
type contenderRun struct {
	load   *Workload
	allocs []*structs.Allocation
	chosen bool
	fixed  bool
	young  structs.LogTime // until when only its age protects it (Queue.PreemptMinRuntime); 0: something else does, or nothing
	gone   bool            // this pass stops it, all of it
	rank   int             // place among the chosen
	parts  bool            // each of its allocations runs by itself, so that the others continue without it
	units  int64
	lost   int64   // GPU seconds that stopping it costs, all of it
	losses []int64 // of allocs: GPU seconds that stopping one of them costs
	saving saving
	holds  []heldUnits
}

// heldUnits is what an allocation holds of a node.
type heldUnits struct {
	id     structs.AllocID
	at     int // in Competition.Room
	units  int64
	amount int64 // before it is rounded up to units
	lost   int64 // GPU seconds that stopping it costs
}

// Contests are the competitions for places in a pass. They decide which workload goes first, and which running work may
// lose its places.
type Contests struct {
	Wake     structs.LogTime // when an answer may change even if nothing happens; 0: never
	Skipped  bool            // a waiting workload was not decided: see settled
	env      *Env
	pre      *Preemption
	limits   *Limits          // nil: there are no limits
	setAside *SetAside        // nil: nothing is set aside
	by       map[int]*Contest // by place in Env.Pending: all workloads that compete
	front    map[int]bool     // places in Env.Pending of those that may take the places of others
	pools    map[poolKey]*pool
}

// poolKey says of which nodes what is counted; gpu: GPUs, else CPU.
type poolKey struct {
	name structs.PoolName
	gpu  bool
}

// pool is the ready nodes of a node pool, with what contenders compete for there. It is the same for all contests in it, and
// counted once: running work is far more than each contest's.
type pool struct {
	rows   []int
	total  []int64 // by place in rows
	free   []int64 // total less what is held and not about to become free; less than 0 where a node holds more than it has
	coming int64   // what is about to become free and that no placement waits for
}

// pool counts the nodes that a contest is about.
func (cs *Contests) pool(r *Contest) *pool {
	k := poolKey{r.Pool, r.gpu}
	if p := cs.pools[k]; p != nil {
		return p
	}
	p, w, row := &pool{}, cs.env.W, -1
	for _, c := range w.View.Chunks {
		for i, n := range c.Nodes {
			row++
			if !c.Ready[i] || r.Pool != structs.NodePoolAll && r.Pool != "" && n.Pool != r.Pool {
				continue
			}
			total := c.Total[i].CPU
			if r.gpu {
				total = 1000 * healthyGPUs(n)
			}
			free := total
			for h := range w.Get(row).Hold.All() {
				use := r.of(h.Amount())
				if h.Work.Ending {
					p.coming += use
					continue
				}
				if h.Rare != nil && len(h.Rare.Waits) > 0 {
					p.coming -= use
				}
				free -= use
			}
			p.rows, p.total, p.free = append(p.rows, row), append(p.total, total), append(p.free, free)
		}
	}
	if cs.pools == nil {
		cs.pools = map[poolKey]*pool{}
	}
	cs.pools[k] = p
	return p
}

// NewContests runs the competitions of all queues whose running work competes with pending work. It returns nil if
// there is no Chooser: then running work is never stopped, and the line alone sets the order.
func NewContests(e *Env, pre *Preemption, limits *Limits, aside *SetAside) *Contests {
	if e.Chooser == nil {
		return nil
	}
	cs := &Contests{env: e, pre: pre, limits: limits, setAside: aside, by: map[int]*Contest{}, front: map[int]bool{}}
	order := cs.enter()
	any := false
	_, always := e.Chooser.(AlwaysChooser)
	for _, r := range order {
		if sharer, ok := e.Chooser.(ShareChooser); ok {
			r.goesBefore = sharer.GoesBefore(&r.Competition)
		}
		if !always && !slices.ContainsFunc(r.Contenders, func(v Contender) bool { return v.Load.Job.MayPreempt() }) || r.goesBefore != nil && !r.outranks() {
			for _, i := range r.pending {
				delete(cs.by, i)
			}
			continue
		}
		any = true
		cs.hold(r)
	}
	if !any {
		return nil
	}
	return cs
}

// outranks reports whether some pending work has a higher priority than some running work.
func (r *Contest) outranks() bool {
	low, high := math.MaxInt, math.MinInt
	for i := range r.Contenders {
		switch v := &r.Contenders[i]; {
		case v.Holds:
			low = min(low, v.Load.Priority())
		default:
			high = max(high, v.Load.Priority())
		}
	}
	return low < high
}

// enter adds pending and running work, each to the contest of its queue and node pool.
func (cs *Contests) enter() (order []*Contest) {
	type key struct {
		queue structs.QueuePath
		pool  structs.PoolName
	}
	in := cs.env
	byKey := map[key]*Contest{}
	find := func(l *Workload) *Contest {
		if l.Job == nil || l.Job.Type != structs.JobBatch && l.Job.Type != structs.JobService || in.Flight.HasJob(l.Key) {
			return nil
		}
		path := l.QueueName()
		q := in.Rules.Of(path)
		if q.Preempt != structs.PreemptOrder {
			return nil
		}
		k := key{path, l.Job.NodePool}
		r := byKey[k]
		if r == nil {
			r = &Contest{Competition: Competition{Queue: *q, BoundSet: in.Rules.Queues.Configured(path).MaxWait > 0, Pool: l.Job.NodePool, Now: in.Now}}
			byKey[k] = r
			order = append(order, r)
		}
		return r
	}
	waiting := make(map[structs.JobKey]bool, len(in.Pending))
	for i := range in.Pending {
		l := &in.Pending[i]
		waiting[l.Key] = true
		if l.Gate != nil || len(l.Evals) == 0 && l.Blocked == nil || l.Job != nil && !l.Job.Placeable() || slices.ContainsFunc(l.Allocs, structs.Holds) {
			continue
		}
		if r := find(l); r != nil {
			if cs.limits.OverSoft(l) {
				continue // it only takes free places, after all other work
			}
			if since := l.WaitingSince(); since > 0 && r.Queue.PreemptAfter > 0 && in.Now < since.Add(r.Queue.PreemptAfter) {
				r.patience = earlier(r.patience, since.Add(r.Queue.PreemptAfter)) // until then it only takes free places
				continue
			}
			r.add(l, nil, i)
			cs.by[i] = r
		}
	}
	for i := range in.Running {
		l := &in.Running[i]
		if waiting[l.Key] || l.Job == nil || !l.Job.MayPreempt() {
			continue
		}
		run := cs.runOf(l)
		if run == nil || len(run.allocs) == 0 {
			continue
		}
		if r := find(l); r != nil {
			r.add(l, run, -1)
		}
	}
	return order
}

// runOf returns the places that a running workload may lose. It returns nil when it cannot lose them, because a plan in
// flight stops it or one of its nodes is not ready.
func (cs *Contests) runOf(l *Workload) *contenderRun {
	run := &contenderRun{load: l}
	for _, a := range l.Allocs {
		if !structs.Holds(a) || a.ServerTerminal() {
			continue
		}
		row := cs.env.W.View.Row(a.NodeID)
		if cs.env.Flight.Stopping(a.ID) || row < 0 {
			return nil
		}
		if c, at := cs.env.W.View.At(row); !c.Ready[at] {
			return nil
		}
		run.allocs = append(run.allocs, a)
		run.fixed = run.fixed || len(a.WaitsOn) > 0 && !a.ClientTerminal() && a.StartedAt == 0
	}
	run.parts = inParts(l.Job, run.allocs)
	return run
}

// add adds a contender. run is nil for a pending workload, which is at place i of Env.Pending.
func (r *Contest) add(l *Workload, run *contenderRun, i int) {
	r.Contenders = append(r.Contenders, Contender{Load: l, Holds: run != nil})
	r.runs = append(r.runs, run)
	r.pending = append(r.pending, i)
}

// hold asks the chooser which contenders should hold places, and records the outcome.
func (cs *Contests) hold(r *Contest) {
	ripe := cs.weigh(r)
	var chosen []int
	var wake structs.LogTime
	if r.goesBefore == nil {
		chosen, wake = cs.env.Chooser.Choose(&r.Competition)
	} else {
		for _, i := range r.pending {
			if i >= 0 {
				cs.front[i] = true
			}
		}
	}
	r.leave(chosen)
	wake = earlier(wake, r.patience)
	if len(chosen) < len(r.Contenders) { // one of those that wait may get a place when others may be stopped
		wake = earlier(wake, ripe)
	}
	if wake > r.Now {
		cs.Wake = earlier(cs.Wake, wake)
	}
	for rank, i := range chosen {
		if run := r.runs[i]; run != nil {
			run.chosen, run.rank = true, rank
		} else {
			r.first = append(r.first, r.pending[i])
			cs.front[r.pending[i]] = true
		}
	}
}

// weigh measures the contenders and the room they compete for. ripe is when the first of those that are still protected may be
// stopped; 0: none is.
func (cs *Contests) weigh(r *Contest) (ripe structs.LogTime) {
	r.sort()
	r.measure(cs.env.W)
	spent := false // the queue has reached its eviction rate for the last hour
	if q := &r.Queue; q.PreemptRate > 0 {
		if r.left = q.PreemptRate - cs.env.Evicted.Within(q.Path, r.Now); r.left <= 0 {
			spent = true
			if at, ok := cs.env.Evicted.FreeAt(q.Path, r.Now); ok {
				ripe = at
			}
		}
	}
	for i := range r.Contenders {
		v := &r.Contenders[i]
		v.Ran = v.Load.Served(r.Now)
		v.Left = max(v.Load.Expect-v.Load.Progress(r.Now), 0)
		run := r.runs[i]
		if run == nil {
			continue
		}
		run.units = v.Units()
		for _, a := range run.allocs {
			h := model.HeldOf(a)
			v.Lost = max(v.Lost, cs.pre.lostTime(h, structs.CausePreempt))
			lost := cs.pre.lost(h)
			run.lost, run.losses = run.lost+lost, append(run.losses, lost)
			run.saving = max(run.saving, cs.pre.savingOf(h, structs.CausePreempt))
		}
		young := r.fix(run, v.Load)
		if young > 0 && !run.fixed {
			ripe = earlier(ripe, young)
			if !spent {
				run.young = young
			}
		}
		run.fixed = run.fixed || young > 0 || spent
		v.Fixed = run.fixed
	}
	r.room(cs.pool(r), cs.env.W)
	return ripe
}

// sort orders the contenders by their submission.
func (r *Contest) sort() {
	order := make([]int, len(r.Contenders))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmpSubmitted(r.Contenders[a].Load, r.Contenders[b].Load) })
	contenders, runs, pending := r.Contenders, r.runs, r.pending
	r.Contenders, r.runs, r.pending = make([]Contender, len(order)), make([]*contenderRun, len(order)), make([]int, len(order))
	for i, k := range order {
		r.Contenders[i], r.runs[i], r.pending[i] = contenders[k], runs[k], pending[k]
	}
}

// fix decides whether running work keeps its places in any case. young is until when it must not be stopped because it
// began recently; 0: it may be stopped.
func (r *Contest) fix(run *contenderRun, load *Workload) (young structs.LogTime) {
	for _, a := range run.allocs {
		if at := a.WorksSince().Add(r.Queue.PreemptMinRuntime); at > r.Now {
			young = max(young, at)
		}
	}
	if young > 0 && r.Queue.PreemptMinRuntime < runtimeAwaited { // it begins at this very moment: not worth another pass
		run.fixed, young = true, 0
	}
	if q := load.Queue; q != nil && r.Queue.PreemptMax > 0 && q.Preempted >= r.Queue.PreemptMax {
		run.fixed = true
	}
	return young
}

// runtimeAwaited is the shortest time before preemption for which another pass is scheduled.
const runtimeAwaited = time.Second

// earlier returns the earlier of two times; 0 stands for none.
func earlier(a, b structs.LogTime) structs.LogTime {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func cmpSubmitted(a, b *Workload) int {
	return cmp.Or(cmp.Compare(a.Submitted(), b.Submitted()), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.ID, b.Key.ID))
}

// measure counts the requests of the contenders in units.
func (r *Contest) measure(w *search.Pass) {
	type places struct {
		of    structs.Amount
		count int64
	}
	asks := make([][]places, len(r.Contenders))
	for i := range r.Contenders {
		if run := r.runs[i]; run != nil {
			for _, a := range run.allocs {
				asks[i] = append(asks[i], places{structs.AmountOf(a), 1})
			}
		} else {
			for _, g := range r.Contenders[i].Load.Job.Groups {
				asks[i] = append(asks[i], places{structs.GroupAmount(g), int64(max(g.Count, 0))})
			}
		}
		r.gpu = r.gpu || slices.ContainsFunc(asks[i], func(p places) bool { return p.of.GPUMilli > 0 })
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
	r.each = make([]int64, len(r.Contenders))
	for i := range r.Contenders {
		v := &r.Contenders[i]
		for _, p := range asks[i] { // what needs nothing that is competed for, such as a group without GPUs, takes no place
			if of := r.of(p.of); of > 0 {
				v.Count, v.Each, r.each[i] = v.Count+p.count, max(v.Each, r.Units(p.of)), max(r.each[i], of)
			}
		}
	}
}

// Units returns an amount in units, rounded up.
func (r *Contest) Units(a structs.Amount) int64 { return (r.of(a) + r.unit - 1) / r.unit }

// of returns the part of an amount that contenders compete for: GPUs, or else CPU.
func (r *Contest) of(a structs.Amount) int64 {
	if r.gpu {
		return a.GPUMilli
	}
	return a.CPU
}

// room counts the units of every node of the pool that are free or held by contenders. What is about to become free
// counts as free.
func (r *Contest) room(p *pool, w *search.Pass) {
	r.rest = slices.Clone(p.free)
	for _, run := range r.runs {
		if run == nil {
			continue
		}
		for k, a := range run.allocs {
			row := w.View.Row(a.NodeID)
			at, ok := slices.BinarySearch(p.rows, row)
			if !ok {
				continue
			}
			run.holds = append(run.holds, heldUnits{a.ID, at, r.Units(structs.AmountOf(a)), r.of(structs.AmountOf(a)), run.losses[k]})
			if h := w.Get(row).Hold.Get(a.ID); h != nil && !h.Work.Ending {
				r.rest[at] += r.of(h.Amount())
			}
		}
	}
	r.Room = make([]int64, len(r.rest))
	for at := range r.rest {
		r.rest[at] = max(0, r.rest[at])
		r.Room[at] = r.rest[at] / r.unit
	}
	r.coming = max(0, p.coming/r.unit)
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

// Of returns the contest in which a pending workload takes part, or nil.
func (cs *Contests) Of(i int) *Contest {
	if cs == nil {
		return nil
	}
	return cs.by[i]
}

// Front returns the contest in which a pending workload may take the places of others, or nil.
func (cs *Contests) Front(i int) *Contest {
	if cs == nil || !cs.front[i] {
		return nil
	}
	return cs.by[i]
}

// Bars reports whether a pending workload has to wait for the next pass, because a workload that goes before it moves.
func (cs *Contests) Bars(i int) bool {
	r := cs.Of(i)
	return r != nil && r.moved && !cs.front[i]
}

// Served reports whether a pending workload will get its places through its contest: there would be room for it if
// everything that it may stop were stopped. Then no capacity need be reserved for it. Under an order that shares it
// does not: there running work mostly ends by itself.
func (cs *Contests) Served(i int) bool {
	r := cs.Of(i)
	if r == nil || r.goesBefore != nil {
		return false
	}
	v := &r.Contenders[slices.Index(r.pending, i)]
	room := slices.Clone(r.Room)
	for _, run := range r.runs {
		if run == nil {
			continue
		}
		for limit, k := r.lossLimit(v.Load, v.Units(), run), 0; k < len(run.holds); k++ {
			if h := &run.holds[k]; run.lostWith(h.lost) >= limit {
				room[h.at] -= h.units
			}
		}
	}
	return v.fits(room)
}

// lossLimit returns how much must not be lost, in GPU seconds, by stopping running work for a workload that needs so many
// units; 0: it may not be stopped. Work of a higher priority never is, even under an order that ignores priorities, nor
// work that loses as much as is gained.
func (r *Contest) lossLimit(load *Workload, need int64, run *contenderRun) int64 {
	diff := load.Priority() - run.load.Priority()
	switch {
	case run.fixed || diff < 0:
		return 0
	case r.goesBefore != nil && (diff == 0 || !r.goesBefore(load, run.load)):
		return 0
	case run.gone:
		return math.MaxInt64
	}
	return r.gain(load, need, diff)
}

// lostWith returns what is lost if an allocation of the work stops that itself loses so much: work that does not run in
// parts stops as a whole.
func (run *contenderRun) lostWith(lost int64) int64 {
	if run.parts {
		return lost
	}
	return run.lost
}

// gain returns what it is worth, in GPU seconds (for work without GPUs: seconds), that a workload starts now at the cost
// of work whose priority is lower by so much.
func (r *Contest) gain(load *Workload, need int64, diff int) int64 {
	if !r.gpu {
		need = 0
		for _, g := range load.Job.Groups {
			need += int64(g.Count)
		}
	}
	return load.worth(1000*need, diff)
}

// settled reports whether nothing can have changed for a pending workload of a contest that waits: all room goes to those that
// should hold places, they got it, and what they leave is too small for any allocation of the workload. One that asks
// for more than it can ever have at a time should never hold places, and still starts with what there is.
func (cs *Contests) settled(r *Contest, i int) bool {
	w := &cs.env.Pending[i]
	if r.missed || r.moved || len(w.Evals) > 0 || w.Blocked == nil || !waitsForRoom(w.Blocked) {
		return false
	}
	each := r.each[slices.Index(r.pending, i)]
	return !slices.ContainsFunc(r.rest, func(amount int64) bool { return amount >= each })
}

// leave computes the amounts that the chosen contenders leave on nodes. Running ones stay where they are, and each
// place of the others is on the first node with enough. Units would not do: they are rounded, so that work that fits
// exactly would seem too large.
func (r *Contest) leave(chosen []int) {
	for _, i := range chosen {
		if run := r.runs[i]; run != nil {
			for _, h := range run.holds {
				r.rest[h.at] -= h.amount
			}
			continue
		}
		left := r.Contenders[i].Count
		for n := range r.rest {
			if each := r.each[i]; each > 0 {
				k := min(left, r.rest[n]/each)
				r.rest[n] -= k * each
				left -= k
			}
		}
	}
}

// Line returns a line in which the turns of each contest go to the workloads that should hold places, then to the
// others. The turns themselves stay where they are: between queues the underlying line decides.
func (cs *Contests) Line(line Line) Line {
	return &contestLine{Line: line, contests: cs, turns: map[*Contest]*contestTurns{}}
}

// Ranked returns a line in which the turns of each contest go to the workloads that a pass would choose now, then to the others
// by rank: the order in which passes will serve them as room becomes free, as far as it is known. Nothing is placed.
func Ranked(e *Env, limits *Limits, line Line) Line {
	chooser, ok := e.Chooser.(RankingChooser)
	if !ok {
		return line
	}
	cs := &Contests{env: e, pre: newPreemption(e, limits), limits: limits, by: map[int]*Contest{}, front: map[int]bool{}}
	for _, r := range cs.enter() {
		sharer, shares := e.Chooser.(ShareChooser)
		if shares && sharer.GoesBefore(&r.Competition) != nil || !slices.ContainsFunc(r.Contenders, func(v Contender) bool { return v.Load.Job.MayPreempt() }) {
			for _, i := range r.pending {
				delete(cs.by, i)
			}
			continue
		}
		cs.weigh(r)
		chosen, _ := chooser.Choose(&r.Competition)
		r.Room = r.whole(cs.pool(r)) // for the others: what the queue will compete for by then is not known
		for _, i := range append(chosen, chooser.Rank(&r.Competition)...) {
			if k := r.pending[i]; r.runs[i] == nil && !cs.front[k] {
				r.first = append(r.first, k)
				cs.front[k] = true
			}
		}
	}
	return cs.Line(line)
}

// whole counts the units of every node of the pool, free or held.
func (r *Contest) whole(p *pool) []int64 {
	room := make([]int64, len(p.total))
	for at, total := range p.total {
		room[at] = total / r.unit
	}
	return room
}

// contestLine is a pass's line with the turns of each contest in another order.
type contestLine struct {
	Line
	contests *Contests
	turns    map[*Contest]*contestTurns
}

// contestTurns is what became of a contest's turns.
type contestTurns struct {
	served int   // of Contest.first
	late   []int // workloads whose turn went to one of Contest.first, in the order of their turns
}

func (l *contestLine) Next() int {
	for {
		i := l.Line.Next()
		if i < 0 {
			return i
		}
		r := l.contests.by[i]
		if r == nil || r.goesBefore != nil {
			return i
		}
		i = l.swap(r, i)
		if l.contests.front[i] || !l.contests.settled(r, i) {
			return i
		}
		l.contests.Skipped = true
		NoteBlocked(l.Line, i)
		l.Placed(i, structs.Amount{})
	}
}

// swap returns the workload that gets the turn of workload i of a contest.
func (l *contestLine) swap(r *Contest, i int) int {
	t := l.turns[r]
	if t == nil {
		t = &contestTurns{}
		l.turns[r] = t
	}
	if !l.contests.front[i] {
		t.late = append(t.late, i)
	}
	if t.served < len(r.first) {
		t.served++
		return r.first[t.served-1]
	}
	i, t.late = t.late[0], t.late[1:] // each turn leaves one workload that was not served
	return i
}

func (l *contestLine) Blocked(i int) { NoteBlocked(l.Line, i) }
