package scheduler

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// reserve reserves capacity in time for what the decision could not place, by the backfill rule of its queue.
func (d *decision) reserve() {
	if len(d.misses) == 0 || d.load.Job == nil || d.report.Refused != "" || d.heldBack() {
		return
	}
	switch d.load.Job.Type {
	case structs.JobSystem, structs.JobSysBatch:
		return
	}
	d.reserved, d.report.Start = d.reservations.Grant(d)
}

// heldBack reports whether a limit or a power budget keeps the decision from placing more: a reservation would not
// help.
func (d *decision) heldBack() bool {
	for _, g := range d.groups {
		if (g.over != nil || g.search != nil && g.search.NoPower) && d.misses[g.Name] > 0 {
			return true
		}
	}
	return false
}

// bind makes a search respect the reservations of the pass.
func (d *decision) bind(s *search.Search) {
	s.Reserved, s.Until, s.Work = &d.reservations.Reservations, d.load.EndOf(s.Ask.Tg, d.in.Now), d.load.WorkOf(s.Ask.Tg, d.in.Now)
}

// Workload returns the decision's workload. This and the methods below implement contend.Unplaced.
func (d *decision) Workload() *contend.Workload { return d.load }

// Missing lists the groups of which the decision could not place everything.
func (d *decision) Missing() (out []contend.Missing) {
	for _, g := range d.groups {
		if n := d.misses[g.Name]; n > 0 {
			out = append(out, contend.Missing{Count: n, Ask: g.Ask, Search: g.search})
		}
	}
	return out
}

// Key returns the key of the only group with missing placements, if nothing of it was placed; else "".
func (d *decision) Key() string {
	key := ""
	for _, g := range d.groups {
		if n := d.misses[g.Name]; n > 0 {
			if key != "" || n != int64(len(g.Wants)) || g.Ask == nil {
				return ""
			}
			key = d.noFitKey(g)
		}
	}
	return key
}

// PlaceOn places what the decision could not place on a what-if about the future: everything, or nothing.
func (d *decision) PlaceOn(w *search.Pass) []contend.Place {
	if len(d.placed) == 0 {
		return d.decideOn(w)
	}
	var out []contend.Place
	for _, g := range d.groups {
		if d.misses[g.Name] == 0 {
			continue
		}
		got := d.placeRest(g, w, out)
		if got == nil {
			return nil
		}
		out = got
	}
	return out
}

// decideOn repeats the whole decision on a what-if about the future, with gangs, topology and everything else.
func (d *decision) decideOn(w *search.Pass) []contend.Place {
	later := env{in: d.in, w: w, noFit: &search.NoFit{}, reservations: d.reservations.Future(w), closed: d.closedModels()}
	then := newDecision(later, d.load, d.policy, d.cursor)
	then.reconcile()
	then.place()
	then.closeSearches()
	if len(then.misses) > 0 || len(then.placed) == 0 {
		return nil
	}
	out := make([]contend.Place, len(then.placed))
	for i := range then.placed {
		out[i] = then.placed[i].Place
		h := *out[i].At.Held
		h.ID = model.ReservedID(d.load.Key.String()+"/"+string(then.placed[i].g.Name), i)
		out[i].At.Held = &h
	}
	return out
}

// placeRest places what is missing of a group on a what-if about the future, when the decision has placed a part of it
// and other groups have places (before). It adds its places to before. It returns nil if that fails.
func (d *decision) placeRest(g *groupWork, w *search.Pass, before []contend.Place) []contend.Place {
	if g.Tg == nil || g.Tg.Topology != nil {
		return nil // where the rest may go depends on where the group runs already
	}
	if g.search == nil || g.Ask == nil {
		return nil
	}
	if len(g.Wants) > 0 && !g.Wants[0].Pinned.IsZero() {
		return nil
	}
	s := search.New(g.Ask.Without(g.search.Ask.Closed), w, d.policy, 0)
	defer s.Done()
	for _, other := range d.groups {
		if other == g || g.Ask.CountsJob() {
			for _, a := range other.Staying {
				if row := w.View.Row(a.NodeID); row >= 0 {
					s.Count(row, other == g, 1)
				}
			}
		}
	}
	for i := range d.placed {
		if pl := &d.placed[i]; pl.g == g || g.Ask.CountsJob() {
			s.Count(pl.At.Row, pl.g == g, 1)
		}
	}
	if g.Ask.CountsJob() {
		for i := range before {
			s.Count(before[i].At.Row, false, 1)
		}
	}
	for i := range int(d.misses[g.Name]) {
		sp, ok := s.Place(model.ReservedID(d.load.Key.String()+"/"+string(g.Name), i), nil, -1)
		if !ok {
			return nil
		}
		before = append(before, contend.Place{Group: g.Tg, At: sp})
	}
	return before
}
