package search

import (
	"cmp"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Nearness between jobs: a group may be required, or prefer, to run near allocations of other jobs, or away from them,
// by node or by a level of the topology. Rules work both ways: if work on a node keeps away from a job, the job is not
// placed there.
//
// Naive: look through everything held for each node that is rated. Instead what is held is counted once by place and
// rule; the counts are valid as long as the what-if is unchanged, and the search's own placements are added. Work that
// keeps others away is counted per node (Holding.Shy), so that a cluster without such work looks at nothing.

// peerCount is a rule with the number of matching allocations at each place.
type peerCount struct {
	model.PeerRule
	places      *model.Level
	others, own []int64 // by place: matching allocations of other jobs and of this one
	all         int64   // of both, wherever they are
}

// bar is a place with an allocation that keeps the ask's job away.
type bar struct {
	places *model.Level
	at     int32
	broken structs.Obstacle
}

// peers is what a search knows of other jobs.
type peers struct {
	rules  []peerCount
	bars   []bar
	weight int64 // of the rules that are not required
	stamp  int   // of the what-if in which others and bars were counted
	known  bool
	stale  bool // the scores of more nodes than the last one changed
}

func (r *peerCount) refusal() match.Refusal {
	if r.Away {
		return match.Refused(structs.ReasonConstraint, r.Broken, structs.EventAllocStopped)
	}
	return match.Refused(structs.ReasonConstraint, r.Broken, structs.EventAllocPlaced)
}

// newPeers returns nil if no rule applies.
func newPeers(a *match.Ask, w *Pass) *peers {
	rules := model.PeersOf(a.Job, a.Tg)
	if len(rules) == 0 && !w.AnyShy() {
		return nil
	}
	p := &peers{rules: make([]peerCount, len(rules))}
	for i := range rules {
		p.rules[i].PeerRule = rules[i]
	}
	for i := range p.rules {
		r := &p.rules[i]
		r.Broken, r.places = r.Obstacle(), w.Level(r.Level)
		r.others, r.own = make([]int64, len(r.places.Names)), make([]int64, len(r.places.Names))
		if !r.Required {
			p.weight += r.Weight
		}
	}
	p.refresh(a, w)
	if len(p.rules) == 0 && len(p.bars) == 0 && !w.Shy {
		return nil
	}
	return p
}

// at returns the place of a row; -1 if the node does not name one.
func (r *peerCount) at(row int) int32 { return r.places.Of[row] }

// refresh counts what others hold, unless the what-if is still the one that was counted.
func (p *peers) refresh(a *match.Ask, w *Pass) {
	if p.known && p.stamp == w.Stamp {
		return
	}
	p.known, p.stamp, p.bars = true, w.Stamp, p.bars[:0]
	for i := range p.rules {
		r := &p.rules[i]
		clear(r.others)
		r.all = 0
		for _, n := range r.own {
			r.all += n
		}
	}
	for ci, c := range w.View.Chunks {
		if len(p.rules) == 0 && !w.Shy && !c.MayShy() {
			continue
		}
		for i := range c.IDs {
			row := w.View.Starts[ci] + i
			hold := c.Hold[i]
			if t := w.Touched[row]; t != 0 {
				hold = w.States[t-1].Hold
			}
			if hold == nil || len(p.rules) == 0 && hold.Shy == 0 {
				continue
			}
			for h := range hold.All() {
				if j := h.Work.Job; j != nil && (a.Job == nil || j.ID != a.Job.ID || j.Namespace != a.Job.Namespace) {
					p.count(a, w, row, h)
				}
			}
		}
	}
}

// count adds one allocation of another job.
func (p *peers) count(a *match.Ask, w *Pass, row int, h *model.Held) {
	j := h.Work.Job
	for i := range p.rules {
		r := &p.rules[i]
		// An allocation that is ending still keeps others away, but attracts none; nor does one that the plan places
		// only after this.
		if (r.Away || !h.Work.Ending && !w.Later[h.ID]) && r.Means(a.Job.Namespace, j) {
			r.all++
			if at := r.places.Of[row]; at >= 0 {
				r.others[at]++
			}
		}
	}
	if !h.Work.Shy || a.Job == nil {
		return
	}
	bars := func(ps []structs.Peer) {
		for i := range ps {
			x := &ps[i]
			if !x.Required || !x.Means(j.Namespace, a.Job) {
				continue
			}
			name := cmp.Or(x.Level, structs.PeerLevelNode)
			b := bar{places: w.Level(name), broken: structs.Obstacle{Dimension: structs.DimensionKeptAway, Subject: j.ID, Detail: name}}
			if b.at = b.places.Of[row]; b.at < 0 {
				continue
			}
			for k := range p.bars {
				if p.bars[k].places == b.places && p.bars[k].at == b.at {
					return
				}
			}
			p.bars = append(p.bars, b)
		}
	}
	bars(j.Away)
	if g := j.Group(h.Work.Group); g != nil {
		bars(g.Away)
	}
}

// took adds allocations of the job itself, or removes them if n is negative.
func (p *peers) took(row int, n int64) {
	for i := range p.rules {
		r := &p.rules[i]
		if !r.Self {
			continue
		}
		r.all += n
		if at := r.places.Of[row]; at >= 0 {
			r.own[at] += n
		}
		if !r.Required && r.Level != structs.PeerLevelNode {
			p.stale = true
		}
	}
}

// refuses returns the refusal of a row that breaks a rule about other jobs.
func (p *peers) refuses(row int) (match.Refusal, bool) {
	for i := range p.rules {
		r := &p.rules[i]
		if !r.Required || r.Self {
			continue
		}
		if at := r.at(row); r.Away && at >= 0 && r.others[at] > 0 || !r.Away && (at < 0 || r.others[at] == 0) {
			return r.refusal(), true
		}
	}
	for i := range p.bars {
		if b := &p.bars[i]; b.places.Of[row] == b.at {
			return match.Refused(structs.ReasonConstraint, b.broken, structs.EventAllocPlaced), true // or until it ends: see unblock.UnblockingEvents
		}
	}
	return match.Refusal{}, false
}

// refusesSelf returns the refusal of a row that breaks a rule which also matches the job itself. The first of several
// that must be together may be anywhere.
func (p *peers) refusesSelf(row int) (match.Refusal, bool) {
	for i := range p.rules {
		r := &p.rules[i]
		if !r.Required || !r.Self {
			continue
		}
		at, n := r.at(row), int64(0)
		if at >= 0 {
			n = r.others[at] + r.own[at]
		}
		if r.Away && n > 0 || !r.Away && n == 0 && r.all > 0 {
			return r.refusal(), true
		}
	}
	return match.Refusal{}, false
}

// micro returns how far a row fulfils the preferences about other jobs, in millionths.
func (p *peers) micro(row int) int64 {
	got := int64(0)
	for i := range p.rules {
		r := &p.rules[i]
		if r.Required {
			continue
		}
		n := int64(0)
		if at := r.at(row); at >= 0 {
			n = r.others[at] + r.own[at]
		}
		if n > 0 != r.Away {
			got += r.Weight
		}
	}
	return got * model.Micro / max(p.weight, 1)
}
