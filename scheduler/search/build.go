package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// plainKey is equal for asks that have the same shortage on the same nodes; nil for asks that are not cached.
func (s *Search) plainKey() []byte {
	a := s.Ask
	if s.peers != nil || s.Places != nil || len(s.Ban)+len(a.PerNode)+len(a.Static)+len(a.Cores) > 0 || a.ByID || a.NUMAWish || a.Shares || a.Job == nil {
		return nil
	}
	if b := s.Reserved; b != nil && len(b.Windows) > 0 {
		return nil
	}
	b := a.PlainKey(0)
	if b != nil && s.gpus.policy != nil { // GPU policies have their own shortages
		b = append(b, 1)
	}
	return b
}

// New begins a search for places of an ask; ties are taken from row first on.
func New(a *match.Ask, w *Pass, p Policy, first int) *Search {
	s := &Search{Ask: a, w: w, first: int32(first)}
	s.p, s.weights, s.verdicts = p, p.Weights(), make([]*Verdict, len(w.View.Classes.Num))
	if len(a.Spreads) > 0 {
		s.cellIndex = make(map[[16]byte][]int32)
	}
	for i := range a.Spreads {
		s.spreads = append(s.spreads, newSpreadState(&a.Spreads[i]))
		s.spreadWeight += a.Spreads[i].Weight
	}
	for range a.Distinct {
		s.props = append(s.props, &propState{valueTable: newValueTable(), have: make(map[int32]int64)})
	}
	if a.DistinctHostsJob || a.DistinctHostsGroup {
		s.jobRow = w.Column()
	}
	if len(a.Spreads) == 0 {
		s.cells = []cell{{pos: -1}}
	}
	if r, ok := p.(GPUPolicy); ok {
		s.gpus.policy = r
		if len(a.Devices) > 0 && a.Job.Type != structs.JobService {
			s.weights.Load = 0 // batch work is packed; services avoid nodes with their own group
		}
		if len(a.Devices) > 0 {
			s.weights.GPU = 0
		}
	}
	s.wishesOf(p)
	if s.sees || s.lots {
		s.lot = lotOf(w.Seed, a.Job.Key())
	}
	s.peers = newPeers(a, w)
	s.reweigh()
	s.weightSum = s.weights.Fit + s.weights.Load
	if s.offGPUs {
		s.weightSum += s.weights.GPU
	}
	if a.Shares && a.GPUFit != structs.GPUFitFirst && a.GPUFit != structs.GPUFitNext {
		s.weightSum += s.weights.GPU
	}
	if a.WishTotal > 0 {
		s.weightSum += s.weights.Affinity
	}
	if s.likes() {
		s.weightSum += s.weights.Affinity
	}
	if a.Inside != "" {
		s.weightSum += s.weights.Affinity
	}
	if a.NUMAWish {
		s.weightSum += s.weights.Affinity
	}
	if s.spreadWeight > 0 {
		s.weightSum += s.weights.Spread
	}
	if s.peers != nil && s.peers.weight > 0 {
		s.weightSum += s.weights.Affinity
	}
	s.weightSum += s.extra.locality + s.extra.cost + s.extra.reliability
	return s
}

// Count adds an allocation of the job that stays (n = 1) or goes (n = -1). group: it is of this group.
func (s *Search) Count(row int, group bool, n int32) {
	node := s.node(row)
	if group {
		if s.onRow == nil {
			s.onRow = s.w.Column()
		}
		s.onRow[row] += n
		if len(s.spreads) > 0 {
			values := s.spreadValues(s.verdict(row), node)
			s.spreadTook(values, int64(n))
		}
	}
	if s.peers != nil {
		s.peers.took(row, int64(n))
	}
	if s.jobRow != nil && (group || s.Ask.DistinctHostsJob) {
		s.jobRow[row] += n
	}
	for i := range s.Ask.Distinct {
		if d := &s.Ask.Distinct[i]; group || d.Job {
			s.props[i].have[s.props[i].value(match.Resolve(d.Target, node))] += int64(n)
		}
	}
	if n < 0 && len(s.parked) > 0 {
		again := s.parked
		s.parked = nil
		for _, c := range again {
			s.PushRow(int(c.row))
		}
	}
}

// PushRow puts a node among the candidates (again) if the group fits there.
func (s *Search) PushRow(row int) {
	if !s.built {
		return
	}
	c, i := s.w.View.At(row)
	v := s.ClassVerdict(&c.Classes[c.Class[i]])
	if v.Outside || v.Far || v.Refused > 0 || !c.Ready[i] || s.Elsewhere(row) || s.Banned(c.IDs[i]) {
		return
	}
	o := s.w.Get(row)
	base := s.rate(c, i, row, v, &o, false)
	if base < 0 {
		return
	}
	at := v.cell
	if at < 0 {
		at = s.cellOf(s.spreadValues(v, c.Nodes[i]))
	}
	s.push(at, candidate{base: base, row: int32(row)})
}

// build looks at every node once.
func (s *Search) build() {
	s.built = true
	if len(s.cells) == 1 {
		s.cells[0].heap = s.w.heap()
	}
	if s.openTwins() {
		s.buildTwins()
	} else {
		s.buildRows()
	}
	for i := range s.cells {
		x := &s.cells[i]
		if len(x.heap) == 0 {
			continue
		}
		s.heapify(x.heap)
		x.pos = int32(len(s.turn))
		s.turn = append(s.turn, int32(i))
		for k, v := range x.values {
			s.spreads[k].open[v]++
		}
	}
	for _, sp := range s.spreads {
		sp.grow()
		sp.lowest()
	}
	s.rebonus()
}

// AnyRoom reports whether some node has room for a placement.
func (s *Search) AnyRoom() bool {
	if !s.built {
		s.build()
	}
	return len(s.turn) > 0
}

// buildRows looks at every row.
func (s *Search) buildRows() {
	view := s.w.View
	table := make([]*Verdict, 0, 8)
	known := s.w.ShortfallsOf(s.plainKey(), s.Ask.Job.NodePool)
	for ci, c := range view.Chunks {
		table = table[:0]
		for k := range c.Classes {
			table = append(table, s.ClassVerdict(&c.Classes[k]))
		}
		if known != nil {
			s.buildKnown(known, table, c, view.Starts[ci])
			continue
		}
		for i := range c.IDs {
			v := table[c.Class[i]]
			row := view.Starts[ci] + i
			if !s.counted(c, i, v) || s.Elsewhere(row) {
				continue
			}
			if s.Banned(c.IDs[i]) {
				s.refuse(match.Refused(structs.ReasonNodeIneligible, structs.Obstacle{Dimension: structs.DimensionFailedNode}, structs.EventNodeJoined))
				continue
			}
			o := model.Occupancy{Used: c.Used[i], Hold: c.Hold[i]}
			if t := s.w.Touched[row]; t != 0 {
				o = s.w.States[t-1]
			}
			s.candidateAt(c, i, row, v, &o)
		}
	}
	if known != nil {
		s.countKnown(known)
	}
}

// counted counts a node, and reports whether it is feasible apart from what is held there.
func (s *Search) counted(c *model.Chunk, i int, v *Verdict) bool {
	if !v.Outside && !v.Far && !c.Ready[i] {
		v.inPool++
		s.notReady(c.Nodes[i])
		return false
	}
	return s.countedAll(v, 1)
}

// countedAll is counted for several ready nodes of a class.
func (s *Search) countedAll(v *Verdict, n int64) bool {
	if v.Outside {
		return false
	}
	v.inPool += n
	if v.Far {
		return false
	}
	v.available += n
	s.Looked += n
	if v.Refused > 0 {
		v.filtered += n
		s.refusals[v.Refused-1].Nodes += n
		return false
	}
	return true
}

// candidateAt puts a node among the candidates, or counts its shortage. It returns the result of rate.
func (s *Search) candidateAt(c *model.Chunk, i, row int, v *Verdict, o *model.Occupancy) int64 {
	base := s.rate(c, i, row, v, o, true)
	if base < 0 {
		if base == rateShort {
			s.exhausted(v, s.why)
		}
		return base
	}
	at := v.cell
	if at < 0 {
		at = s.cellOf(s.spreadValues(v, c.Nodes[i]))
	}
	x := &s.cells[at]
	x.heap = append(x.heap, candidate{base: base, row: int32(row)})
	return base
}

// buildKnown looks at the rows of a chunk with the help of the cache.
func (s *Search) buildKnown(m *Shortfalls, table []*Verdict, c *model.Chunk, first int) {
	n := len(c.IDs)
	hold, lack := m.hold[first:first+n], m.lack[first:first+n]
	touched := s.w.Touched[first : first+n]
	anyReserved := s.Reserved != nil && s.Reserved.Rows != nil
	for i, h := range c.Hold {
		if t := touched[i]; t != 0 {
			h = s.w.States[t-1].Hold
		}
		row := first + i
		plain := !anyReserved || !s.Reserved.ReservedAny(row, 1)
		if k := lack[i]; k > 0 && hold[i] == h && plain {
			x := &m.sums[k-1]
			x.nodes++
			if short := m.short[row]; short > 0 && (x.short == 0 || short < x.short) {
				x.short = short
			}
			continue
		}
		v := table[c.Class[i]]
		if !s.counted(c, i, v) {
			continue
		}
		o := model.Occupancy{Used: c.Used[i], Hold: h}
		if t := touched[i]; t != 0 {
			o = s.w.States[t-1]
		}
		base := s.candidateAt(c, i, row, v, &o)
		switch {
		case !plain || lack[i] == 0 && hold[i] == h:
		case base == rateShort:
			hold[i], lack[i], m.short[row] = h, m.kind(c.Classes[c.Class[i]].Num, &s.why), s.why.Short
		case base >= 0:
			hold[i], lack[i] = h, 0
		}
	}
}

// countKnown counts the nodes with a cached shortage.
func (s *Search) countKnown(m *Shortfalls) {
	for k := range m.sums {
		sum := m.sums[k]
		if sum.nodes == 0 {
			continue
		}
		m.sums[k] = shortfallSum{}
		v := s.verdicts[m.kinds[k].class]
		if !s.countedAll(v, sum.nodes) {
			continue
		}
		x := m.kinds[k].shortage
		x.Short = sum.short
		s.exhaustedAll(v, x, sum.nodes)
	}
}

func (s *Search) notReady(n *structs.Node) {
	cure := structs.EventNodeJoined
	if n.Status == structs.NodeReady {
		cure = structs.EventNodeEligible
	}
	s.refuse(match.Refused(structs.ReasonNodeIneligible, structs.Obstacle{Dimension: structs.DimensionNodeState, Subject: stateOf(n)}, cure))
}

// stateOf says in what state a node is that is not ready.
func stateOf(n *structs.Node) string {
	switch {
	case n.Status != structs.NodeReady:
		return string(n.Status)
	case n.Drain != nil:
		return "draining"
	}
	return "ineligible"
}

// Done returns the search's scratch memory. The search must not place any more; its report stays available.
func (s *Search) Done() {
	x := s.w.Scratch
	if x == nil {
		return
	}
	x.Keep(s.onRow)
	x.Keep(s.jobRow)
	s.onRow, s.jobRow = nil, nil
	s.keepHeap()
}

// keepHeap returns the memory of the heap.
func (s *Search) keepHeap() {
	if h := s.w.heaps; h != nil && len(s.cells) == 1 && cap(s.cells[0].heap) >= s.w.View.Rows && len(h.list) < heapsMax {
		h.list = append(h.list, s.cells[0].heap)
		s.cells[0].heap, s.turn = nil, nil
	}
}

// Close makes the search do without GPU models whose limits are reached, and no others. What was placed and counted before
// stays; the nodes are looked at again.
func (s *Search) Close(closed []match.Closed) {
	if slices.EqualFunc(s.Ask.Closed, closed, func(a, b match.Closed) bool { return a.Device == b.Device && a.Words == b.Words }) {
		return
	}
	if s.w.heaps != nil {
		s.keepHeap()
	}
	n := New(s.Ask.Opened().Without(closed), s.w, s.p, int(s.first))
	if x := s.w.Scratch; x != nil && n.jobRow != nil {
		x.Keep(n.jobRow)
	}
	n.Keeping, n.Gang, n.peers, n.spacing = s.Keeping, s.Gang, s.peers, s.spacing
	n.scores, n.unplaced, n.NoPower, n.GivenBack = s.scores, s.unplaced, s.NoPower, s.GivenBack
	n.parked, n.GaveUp, n.lastReport = nil, false, nil
	for i, sp := range s.spreads { // the cells are found again
		n.spreads[i] = &spreadState{valueTable: sp.valueTable, ask: sp.ask, have: sp.have, share: sp.share, cells: make([][]int32, len(sp.have)), open: make([]int32, len(sp.have))}
	}
	surveyed := s.surveyed
	*s = *n
	if surveyed {
		s.Survey()
	}
}
