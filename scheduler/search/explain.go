package search

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// scoresKept is the number of nodes whose scores are reported: the winner and the best runners-up.
const scoresKept = 5

// remember records the scores of the winner (the best candidate right now) and of the runners-up.
func (s *Search) remember() {
	type next struct {
		cell int32
		i    int // in the heap; -1: a twin of a candidate
		candidate
	}
	// The best few of a heap lie near its top: walk down from the roots, best first.
	var open []next
	for k := 0; k < len(s.turn) && k < 31; k++ {
		open = append(open, next{s.turn[k], 0, s.cells[s.turn[k]].heap[0]})
	}
	value := func(x next) int64 { return x.base + s.cells[x.cell].bonus }
	for len(s.scores) < scoresKept && len(open) > 0 {
		best := 0
		for k := range open {
			a, b := value(open[k]), value(open[best])
			if a > b || a == b && s.turnOf(open[k].row) < s.turnOf(open[best].row) {
				best = k
			}
		}
		x := open[best]
		open = slices.Delete(open, best, best+1)
		h := s.cells[x.cell].heap
		s.scores = append(s.scores, s.score(int(x.row), &s.cells[x.cell]))
		if c, ok := s.afterTwin(x.candidate); ok {
			open = append(open, next{x.cell, -1, c})
		}
		if x.i < 0 {
			continue
		}
		for _, child := range []int{2*x.i + 1, 2*x.i + 2} {
			if child < len(h) {
				open = append(open, next{x.cell, child, h[child]})
			}
		}
	}
}

// score returns the terms of a node's score.
func (s *Search) score(row int, x *cell) structs.NodeScore {
	c, i := s.w.View.At(row)
	n := c.Nodes[i]
	v := s.verdict(row)
	o := s.w.Get(row)
	u := &Use{Total: c.Total[i], Used: o.Used.Add(s.Ask.Need)}
	if len(s.Ask.Devices) > 0 && (s.gpus.policy == nil || !s.Ask.IsSimple) {
		u.Devices, u.DevicesInUse, _ = s.devices(c, i, &o, v)
	}
	u.Used.CPU += u.Used.Cores * c.MHz[i]
	out := structs.NodeScore{NodeID: n.ID}
	sum := int64(0)
	term := func(name string, weight, micro int64) {
		if weight == 0 {
			return
		}
		out.Terms = append(out.Terms, structs.ScoreTerm{Name: name, Micro: micro})
		sum += weight * micro
	}
	if s.counts {
		u.Allocs, u.GPUs = int64(o.Hold.Size()), CountGPUs(n)
	}
	switch {
	case s.gpus.policy != nil && v.gpus && s.Ask.IsSimple:
		micro, _ := s.rateSimple(c, i, row, v, &o)
		term(s.p.Name(), s.weights.Fit, micro)
	case s.gpus.policy != nil && v.gpus:
		term(s.p.Name(), s.weights.Fit, s.rateGPUs(c, i, v, &o))
	default:
		if s.sees {
			u.GPU, u.Ask = s.gpuUse(c, i, v, &o), s.Ask.Need
		}
		if s.learns {
			u.Past = s.w.Past[n.ID]
		}
		term(cmp.Or(s.p.Capabilities().FitName, s.p.Name()), s.weights.Fit, s.p.Fit(u))
	}
	if v.shunned {
		out.Terms = append(out.Terms, structs.ScoreTerm{Name: "taint", Micro: 0}) // comes after all others
	}
	if len(s.Ask.Devices) > 0 && len(c.Worn[i]) > 0 && s.takesWorn(n, &o, v) {
		out.Terms = append(out.Terms, structs.ScoreTerm{Name: "degraded-devices", Micro: 0}) // comes after all others
	}
	if s.offGPUs {
		micro := int64(0)
		if !v.gpus {
			micro = model.Micro
		}
		term("off-gpu-nodes", s.weights.GPU, micro)
	}
	term("job-anti-affinity", s.weights.Load, s.load(row))
	if s.Ask.WishTotal > 0 {
		wishes := v.wishes
		for k := range s.Ask.WishPerNode {
			wishes += s.Ask.WishPerNode[k].Fulfilled(s.Ask.WishPerNode[k].Cond.Holds(n))
		}
		term("node-affinity", s.weights.Affinity, wishes*model.Micro/s.Ask.WishTotal)
	}
	if s.peers != nil && s.peers.weight > 0 {
		s.peers.refresh(s.Ask, s.w)
		term("job-affinity", s.weights.Affinity, s.peers.micro(row))
	}
	term("locality", s.extra.locality, v.local)
	term("cost", s.extra.cost, v.cheap)
	term("reliability", s.extra.reliability, s.sound(row))
	if s.likes() {
		term("devices", s.weights.Affinity, v.liked+s.Picker.Liked)
	}
	if s.Ask.Shares && s.Ask.GPUFit != structs.GPUFitFirst && s.Ask.GPUFit != structs.GPUFitNext {
		term("gpu", s.weights.GPU, s.gpuFull())
	}
	if s.Ask.Inside != "" {
		term("topology", s.weights.Affinity, s.close())
	}
	if s.Ask.NUMAWish {
		term("numa", s.weights.Affinity, s.Ask.Together(n, o.Hold))
	}
	if s.Ask.AltsMax > 0 { // compared before all others, and without weight
		out.Terms = append(out.Terms, structs.ScoreTerm{Name: "gpu-alternative", Micro: model.Micro * (s.Ask.AltsMax - s.Picker.Rank) / s.Ask.AltsMax})
	}
	if s.spreadWeight > 0 {
		term("allocation-spread", s.weights.Spread, s.cellBonus(x)/max(s.weights.Spread, 1))
	}
	out.Micro = sum / max(s.weightSum, 1)
	return out
}

// Report returns the result of the search for users.
func (s *Search) Report(wanted, placed int64) *structs.GroupReport {
	if !s.GaveUp || s.lastReport == nil || s.lastReport.Wanted != wanted || s.lastReport.Placed != placed {
		s.lastReport = s.newReport(wanted, placed)
	}
	r := *s.lastReport
	r.Refusals = slices.Clip(r.Refusals)
	return &r
}

func (s *Search) newReport(wanted, placed int64) *structs.GroupReport {
	r := &structs.GroupReport{Group: s.Ask.Tg.Name, Wanted: wanted, Placed: placed, Considered: s.Looked, Scores: s.scores}
	r.Coalesced = max(0, wanted-placed-1)
	for _, v := range s.list {
		r.InPool += v.inPool
		r.Filtered += v.filtered
		r.Exhausted += v.exhausted
		if v.available > 0 {
			if r.Available == nil {
				r.Available = make(map[string]int64)
			}
			r.Available[v.dc] += v.available
		}
		if v.filtered > 0 {
			if r.ClassFilt == nil {
				r.ClassFilt = make(map[string]int64)
			}
			r.ClassFilt[v.class] += v.filtered
		}
		if v.exhausted > 0 {
			if r.ClassExh == nil {
				r.ClassExh = make(map[string]int64)
			}
			r.ClassExh[v.class] += v.exhausted
		}
	}
	if placed >= wanted {
		return r
	}
	for d := structs.DimensionNone + 1; d < structs.NodeDimensions; d++ {
		if t := s.amounts[d]; t.nodes > 0 {
			r.Refusals = append(r.Refusals, structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: d}, Nodes: t.nodes, Short: t.short, Unit: model.UnitOf[d], CuredBy: structs.EventAllocStopped})
		}
	}
	for _, x := range s.refusals {
		if x.Nodes == 0 {
			continue
		}
		switch {
		case x.Dimension == structs.DimensionMissingMIG:
			x.Detail, x.Count = s.otherMIG(x.Subject)
		case x.Dimension == structs.DimensionMissingDevice && x.Nodes == r.InPool && structs.IsGPUDevice(x.Subject):
			x.Detail, _ = s.otherMIG("") // no node has a whole GPU
		}
		if x.Code == structs.ReasonResources && x.Asked > 0 && x.Free >= x.Asked && x.CuredBy == structs.EventAllocStopped {
			x.Code = structs.ReasonFragmentation // enough is free, but in pieces that are too small
		}
		r.Refusals = append(r.Refusals, x.Refusal)
	}
	if len(r.Refusals) == 0 && r.Considered == 0 && (s.built || s.surveyed) {
		r.Refusals = append(r.Refusals, match.Cannot(structs.DimensionNoNode, string(s.Ask.Job.NodePool), "", structs.EventNodeJoined).Refusal)
	}
	if s.GivenBack != "" {
		r.Refusals = []structs.Refusal{match.Refused(structs.ReasonResources, structs.Obstacle{Dimension: structs.DimensionAllAtOnce, Subject: s.GivenBack}, structs.EventAllocStopped).Refusal}
	}
	slices.SortFunc(r.Refusals, func(a, b structs.Refusal) int {
		if a.Nodes != b.Nodes {
			return cmp.Compare(b.Nodes, a.Nodes)
		}
		return cmp.Or(cmp.Compare(a.Text(), b.Text()), cmp.Compare(a.Code, b.Code))
	})
	r.Code = mainReason(r.Refusals)
	return r
}

// mainReason returns the reason code for a group that waits: the reason that could be cured soonest. A node whose free
// capacity is reserved could be used at once, so that comes first; resources come before reasons that only another node
// can cure.
func mainReason(rs []structs.Refusal) structs.ReasonCode {
	for _, code := range []structs.ReasonCode{structs.ReasonReservation, structs.ReasonPower, structs.ReasonResources, structs.ReasonFragmentation, structs.ReasonTopology, structs.ReasonQuota, structs.ReasonDeviceUnhealthy, structs.ReasonDriver, structs.ReasonConstraint, structs.ReasonNodeIneligible} {
		if slices.ContainsFunc(rs, func(r structs.Refusal) bool { return r.Code == code }) {
			return code
		}
	}
	return structs.ReasonResources
}
