package queue

import (
	"container/heap"
	"fmt"
	"math"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Line orders the workloads of a pass over the tree of queues. At each node the heads of its child queues and of its
// own workloads compete:
//
//	root ── org ─┬─ team a ── workloads (of one lane, or of one lane a submitter)
//	             └─ team b ── ...
//
// A node whose order is a Sharer lets child queues and submitters take turns by their shares, which change while the
// pass places. Any other order compares the heads by its key, so a child queue then counts for no more than its
// workloads do. Two rules come before both: work within its queue's guarantee goes before the rest, and work beyond a
// soft limit, of its queue or of its namespace's quota, after it. Under an order by key, work that has waited longer than its queue's MaxWait goes first, the
// longest wait in front, so that no order starves work. The adaptive order ensures that by itself among work of one
// priority: there such work counts as of the highest priority that waits, and goes first only when the queue is
// configured with a bound.
//
// Naive: sort everything by shares once. Then one pass gives all free capacity to the submitter with the least share
// when it began.
type Line struct {
	table   *contend.QueueTable
	pending []contend.Workload
	nodes   map[structs.QueuePath]*node
	root    *node
	of      []*lane               // of each pending workload
	lanes   []*lane               // by their first workload in pending
	top     int                   // the highest priority that waits
	soft    map[string]*softQuota // by namespace; nil: no quota has a soft limit
	given   *lane                 // the lane whose first workload was returned last: it has left, and its next one is not known yet; nil: none
}

// node is one queue of the tree with something pending below it.
type node struct {
	path   structs.QueuePath
	parent *node
	order  Order
	share  Sharer        // order, when it is one
	first  firster       // order, when other orders come before its shares; else nil
	odd    structs.Order // its order if this build does not know it; else ""
	aware  bool          // order knows run times: see Adaptive.KnowsRunTimes
	bound  waitBound     // on waiting
	scene  Scene
	queue  *structs.Queue // as configured; nil: all settings are inherited
	held   structs.Amount // including what the pass has placed
	models *softModels    // the queue's soft limits by GPU model; nil: none
	turns  contest        // child queues and lanes with something left
	in     *entrant       // in the contest of the parent; nil for the root
}

// entrant takes part in the contest of a node: a child queue, or a lane of its own workloads.
type entrant struct {
	Entity
	kid  *node // nil for a lane
	lane *lane
	head int   // its first workload, in pending
	over bool  // the head is beyond the soft limit of its quota
	late int64 // when the head's waiting beyond its bound began; notLate: it has not
	rank rank
	at   int // in the contest's heap; -1 outside
}

// rank is an entrant's place in its contest: the smallest first.
type rank struct {
	class int // guarantee, normal, overSoftLimit
	late  int64
	first Key // before shares
	share int64
	key   Key
}

// firster is a Sharer with orders before the shares.
type firster interface {
	First(w *contend.Workload, at *Scene) Key
}

const (
	withinGuarantee = iota
	normal
	overSoftLimit
)

// lane is the workloads of one queue in order: of one submitter under a Sharer, else all.
type lane struct {
	node   *node
	in     *entrant
	work   []item // the first is in front; a heap once a second one was needed
	all    []item // the original content of work
	heaped bool
	byTime bool // one was blocked: the rest is tried by run time
}

type item struct {
	load int
	over bool  // beyond the soft limit of its quota
	late int64 // when waiting beyond the bound began; notLate: it has not
	key  Key
}

const notLate = 1<<63 - 1

// NewLine orders pending work by the configured queues and their present usage. Work in queues that do not exist is
// ordered by the settings that such a queue would inherit. seed is that of lotteries where the table has no draw.
func NewLine(table *contend.QueueTable, cfg structs.SchedulerConfig, pending []contend.Workload, now structs.LogTime, seed uint64) *Line {
	l := &Line{}
	l.Begin(table, cfg, pending, now, seed)
	return l
}

// Begin is NewLine in the memory of a line that is no longer used.
func (l *Line) Begin(table *contend.QueueTable, cfg structs.SchedulerConfig, pending []contend.Workload, now structs.LogTime, seed uint64) {
	var room []item // of the previously largest lane
	for _, ln := range l.lanes {
		if cap(ln.all) > cap(room) {
			room = ln.all[:0]
		}
	}
	*l = Line{table: table, pending: pending, nodes: map[structs.QueuePath]*node{}, of: append(l.of[:0], make([]*lane, len(pending))...), soft: softQuotas(table)}
	for i := range pending {
		l.top = max(l.top, pending[i].Priority())
	}
	seed = table.Draw(seed)
	lanes := map[laneKey]*lane{}
	var order []*lane
	var n *node
	var last *lane
	var path structs.QueuePath
	for i := range pending {
		w := &pending[i]
		if name := w.QueueName(); n == nil || name != path {
			n, path, last = l.node(name, &cfg, now, seed), name, nil
		}
		k := laneKey{n, ""}
		if n.share != nil {
			k.user, last = w.User(), nil
		}
		ln := last
		if ln == nil {
			ln = lanes[k]
		}
		if ln == nil {
			ln = &lane{node: n}
			ln.in = &entrant{Entity: Entity{Name: k.user, Weight: n.scene.Queue.UserWeight(k.user)}, lane: ln, at: -1}
			if n.share != nil {
				if u := table.Use(n.path, k.user); u != nil && k.user != "" {
					ln.in.Usage, ln.in.Held = u, u.Held
				}
			}
			if len(order) == 0 { // mostly there is one lane
				if ln.work = room; cap(room) < len(pending) {
					ln.work = make([]item, 0, len(pending)+len(pending)/4)
				}
			}
			lanes[k] = ln
			order = append(order, ln)
		}
		last = ln
		l.of[i] = ln
		it := item{load: i, late: notLate, key: l.key(n, i)}
		if since, late := n.bound.first(w, now); late {
			it.late = int64(since)
		}
		it.over = l.soft[w.Key.Namespace].overBound(w)
		ln.work = append(ln.work, it)
	}
	l.lanes = order
	for _, ln := range order {
		ln.all = ln.work
		l.front(ln)
		l.enter(ln.node, ln.in)
	}
}

type laneKey struct {
	node *node
	user string
}

// node returns the node of a path. It creates the node and its ancestors if they are new.
func (l *Line) node(path structs.QueuePath, cfg *structs.SchedulerConfig, now structs.LogTime, seed uint64) *node {
	if n := l.nodes[path]; n != nil {
		return n
	}
	n := &node{path: path, queue: l.table.Queue(path)}
	n.scene = Scene{Now: now, Seed: seed, Queue: l.table.Settings(path, cfg)}
	if l.table != nil {
		n.scene.Total, n.scene.Turnover = l.table.Total, l.table.Turnover
		n.scene.Total.Billed = n.scene.Queue.Billing.OfCluster(l.table.Total, l.table.Models)
	}
	n.order = Named(n.scene.Queue.Order)
	if !Known(n.scene.Queue.Order) {
		n.odd = n.scene.Queue.Order
	}
	n.share, _ = n.order.(Sharer)
	n.first, _ = n.order.(firster)
	_, n.aware = n.order.(interface{ KnowsRunTimes() })
	n.bound = boundOf(&n.scene.Queue, n.aware && l.table.Configured(path).MaxWait > 0)
	n.turns.less = l.before
	var models []structs.ModelAmount
	if u := l.table.Use(path, ""); u != nil {
		n.held, models = u.Held, u.Models
	}
	if n.queue != nil {
		n.models = newSoftModels(l.table, n.queue.SoftLimitModels, models)
	}
	l.nodes[path] = n
	if path == structs.QueueRoot {
		l.root = n
		return n
	}
	n.in = &entrant{Entity: Entity{Name: string(path), Weight: n.scene.Queue.Weight, Usage: l.table.Use(path, "")}, kid: n, at: -1}
	n.parent = l.node(path.Parent(), cfg, now, seed)
	return n
}

// enter adds an entrant, which must have a head, to the contest of a node, and the node to that of its parent.
func (l *Line) enter(n *node, e *entrant) {
	l.rate(n, e)
	heap.Push(&n.turns, e)
	l.lift(n)
}

// lift updates the ancestors of a node for its new head.
func (l *Line) lift(n *node) {
	for ; n.parent != nil; n = n.parent {
		p, e := n.parent, n.in
		switch {
		case len(n.turns.in) == 0 && e.at >= 0:
			heap.Remove(&p.turns, e.at)
		case len(n.turns.in) == 0:
		case e.at < 0:
			l.rate(p, e)
			heap.Push(&p.turns, e)
		default:
			l.rate(p, e)
			heap.Fix(&p.turns, e.at)
		}
	}
}

// rate computes an entrant's place in the contest of a node.
func (l *Line) rate(n *node, e *entrant) {
	e.rank = rank{class: normal, late: notLate}
	if e.kid != nil {
		best := e.kid.turns.in[0]
		e.head, e.over, e.late, e.Held = best.head, best.over, best.late, e.kid.held
		e.rank.class = l.class(e.kid, e.head)
	} else {
		top := &e.lane.work[0]
		e.head, e.over, e.late, e.rank.key = top.load, top.over, top.late, top.key
	}
	if e.over {
		e.rank.class = overSoftLimit
	}
	switch {
	case n.share != nil: // turns are taken by share; within a lane late workloads go first
		e.rank.share, e.rank.key = n.share.Share(&e.Entity, &n.scene), Key{}
		if n.first != nil {
			e.rank.first = n.first.First(&l.pending[e.head], &n.scene)
			if e.late != notLate {
				e.rank.first = Key{math.MinInt64} // nothing but the share goes before late work
			}
		}
	default:
		e.rank.late = e.late
		if e.kid != nil {
			e.rank.key = l.key(n, e.head)
		}
	}
}

// key returns the key of a workload by the order of a node.
func (l *Line) key(n *node, i int) Key {
	k := n.order.Key(&l.pending[i], &n.scene)
	if n.bound.lifted(&l.pending[i], n.scene.Now, l.top) {
		k[0] = -int64(l.top) // adaptive: the priority
	}
	return k
}

// class returns the class of a queue's head by the queue's guarantee and soft limit.
func (l *Line) class(n *node, head int) int {
	if n.queue == nil || n.queue.Guarantee == nil && n.queue.SoftLimit == nil && n.models == nil {
		return normal
	}
	after := n.held.Add(l.pending[head].Asks())
	if g := n.queue.Guarantee; g != nil {
		bound := *g // resources without a guarantee do not count
		for _, c := range []*int64{&bound.GPUMilli, &bound.GPUMemoryMiB, &bound.CPU, &bound.MemoryMiB} {
			if *c == 0 {
				*c = structs.AmountNoLimit
			}
		}
		if _, over := after.Exceeds(bound); over == 0 && *g != (structs.Amount{}) {
			return withinGuarantee
		}
	}
	if n.models.overBound(&l.pending[head]) {
		return overSoftLimit
	}
	if s := n.queue.SoftLimit; s != nil {
		if _, over := after.Exceeds(*s); over > 0 {
			return overSoftLimit
		}
	}
	return normal
}

// before orders two entrants of one contest.
func (l *Line) before(a, b *entrant) bool {
	x, y := &a.rank, &b.rank
	switch {
	case x.class != y.class:
		return x.class < y.class
	case x.late != y.late:
		return x.late < y.late
	case x.first != y.first:
		return x.first.Less(y.first)
	case x.share != y.share:
		return x.share < y.share
	case x.key != y.key:
		return x.key.Less(y.key)
	}
	return l.earlier(a.head, b.head)
}

// earlier is the last tie-break: submit index, then job.
func (l *Line) earlier(i, k int) bool {
	a, b := &l.pending[i], &l.pending[k]
	if x, y := a.Submitted(), b.Submitted(); x != y {
		return x < y
	}
	if a.Key != b.Key {
		return a.Key.Less(b.Key)
	}
	return i < k
}

// Next returns the workload whose turn it is.
func (l *Line) Next() int {
	l.refit()
	if l.root == nil || len(l.root.turns.in) == 0 {
		return -1
	}
	for l.soft != nil && l.settle(l.foremost()) {
	}
	n := l.root
	for n.turns.in[0].kid != nil {
		e := n.turns.in[0]
		e.Last, e.Turns = e.rank.share, e.Turns+1
		n = e.kid
	}
	e := n.turns.in[0]
	e.Last, e.Turns = e.rank.share, e.Turns+1
	l.given = e.lane
	return e.lane.work[0].load
}

// refit removes the workload that was returned last from its lane. It waits until the next workload is needed, because
// often most of the lane is pruned before.
func (l *Line) refit() {
	ln := l.given
	if ln == nil {
		return
	}
	l.given = nil
	w := ln.work
	w[0] = w[len(w)-1]
	ln.work = w[:len(w)-1]
	if ln.heaped {
		l.sink(ln.work, 0)
	} else {
		l.heapify(ln)
	}
	l.reseat(ln)
}

// reseat moves a lane with another head, or with none, to its place in the contests.
func (l *Line) reseat(ln *lane) {
	n := ln.node
	if len(ln.work) == 0 {
		heap.Remove(&n.turns, ln.in.at)
	} else {
		l.rate(n, ln.in)
		heap.Fix(&n.turns, ln.in.at)
	}
	l.lift(n)
}

// Placed updates the shares of the workload's submitter, of its queue and of those above.
func (l *Line) Placed(i int, use structs.Amount) {
	if use == (structs.Amount{}) {
		return
	}
	l.refit()
	ln := l.of[i]
	ln.in.Held = ln.in.Held.Add(use)
	n := ln.node
	for up := n; up != nil; up = up.parent {
		up.held = up.held.Add(use)
		up.models.placed(&l.pending[i], use)
	}
	if s := l.soft[l.pending[i].Key.Namespace]; s != nil {
		s.held = s.held.Add(use)
		s.models.placed(&l.pending[i], use)
	}
	if ln.in.at >= 0 {
		l.rate(n, ln.in)
		heap.Fix(&n.turns, ln.in.at)
	}
	l.lift(n)
}

// Taken is Placed with all that the workload asks for. It gives the order that users see before it is known what finds
// a place. With nothing placed, one submitter's whole list would come before the first workload of another with an
// equal share.
func (l *Line) Taken(i int) {
	w := &l.pending[i]
	use := w.Asks()
	if b := l.of[i].node.scene.Queue.Billing; b != nil && w.Job != nil {
		for _, g := range w.Job.Groups {
			use.Billed += b.OfGroup(g) * int64(max(g.Count, 1))
		}
	}
	l.Placed(i, use)
}

// Blocked records that something of a workload found no place. If the queue backfills by run time, the rest of the lane
// is tried by run time from now on; work without a known end is last. Orders by deadline keep their order: work with
// the least time left is tried first even when it backfills.
func (l *Line) Blocked(i int) {
	ln := l.of[i]
	n := ln.node
	if ln.byTime || n.aware || n.scene.Queue.Order.Has(structs.OrderEDF) || n.scene.Queue.Backfill != structs.BackfillSJF {
		return
	}
	l.refit()
	ln.byTime = true
	if len(ln.work) == 0 {
		return
	}
	for k := range ln.work {
		it := &ln.work[k]
		w := &l.pending[it.load]
		it.key = Key{-int64(w.Priority()), int64(n.scene.Expect(w))}
		if it.key[1] == 0 {
			it.key[1] = 1<<63 - 1
		}
	}
	l.heapify(ln)
	l.reseat(ln)
}

// Prune removes the workloads still to come for which noFit is true.
func (l *Line) Prune(noFit func(i int) bool) {
	for _, ln := range l.lanes {
		if len(ln.work) == 0 {
			continue
		}
		kept := ln.work[:0]
		if l.given == ln {
			kept = ln.work[:1]
		}
		for _, it := range ln.work[len(kept):] {
			if !noFit(it.load) {
				kept = append(kept, it)
			}
		}
		if len(kept) == len(ln.work) {
			continue
		}
		ln.work = kept
		if l.given == ln { // its next workload is found when the given one is removed
			ln.heaped = false
			continue
		}
		l.heapify(ln)
		l.reseat(ln)
	}
}

// Terms explain the place of a workload, from the root down: the share of every queue and submitter on the way that
// takes turns, then the terms of its own queue's order.
func (l *Line) Terms(i int) []structs.ScoreTerm {
	ln := l.of[i]
	var out []structs.ScoreTerm
	if ln.node.share != nil {
		out = append(out, structs.ScoreTerm{Name: "share of " + ln.in.Name, Micro: ln.node.share.Share(&ln.in.Entity, &ln.node.scene) / (nano / micro)})
	}
	for n := ln.node; n.parent != nil; n = n.parent {
		if n.parent.share != nil {
			e := n.in.Entity
			e.Held = n.held
			out = append(out, structs.ScoreTerm{Name: "share of " + string(n.path), Micro: n.parent.share.Share(&e, &n.parent.scene) / (nano / micro)})
		}
	}
	slices.Reverse(out)
	if odd := ln.node.odd; odd != "" {
		out = append(out, structs.ScoreTerm{Name: fmt.Sprintf("order %q is unknown to this version, so by %s", odd, ln.node.order.Name())})
	}
	if w := &l.pending[i]; l.soft[w.Key.Namespace].overBound(w) {
		out = append(out, structs.ScoreTerm{Name: fmt.Sprintf("beyond the soft limit of quota %q", l.soft[w.Key.Namespace].quota)})
	}
	if ln.node.bound.lifted(&l.pending[i], ln.node.scene.Now, l.top) {
		out = append(out, structs.ScoreTerm{Name: "priority after max_wait", Micro: micro * int64(l.top)})
	}
	return append(out, ln.node.order.Terms(&l.pending[i], &ln.node.scene)...)
}

// contest is a heap of entrants.
type contest struct {
	in   []*entrant
	less func(a, b *entrant) bool
}

func (c *contest) Len() int           { return len(c.in) }
func (c *contest) Less(i, k int) bool { return c.less(c.in[i], c.in[k]) }
func (c *contest) Swap(i, k int) {
	c.in[i], c.in[k] = c.in[k], c.in[i]
	c.in[i].at, c.in[k].at = i, k
}
func (c *contest) Push(x any) {
	e := x.(*entrant)
	e.at = len(c.in)
	c.in = append(c.in, e)
}
func (c *contest) Pop() any {
	e := c.in[len(c.in)-1]
	c.in, e.at = c.in[:len(c.in)-1], -1
	return e
}

// less orders the workloads of a lane.
func (l *Line) less(a, b *item) bool {
	switch {
	case a.over != b.over:
		return b.over
	case a.late != b.late:
		return a.late < b.late
	case a.key != b.key:
		return a.key.Less(b.key)
	}
	return l.earlier(a.load, b.load)
}

// front brings the first workload of a lane to the front. The rest is not sorted: many passes need no more.
func (l *Line) front(ln *lane) {
	w, at := ln.work, 0
	for i := 1; i < len(w); i++ {
		if l.less(&w[i], &w[at]) {
			at = i
		}
	}
	w[0], w[at] = w[at], w[0]
}

// heapify makes a lane a heap.
func (l *Line) heapify(ln *lane) {
	for i := len(ln.work)/2 - 1; i >= 0; i-- {
		l.sink(ln.work, i)
	}
	ln.heaped = true
}

// sink restores the heap below a place.
func (l *Line) sink(w []item, i int) {
	for {
		k := 2*i + 1
		if k >= len(w) {
			return
		}
		if k+1 < len(w) && l.less(&w[k+1], &w[k]) {
			k++
		}
		if !l.less(&w[k], &w[i]) {
			return
		}
		w[i], w[k] = w[k], w[i]
		i = k
	}
}
