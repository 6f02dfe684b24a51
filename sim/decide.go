package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// decide asks the work on draining nodes to leave, runs passes until nothing changes at this instant, and then gives turns to
// save to what was stopped.
func (e *Engine) decide() error {
	defer e.saves()
	e.drained()
	for {
		if err := e.passes(); err != nil || !e.drained() {
			return err
		}
	}
}

// passes runs passes until one changes nothing at this instant.
func (e *Engine) passes() error {
	defer e.decided()
	e.instant++
	stopped := e.stats.Preemptions
	woken := true
	for round := 0; ; round++ {
		if e.stats.Preemptions-stopped > int64(roundsMax+len(e.live)) {
			return fmt.Errorf("%d preemptions at one instant (%v): decisions undo each other", e.stats.Preemptions-stopped, Since(e.now))
		}
		if len(e.fresh) == 0 && len(e.freed) == 0 && !(e.cfg.Whole && round == 0) {
			return nil
		}
		if e.cfg.LeaveOut && e.preemptible == 0 && len(e.draining.nodes) == 0 && e.noRoom() {
			return nil
		}
		pending, narrow := e.pick(woken)
		if len(pending) == 0 && (!e.always || round > 0) {
			return nil
		}
		in := scheduler.Input{View: e.view, Pending: pending, Config: e.cfg.Scheduler, Now: e.now, Seed: e.cfg.Seed + uint64(e.stats.Passes),
			Cursor: e.cursor, Mix: e.cfg.Mix, Queues: &e.usage.table, Running: e.running(), Reserved: e.reservations, Chooser: e.chooser()}
		in.Freed = e.gave
		if e.stats.Lost > 0 {
			in.Typical = e.allocTime / time.Duration(e.stats.Lost)
		}
		if in.View.MayShrink() || e.cfg.Saves > 0 {
			in.GangTimes = e.gangTimes()
		}
		began, before := time.Now(), e.stats.Preemptions
		if x, ok := e.cfg.Predict.(interface{ Turnover() time.Duration }); ok {
			in.Queues.Turnover = x.Turnover()
		}
		if narrow {
			in.View = e.part()
		}
		in.Line = e.line(&in)
		var turn *turns
		if !e.cfg.Whole && len(pending) > 1 {
			turn = &turns{Line: in.Line}
			in.Line = turn
		}
		plan, rep := scheduler.Schedule(in, e.cfg.Policy)
		e.stats.Passes++
		e.stats.Decided += int64(len(pending))
		e.cursor = plan.Cursor
		for _, pe := range plan.Entries {
			if err := e.apply(pe); err != nil {
				return err
			}
		}
		e.usage.settle(e)
		if rep.Wake != e.wake {
			if e.wake = rep.Wake; e.wake > e.now {
				e.agenda.add(event{at: e.wake, kind: Woken, node: byPass})
			}
		}
		e.stats.Deciding += time.Since(began)
		for _, w := range rep.Workloads {
			if l := e.live[w.Key]; l != nil {
				e.answered(l, plan.Deferred)
			}
		}
		if turn != nil && turn.over {
			for _, l := range e.picked {
				if l.dirty && l.End == 0 {
					e.fresh = append(e.fresh, l) // the pass ended before it
				}
			}
		}
		if e.cfg.Hooks.Passed != nil {
			e.cfg.Hooks.Passed(e, &in, &plan, &rep)
		}
		switch {
		case e.stats.Preemptions != before:
			e.instant++ // any job may use what victims released
			woken = true
		case turn != nil && turn.over: // the rest is decided in the next pass
		case len(e.fresh) == 0:
			return nil
		default:
			woken = false
		}
	}
}

// chooser returns what decides which running and waiting work should hold resources; nil when nothing can be preempted.
func (e *Engine) chooser() contend.Chooser {
	switch {
	case e.cfg.Chooser != nil:
		return e.cfg.Chooser
	case e.preemptible > 0:
		return queue.Choosers{Lives: &e.lives}
	}
	return nil
}

// gangTimes lists what is known of gangs that run.
func (e *Engine) gangTimes() []contend.GangTimes {
	return contend.NewGangTimes(func(yield func(*structs.Roster) bool) {
		for l := e.holders; l != nil; l = l.nextHolder {
			for _, r := range l.work.Rosters {
				if !yield(r) {
					return
				}
			}
		}
	})
}

// byPass marks the event that a pass asked for; a later pass may have asked for a different time.
const byPass = -1

// line returns the order of the waiting work, by default the production's.
func (e *Engine) line(in *scheduler.Input) contend.Line {
	if e.cfg.Line != nil {
		return e.cfg.Line(in)
	}
	e.lined.Begin(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	return &e.lined
}

// decided clears the list of nodes with freed resources after the last pass of an instant.
func (e *Engine) decided() {
	for _, n := range e.freed {
		e.marked[n] = false
	}
	e.freed = e.freed[:0]
}

// running lists the running work that may be stopped, for queues in which it competes with waiting work.
func (e *Engine) running() []contend.Workload {
	if e.preemptible == 0 && !slices.ContainsFunc(e.cfg.Queues, func(q *structs.Queue) bool { return q.Preempt != "" && q.Preempt != structs.PreemptNone }) {
		return nil
	}
	var out []contend.Workload
	for l := e.holders; l != nil; l = l.nextHolder {
		w := l.work
		w.Ran = l.Ran(e.now)
		out = append(out, w)
	}
	return out
}

// apply applies what the pass proposes for one job: all parts that Verify accepts.
func (e *Engine) apply(pe *structs.PlanEntry) error {
	l := e.live[structs.JobKey{Namespace: pe.Namespace, ID: pe.JobID}]
	if l == nil {
		return nil
	}
	e.changes = e.changes[:0]
	ended := e.endings[:0]
	if len(pe.Parts) > 0 {
		verdict := verify.Verify(e.view, model.Overlay{}, pe)
		for _, r := range verdict.Refused {
			e.parts++
			e.stats.Refused++
			if e.stats.FirstRefusal == "" {
				e.stats.FirstRefusal = fmt.Sprintf("job %s at %v: %s", l.Key, Since(e.now), r.Why)
			}
		}
		for i := range pe.Parts {
			if !verdict.Accepted[i] {
				continue
			}
			for k := range pe.Parts[i].Stops {
				if r := e.stop(&pe.Parts[i].Stops[k]); r != nil {
					ended = append(ended, r)
				}
			}
			for k := range pe.Parts[i].Places {
				p := &pe.Parts[i].Places[k]
				u := l.unit(pe.Groups[p.Group], p.Index)
				grows := u != nil && u.index < 0 && !l.Job.Job.Groups[u.group].IsStandby(p.Index) && !e.notified(p.Previous) && e.resize(u, e.moves(p.Previous))
				e.place(l, pe, p)
				if grows && !u.on { // the new member waits for a place
					e.proceed(u, u.runs[0])
				}
			}
		}
		e.commit()
		if len(verdict.Refused) > 0 {
			l.dirty = false
			l.work.Evals = nil
			e.ask(l, structs.TriggerMaxPlans)
			e.endAll(ended)
			return nil
		}
	}
	for _, ev := range pe.Evals {
		switch {
		case ev.Status == structs.EvalBlocked:
			l.work.Blocked = ev
		case l.work.Blocked != nil && l.work.Blocked.ID == ev.ID:
			l.work.Blocked = nil
		case ev.Trigger == structs.TriggerPreemption && ev.WaitUntil > e.now && l.again != ev.WaitUntil:
			l.again = ev.WaitUntil // more work may be preempted then
			e.agenda.add(event{at: l.again, kind: Woken, do: func() { e.retry(l) }})
		}
	}
	if pe.Workload != nil {
		l.work.Queue = pe.Workload
		if pe.Workload.NotBefore > e.now {
			e.agenda.add(event{at: pe.Workload.NotBefore, kind: Woken})
		}
	}
	if pe.Reservation != nil {
		e.book(pe.Reservation)
	}
	for _, r := range pe.Rosters {
		e.placedRoster(l, r)
	}
	e.endAll(ended)
	return nil
}

// retry decides about a job again if it still waits: the time has come for which its decision asked.
func (e *Engine) retry(l *Live) {
	if l.again != e.now {
		return // another time was set since
	}
	if l.again = 0; l.End == 0 && l.lane != nil {
		e.ask(l, structs.TriggerPreemption)
	}
}

// endAll ends what was stopped without notice.
func (e *Engine) endAll(rs []*run) {
	rs = e.stopRest(rs)
	for _, r := range rs {
		if e.runs[r.alloc.ID] == r {
			e.evict(r)
		}
	}
	clear(rs)
	e.endings = rs[:0]
}

// book stores a reservation, or deletes one that has ended. The list is sorted by id.
func (e *Engine) book(r *structs.Reservation) {
	at, found := slices.BinarySearchFunc(e.reservations, r.ID, func(b *structs.Reservation, id string) int { return strings.Compare(b.ID, id) })
	next := slices.Clone(e.reservations)
	tied := r.Start != 0
	switch {
	case !tied && found:
		next = slices.Delete(next, at, at+1)
		e.freedAll() // the resources it held back are available
	case !tied:
		return
	case found:
		next[at] = r
	default:
		next = slices.Insert(next, at, r)
	}
	e.reservations = next
	l := e.live[structs.JobKey{Namespace: r.Namespace, ID: r.JobID}]
	if l == nil || r.JobID == "" {
		return
	}
	if tied {
		l.renew = e.now.Add(max(r.Start.Sub(e.now)/4, time.Second))
	}
	if l.tied == tied {
		return
	}
	l.tied = tied
	if tied {
		e.reserved = append(e.reserved, l)
		return
	}
	e.reserved = slices.DeleteFunc(e.reserved, func(x *Live) bool { return x == l })
}

// freedAll marks all nodes as freed: room appeared for a reason other than an end.
func (e *Engine) freedAll() {
	e.instant++
	for i := range e.nodes {
		e.freeOn(i)
	}
}

// placedRoster stores the roster of a plan as Apply does.
func (e *Engine) placedRoster(l *Live, r *structs.Roster) {
	n := *r
	for _, x := range l.work.Rosters {
		if x.Group == n.Group {
			n.Resizes, n.Checkpoint = x.Resizes, x.Checkpoint
			if g := l.Job.Job.Group(n.Group); g != nil && g.Elastic != nil {
				n.CountResize(x, e.now)
			}
		}
	}
	e.roster(l, &n)
}

// roster replaces the roster of a gang whose members have changed.
func (e *Engine) roster(l *Live, r *structs.Roster) {
	for _, x := range l.work.Rosters {
		if x.Group == r.Group && l.Job.Job.Group(r.Group).SavesAsOne() {
			r.KeepSaving(x, e.now)
		}
	}
	l.putRoster(r)
}

func (l *Live) putRoster(r *structs.Roster) {
	next := make([]*structs.Roster, 0, len(l.work.Rosters)+1)
	for _, x := range l.work.Rosters {
		if x.Group != r.Group {
			next = append(next, x)
		}
	}
	l.work.Rosters = append(next, r)
}

// gangSaved notes what reports of its members' checkpoints mean for a gang, as Apply does.
func (e *Engine) gangSaved(u *unit) {
	l := u.live
	g := l.Job.Job.Groups[u.group]
	if !g.SavesAsOne() {
		return
	}
	at := slices.IndexFunc(l.work.Rosters, func(r *structs.Roster) bool { return r.Group == g.Name })
	if at < 0 {
		return
	}
	find := func(id structs.AllocID) *structs.Allocation {
		if r := e.runs[id]; r != nil {
			return r.alloc
		}
		return nil
	}
	if next := l.work.Rosters[at].Saving(g.Checkpoint, find); next != nil {
		l.putRoster(next)
	}
}

// place makes an allocation as the state machine would, and starts it unless it waits for another to end.
func (e *Engine) place(l *Live, pe *structs.PlanEntry, p *structs.PlanPlace) {
	node := pe.Nodes[p.Node].ID
	group := pe.Groups[p.Group]
	a := &structs.Allocation{
		ID: structs.DeriveAllocID(pe.EvalID, pe.SnapshotIndex, group, p.Index), EvalID: pe.EvalID, Namespace: l.Key.Namespace, JobID: l.Key.ID,
		JobVersion: pe.JobVersion, Job: l.Job.Job, Group: group, NameIndex: p.Index, NodeID: node, Resources: pe.Asks[p.Group], Grants: p.Grants,
		Ports: p.Ports, Cores: p.Cores, Desired: structs.DesiredRun, WaitsOn: p.WaitsOn, CreateTime: e.now,
		CreateIndex: e.index, Client: structs.ClientPending, Expect: p.Expect,
	}
	a.SetLineage(structs.Lineage{Previous: p.Previous, Preempted: l.Preempted})
	r := &run{live: l, alloc: a, node: e.rows[node], gpus: gpusOf(a), unit: l.unit(group, p.Index)}
	r.units = e.unitsOf(r)
	e.runs[a.ID] = r
	for _, id := range p.WaitsOn {
		if v := e.runs[id]; v != nil {
			v.wanted = append(v.wanted, r)
			r.waits++
		}
	}
	e.changes = append(e.changes, structs.Changed[structs.Allocation]{After: a})
	l.work.Allocs = append(slices.Clip(l.work.Allocs), a)
	e.hold(r, 1)
	if r.unit != nil {
		r.unit.runs = append(r.unit.runs, r)
	}
	if r.waits == 0 {
		e.start(r)
	}
	if e.cfg.Hooks.Placed != nil {
		e.cfg.Hooks.Placed(e, l, a)
	}
}

// stop applies one stop. It returns the run if the run ends at once, else nil.
func (e *Engine) stop(s *structs.PlanStop) *run {
	r := e.runs[s.ID]
	if r == nil || s.Desired == "" || r.notified {
		return nil
	}
	a := *r.alloc
	line := a.OwnLineage()
	a.Desired, a.DesiredDesc, line.PreemptedBy, line.Asked = s.Desired, s.Desc, s.Preempt, e.now
	a.EndsFor(s.Cause)
	if s.Client != "" {
		a.Client = s.Client
	}
	e.changed(r, &a)
	r.ending = true
	e.stopped = append(e.stopped, r)
	if s.Client == "" && e.notify(r) {
		return nil
	}
	return r
}

// changed replaces the record of an allocation.
func (e *Engine) changed(r *run, a *structs.Allocation) {
	e.changes = append(e.changes, structs.Changed[structs.Allocation]{Before: r.alloc, After: a})
	l := r.live
	next := slices.Clone(l.work.Allocs)
	for i, x := range next {
		if x.ID == a.ID {
			next[i] = a
		}
	}
	l.work.Allocs = next
	r.alloc = a
}

// commit advances the view by the collected changes.
func (e *Engine) commit() {
	if len(e.changes) == 0 {
		return
	}
	e.index++
	delta := structs.Delta{Index: e.index, Time: e.now, Allocs: e.changes}
	e.view = e.view.Advance(delta)
	e.gave = model.AppendFreed(e.gave, &delta)
	clear(e.changes)
	e.changes = e.changes[:0]
}

// answered updates a job after a pass decided about it.
func (e *Engine) answered(l *Live, deferred []structs.JobKey) {
	if l.End != 0 {
		return
	}
	if slices.Contains(deferred, l.Key) {
		e.fresh = append(e.fresh, l)
		return
	}
	if slices.Contains(e.fresh, l) {
		return // it has a new evaluation already
	}
	l.dirty = false
	l.work.Evals = nil
	l.reason = structs.ReasonNone
	if l.work.Queue != nil {
		l.reason = l.work.Queue.Reason
	}
	if l.wanting() {
		if e.cfg.Drop {
			e.gone(l)
			return
		}
		e.refused(l)
		return
	}
	e.settled(l)
}

// refused notes that the search for room for a job failed at this instant.
func (e *Engine) refused(l *Live) {
	e.move(l)
	l.refusedAt = e.instant
	if l.tied && e.now >= l.renew {
		l.renew = e.now.Add(time.Second)
	}
	if l.reason != structs.ReasonReservation && l.home == l.shape {
		l.shape.refusedAt = e.instant
	}
}

// wanting reports whether the job waits for more allocations.
func (l *Live) wanting() bool { return l.short() || l.work.Blocked != nil }

// short reports whether the job lacks allocations.
func (l *Live) short() bool {
	for i := range l.units {
		if u := &l.units[i]; !u.done && len(u.runs) < u.need {
			return true
		}
	}
	return false
}

// settled removes a job that has all its allocations from the waiting jobs.
func (e *Engine) settled(l *Live) {
	e.dequeue(l)
	if l.waits != 0 {
		l.Queued += e.now.Sub(l.waits)
		l.waits = 0
		e.stats.queued(l, -1)
	}
}
