package broker

import (
	"slices"
	"sort"

	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/structs"
)

// Image is the part of a state that Load needs.
type Image struct {
	Index structs.Index
	Nodes []*structs.Node
	Evals []*structs.Evaluation // not terminal; any order
}

// Load fills a new broker from a state. Blocked evaluations are ready at once, because the events since they were
// decided are not known.
func (b *Broker) Load(im Image, now structs.LogTime) {
	b.index = im.Index
	for _, n := range im.Nodes {
		b.pools[n.ID] = poolOf(n.Pool)
		b.domainOf(poolOf(n.Pool))
	}
	for _, e := range im.Evals {
		b.upsert(e, now)
		if j := b.jobs[e.JobKey()]; j != nil && j.blocked == e {
			b.unblockJob(j, now)
		}
	}
}

// Feed applies the changes of a batch of the log. After a delta with Restored, a new broker must be loaded.
func (b *Broker) Feed(d *structs.Delta, now structs.LogTime) {
	b.index = max(b.index, d.Index)
	for i := range d.Pools {
		switch c := &d.Pools[i]; {
		case c.After != nil && c.Before != nil:
			b.Unblock(c.After.Name, unblock.Any, d.Index, now)
		case c.After == nil && c.Before != nil:
			b.forget(c.Before.Name)
		}
	}
	if d.Config {
		b.unblockAll(unblock.Any, logged(d.Index), now)
	}
	b.usageChanged(d, now)
	for i := range d.Reserved {
		b.reservedChanged(&d.Reserved[i], d.Index, now)
	}
	for i := range d.Workloads {
		b.workloadChanged(&d.Workloads[i], now)
	}
	for i := range d.Workloads {
		b.priorityChanged(&d.Workloads[i], d.Index, now)
	}
	for i := range d.Jobs {
		b.jobChanged(&d.Jobs[i], now)
		b.gotOn(&d.Jobs[i], d.Index, now)
	}
	for i := range d.Nodes {
		b.nodeChanged(&d.Nodes[i], d.Index, now)
	}
	b.allocsChanged(d, now)
	b.saved(d, now)
	for i := range d.Evals {
		switch c := &d.Evals[i]; {
		case c.After != nil:
			b.upsert(c.After, now)
		case c.Before != nil:
			b.remove(c.Before.ID, now)
		}
	}
	b.release(now)
	b.expire(now)
}

// usageChanged unblocks jobs that a queue's or namespace's limit holds back: those in the subtree of a queue whose
// usage fell, or all of them when the limits changed.
func (b *Broker) usageChanged(d *structs.Delta, now structs.LogTime) {
	if len(d.Queues)+len(d.Quotas) > 0 {
		b.unblockAll(unblock.QueueUsage|unblock.ConfigChanged, logged(d.Index), now)
		return
	}
	if len(d.QueueUse)+len(d.Namespaces) == 0 {
		return
	}
	fell, tenants := map[structs.QueuePath]bool{}, len(d.Namespaces) > 0
	for i := range d.QueueUse {
		c := &d.QueueUse[i]
		if c.Before == nil || c.After != nil && !less(c.After, c.Before) {
			continue
		}
		fell[c.Before.Path] = true
		tenants = tenants || c.Before.Path.IsNamespace()
	}
	if len(fell) == 0 && !tenants {
		return
	}
	const kind = unblock.QueueUsage
	b.everywhere.note(kind, logged(d.Index))
	for _, name := range slices.Clone(b.names) {
		dom := b.domains[name]
		dom.last.note(kind, logged(d.Index))
		var woken []*job
		for g := range dom.waiting {
			if dom.waiting[g].events&kind == 0 {
				continue
			}
			for _, j := range dom.waiting[g].jobs {
				if tenants || under(j.workload.Queue, fell) {
					woken = append(woken, j)
				}
			}
		}
		for _, j := range woken {
			b.unblockJob(j, now)
		}
		b.Counters.Unblocked += int64(len(woken))
	}
}

// reservedChanged unblocks jobs held back by a reservation that is gone, or by an operator's reservation that changed.
// A reservation that a pass moves is no event: the jobs that it affects were decided in the same pass.
func (b *Broker) reservedChanged(c *structs.Changed[structs.Reservation], at structs.Index, now structs.LogTime) {
	if c.Before == nil || c.After != nil && c.After.JobID != "" {
		return
	}
	if pool := c.Before.Domain; pool != "" && pool != DomainAll {
		b.Unblock(pool, unblock.ReservationGone, at, now)
		return
	}
	b.unblockAll(unblock.ReservationGone, logged(at), now)
}

// less reports whether usage fell in any dimension.
func less(now, was *structs.QueueUsage) bool {
	_, over := was.Held.Exceeds(now.Held)
	return over > 0 || now.Jobs < was.Jobs || now.Ends < was.Ends
}

// under reports whether a queue or one above it is in the set.
func under(path structs.QueuePath, set map[structs.QueuePath]bool) bool {
	if path == "" {
		path = structs.QueueDefault
	}
	for p := range path.Lineage() {
		if set[p] {
			return true
		}
	}
	return false
}

// nodeChanged records a node's pool. A node that became ready, or changed while ready, may cure any refusal. A node
// that is gone frees no capacity, but affinities to what it held, rules that kept work away from it, and its share of a
// power budget no longer apply.
func (b *Broker) nodeChanged(c *structs.Changed[structs.Node], at structs.Index, now structs.LogTime) {
	if c.After == nil {
		if c.Before != nil {
			delete(b.pools, c.Before.ID)
			b.Unblock(poolOf(c.Before.Pool), unblock.AllocStopped, at, now)
		}
		return
	}
	n := c.After
	b.pools[n.ID] = poolOf(n.Pool)
	if !n.Ready() {
		return
	}
	if c.Before == nil || !c.Before.Ready() || c.Before.Epoch != n.Epoch || c.Before.Pool != n.Pool {
		b.Unblock(poolOf(n.Pool), unblock.Any, at, now)
	}
}

// allocsChanged unblocks jobs that freed resources may help, once for each pool.
func (b *Broker) allocsChanged(d *structs.Delta, now structs.LogTime) {
	last := structs.PoolName("") // consecutive allocations are usually in one pool
	for i := range d.Allocs {
		c := &d.Allocs[i]
		if c.After != nil && (c.Before == nil || c.Before.JobVersion != c.After.JobVersion) {
			b.inform(c.After, unblock.AllocPlaced, d.Index, now)
		}
		if c.Before == nil || !structs.Holds(c.Before) {
			continue
		}
		if c.After != nil && structs.Holds(c.After) && c.Before.Resources.Fits(c.After.Resources) &&
			len(c.Before.WaitsOn) == len(c.After.WaitsOn) {
			continue // frees nothing
		}
		if pool, known := b.pools[c.Before.NodeID]; known && pool != last {
			last = pool
			b.Unblock(pool, unblock.AllocStopped, d.Index, now)
		}
	}
}

// inform unblocks jobs that wait for an event of other work which frees nothing, and which few jobs wait for: it was
// placed, and they wait to be near it, or are kept away by it (AllocPlaced); or it would lose less now (Saved).
func (b *Broker) inform(a *structs.Allocation, what unblock.EventSet, at structs.Index, now structs.LogTime) {
	pool, known := b.pools[a.NodeID]
	for _, name := range [...]structs.PoolName{pool, DomainAll} {
		dom := b.domains[name]
		if !known || dom == nil {
			continue
		}
		dom.last.note(what, logged(at))
		if slices.ContainsFunc(dom.waiting, func(g group) bool { return g.events&what != 0 && len(g.jobs) > 0 }) {
			b.unblock(dom, what, logged(at), now)
		}
	}
}

// jobChanged updates an entry that has no replicated workload, whose domain and priority come from the job.
func (b *Broker) jobChanged(c *structs.Changed[structs.Job], now structs.LogTime) {
	if c.After == nil {
		return
	}
	j := b.jobs[c.After.Key()]
	if j == nil || j.replica {
		return
	}
	w := *j.workload
	w.Priority, w.Domain = c.After.Priority, poolOf(c.After.NodePool)
	b.setWorkload(j, &w, now)
}

func (b *Broker) workloadChanged(c *structs.Changed[structs.Workload], now structs.LogTime) {
	w := c.After
	if w == nil {
		w = c.Before
	}
	if w == nil {
		return
	}
	j := b.jobs[structs.JobKey{Namespace: w.Namespace, ID: w.JobID}]
	if j == nil {
		return // its workload is looked up when it gets an evaluation
	}
	j.replica = c.After != nil
	b.setWorkload(j, w, now)
}

// priorityChanged unblocks a job's whole domain when the job's priority changes, because its reservation and its
// running work may now lose to others.
func (b *Broker) priorityChanged(c *structs.Changed[structs.Workload], at structs.Index, now structs.LogTime) {
	if c.Before == nil || c.After == nil || c.Before.Priority == c.After.Priority {
		return
	}
	if pool := poolOf(c.After.Domain); pool != DomainAll {
		b.Unblock(pool, unblock.Any, at, now)
		return
	}
	b.unblockAll(unblock.Any, logged(at), now)
}

// setWorkload updates an entry's place in the order, and its domain.
func (b *Broker) setWorkload(j *job, w *structs.Workload, now structs.LogTime) {
	if to := poolOf(w.Domain); to != j.domain {
		if j.pos >= 0 {
			b.domainOf(j.domain).ready.remove(j.pos)
		}
		b.unwait(j)
		j.unblocked = j.blocked != nil // what did not fit in the old domain may fit in this one
		j.domain, j.workload = to, w
		b.settle(j, now)
		return
	}
	j.workload = w
	if j.pos >= 0 {
		b.domainOf(j.domain).ready.fix(j.pos)
	}
}

// upsert records the newest content of an evaluation.
func (b *Broker) upsert(e *structs.Evaluation, now structs.LogTime) {
	old := b.detach(e.ID)
	if e.Terminal() {
		if old != nil {
			b.settle(old, now)
			b.maybeDrop(old)
		}
		return
	}
	j := b.entry(e)
	r := &evalRef{eval: e, job: j}
	b.evals[e.ID] = r
	j.open++
	late := e.WaitUntil > now
	if late {
		r.timer = b.timers.add(&timer{at: e.WaitUntil, index: e.CreateIndex, eval: e.ID})
		b.Counters.Delayed++
	}
	switch {
	case e.Status == structs.EvalBlocked:
		j.blocked, j.unblocked, j.events = e, false, unblock.UnblockingEvents(e.FailedGroups)
		if e.WaitUntil != 0 && !late {
			j.unblocked = true // its time came while the decision was being committed
			break
		}
		b.wait(j, max(e.SnapshotIndex, j.seen))
	case !late:
		j.addPending(e)
	}
	b.settle(j, now)
}

// wait makes a job's blocked evaluation, decided on the state at since, wait for an event that unblocks it. If such an
// event has happened since that state, nothing would wake it, so it becomes ready at once.
func (b *Broker) wait(j *job, since structs.Index) {
	d := b.domainOf(j.domain)
	if d.last.since(j.events, stamp{since, j.without}) {
		j.unblocked = true
		b.Counters.Raced++
		return
	}
	if j.events&unblock.JobEnded != 0 && b.follow(j, since) {
		j.unblocked = true
		b.Counters.Raced++
		return
	}
	i, found := slices.BinarySearchFunc(d.waiting, j.events, func(g group, c unblock.EventSet) int { return int(g.events) - int(c) })
	if !found {
		d.waiting = slices.Insert(d.waiting, i, group{events: j.events})
	}
	g := &d.waiting[i]
	j.wpos = len(g.jobs)
	g.jobs = append(g.jobs, j)
}

// unwait removes a job from the waiting ones.
func (b *Broker) unwait(j *job) {
	if j.wpos < 0 {
		return
	}
	d := b.domainOf(j.domain)
	i, _ := slices.BinarySearchFunc(d.waiting, j.events, func(g group, c unblock.EventSet) int { return int(g.events) - int(c) })
	g := &d.waiting[i]
	last := len(g.jobs) - 1
	g.jobs[j.wpos] = g.jobs[last]
	g.jobs[j.wpos].wpos = j.wpos
	g.jobs[last] = nil
	g.jobs = g.jobs[:last]
	j.wpos = -1
	b.unfollow(j)
}

// Unblock records that events of some kinds happened in a pool at an index. It makes ready the blocked jobs of the
// pool, and those that span pools, whose decision they may change.
func (b *Broker) Unblock(pool structs.PoolName, what unblock.EventSet, at structs.Index, now structs.LogTime) {
	b.unblockIn(pool, what, logged(at), now)
}

func (b *Broker) unblockIn(pool structs.PoolName, what unblock.EventSet, at stamp, now structs.LogTime) {
	b.unblock(b.domainOf(pool), what, at, now)
	if pool != DomainAll {
		b.unblock(b.domainOf(DomainAll), what, at, now)
	}
}

// Freed records that a plan in flight was dropped. Jobs that were refused because of its resources are tried again,
// even if they saw the newest state. With DomainAll the plan may have held resources in any pool.
func (b *Broker) Freed(pool structs.PoolName, now structs.LogTime) {
	b.dropped++
	at := stamp{dropped: b.dropped}
	b.unblockAll(unblock.QueueUsage, at, now) // limits of queues span all pools
	if pool != DomainAll {
		b.unblockIn(pool, unblock.AllocStopped, at, now)
		return
	}
	b.unblockAll(unblock.AllocStopped, at, now)
}

// unblockAll unblocks in all domains, including those that are made later.
func (b *Broker) unblockAll(what unblock.EventSet, at stamp, now structs.LogTime) {
	b.everywhere.note(what, at)
	for _, name := range slices.Clone(b.names) {
		b.unblock(b.domains[name], what, at, now)
	}
}

func (b *Broker) unblock(d *domain, what unblock.EventSet, at stamp, now structs.LogTime) {
	d.last.note(what, at)
	waited, woke := 0, 0
	for i := range d.waiting {
		g := &d.waiting[i]
		waited += len(g.jobs)
		if g.events&what == 0 {
			continue
		}
		for n := len(g.jobs); n > 0; n = len(g.jobs) {
			woke++
			b.unblockJob(g.jobs[n-1], now)
		}
	}
	if waited > 0 && woke == 0 {
		b.Counters.Skipped++
	}
	b.Counters.Unblocked += int64(woke)
}

func (b *Broker) unblockJob(j *job, now structs.LogTime) {
	b.unwait(j)
	j.unblocked = true
	b.settle(j, now)
}

// remove forgets an evaluation.
func (b *Broker) remove(id structs.EvalID, now structs.LogTime) {
	if j := b.detach(id); j != nil {
		b.settle(j, now)
		b.maybeDrop(j)
	}
}

// detach removes an evaluation from its job and returns the job, or nil if the evaluation is unknown.
func (b *Broker) detach(id structs.EvalID) *job {
	r := b.evals[id]
	if r == nil {
		return nil
	}
	delete(b.evals, id)
	if r.timer != nil {
		b.timers.remove(r.timer)
	}
	j := r.job
	j.open--
	if j.blocked == r.eval {
		b.unwait(j)
		j.blocked, j.unblocked, j.events = nil, false, 0
	}
	if i := slices.Index(j.pending, r.eval); i >= 0 {
		j.pending = slices.Delete(j.pending, i, i+1)
	}
	return j
}

// addPending keeps pending sorted by (CreateIndex, id).
func (j *job) addPending(e *structs.Evaluation) {
	i := sort.Search(len(j.pending), func(i int) bool { return evalLess(e, j.pending[i]) })
	j.pending = slices.Insert(j.pending, i, e)
}

func evalLess(a, b *structs.Evaluation) bool {
	if a.CreateIndex != b.CreateIndex {
		return a.CreateIndex < b.CreateIndex
	}
	return string(a.ID[:]) < string(b.ID[:])
}

// settle adds a job to its domain's ready heap or removes it, as the job's fields require.
func (b *Broker) settle(j *job, now structs.LogTime) {
	want := !j.flight && j.notUntil <= now &&
		(len(j.pending) > 0 || j.unblocked && j.blocked != nil || j.spec != nil)
	d := b.domainOf(j.domain)
	switch {
	case want && j.pos < 0:
		d.ready.push(j)
	case !want && j.pos >= 0:
		d.ready.remove(j.pos)
	}
}

// entry returns the entry of an evaluation's job, and makes it if there is none.
func (b *Broker) entry(e *structs.Evaluation) *job {
	key := e.JobKey()
	j := b.jobs[key]
	if j != nil {
		return j
	}
	j = &job{key: key, pos: -1, wpos: -1}
	if b.env.Lookup != nil {
		j.workload = b.env.Lookup(key)
		j.replica = j.workload != nil
	}
	if j.workload == nil {
		j.workload = &structs.Workload{
			Namespace: key.Namespace, JobID: key.ID, Domain: structs.NodePoolDefault,
			SubmitIndex: e.CreateIndex, SubmitTime: e.CreateTime, Priority: e.Priority,
		}
	}
	j.domain = poolOf(j.workload.Domain)
	b.jobs[key] = j
	return j
}

// maybeDrop deletes a job's entry when nothing about the job is open.
func (b *Broker) maybeDrop(j *job) {
	if j.open > 0 || j.flight || j.spec != nil {
		return
	}
	if j.wake != nil {
		b.timers.remove(j.wake)
	}
	if b.jobs[j.key] == j {
		delete(b.jobs, j.key)
	}
}

// domainOf returns the domain of a pool, and makes it if there is none.
func (b *Broker) domainOf(name structs.PoolName) *domain {
	d := b.domains[name]
	if d == nil {
		d = &domain{name: name, last: b.everywhere}
		b.domains[name] = d
		i, _ := slices.BinarySearch(b.names, name)
		b.names = slices.Insert(b.names, i, name)
	}
	return d
}

// forget drops the domain of a deleted pool if it is empty.
func (b *Broker) forget(name structs.PoolName) {
	d := b.domains[name]
	if d == nil || d.busy || len(d.ready.jobs) > 0 {
		return
	}
	for i := range d.waiting {
		if len(d.waiting[i].jobs) > 0 {
			return
		}
	}
	for _, j := range b.jobs { // map order does not matter: only asks whether one exists
		if j.domain == name {
			return
		}
	}
	b.WakeAt(name, 0)
	delete(b.domains, name)
	if i, found := slices.BinarySearch(b.names, name); found {
		b.names = slices.Delete(b.names, i, i+1)
	}
}

func poolOf(name structs.PoolName) structs.PoolName {
	if name == "" {
		return structs.NodePoolDefault
	}
	return name
}
