package search

import (
	"cmp"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Nearness between jobs: a group may have to, or like to, lie beside allocations of other jobs, or away from them, by node
// or by a level of the topology. Who keeps away from others is left alone by them, too: their placements ask what is held
// whether it keeps away from them.
//
// Naive: look through everything held for each node that is rated. Instead what is held is counted once by place and rule;
// the counts stand as long as the picture of the cluster is the same, and what the search places itself is added. Who keeps
// away is counted per node (holding.shy), so that a cluster without such work looks at nothing.

// peerCount is a rule with who is where.
type peerCount struct {
	model.PeerRule
	places      *model.Level
	others, own []int64 // by place: allocations meant, of other jobs and of this one
	all         int64   // of both, wherever they are
}

// bar is a place where somebody is who keeps away from the ask's job.
type bar struct {
	places *model.Level
	at     int32
	broken structs.Obstacle
}

// peers is what a search knows of other jobs.
type peers struct {
	rules  []peerCount
	bars   []bar
	weight int64 // of those that are not required
	stamp  int   // of the what-if that others and bars were counted in
	known  bool
	stale  bool // scores of more nodes than the last one changed
}

func (r *peerCount) refusal() match.Refusal {
	if r.Away {
		return match.Refused(structs.ReasonConstraint, r.Broken, structs.EventAllocStopped)
	}
	return match.Refused(structs.ReasonConstraint, r.Broken, structs.EventAllocPlaced)
}

// newPeers gives nil where nothing is to be looked at.
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

// at is the place of a row; -1 where the node does not say.
func (r *peerCount) at(row int) int32 { return r.places.Of[row] }

// refresh counts what others hold, unless the picture is the one that was counted.
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
		// What ends keeps others away until it is gone, but attracts nobody; nor does what the plan places only after this.
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

// took adds (or, with a negative n, takes away) allocations of the job itself.
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

// refuses tells which rule about other jobs a row breaks.
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
			return match.Refused(structs.ReasonConstraint, b.broken, structs.EventAllocPlaced), true // or it ends: see unblock.UnblockingEvents
		}
	}
	return match.Refusal{}, false
}

// refusesSelf tells which rule a row breaks that means the job itself, too. The first of several that want to be together
// may be anywhere.
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

// micro is how much of what is liked about other jobs a row fulfils.
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

// peersRefuse is refuses, on a picture that may have changed.
func (s *Search) peersRefuse(row int) (match.Refusal, bool) {
	if s.peers == nil {
		return match.Refusal{}, false
	}
	s.peers.refresh(s.Ask, s.w)
	return s.peers.refuses(row)
}

// peersTook books a placement of the search itself, which changes nothing about others.
func (s *Search) peersTook(row int) {
	if s.peers == nil {
		return
	}
	s.peers.took(row, 1)
	if s.peers.known {
		s.peers.stamp = s.w.Stamp
	}
}

// rerate rates all candidates anew: where the last placement lies changed what others are worth.
func (s *Search) rerate() {
	s.peers.stale = false
	for k := range s.cells {
		x := &s.cells[k]
		for i := range x.heap {
			row := int(x.heap[i].row)
			c, at := s.w.View.At(row)
			o := s.w.Get(row)
			if base := s.rate(c, at, row, s.ClassVerdict(&c.Classes[c.Class[at]]), &o, false); base >= 0 {
				x.heap[i].base = base
			}
		}
		s.heapify(x.heap)
	}
	s.rebonus()
}
