package sim

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/structs"
)

// Work that is stopped with notice (Config.Notice) holds its resources until it has saved its state. Where the number of saves at
// a time is limited, it first waits for its turn, of which package server/checkpoint decides, as on servers.
//
//	stopped -> waits for its turn -> saves -> has ended
//
// A gang of which too few members are left to run is stopped as a whole at once, and so are all groups of an all_at_once job. Otherwise one
// group would run on while another saves.

// descWithOthers is why the rest of a gang or of an all_at_once job is stopped.
const descWithOthers = "what it runs with was stopped"

// graceOf returns how long work that was stopped may take to save its state; 0: it saves nothing.
func graceOf(r *run) time.Duration {
	g := r.live.Job.Job.Group(r.alloc.Group)
	if g == nil || g.Checkpoint == nil || g.Checkpoint == r.live.assumed || !g.Checkpoint.Heeds(r.alloc.EndCause()) {
		return 0
	}
	return g.Checkpoint.GraceOrDefault()
}

// saveTime returns how long a save takes.
func (e *Engine) saveTime(r *run) time.Duration {
	grace := graceOf(r)
	switch s := r.alloc.Saved; {
	case e.cfg.SaveTime != nil:
		return min(e.cfg.SaveTime(r.live, r.alloc), grace)
	case s != nil && s.Took > 0:
		return min(s.Took, grace)
	}
	return grace
}

// notify lets a run that was stopped save its state, and reports whether it does.
func (e *Engine) notify(r *run) bool {
	r.notified = e.cfg.Notice && r.started && (r.unit == nil || r.unit.on) && graceOf(r) > 0
	if r.notified {
		e.waiting = append(e.waiting, r)
	}
	return r.notified
}

// stopRest stops what cannot run without the work that an entry has stopped, as Apply does in that entry. It returns the runs that end
// at once, with those of ended.
func (e *Engine) stopRest(ended []*run) []*run {
	for i := 0; i < len(e.stopped); i++ { // it grows
		r := e.stopped[i]
		u := r.unit
		if !e.cfg.Notice || u == nil || u.index >= 0 {
			continue
		}
		e.settleRoster(u)
		if !u.stopped() {
			continue
		}
		for k := range r.live.units {
			o := &r.live.units[k]
			if o != u && !r.live.together(u, o) {
				continue
			}
			for _, x := range slices.Clone(o.runs) {
				if x.ending {
					continue
				}
				if x = e.stop(&structs.PlanStop{ID: x.alloc.ID, Desired: structs.DesiredStop, Desc: descWithOthers, Cause: r.alloc.EndCause()}); x != nil {
					ended = append(ended, x)
				}
			}
			if r.live.Job.Job.IsJoint() && o.on { // one group makes no progress while another has ended
				e.pause(o, false)
				o.halted = true
			}
		}
	}
	clear(e.stopped)
	e.stopped = e.stopped[:0]
	e.commit()
	return ended
}

// stopped reports whether a unit cannot run without what was stopped of it.
func (u *unit) stopped() bool {
	left := u.need
	for _, x := range u.runs {
		left -= btoi(!x.ending)
	}
	return left > 0
}

// saves lets the work that was stopped save its state when its turn has come.
func (e *Engine) saves() {
	if len(e.waiting) == 0 {
		return
	}
	c := state{e}
	line := checkpoint.NewLine(c)
	left := e.waiting[:0]
	for _, r := range e.waiting {
		if e.runs[r.alloc.ID] != r {
			continue // its node was lost, or its work is complete
		}
		if u, _ := line.Turn(c, r.alloc, e.now); u == nil {
			r.saves = e.now
			e.agenda.add(event{at: e.now.Add(e.saveTime(r)), kind: Killed, run: r})
			continue
		}
		if !r.waited {
			r.waited = true
			e.agenda.add(event{at: r.alloc.Lineage().Asked.Add(structs.CheckpointWaitMax), kind: Woken}) // then it waits no longer
		}
		left = append(left, r)
	}
	clear(e.waiting[len(left):])
	e.waiting = left
}
