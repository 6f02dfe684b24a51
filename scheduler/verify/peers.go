package verify

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Required rules about other jobs nearby are checked again when a plan is verified: of two plans that were decided on the
// same view, the later one may place a job next to the earlier one's, which neither decision knew of.
//
// Only the entry's own places are checked, against other jobs as they are now, plans in flight included. Nothing is refused
// that the decision would allow on the same view:
//   - What the entry stops counts as gone, except for the job's own allocations: when several members are replaced one after
//     another, the first replacement was put next to members that are stopped later.
//   - A job that must be near its own members may place the first of them anywhere.

// peerPlace is a place of a level.
type peerPlace struct{ level, name string }

// peerRow is a required rule of a group, with the number of allocations in each place of its level.
type peerRow struct {
	model.PeerRule
	others map[string]int64 // by place: those of other jobs that the rule means
	all    int64
	own    map[string]bool  // places with allocations of the job itself, also those that the entry stops
	placed map[string]int64 // by this entry
}

// peerCheck is the rules that bind an entry.
type peerCheck struct {
	groups [][]*peerRow
	bars   map[peerPlace]string // places that another job keeps free of this one, and that job's ID
	levels []string             // of bars, each once
}

// peersOfEntry returns nil when no rule can be broken.
func peersOfEntry(v *model.View, f model.Overlay, e *structs.PlanEntry) *peerCheck {
	if e.Job == nil || !slices.ContainsFunc(e.Parts, func(p structs.PlanPart) bool { return len(p.Places) > 0 }) {
		return nil
	}
	p := &peerCheck{groups: make([][]*peerRow, len(e.Groups)), bars: map[peerPlace]string{}}
	rules := 0
	for g, name := range e.Groups {
		tg := e.Job.Group(name)
		if tg == nil {
			continue
		}
		for _, r := range model.PeersOf(e.Job, tg) {
			if r.Required {
				r.Broken = r.Obstacle()
				p.groups[g] = append(p.groups[g], &peerRow{PeerRule: r, others: map[string]int64{}, own: map[string]bool{}, placed: map[string]int64{}})
				rules++
			}
		}
	}
	shy := f.Shy()
	for i := 0; i < len(v.Chunks) && !shy; i++ {
		shy = v.Chunks[i].MayShy()
	}
	if rules == 0 && !shy {
		return nil
	}
	stops := map[structs.AllocID]bool{}
	for i := range e.Parts {
		for k := range e.Parts[i].Stops {
			stops[e.Parts[i].Stops[k].ID] = true
		}
	}
	note := func(n *structs.Node, h *model.Held) {
		if h.Work.Job != nil {
			p.note(e, n, h, stops[h.ID])
		}
	}
	for _, c := range v.Chunks {
		if rules == 0 && !c.MayShy() {
			continue
		}
		for i, n := range c.Nodes {
			if hold := c.Hold[i]; hold != nil && (rules > 0 || hold.Shy > 0) {
				for h := range hold.All() {
					note(n, h)
				}
			}
		}
	}
	if rules > 0 || f.Shy() {
		f.Each(func(id structs.NodeID) {
			c, i, found := v.Locate(id)
			if !found {
				return
			}
			for _, h := range f.On(id) {
				if !v.Chunks[c].Hold[i].Has(h.Held.ID) {
					note(v.Chunks[c].Nodes[i], h.Held)
				}
			}
		})
	}
	return p
}

// note counts an allocation on a node; stopped is true when the entry stops it.
func (p *peerCheck) note(e *structs.PlanEntry, n *structs.Node, h *model.Held, stopped bool) {
	j := h.Work.Job
	mine := j.ID == e.JobID && j.Namespace == e.Namespace
	for _, rows := range p.groups {
		for _, r := range rows {
			at := model.LevelOf(n, r.Level)
			switch {
			case mine:
				if at != "" {
					r.own[at] = true
				}
			case !stopped && (r.Away || !h.Work.Ending) && r.Means(e.Namespace, j):
				if r.all++; at != "" {
					r.others[at]++
				}
			}
		}
	}
	if mine || stopped || !h.Work.Shy {
		return
	}
	bars := func(ps []structs.Peer) {
		for i := range ps {
			if x := &ps[i]; x.Required && x.Means(j.Namespace, e.Job) {
				name := cmp.Or(x.Level, structs.PeerLevelNode)
				if at := model.LevelOf(n, name); at != "" {
					if _, have := p.bars[peerPlace{name, at}]; !have {
						p.bars[peerPlace{name, at}] = j.ID
						if !slices.Contains(p.levels, name) {
							p.levels = append(p.levels, name)
						}
					}
				}
			}
		}
	}
	bars(j.Away)
	if g := j.Group(h.Work.Group); g != nil {
		bars(g.Away)
	}
}

// refuses returns the rule that a place for a group on a node breaks, or "".
func (p *peerCheck) refuses(group int, n *structs.Node) string {
	if p == nil {
		return ""
	}
	for _, r := range p.groups[group] {
		at := model.LevelOf(n, r.Level)
		switch {
		case r.Away && at != "" && (r.others[at] > 0 || r.Self && r.placed[at] > 0):
			return r.Broken.Text()
		case !r.Away && !r.Self && (at == "" || r.others[at] == 0):
			return r.Broken.Text()
		case !r.Away && r.Self && r.all > 0 && (at == "" || r.others[at] == 0 && !r.own[at] && r.placed[at] == 0):
			return r.Broken.Text()
		}
	}
	for _, level := range p.levels {
		if whose, barred := p.bars[peerPlace{level, model.LevelOf(n, level)}]; barred {
			return structs.Obstacle{Dimension: structs.DimensionKeptAway, Subject: whose, Detail: level}.Text()
		}
	}
	return ""
}

// took adds by places of the entry's own on a node: 1, or -1 when a part is taken back.
func (p *peerCheck) took(group int, n *structs.Node, by int64) {
	if p == nil {
		return
	}
	for _, r := range p.groups[group] {
		if at := model.LevelOf(n, r.Level); at != "" {
			r.placed[at] += by
		}
	}
}
