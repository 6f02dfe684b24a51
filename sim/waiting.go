package sim

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Waiting jobs are kept by shape. A pass that is made because room appeared takes only the shapes that may fit there:
// all others were refused when less was in use than now, and would be refused again for the same reason. A job that waits
// for something other than room (a reservation of others, a quota, its time) is in every pass.
//
// The naive way is to take every waiting job in every pass; with 20,000 waiting jobs each of 100,000 passes then costs
// 100 ms. A property test compares both.

// lane is the waiting jobs of one shape and priority, in the order of their submission.
type lane struct {
	priority int
	jobs     []*Live // nil for jobs that left
	first    int     // index of the first job that is not nil
	n        int
}

// enqueue adds a job to the waiting jobs.
func (e *Engine) enqueue(l *Live) {
	if l.waits == 0 && (l.short() || !l.moving()) {
		l.waits = e.now
		e.stats.queued(l, 1)
	}
	if l.lane != nil {
		return
	}
	s := l.shape
	if l.otherwise() {
		s = e.other
	}
	e.insert(s, l)
}

// otherwise reports whether the job waits for something other than room.
func (l *Live) otherwise() bool {
	switch l.reason {
	case structs.ReasonNone, structs.ReasonResources, structs.ReasonFragmentation, structs.ReasonGang, structs.ReasonTopology:
		return false
	case structs.ReasonReservation: // reserved resources stay reserved until a reservation changes: see book
		return false
	}
	return true
}

func (e *Engine) insert(s *shape, l *Live) {
	at := -1
	for i := range s.lanes {
		if s.lanes[i].priority == l.bucket {
			at = i
			break
		}
		if s.lanes[i].priority < l.bucket {
			s.lanes = append(s.lanes, nil)
			copy(s.lanes[i+1:], s.lanes[i:])
			s.lanes[i] = &lane{priority: l.bucket}
			at = i
			break
		}
	}
	if at < 0 {
		s.lanes = append(s.lanes, &lane{priority: l.bucket})
		at = len(s.lanes) - 1
	}
	ln := s.lanes[at]
	e.waits(s)
	ln.n++
	l.home, l.lane = s, ln
	k := len(ln.jobs)
	if k == 0 || ln.jobs[k-1] != nil && ln.jobs[k-1].work.Queue.SubmitIndex < l.work.Queue.SubmitIndex {
		l.pos = k
		ln.jobs = append(ln.jobs, l)
		return
	}
	// The job is requeued: it goes after the last job submitted before it, and the indexes of later jobs change.
	for k > ln.first && (ln.jobs[k-1] == nil || ln.jobs[k-1].work.Queue.SubmitIndex > l.work.Queue.SubmitIndex) {
		k--
	}
	ln.jobs = append(ln.jobs, nil)
	copy(ln.jobs[k+1:], ln.jobs[k:])
	ln.jobs[k] = l
	for ; k < len(ln.jobs); k++ {
		if ln.jobs[k] != nil {
			ln.jobs[k].pos = k
		}
	}
}

// waits counts one more waiting job of a shape. Only few of the shapes of a long trace have any.
func (e *Engine) waits(s *shape) {
	if s.waiting++; s.waiting > 1 || s == e.other {
		return
	}
	at, _ := e.findShape(s)
	e.shapes = slices.Insert(e.shapes, at, s)
}

func (e *Engine) findShape(s *shape) (int, bool) {
	return slices.BinarySearchFunc(e.shapes, s.seq, func(x *shape, seq int) int { return cmp.Compare(x.seq, seq) })
}

// dequeue removes a job from the waiting jobs.
func (e *Engine) dequeue(l *Live) {
	if l.lane == nil {
		return
	}
	ln := l.lane
	ln.jobs[l.pos] = nil
	ln.n--
	if l.home.waiting--; l.home.waiting == 0 && l.home != e.other {
		at, _ := e.findShape(l.home)
		e.shapes = slices.Delete(e.shapes, at, at+1)
	}
	l.lane, l.home, l.pos = nil, nil, -1
	for ln.first < len(ln.jobs) && ln.jobs[ln.first] == nil {
		ln.first++
	}
	switch {
	case ln.n == 0:
		ln.jobs, ln.first = ln.jobs[:0], 0
	case len(ln.jobs) > 64 && ln.n < len(ln.jobs)/2:
		kept := ln.jobs[:0]
		for _, x := range ln.jobs {
			if x != nil {
				x.pos = len(kept)
				kept = append(kept, x)
			}
		}
		clear(ln.jobs[len(kept):])
		ln.jobs, ln.first = kept, 0
	}
}

// move puts a waiting job into the lanes for its reason to wait.
func (e *Engine) move(l *Live) {
	home := l.shape
	if l.otherwise() {
		home = e.other
	}
	if l.lane != nil && l.home != home {
		e.dequeue(l)
		e.insert(home, l)
	}
}

// freeOn marks a node as having freed resources.
func (e *Engine) freeOn(node int) {
	if !e.marked[node] {
		e.marked[node] = true
		e.freed = append(e.freed, node)
	}
}

// pick lists the jobs of the next pass. woken means that it is the first pass at this instant. narrow is true if all of
// them can only go to nodes that freed resources.
func (e *Engine) pick(woken bool) (pending []contend.Workload, narrow bool) {
	e.picked = e.picked[:0]
	if e.cfg.Whole || woken && (len(e.freed) > 0 || len(e.fresh) > 0) {
		e.take(e.other)
	}
	for _, l := range e.reserved {
		if !l.listed && l.End == 0 && (e.cfg.Whole || l.dirty || len(e.freed) > 0 && e.due(l)) {
			l.listed = true
			e.picked = append(e.picked, l)
		}
	}
	narrow = len(e.picked) == 0 && !e.cfg.Whole && e.narrowable
	if len(e.freed) > 0 || e.cfg.Whole {
		for _, s := range e.shapes {
			if e.cfg.Whole || s.refusedAt != e.instant && e.mayFit(s) {
				narrow = narrow && s.count <= 1
				from := len(e.picked)
				e.take(s)
				for _, l := range e.picked[from:] {
					narrow = narrow && e.hasReservation(l) && l.holds == 0 // else it needs a view of the nodes that it is on
				}
			}
		}
	}
	for _, l := range e.fresh {
		if !l.dirty || l.listed || l.End != 0 {
			continue
		}
		if !e.cfg.Whole && !e.cfg.Drop && e.hasReservation(l) && !e.room(l.shape) && !l.moving() {
			continue // another job of its queue has a reservation, and there is no room now: it keeps waiting
		}
		narrow = false
		l.listed = true
		e.picked = append(e.picked, l)
	}
	e.fresh = e.fresh[:0]
	if cap(e.pend) < len(e.picked) {
		e.pend = make([]contend.Workload, 0, 2*len(e.picked))
	}
	e.pend = e.pend[:0]
	refresh, _ := e.cfg.Predict.(interface{ Refresh(*Live) })
	for _, l := range e.picked {
		l.listed = false
		if refresh != nil {
			refresh.Refresh(l)
		}
		e.pend = append(e.pend, l.work)
	}
	return e.pend, narrow
}

// hasReservation reports whether another job of the job's queue has a reservation, so that the job would get none.
func (e *Engine) hasReservation(l *Live) bool {
	for _, p := range e.reserved {
		if p != l && p.Job.Job.Queue == l.Job.Job.Queue {
			return true
		}
	}
	return false
}

// due reports whether a job's reservation should be decided again: room may have appeared, its time has come, or a
// quarter of the remaining time has passed.
func (e *Engine) due(l *Live) bool {
	return l.refusedAt != e.instant && (e.now >= l.renew || e.mayFit(l.shape))
}

// room reports whether all nodes together may have room for a job of a shape.
func (e *Engine) room(s *shape) bool {
	if s.known == e.index {
		return s.room
	}
	s.known, s.room = e.index, false
	if !e.mostFree().has(s) {
		return false
	}
	left := max(s.count, 1)
	for i := range e.nodes {
		if left -= e.roomFor(&e.nodes[i], s); left <= 0 {
			s.room = true
			break
		}
	}
	return s.room
}

// mostFree returns, for each dimension, the most that is free on one ready node.
func (e *Engine) mostFree() *mostFree {
	m := &e.most
	if m.known != e.index {
		*m = mostFree{known: e.index}
		for i := range e.nodes {
			n := &e.nodes[i]
			if !n.node.Ready() {
				continue
			}
			f := n.total.Sub(n.used)
			m.free = structs.Vector{CPU: max(m.free.CPU, f.CPU), Cores: max(m.free.Cores, f.Cores), MemoryMiB: max(m.free.MemoryMiB, f.MemoryMiB), DiskMiB: max(m.free.DiskMiB, f.DiskMiB)}
			m.gpus = max(m.gpus, n.free)
		}
	}
	return m
}

// mostFree is the largest free amount of each dimension, at an index of the view.
type mostFree struct {
	known structs.Index
	free  structs.Vector
	gpus  int64
}

// has reports whether a node may have room for a shape.
func (m *mostFree) has(s *shape) bool {
	return (s.shared || s.gpus <= m.gpus) && s.need.Fits(m.free)
}

// part returns a view of only the nodes that freed resources.
func (e *Engine) part() *model.View {
	var ns []*structs.Node
	var as []*structs.Allocation
	for _, i := range e.freed {
		n := &e.nodes[i]
		ns = append(ns, n.node)
		for _, r := range n.list {
			as = append(as, r.alloc)
		}
	}
	return model.NewView(e.view.Index(), ns, as, e.cfg.Pools)
}

func (e *Engine) take(s *shape) {
	if s.waiting == 0 {
		return
	}
	left := e.cfg.Window
	if e.cfg.Whole {
		left = s.waiting
	}
	for _, ln := range s.lanes {
		for k := ln.first; k < len(ln.jobs) && left > 0; k++ {
			if l := ln.jobs[k]; l != nil && !l.listed && (l.refusedAt != e.instant || e.cfg.Whole || l.dirty) {
				l.listed = true
				e.picked = append(e.picked, l)
				left--
			}
		}
	}
}

// mayFit reports whether a node that freed resources has room for one allocation of a shape and, for a gang, whether
// all nodes together have room for enough of them.
func (e *Engine) mayFit(s *shape) bool {
	found := false
	for _, i := range e.freed {
		if e.roomFor(&e.nodes[i], s) > 0 {
			found = true
			break
		}
	}
	if !found || s.count <= 1 {
		return found
	}
	return e.room(s)
}

// roomFor returns an upper bound of how many allocations of a shape a node has room for.
func (e *Engine) roomFor(n *nodeState, s *shape) int64 {
	if n.free < s.gpus && !s.shared || !n.node.Ready() {
		return 0
	}
	free := n.total.Sub(n.used)
	if !s.need.Fits(free) {
		return 0
	}
	room := int64(1) << 30
	for _, c := range [...][2]int64{{s.need.CPU, free.CPU}, {s.need.Cores, free.Cores}, {s.need.MemoryMiB, free.MemoryMiB}, {s.need.DiskMiB, free.DiskMiB}} {
		if c[0] > 0 {
			room = min(room, c[1]/c[0])
		}
	}
	if s.gpus > 0 && !s.shared {
		room = min(room, n.free/s.gpus)
	}
	return room
}

// turns is a line that ends with the first workload that is placed, so that freed resources are considered again before
// the next search: a failed search costs as much as a successful one.
type turns struct {
	contend.Line
	over bool
}

// Next ends the pass after a workload was placed.
func (t *turns) Next() int {
	if t.over {
		return -1
	}
	return t.Line.Next()
}

// Placed implements contend.Line.
func (t *turns) Placed(i int, use structs.Amount) {
	t.Line.Placed(i, use)
	t.over = t.over || use != structs.Amount{}
}

// noRoom reports whether no node has room for any waiting job, so that a pass would place nothing. Jobs without a
// decision keep waiting for the next pass.
func (e *Engine) noRoom() bool {
	for i := range e.nodes {
		used, total, ok := e.view.Usage(e.nodes[i].node.ID)
		if !ok || slices.ContainsFunc(e.shapes, func(s *shape) bool { return used.Add(s.need).Fits(total) }) || e.otherFits(used, total) {
			return false
		}
	}
	return true
}

// otherFits reports whether a node has room for a job that waits for something other than room.
func (e *Engine) otherFits(used, total structs.Vector) bool {
	for _, ln := range e.other.lanes {
		for _, l := range ln.jobs[ln.first:] {
			if l != nil && used.Add(l.shape.need).Fits(total) {
				return true
			}
		}
	}
	return false
}
