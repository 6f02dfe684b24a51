package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// gated reports whether something other than the nodes keeps the workload from being placed. Then all its wants are
// missed for that reason; stops and updates still happen.
func (d *decision) gated() bool {
	why := d.load.Gate
	if why == nil && d.limits != nil && d.load.Job != nil && d.wantsAny() {
		why = d.limits.Capped(d.load)
	}
	if why == nil {
		ahead, passed := d.reservations.Passed(d.load)
		switch {
		case d.restarting(): // it uses no more than it had
		case passed:
			why = &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionQueueOrder, Subject: ahead.ID, Holder: contend.QueueHolder(d.load.QueueName())}}
		case d.wantsAny():
			why = d.reservations.OverBound(d.load)
			d.overBound = why != nil
		}
		if why == nil {
			return false
		}
	}
	for _, g := range d.groups {
		g.Refused = why
		for i := range g.Wants {
			d.misses[g.Name]++
			d.keepStop(g, &g.Wants[i])
		}
		if len(g.Wants) > 0 {
			g.GiveBack()
		}
	}
	return true
}

// restarting reports whether a gang of the decision restarts in its own places and those of its standbys.
func (d *decision) restarting() bool {
	return slices.ContainsFunc(d.groups, func(g *groupWork) bool { return g.Restart })
}

func (d *decision) wantsAny() bool {
	for _, g := range d.groups {
		if len(g.Wants) > 0 {
			return true
		}
	}
	return false
}

// refusal returns the report of a group that was not searched for on any node.
func (g *groupWork) refusal() *structs.GroupReport {
	return &structs.GroupReport{Group: g.Name, Code: g.Refused.Code, Wanted: int64(len(g.Wants)) + g.Missed, Refusals: []structs.Refusal{*g.Refused}}
}

// overLimit returns which limit one more allocation of a search's group would exceed, or nil; then the search does without
// GPU models whose limits are reached. With prev, the allocation is charged for what it needs beyond prev: it may wait for
// the place of prev, or prev moves.
func (d *decision) overLimit(s *search.Search, prev *structs.Allocation) *structs.Refusal {
	if d.limits == nil || d.load.Job == nil || s.Ask.Tg == nil {
		if d.closed != nil {
			s.Close(d.closed[s.Ask.Tg.Name])
		}
		return nil
	}
	if why := d.limits.OverGroup(d.load, d.charges.Count(d.load, &d.placed), s.Ask.Tg, prev); why != nil || !d.limits.ByModel() {
		return why
	}
	closed, why := d.limits.Closed(d.load, d.charges.CountModels(d.load, &d.placed), s.Ask, prev, d.unplacedOf(s.Ask.Tg))
	if why == nil {
		s.Close(closed)
	}
	return why
}

// unplacedOf returns what the decision has not placed of other groups.
func (d *decision) unplacedOf(but *structs.Group) (out []contend.Missing) {
	for _, g := range d.groups {
		if g.Tg == but || g.Ask == nil || g.Refused != nil {
			continue
		}
		n := len(g.Wants)
		for i := range d.placed {
			if d.placed[i].g == g {
				n--
			}
		}
		if n > 0 {
			out = append(out, contend.Missing{Ask: g.Ask, Count: int64(n)})
		}
	}
	return out
}

// closedModels returns the GPU models that groups without a place had to do without, by group; nil for none. A decision
// without limits (about the future, or while others give up their places) does without them, too.
func (d *decision) closedModels() map[structs.GroupName][]match.Closed {
	var out map[structs.GroupName][]match.Closed
	for _, g := range d.groups {
		if d.misses[g.Name] > 0 && g.search != nil && len(g.search.Ask.Closed) > 0 {
			if out == nil {
				out = map[structs.GroupName][]match.Closed{}
			}
			out[g.Name] = g.search.Ask.Closed
		}
	}
	return out
}

// withinLimits reports whether to look for a place for a want: anywhere, or at least in the place of what it replaces.
// It records in the group which limit prevents it.
func (d *decision) withinLimits(s *search.Search, w *reconcile.Want) bool {
	w.MustWait = false
	why := d.overLimit(s, d.moved(s.Ask.Tg, w))
	if why == nil {
		return true
	}
	for _, g := range d.groups {
		if g.Tg == s.Ask.Tg {
			g.over = why
		}
	}
	w.MustWait = true
	return w.MayWait && d.overLimit(s, w.Prev) == nil
}

// moved returns the allocation that a want of a group replaces, if it moves (structs.Moves) or something that moves takes it
// along in its part of the plan; else nil.
func (d *decision) moved(tg *structs.Group, w *reconcile.Want) *structs.Allocation {
	if d.limits == nil || d.in.OldLimits || !replacesLive(w) || !d.moves(w) && !d.movesAlong(tg) {
		return nil
	}
	return w.Prev
}

// replacesLive reports whether the part of a want stops what it replaces.
func replacesLive(w *reconcile.Want) bool {
	return w.Prev != nil && w.Stop != nil && w.Stop.Client == "" && structs.Holds(w.Prev) && !w.Prev.ServerTerminal()
}

func (d *decision) moves(w *reconcile.Want) bool {
	return replacesLive(w) && structs.Moves(w.Prev, d.in.View.Node(w.Prev.NodeID))
}

// movesAlong reports whether the wants of a group are placed together with one whose allocation moves.
func (d *decision) movesAlong(tg *structs.Group) bool {
	if !d.movesKnown {
		d.movesKnown = true
		for _, g := range d.groups {
			if (d.load.Job.AllAtOnce || g.Gang && !g.single()) && slices.ContainsFunc(g.Wants, func(w reconcile.Want) bool { return d.moves(&w) }) {
				d.movesGroups = append(d.movesGroups, g.Tg)
			}
		}
	}
	return len(d.movesGroups) > 0 && (d.load.Job.AllAtOnce || slices.Contains(d.movesGroups, tg))
}

// overLimitAll returns which limit keeps every want of a search's group from a place other than that of what it replaces, or nil.
func (d *decision) overLimitAll(s *search.Search, wants []reconcile.Want) (why *structs.Refusal) {
	var last *structs.Allocation
	for i := range wants {
		moved := d.moved(s.Ask.Tg, &wants[i])
		if i > 0 && moved == last {
			continue
		}
		if why = d.overLimit(s, moved); why == nil {
			return nil
		}
		last = moved
	}
	return why
}

// respectsSetAside reports whether one more allocation of a group leaves what is set aside for others. It records in
// the group what prevents it.
func (d *decision) respectsSetAside(tg *structs.Group) bool {
	if d.setAside == nil || d.load.Job == nil {
		return true
	}
	why := d.setAside.RefusesGroup(d.load, tg, &d.amount, &d.placed)
	if why == nil {
		return true
	}
	for _, g := range d.groups {
		if g.Tg == tg && (g.over == nil || g.over.Holder.Kind == structs.HolderReservation) {
			g.over = why
		}
	}
	return false
}

// settle counts what the decision has placed, for later decisions of the pass.
func (d *decision) settle() {
	d.limits.Settle(d.load, &d.charges, &d.placed)
	d.setAside.Settle(d.load, &d.amount, &d.placed)
	now := d.placedAmount()
	d.pre.Settle(d.load, now.Sub(d.counted))
	d.counted = now
}
