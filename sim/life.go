package sim

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// hold accounts a run on its node and in the metrics, or (n = -1) removes it.
func (e *Engine) hold(r *run, n int64) {
	s := &e.nodes[r.node]
	for i := range r.alloc.Grants {
		g := &r.alloc.Grants[i]
		if !g.IsGPU() {
			continue
		}
		if s.inUse == nil {
			s.inUse = map[string]int32{}
		}
		was := s.inUse[g.Instance]
		is := was + int32(n)
		s.inUse[g.Instance] = is
		switch {
		case was == 0 && is > 0:
			s.free--
		case was > 0 && is == 0:
			s.free++
			delete(s.inUse, g.Instance)
		}
	}
	s.runs += n
	if n > 0 {
		s.used = s.used.Add(r.alloc.Resources)
		s.list = append(s.list, r)
	} else {
		s.used = s.used.Sub(r.alloc.Resources)
		s.list = slices.DeleteFunc(s.list, func(x *run) bool { return x == r })
	}
	if e.cfg.Notice {
		s.used = s.together()
	}
	e.stats.held(r, n)
	l := r.live
	l.holds += int(n)
	e.usage.charge(e, r, n)
	switch {
	case n > 0 && l.holds == 1:
		e.link(l)
	case l.holds == 0:
		e.unlink(l)
	}
	if n < 0 {
		e.freeOn(r.node)
	}
}

// together returns what runs occupy of a node, of which some may wait for the places of others.
func (s *nodeState) together() structs.Vector {
	allocs := make([]*structs.Allocation, len(s.list))
	for i, r := range s.list {
		allocs[i] = r.alloc
	}
	return structs.Usage(allocs)
}

// link and unlink keep the list of jobs that hold resources, in the order in which they got them.
func (e *Engine) link(l *Live) {
	l.prevHolder = e.lastHolder
	if e.lastHolder != nil {
		e.lastHolder.nextHolder = l
	} else {
		e.holders = l
	}
	e.lastHolder = l
}

func (e *Engine) unlink(l *Live) {
	if l.prevHolder != nil {
		l.prevHolder.nextHolder = l.nextHolder
	} else {
		e.holders = l.nextHolder
	}
	if l.nextHolder != nil {
		l.nextHolder.prevHolder = l.prevHolder
	} else {
		e.lastHolder = l.prevHolder
	}
	l.prevHolder, l.nextHolder = nil, nil
}

// start starts an allocation, and its unit when enough of its allocations run. The caller commits the allocation's
// record, or it was never published.
func (e *Engine) start(r *run) {
	r.alloc.Client, r.alloc.StartedAt = structs.ClientRunning, e.now
	r.started = true
	e.stats.begins(r)
	u, l := r.unit, r.live
	if u == nil {
		return
	}
	u.started++
	if u.on || u.done || u.started < u.need {
		return
	}
	if l.Start == 0 {
		l.Start = e.now
	}
	e.proceed(u, r)
}

// proceed lets a unit make progress. r is any of its runs. A unit that ran before pays the restart cost first.
func (e *Engine) proceed(u *unit, r *run) {
	if u.began && e.cfg.Restart != nil {
		u.debt = e.cfg.Restart(u.live)
	}
	u.began, u.on, u.halted, u.since, u.from = true, true, false, e.now, e.now
	e.schedule(u)
	e.nextSave(u)
	if ex := r.alloc.Expect; ex > 0 && e.cfg.Expire != nil && (u.left < 0 || ex < u.debt+u.left || e.cfg.Due && ex == u.debt+u.left) {
		e.agenda.add(event{at: e.now.Add(ex), kind: Expired, unit: u, gen: u.gen})
	}
}

// nextSave schedules the next checkpoint of a unit that writes some, unless the unit ends first or never.
func (e *Engine) nextSave(u *unit) {
	if e.cfg.Saves > 0 && u.live.Job.Job.MayPreempt() && u.debt+u.left > e.cfg.Saves {
		e.agenda.add(event{at: e.now.Add(e.cfg.Saves), kind: Saved, unit: u, gen: u.gen})
	}
}

// saved records a checkpoint of a unit in its allocations, as agents report it.
func (e *Engine) saved(u *unit) {
	e.changes = e.changes[:0]
	e.settle(u)
	for _, r := range u.runs {
		if r.started && !r.ending {
			a := *r.alloc
			a.Saved = &structs.Saved{Time: e.now}
			e.changed(r, &a)
		}
	}
	e.gangSaved(u)
	e.commit()
	e.nextSave(u)
}

// expire corrects the prediction of a unit that runs longer than predicted.
func (e *Engine) expire(u *unit) {
	e.changes = e.changes[:0]
	if e.cfg.Due && u.left >= 0 && e.now == u.since.Add(u.debt+u.left) {
		for _, r := range u.runs { // its end is not processed yet, but it holds nothing any more
			a := *r.alloc
			a.Client = structs.ClientComplete
			e.changed(r, &a)
		}
		e.commit()
		return
	}
	for _, r := range u.runs {
		a := *r.alloc
		a.Expect = e.cfg.Expire(u.live, r.alloc, e.now.Sub(u.from))
		e.changed(r, &a)
		if a.Expect > 0 {
			if at := u.from.Add(a.Expect); at > e.now && at < e.now.Add(u.debt+u.left) {
				e.agenda.add(event{at: at, kind: Expired, unit: u, gen: u.gen})
			}
		}
	}
	e.commit()
	e.freedAll()
}

// finish ends a unit whose work is complete.
func (e *Engine) finish(u *unit) {
	l := u.live
	e.settle(u)
	if u.stopped() { // it starts again, as on a server, and ends then
		e.void(u)
		return
	}
	if u == &l.units[0] && u.on {
		l.ran += e.now.Sub(u.from)
	}
	u.on, u.done, u.left = false, true, 0
	u.gen++
	l.left--
	e.changes = e.changes[:0]
	rs := u.runs
	u.runs = nil
	for _, r := range rs {
		a := *r.alloc
		a.Client, a.FinishedAt, a.ModifyTime = structs.ClientComplete, e.now, e.now
		e.changed(r, &a)
		e.release(r)
	}
	e.commit()
	switch {
	case l.left == 0:
		e.gone(l)
	case l.Job.Job.Array != nil: // the next indices may start
		e.ask(l, structs.TriggerArray)
	}
}

// release frees the resources of a run and starts the runs that waited for it.
func (e *Engine) release(r *run) {
	delete(e.runs, r.alloc.ID)
	e.hold(r, -1)
	for _, w := range r.wanted {
		e.usage.recharge(e, w)
	}
	l := r.live
	if r.started {
		e.allocTime += e.now.Sub(r.alloc.StartedAt)
		l.attained += max(r.gpus, 1) * int64(e.now.Sub(r.alloc.StartedAt)/time.Second)
		q := *l.work.Queue
		q.Attained = l.attained
		l.work.Queue = &q
	}
	for _, w := range r.wanted {
		w.waits--
		if w.waits > 0 || e.runs[w.alloc.ID] != w {
			continue
		}
		a := *w.alloc
		a.WaitsOn = nil
		e.changed(w, &a)
		e.start(w)
	}
	r.wanted = nil
}

// resize restarts a gang that continues with more or fewer members, as every change of a gang's members does: it loses
// what it would lose by a preemption. moved means that a member moves to another node. It reports whether it stopped;
// several changes at one instant are one.
func (e *Engine) resize(u *unit, moved bool) bool {
	if !u.on || u.from == e.now {
		return false
	}
	gpus := int64(0)
	for _, r := range u.runs {
		if r.started {
			gpus += max(r.gpus, 1)
		}
	}
	lost := e.pause(u, false)
	if e.cfg.Restart != nil {
		lost += e.cfg.Restart(u.live)
	}
	if !moved {
		e.stats.Resizes++
		e.stats.ResizeLost += lost.Seconds() * float64(gpus)
	}
	return true
}

// moves reports whether an allocation leaves a node that drains.
func (e *Engine) moves(id structs.AllocID) bool {
	r := e.runs[id]
	return r != nil && r.alloc.Transition.Migrate
}

// notified reports whether an allocation was stopped and still runs, to save its state.
func (e *Engine) notified(id structs.AllocID) bool {
	r := e.runs[id]
	return r != nil && r.notified
}

// settleRoster leaves out the members of a gang that have ended or were stopped, as Apply does.
func (e *Engine) settleRoster(u *unit) {
	l := u.live
	g := l.Job.Job.Groups[u.group]
	at := slices.IndexFunc(l.work.Rosters, func(r *structs.Roster) bool { return r.Group == g.Name })
	if at < 0 {
		return
	}
	old := l.work.Rosters[at]
	next := *old
	next.Members = nil
	for _, m := range old.Members {
		if slices.ContainsFunc(u.runs, func(r *run) bool { return r.alloc.ID == m.Alloc && !r.notified }) {
			next.Members = append(next.Members, m)
		}
	}
	if len(next.Members) < g.Least() {
		next.Members = nil
		e.redo(u)
	}
	if was := old.Resizes; g.Elastic != nil && next.CountResize(old, e.now) && was.At == e.now && was.To < was.From {
		next.Resizes.Shrunk, next.Resizes.From = was.Shrunk, was.From // members that go at one instant are one entry of a log
	}
	e.roster(l, &next)
}

// endOthers ends the units that run as one with a unit, as Apply does when that has fewer members than it needs.
func (e *Engine) endOthers(u *unit) {
	for k := range u.live.units {
		o := &u.live.units[k]
		for o != u && u.live.together(u, o) && len(o.runs) > 0 {
			e.lose(o.runs[0], structs.ClientComplete)
		}
	}
}

// redo lets what has ended of an all_at_once job start again from the beginning, because a group of it starts again.
func (e *Engine) redo(u *unit) {
	l := u.live
	for k := range l.units {
		o := &l.units[k]
		if o == u || !o.done || !l.together(u, o) {
			continue
		}
		o.done, o.left, o.started = false, l.Run, 0
		l.left++
		name := l.Job.Job.Groups[o.group].Name
		l.work.Allocs = slices.DeleteFunc(slices.Clone(l.work.Allocs), func(a *structs.Allocation) bool { return a.Group == name && a.ClientTerminal() })
		for _, r := range l.work.Rosters {
			if r.Group == name {
				n := *r
				n.Members = nil
				e.roster(l, &n)
			}
		}
	}
}

// pause stops the progress of a unit that lost a member. It returns how much of its work is lost.
func (e *Engine) pause(u *unit, all bool) (lost time.Duration) {
	if !u.on {
		return 0
	}
	e.settle(u)
	e.void(u)
	u.on, u.debt = false, 0
	if u.left < 0 && u.live.Run >= 0 {
		u.left = 0
	}
	ran := e.now.Sub(u.from)
	if l := u.live; u == &l.units[0] {
		l.ran += ran
		l.work.Ran = l.ran
	}
	if e.cfg.Kept != nil && u.live.Run >= 0 {
		done := u.live.Run - u.left
		lost = min(max(ran-e.cfg.Kept(u.live, ran), 0), done)
		if all {
			lost = done
		}
		u.left += lost
		e.stats.lost(u, lost)
	}
	return lost
}

// evict ends a run before its work is complete: a victim of preemption, or a stop. The job waits again.
func (e *Engine) evict(r *run) {
	e.changes = e.changes[:0]
	l := r.live
	ran := r.unit == nil || r.unit.on || r.unit.halted
	e.drop(r, structs.ClientComplete)
	e.commit()
	if u := r.unit; u != nil {
		u.halted = false
	}
	if u := r.unit; u != nil && !e.cfg.Notice && r.alloc.Desired == structs.DesiredStop && len(u.runs) < u.need { // with notice, see stopRest
		for len(u.runs) > 0 { // a gang leaves a node as a whole
			e.lose(u.runs[0], structs.ClientComplete)
		}
		e.endOthers(u) // its time was over, or its node drains; what a preemption takes is in the plan
	}
	if r.alloc.Transition.Migrate && r.alloc.Desired != structs.DesiredEvict {
		e.stats.Moved++
	} else if ran && (r.unit == nil || !r.unit.on) { // not further members of a gang that has stopped, nor a group that shrinks
		l.Preempted++
		e.stats.Preemptions++
		q := *l.work.Queue
		q.Preempted = l.Preempted
		l.work.Queue = &q
	}
	e.returned(l, structs.TriggerPreemption)
}

// returned makes a job that lost an allocation wait for another.
func (e *Engine) returned(l *Live, why structs.Trigger) {
	if e.cfg.Predict != nil {
		l.work.Expect = e.cfg.Predict.Predict(l, e.now)
	}
	e.ask(l, why)
}

// drop removes a run from its unit and its node.
func (e *Engine) drop(r *run, as structs.ClientStatus) {
	u, l := r.unit, r.live
	resized := false
	if u != nil {
		switch {
		case !r.started || u.started <= u.need:
			e.pause(u, false)
		case u.on: // a gang continues with the members that it needs
			resized = e.resize(u, r.alloc.Transition.Migrate)
		}
		for i, x := range u.runs {
			if x == r {
				u.runs = append(u.runs[:i], u.runs[i+1:]...)
				break
			}
		}
		if r.started {
			u.started--
		}
		if u.index < 0 {
			e.settleRoster(u)
		}
		if resized {
			e.proceed(u, u.runs[0])
		}
	}
	a := *r.alloc
	a.Client, a.FinishedAt, a.ModifyTime = as, e.now, e.now
	e.changed(r, &a)
	e.release(r)
	// Decisions do not need the record of a stopped allocation that has ended.
	kept := l.work.Allocs[:0:0]
	for _, x := range l.work.Allocs {
		if x.ID != a.ID {
			kept = append(kept, x)
		}
	}
	l.work.Allocs = kept
}

// gone removes a job from the system.
func (e *Engine) gone(l *Live) {
	e.settled(l)
	l.End = e.now
	l.dirty = false
	e.changes = e.changes[:0]
	for i := range l.units {
		u := &l.units[i]
		u.gen++
		for _, r := range u.runs {
			a := *r.alloc
			a.Client = structs.ClientComplete
			e.changed(r, &a)
			e.release(r)
		}
		u.runs = nil
	}
	e.commit()
	delete(e.live, l.Key)
	if l.Job.Job.MayPreempt() {
		e.preemptible--
	}
	if ran := l.Ran(e.now); ran > 0 {
		e.lives.Ended(l.work.Units(), ran)
	}
	if l.tied {
		e.book(&structs.Reservation{ID: structs.ReservationID(l.Key), Namespace: l.Key.Namespace, JobID: l.Key.ID})
	}
	e.stats.left(l)
	if e.cfg.Predict != nil && l.Start != 0 {
		e.cfg.Predict.Learn(l, e.now)
	}
	if e.cfg.Hooks.Ended != nil {
		e.cfg.Hooks.Ended(e, l)
	}
}

func gpusOf(a *structs.Allocation) (n int64) {
	for i := range a.Grants {
		if a.Grants[i].IsGPU() {
			n++
		}
	}
	return n
}

// unitsOf returns how many units of the capacity a run uses.
func (e *Engine) unitsOf(r *run) float64 {
	l := r.live
	switch {
	case e.cfg.Capacity > 0 && l.Size > 0:
		return float64(l.Size) / float64(max(l.allocs, 1))
	case e.stats.gpus:
		return float64(structs.AmountOf(r.alloc).GPUMilli) / 1000
	}
	return float64(r.alloc.Resources.CPU)
}
