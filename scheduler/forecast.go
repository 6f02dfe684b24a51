package scheduler

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Forecast predicts in which order waiting jobs start, if runs end when they are predicted to and no other job arrives. It makes
// the passes of the future, one for each node pool and each time at which something ends, on a model of the cluster that it
// advances: what is held, the usage of queues and submitters, reservations, and work that is preempted and waits again.
//
// Naive: one line of all that waits, in which each job counts for the shares of the next ones. Under orders by shares the end
// of a run moves its submitter and queue ahead, so that line is the order of starts only until the first run ends.
//
// What a forecast does not know: jobs that wait for other jobs or are on hold do not start in it, runs without a predicted end and
// without a limit do not end, and a lottery draws again when work starts.
type Forecast struct {
	Input  *Input                                    // of a pass that decides about all that waits
	Policy func(structs.PoolName) search.Policy      // of a node pool
	Line   func(*Input) contend.Line                 // the order of a pass
	Alloc  func(structs.AllocID) *structs.Allocation // what is held in Input.View
	Load   func(structs.JobKey) contend.Workload     // a job that runs; without a Job: it was removed
	Wakes  []structs.LogTime                         // when waiting jobs are decided again although nothing ends
	Work   int                                       // bounds the nodes that all passes look at, with forecastDecision and forecastOrdering; the first pass of each pool is always made; 0: no bound
}

// In Forecast.Work a decision and a job that is put in order count as much as this many nodes: as long as it takes to look at them. A
// running job that may be preempted counts as one node.
const (
	forecastDecision = 500
	forecastOrdering = 10
)

// forecastAllocs is how many allocations of a job are listed again in the time that it takes to look at a node.
const forecastAllocs = 32

// Start is a predicted start.
type Start struct {
	At   structs.LogTime
	Load int // position in Input.Pending
}

// Starts returns the predicted starts in their order. A job starts with its first allocation.
func (f Forecast) Starts() []Start {
	x := newForecastRun(&f)
	for x.now = f.Input.Now; ; {
		if !x.settle() || len(x.waiting) == 0 {
			return x.starts
		}
		if !x.advance() {
			return x.starts
		}
	}
}

// forecastRun is a forecast while it is made.
type forecastRun struct {
	*Forecast
	now      structs.LogTime
	view     *model.View
	usage    *forecastUsage
	waiting  []*forecastJob                  // in the order of Input.Pending; then those that were preempted
	done     map[structs.JobKey]*forecastJob // arrays of which nothing waits at present
	running  map[structs.JobKey]*contend.Workload
	allocs   map[structs.AllocID]*structs.Allocation // that the forecast made or changed
	agenda   forecastAgenda
	reserved []*structs.Reservation // by ID
	evicted  []*structs.Preemptions // by queue
	freed    []model.Freed
	cursor   map[structs.PoolName]structs.NodeID
	wakeAt   map[structs.PoolName]structs.LogTime // as the last pass of each pool asked (Report.Wake)
	changes  []structs.Changed[structs.Allocation]
	starts   []Start
	work     int
	several  bool             // jobs of several node pools wait
	returned uint64           // jobs that were preempted so far
	victims  []structs.JobKey // of the part that is carried out
}

// forecastJob is a job that waits.
type forecastJob struct {
	contend.Workload
	load    int // position in Input.Pending; -1: it was preempted in the forecast
	started bool
}

// forecastEvent is a time at which an allocation ends, or, without one, at which a pass is made.
type forecastEvent struct {
	at    structs.LogTime
	alloc structs.AllocID
}

// forecastAgenda is a heap of events by time, then ID.
type forecastAgenda []forecastEvent

func (a forecastAgenda) Len() int { return len(a) }
func (a forecastAgenda) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(a[i].at, a[k].at), slices.Compare(a[i].alloc[:], a[k].alloc[:])) < 0
}
func (a forecastAgenda) Swap(i, k int) { a[i], a[k] = a[k], a[i] }
func (a *forecastAgenda) Push(e any)   { *a = append(*a, e.(forecastEvent)) }
func (a *forecastAgenda) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	*a = (*a)[:last]
	return e
}

func newForecastRun(f *Forecast) *forecastRun {
	in := f.Input
	x := &forecastRun{Forecast: f, view: in.View, running: map[structs.JobKey]*contend.Workload{}, done: map[structs.JobKey]*forecastJob{}, allocs: map[structs.AllocID]*structs.Allocation{},
		reserved: slices.Clone(in.Reserved), evicted: slices.Clone(in.Evicted), freed: slices.Clone(in.Freed), cursor: map[structs.PoolName]structs.NodeID{}, wakeAt: map[structs.PoolName]structs.LogTime{}}
	for i := range in.Pending {
		j := &forecastJob{Workload: in.Pending[i], load: i}
		if j.Gate != nil && j.Gate.Code == structs.ReasonBeginTime && j.Until > in.Now {
			x.wake(j.Until)
		} else if j.Gate != nil {
			continue // it starts when something happens that a forecast does not know
		}
		if j.Job == nil {
			continue
		}
		x.waits(j, "forecast")
		x.waiting = append(x.waiting, j)
	}
	for i := range in.Running {
		w := in.Running[i]
		x.running[w.Key] = &w
	}
	for _, at := range f.Wakes {
		x.wake(at)
	}
	for _, r := range in.Reserved {
		if r.JobID == "" {
			x.wake(r.Start)
			x.wake(r.End)
		}
	}
	x.usage = newForecastUsage(in)
	for _, c := range x.view.Chunks {
		for _, hold := range c.Hold {
			for h := range hold.All() {
				if h.Work.Job != nil {
					x.usage.jobs[h.Work.Job.Key()]++
				}
				if at := h.Work.Predicted(in.Now); at > 0 && at != model.Never {
					x.agenda = append(x.agenda, forecastEvent{at, h.ID})
				}
			}
		}
	}
	heap.Init(&x.agenda)
	return x
}

// waits gives a waiting job the evaluation that its decision answers.
func (x *forecastRun) waits(j *forecastJob, kind string) {
	if j.Blocked != nil && !j.Blocked.ID.IsZero() || len(j.Evals) > 0 {
		return
	}
	e := structs.Evaluation{Namespace: j.Key.Namespace, JobID: j.Key.ID, Status: structs.EvalBlocked}
	if j.Blocked != nil {
		e.FailedGroups = j.Blocked.FailedGroups
	}
	e.ID = structs.DeriveID[structs.EvalID](structs.Seed{}, kind, j.Key.String(), x.returned)
	j.Blocked = &e
}

// wake lets a pass be made at a time in the future.
func (x *forecastRun) wake(at structs.LogTime) {
	if at > x.Input.Now && at > x.now {
		heap.Push(&x.agenda, forecastEvent{at: at})
	}
}

// spent reports whether the work is used up.
func (x *forecastRun) spent() bool { return x.Work > 0 && x.work >= x.Work }

// advance moves to the next time at which something happens. It returns false if there is none, or the work is used up.
func (x *forecastRun) advance() bool {
	next := model.Never
	if len(x.agenda) > 0 {
		next = x.agenda[0].at
	}
	for _, at := range x.wakeAt {
		if at > x.now {
			next = min(next, at)
		}
	}
	if next == model.Never {
		return false
	}
	x.now = max(x.now, next)
	for len(x.agenda) > 0 && x.agenda[0].at <= x.now {
		if x.spent() { // thousands of one array may end together
			return false
		}
		if e := heap.Pop(&x.agenda).(forecastEvent); !e.alloc.IsZero() {
			x.end(e.alloc, structs.ClientComplete)
		}
	}
	x.commit()
	for _, j := range x.waiting {
		if j.Gate != nil && j.Until <= x.now {
			j.Gate, j.Until = nil, 0
		}
	}
	return true
}

// alloc returns an allocation as it is in the forecast, or nil.
func (x *forecastRun) alloc(id structs.AllocID) *structs.Allocation {
	if a := x.allocs[id]; a != nil {
		return a
	}
	return x.Alloc(id)
}

// end ends an allocation, unless it has ended.
func (x *forecastRun) end(id structs.AllocID, as structs.ClientStatus) {
	old := x.alloc(id)
	if old == nil || !structs.Holds(old) {
		return
	}
	a := *old
	a.Client, a.FinishedAt, a.ModifyTime = as, x.now, x.now
	x.put(old, &a)
	if a.Job != nil && a.Job.Array != nil {
		x.goesOn(a.Job, old)
	}
}

// goesOn lets the next indices of an array wait, one of which has ended. An array that has started all of them waits no more.
func (x *forecastRun) goesOn(job *structs.Job, ended *structs.Allocation) {
	k := job.Key()
	j := x.find(k)
	waits := j != nil
	if j == nil {
		if j = x.done[k]; j == nil {
			j = &forecastJob{Workload: x.Load(k), load: -1}
			if j.Job == nil { // it was removed, and what was left of it has ended
				return
			}
			j.Allocs = slices.Clone(j.Allocs)
			for i, a := range j.Allocs {
				if now := x.alloc(a.ID); now != nil {
					j.Allocs[i] = now
				}
			}
			x.done[k] = j
		}
	}
	x.work += len(j.Allocs) / forecastAllocs
	j.Allocs = withAlloc(j.Allocs, x.alloc(ended.ID))
	if !j.hasMore() {
		return
	}
	delete(x.done, k)
	if !waits {
		x.waiting = append(x.waiting, j)
	}
	x.returned++
	j.Evals = []*structs.Evaluation{{ID: structs.DeriveID[structs.EvalID](structs.Seed{}, "array", k.String(), x.returned), Namespace: k.Namespace, JobID: k.ID,
		Trigger: structs.TriggerArray, Status: structs.EvalPending}}
}

// hasMore reports whether some index of an array has not started yet. A newer version of the job may be no array.
func (j *forecastJob) hasMore() bool {
	if j.Job == nil || j.Job.Array == nil {
		return false
	}
	complete, failed := j.Ended.Count()
	if len(j.Allocs)+complete+failed < j.Job.Array.Count {
		return true
	}
	started := make([]bool, j.Job.Array.Count)
	for _, a := range j.Allocs {
		if a.NameIndex < len(started) {
			started[a.NameIndex] = true
		}
	}
	for i := range started {
		if !started[i] && !j.Ended.Has(i) {
			return true
		}
	}
	return false
}

// find returns a job that waits, or nil.
func (x *forecastRun) find(k structs.JobKey) *forecastJob {
	for _, j := range x.waiting {
		if j.Key == k {
			return j
		}
	}
	return nil
}

// put replaces an allocation, or adds one if there was none.
func (x *forecastRun) put(before, after *structs.Allocation) {
	if before != nil && structs.Holds(before) {
		x.usage.charge(before, -1, x.now)
	}
	if structs.Holds(after) {
		x.usage.charge(after, 1, x.now)
	}
	x.allocs[after.ID] = after
	x.changes = append(x.changes, structs.Changed[structs.Allocation]{Before: before, After: after})
	k := after.JobKey()
	if j := cmp.Or(x.find(k), x.done[k]); j != nil {
		x.work += len(j.Allocs) / forecastAllocs
		j.Allocs = withAlloc(j.Allocs, after)
	}
	switch w := x.running[k]; {
	case w != nil:
		x.work += len(w.Allocs) / forecastAllocs
		next := *w
		next.Allocs = slices.DeleteFunc(withAlloc(w.Allocs, after), func(a *structs.Allocation) bool { return !structs.Holds(a) })
		x.running[k] = &next
	case after.Job != nil && after.Job.MayPreempt() && structs.Holds(after):
		x.running[k] = &contend.Workload{Key: k, Job: after.Job, Allocs: []*structs.Allocation{after}, Expect: after.Expect}
	}
}

// withAlloc returns the allocations of a job with one that is new or replaced.
func withAlloc(all []*structs.Allocation, a *structs.Allocation) []*structs.Allocation {
	next := slices.Clone(all)
	if i := slices.IndexFunc(next, func(o *structs.Allocation) bool { return o.ID == a.ID }); i >= 0 {
		next[i] = a
		return next
	}
	return append(next, a)
}

// commit advances the view by the changes since the last call.
func (x *forecastRun) commit() {
	if len(x.changes) == 0 {
		return
	}
	d := structs.Delta{Index: x.view.Index() + 1, Time: x.now, Allocs: x.changes}
	x.view, x.freed = x.view.Advance(d), model.AppendFreed(x.freed, &d)
	x.usage.settle(x.now)
	x.changes = nil
}

// settle makes the passes of this time: one of each pool, and more as long as something calls for another one. It returns false when
// the work is used up.
//
// Naive: passes until one changes nothing. But a start unblocks nothing. It only moves its submitter and queue back, so another pass
// would serve others first, even those whom a job that was placed in part holds back until something ends.
func (x *forecastRun) settle() bool {
	for round := 0; ; round++ {
		again := false
		pools := x.pools()
		x.several = len(pools) > 1
		for _, pool := range pools {
			if x.spent() && (round > 0 || x.now > x.Input.Now) {
				return false
			}
			placed, more := x.pass(pool)
			if again = again || more; (placed || more) && x.draws() {
				return false
			}
		}
		if !again || round > len(x.waiting)+forecastRounds {
			return true
		}
	}
}

// forecastRounds bounds the passes at one time beyond one for each waiting job.
const forecastRounds = 8

// draws reports whether some queue draws: what it draws next is not known.
func (x *forecastRun) draws() bool {
	has := func(o structs.Order) bool { return o.Has(structs.OrderLottery) }
	return has(x.Input.Config.Order) || slices.ContainsFunc(x.usage.table.Queues, func(q *structs.Queue) bool { return has(q.Order) })
}

// pools lists the node pools in which jobs wait, by name.
func (x *forecastRun) pools() (out []structs.PoolName) {
	for _, j := range x.waiting {
		if at, found := slices.BinarySearch(out, j.Job.NodePool); !found {
			out = slices.Insert(out, at, j.Job.NodePool)
		}
	}
	return out
}

// pass makes one pass of a pool. It reports whether it places something, and whether another pass follows at once.
func (x *forecastRun) pass(pool structs.PoolName) (placed, again bool) {
	in := *x.Input
	in.View, in.Now, in.Queues, in.Evicted, in.Freed, in.Cursor, in.Flight = x.view, x.now, &x.usage.table, x.evicted, x.freed, x.cursor[pool], model.Overlay{}
	in.Pending, in.Running, in.Reserved = nil, nil, nil
	var of []*forecastJob
	for _, j := range x.waiting {
		if j.Job.NodePool == pool {
			in.Pending, of = append(in.Pending, j.Workload), append(of, j)
		}
	}
	for _, w := range x.running {
		if w.Job.NodePool == pool && len(w.Allocs) > 0 {
			in.Running = append(in.Running, *w)
		}
	}
	slices.SortFunc(in.Running, func(a, b contend.Workload) int {
		if a.Key.Less(b.Key) {
			return -1
		}
		return 1 // keys are different
	})
	for _, r := range x.reserved {
		if r.Domain == structs.NodePoolAll || pool == structs.NodePoolAll || cmp.Or(r.Domain, structs.NodePoolDefault) == cmp.Or(pool, structs.NodePoolDefault) {
			if r.JobID != "" || r.End == 0 || r.End > x.now {
				in.Reserved = append(in.Reserved, r)
			}
		}
	}
	in.Line = x.Line(&in)
	plan, rep := Schedule(in, x.Policy(pool))
	x.work += rep.Steps + forecastDecision*len(rep.Workloads) + forecastOrdering*len(in.Pending) + len(in.Running) + x.view.Rows/model.BlockRows
	x.cursor[pool] = plan.Cursor
	x.wakeAt[pool] = rep.Wake
	byKey := make(map[structs.JobKey]*forecastJob, len(of))
	for _, j := range of {
		byKey[j.Key] = j
	}
	decided := make(map[structs.JobKey]bool, len(rep.Workloads))
	for i := range rep.Workloads {
		decided[rep.Workloads[i].Key] = true
	}
	for _, j := range of {
		if decided[j.Key] {
			j.Evals = nil
		}
	}
	for _, pe := range plan.Entries {
		if j := byKey[structs.JobKey{Namespace: pe.Namespace, ID: pe.JobID}]; j != nil {
			starts, more := x.apply(j, pe)
			placed, again = placed || starts, again || more
		}
	}
	x.commit()
	x.waiting = slices.DeleteFunc(x.waiting, func(j *forecastJob) bool {
		served := j.Blocked == nil && len(j.Evals) == 0
		if served && j.Job.Array != nil {
			x.done[j.Key] = j
		}
		return served
	})
	return placed, again || len(plan.Deferred) > 0
}

// apply carries out what a pass proposes for a job, as the state machine does. What stops ends at once. It reports whether it places
// something, and whether it unblocks work: something stops, or room is no longer kept from other pools.
func (x *forecastRun) apply(j *forecastJob, pe *structs.PlanEntry) (placed, again bool) {
	for i := range pe.Parts {
		x.victims = x.victims[:0]
		for k := range pe.Parts[i].Stops {
			again = x.stop(j, &pe.Parts[i].Stops[k]) || again
		}
		for k := range pe.Parts[i].Places {
			x.place(j, pe, &pe.Parts[i].Places[k])
			placed = true
		}
	}
	for _, e := range pe.Evals {
		switch {
		case e.Status == structs.EvalBlocked:
			j.Blocked = e
		case j.Blocked != nil && j.Blocked.ID == e.ID:
			j.Blocked = nil
		case e.Status == structs.EvalPending && e.WaitUntil > x.now:
			x.wake(e.WaitUntil)
		}
	}
	if pe.Workload != nil {
		j.Queue = pe.Workload
	}
	for _, r := range pe.Rosters {
		j.Rosters = append(slices.DeleteFunc(slices.Clone(j.Rosters), func(o *structs.Roster) bool { return o.Group == r.Group }), r)
	}
	if r := pe.Reservation; r != nil {
		at, found := slices.BinarySearchFunc(x.reserved, r.ID, func(o *structs.Reservation, id string) int { return cmp.Compare(o.ID, id) })
		if found {
			x.reserved = slices.Delete(x.reserved, at, at+1)
		}
		if r.Start != 0 {
			x.reserved = slices.Insert(x.reserved, at, r)
		} else {
			again = again || found && x.several // jobs of other pools may use what it held back
		}
	}
	return placed, again
}

// stop ends an allocation of the job, or one that the job preempts. The job of the latter waits again.
func (x *forecastRun) stop(by *forecastJob, s *structs.PlanStop) bool {
	a := x.alloc(s.ID)
	if a == nil || !structs.Holds(a) || s.Desired == "" && s.Client == "" {
		return false
	}
	k := a.JobKey()
	w := x.running[k]
	x.end(s.ID, cmp.Or(s.Client, structs.ClientComplete))
	if k == by.Key || s.Desired != structs.DesiredEvict || w == nil {
		return true
	}
	q := structs.Workload{Namespace: k.Namespace, JobID: k.ID, Domain: w.Job.NodePool, Priority: w.Job.Priority, Queue: w.Job.Queue, SubmitIndex: w.Job.SpecIndex, SubmitTime: w.Job.SubmitTime}
	back := x.find(k) // more of it waits
	if back == nil {
		back = &forecastJob{Workload: *w, load: -1}
	}
	if back.Queue != nil {
		q = *back.Queue
	}
	if !slices.Contains(x.victims, k) { // a job is preempted once by a part
		x.victims = append(x.victims, k)
		q.Preempted++
		x.evict(by.QueueName())
	}
	if a.StartedAt > 0 {
		ran := int64(x.now.Sub(a.StartedAt) / time.Second)
		if gpus := structs.AmountOf(a).GPUMilli; gpus > 0 {
			ran = ran * gpus / 1000
		}
		q.Attained += ran
	}
	back.Queue = &q
	back.Allocs = slices.DeleteFunc(slices.Clone(back.Allocs), func(o *structs.Allocation) bool { return o.ID == a.ID })
	if back.load < 0 && !slices.Contains(x.waiting, back) {
		x.returned++
		back.Blocked, back.Evals = nil, nil
		x.waits(back, "returned")
		x.waiting = append(x.waiting, back)
	}
	return true
}

// evict counts a preemption on behalf of a queue.
func (x *forecastRun) evict(path structs.QueuePath) {
	at, found := slices.BinarySearchFunc(x.evicted, path, func(p *structs.Preemptions, path structs.QueuePath) int { return cmp.Compare(p.Queue, path) })
	n := structs.Preemptions{Queue: path}
	if found {
		n = *x.evicted[at]
	} else {
		x.evicted = slices.Insert(x.evicted, at, &n)
	}
	n.Recent, n.Total = append(slices.Clip(n.Recent), x.now), n.Total+1
	x.evicted[at] = &n
}

// place starts an allocation.
func (x *forecastRun) place(j *forecastJob, pe *structs.PlanEntry, p *structs.PlanPlace) {
	group := pe.Groups[p.Group]
	a := &structs.Allocation{
		ID: structs.DeriveAllocID(pe.EvalID, pe.SnapshotIndex, group, p.Index), EvalID: pe.EvalID, Namespace: j.Key.Namespace, JobID: j.Key.ID,
		JobVersion: pe.JobVersion, Job: j.Job, Group: group, NameIndex: p.Index, NodeID: pe.Nodes[p.Node].ID, Resources: pe.Asks[p.Group],
		Grants: p.Grants, Ports: p.Ports, Cores: p.Cores, Desired: structs.DesiredRun, Client: structs.ClientRunning, Expect: p.Expect,
		CreateTime: x.now, StartedAt: x.now, ModifyTime: x.now,
	}
	line := structs.Lineage{Previous: p.Previous}
	if j.Queue != nil {
		line.Preempted = j.Queue.Preempted
	}
	a.SetLineage(line)
	x.put(nil, a)
	if w := x.running[j.Key]; w != nil && w.Queue == nil {
		w.Queue, w.Least = j.Queue, j.Least
	}
	if at := model.HeldOf(a).Work.Ends(x.now); at > 0 && at != model.Never {
		heap.Push(&x.agenda, forecastEvent{at, a.ID})
	}
	if !j.started && j.load >= 0 {
		x.starts = append(x.starts, Start{x.now, j.load})
	}
	j.started = true
}
