package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// openGPUs takes the ledger of the ask and the current prices, if the policy has any.
func (s *Search) openGPUs() {
	x := &s.gpus
	x.l = s.w.ledger(x.policy, s.Ask)
	if s.Ask.Simple() {
		x.asked = x.l.ask(s.Ask.GPUKey(), s.w.View.Rows)
	}
	if p, ok := x.l.rater.(PricedRater); ok {
		x.l.market.sync(s.w, x.l, s.Ask.Job)
		x.prices = p.Prices(&x.l.market.Market)
		x.wide = slices.ContainsFunc(x.prices.Wide, func(n int64) bool { return n > 0 })
		x.pays = x.wide || slices.ContainsFunc(x.prices.Rent, func(n int64) bool { return n > 0 })
	}
}

// rateSimple returns the policy's rating of a node with GPUs for a simple ask, in millionths. It returns false, with
// the shortage in s.why, if the ask does not fit.
func (s *Search) rateSimple(c *model.Chunk, i, row int, v *Verdict, o *model.Occupancy) (int64, bool) {
	x := &s.gpus
	if x.l == nil {
		s.openGPUs()
	}
	from := s.originOf(c, i, row, o)
	r := x.asked.at(row, from.set)
	if r.origin != from {
		r.origin = from
		s.rateRow(r, c, i, row, v, o)
	}
	if r.why > 0 {
		s.why = x.asked.whys[r.why-1]
		return 0, false
	}
	if !x.pays {
		switch {
		case !r.can[1]:
			return x.l.rater.Score(r.before, r.after[0]), true
		case !r.can[0]:
			return x.l.rater.Score(r.before, r.after[1]), true
		}
		return max(x.l.rater.Score(r.before, r.after[0]), x.l.rater.Score(r.before, r.after[1])), true
	}
	best := int64(-1)
	cpu := c.Total[i].CPU - o.Used.CPU - o.Used.Cores*c.MHz[i]
	left := cpu - s.Ask.Need.CPU - s.Ask.Need.Cores*c.MHz[i]
	for k := range r.can {
		if r.can[k] {
			charge := s.charge(v, int64(r.milli[k]), int64(r.idle), int64(r.idle)-int64(k)*int64(r.takes), cpu, left)
			best = max(best, x.l.rater.Score(r.before, r.after[k]+charge))
		}
	}
	return best, true
}

// originOf returns what values of a row are made from.
func (s *Search) originOf(c *model.Chunk, i, row int, o *model.Occupancy) origin {
	if x := s.twins.setOf(row, c, i, o); x != nil {
		return origin{set: x}
	}
	return origin{node: c.Nodes[i], hold: o.Hold}
}

// charge returns what a placement pays at the current prices.
func (s *Search) charge(v *Verdict, milli, idle, idleAfter, cpu, cpuAfter int64) int64 {
	x := &s.gpus
	sum := int64(0)
	m := &x.l.market
	if len(x.prices.Rent) > 0 && milli > 0 {
		if v.rent < 0 {
			v.rent = 0
			if class, ok := m.class[v.hash]; ok {
				v.rent = x.prices.Rent[class]
			}
		}
		sum += v.rent * milli / model.Micro
	}
	if x.wide && idle > 1 {
		suits := s.suits(v)
		sum += x.prices.worth(&m.Market, suits, idle, cpu) - x.prices.worth(&m.Market, suits, idleAfter, cpuAfter)
	}
	return sum
}

// suits reports for each shape of the mix whether nodes of the class have the model that it asks for.
func (s *Search) suits(v *Verdict) []bool {
	if v.suits == nil {
		v.suits = s.gpus.l.suit(v.hash, v.node)
	}
	return v.suits
}

// rateRow computes what a node offers to a simple ask.
func (s *Search) rateRow(r *rated, c *model.Chunk, i, row int, v *Verdict, o *model.Occupancy) {
	x := &s.gpus
	n, a, rater := c.Nodes[i], s.Ask, x.l.rater
	*r = rated{origin: r.origin}
	group := -1 // of GPUs, into v.Choices, for a share
	if a.Shares && a.Tg.Gang == nil {
		group = s.roomForShare(n, v, o.Hold)
	}
	if len(a.Devices) > 0 && group < 0 {
		s.Picker.By = nil
		if short := s.Picker.PickDevices(a, n, model.HoldingOr(o.Hold), v.Choices); short.Dim != structs.DimensionNone {
			r.why = x.asked.whyOf(short)
			return
		}
	}
	before, after := &x.state.before, &x.state.after
	if r.set != nil {
		before.Free = append(before.Free[:0], r.set.freeGPUs(c, i, o)...)
	} else {
		model.GPUStateOf(c, i, o, before)
	}
	before.Suits = s.suits(v)
	after.Suits = before.Suits
	before.FreeCPU = c.Total[i].CPU - o.Used.CPU - o.Used.Cores*c.MHz[i]
	after.FreeCPU = before.FreeCPU - a.Need.CPU - a.Need.Cores*c.MHz[i]
	after.Free = append(after.Free[:0], before.Free...)
	now := x.l.now.at(row, r.set)
	if now.origin != r.origin {
		*now = valued{r.origin, rater.Value(before)}
	}
	r.before, r.idle = now.value, uint8(min(255, model.IdleGPUs(before.Free)))
	switch {
	case len(a.Devices) == 0:
		r.offer(rater, after, 0, 0)
	case a.Shares:
		r.takes = 1
		if group < 0 {
			group = slices.IndexFunc(v.Choices[0], func(d match.DeviceChoice) bool { return d.Group == s.Picker.Picks[0].Group })
		}
		s.rateShare(r, n, v, &v.Choices[0][group], o.Hold)
	default:
		for _, p := range s.Picker.Picks {
			if at := gpuOrder(n, p.Pos); at >= 0 {
				r.takes++
				after.Free[at] = 0
			}
		}
		r.offer(rater, after, 1, 1000*int64(r.takes))
	}
}

// offer notes the value of a node after a placement, if it is the best of its kind: k is 1 if it uses idle GPUs.
func (r *rated) offer(rater GPURater, after *model.GPUState, k int, milli int64) {
	value := rater.Value(after)
	if !r.can[k] || rater.Score(r.before, value) > rater.Score(r.before, r.after[k]) {
		r.after[k], r.milli[k], r.can[k] = value, int32(milli), true
	}
}

// roomForShare returns the place in v.Choices of the first group with a GPU that has room for a share, or -1.
func (s *Search) roomForShare(n *structs.Node, v *Verdict, hold *model.Holding) int {
	alt := &s.Ask.Devices[0].Alts[0]
	for k := range v.Choices[0] {
		d := &v.Choices[0][k]
		g := &n.Resources.Devices[d.Group]
		for j := range g.Instances {
			if g.Instances[j].Healthy && takesShare(alt, g.Instances[j].MemoryMiB-v.reserve, hold.Taken(d.First+j)) {
				return k
			}
		}
	}
	return -1
}

// takesShare reports whether a GPU has room for a share in addition to what is taken.
func takesShare(alt *match.DeviceAlt, capacity int64, t model.Share) bool {
	mem := alt.MemoryOn(capacity)
	return !t.Whole && mem > 0 && t.Mem+mem <= capacity && t.Compute+alt.Compute <= structs.GPUComputeMax
}

// rateShare rates a share on each GPU of a group.
func (s *Search) rateShare(r *rated, n *structs.Node, v *Verdict, d *match.DeviceChoice, hold *model.Holding) {
	x := &s.gpus
	before, after := &x.state.before, &x.state.after
	g := &n.Resources.Devices[d.Group]
	alt := &s.Ask.Devices[0].Alts[0]
	at := gpuOrder(n, d.First) // of the first healthy GPU from here on
	if at < 0 {
		at = s.healthyBefore(n, d.First)
	}
	seen := 0
	for j := range g.Instances {
		if !g.Instances[j].Healthy {
			continue
		}
		order := at + seen
		seen++
		free := before.Free[order]
		capacity := g.Instances[j].MemoryMiB - v.reserve
		t := hold.Taken(d.First + j)
		if !takesShare(alt, capacity, t) || slices.Contains(before.Free[at:order], free) && sameBefore(g, d.First, j, t, hold) {
			continue
		}
		t.Mem, t.Compute = t.Mem+alt.MemoryOn(capacity), t.Compute+alt.Compute
		after.Free[order] = model.FreeMilli(capacity, t)
		k := 0
		if free == 1000 {
			k = 1
		}
		r.offer(x.l.rater, after, k, free-after.Free[order])
		after.Free[order] = free
	}
}

// sameBefore reports whether a GPU of a group before the j-th is as large, and as much of it is taken. GPUs with as much free
// differ where memory is scarce on one and compute on the other.
func sameBefore(g *structs.DeviceGroup, first, j int, t model.Share, hold *model.Holding) bool {
	for k := range j {
		if g.Instances[k].Healthy && g.Instances[k].MemoryMiB == g.Instances[j].MemoryMiB {
			if x := hold.Taken(first + k); x.Mem == t.Mem && x.Compute == t.Compute && x.Whole == t.Whole {
				return true
			}
		}
	}
	return false
}

// healthyBefore counts the healthy GPUs of a node before a position.
func (s *Search) healthyBefore(n *structs.Node, pos int) int {
	at, count := 0, 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for j := range g.Instances {
			if at == pos {
				return count
			}
			if model.IsGPU(g) && g.Instances[j].Healthy {
				count++
			}
			at++
		}
	}
	return count
}

// rateGPUs rates a node with the devices that were picked last. It is for asks that are not simple.
func (s *Search) rateGPUs(c *model.Chunk, i int, v *Verdict, o *model.Occupancy) int64 {
	if s.gpus.l == nil {
		s.openGPUs()
	}
	n := c.Nodes[i]
	if s.Ask.PlainDevices { // rating did not pick: any free ones will do
		s.Picker.PickDevices(s.Ask, n, model.HoldingOr(o.Hold), v.Choices)
	}
	return s.rateState(c, i, v, o, match.Pick{Pos: -1})
}

// rateState rates a node with what the picker has chosen and, unless its position is negative, one more pick.
func (s *Search) rateState(c *model.Chunk, i int, v *Verdict, o *model.Occupancy, more match.Pick) int64 {
	x := &s.gpus
	n := c.Nodes[i]
	before, after := &x.state.before, &x.state.after
	model.GPUStateOf(c, i, o, before)
	after.Free = append(after.Free[:0], before.Free...)
	reserve := n.GPUReserveMiB()
	take := func(p *match.Pick, t model.Share) {
		if at := gpuOrder(n, p.Pos); at >= 0 {
			after.Free[at] = model.FreeMilli(n.Resources.Devices[p.Group].Instances[p.Index].MemoryMiB-reserve, t)
		}
	}
	for k := range s.Picker.Picks {
		p := &s.Picker.Picks[k]
		take(p, s.Picker.Busy(model.HoldingOr(o.Hold), p.Pos))
	}
	if more.Pos >= 0 {
		t := s.Picker.Busy(model.HoldingOr(o.Hold), more.Pos)
		t.Mem, t.Compute = t.Mem+more.Mem, t.Compute+more.Compute
		take(&more, t)
	}
	before.Suits = s.suits(v)
	after.Suits = before.Suits
	before.FreeCPU = c.Total[i].CPU - o.Used.CPU - o.Used.Cores*c.MHz[i]
	after.FreeCPU = before.FreeCPU - s.Ask.Need.CPU - s.Ask.Need.Cores*c.MHz[i]
	was, is := x.l.rater.Value(before), x.l.rater.Value(after)
	if x.pays {
		is += s.charge(v, model.SumFree(before.Free)-model.SumFree(after.Free), model.IdleGPUs(before.Free), model.IdleGPUs(after.Free), before.FreeCPU, after.FreeCPU)
	}
	return x.l.rater.Score(was, is)
}

// Choose sets what chooses the GPUs of shares on a node.
func (s *Search) Choose(c *model.Chunk, i int, v *Verdict, o *model.Occupancy) {
	s.Picker.By = nil
	if s.Ask.Shares && (s.gpus.policy != nil || s.lots) {
		s.choosing = choosing{s, c, i, v, *o}
		s.Picker.By = &s.choosing
	}
}

// Rate returns the policy's rating of picking p, given what is picked already.
func (by *choosing) Rate(p match.Pick) int64 {
	if by.s.gpus.policy == nil {
		return int64(draw(by.s.drawn(by.c.Nodes[by.i])^uint64(p.Pos+1)) >> 1)
	}
	if by.s.gpus.l == nil {
		by.s.openGPUs()
	}
	return by.s.rateState(by.c, by.i, by.v, &by.o, p)
}

// sync updates the market to a what-if.
func (m *marketRows) sync(w *Pass, l *ledger, job *structs.Job) {
	v := w.View
	for len(m.rows) > v.Rows {
		m.count(&m.rows[len(m.rows)-1], -1)
		m.rows = m.rows[:len(m.rows)-1]
	}
	for len(m.rows) < v.Rows {
		m.rows = append(m.rows, marketRow{class: -1})
	}
	if len(m.seen) != len(v.Chunks) {
		m.seen = make([]marketChunk, len(v.Chunks))
	}
	t := w.twinIndex(job.NodePool)
	for k, c := range v.Chunks {
		now := marketChunk{c, v.Starts[k]}
		if w.Touches(now.first, len(c.IDs)) {
			now.chunk = nil
		} else if m.seen[k] == now {
			continue
		}
		m.seen[k] = now
		rows := m.rows[v.Starts[k] : v.Starts[k]+len(c.IDs)]
		for i := range rows {
			r := &rows[i]
			o := model.Occupancy{Used: c.Used[i], Hold: c.Hold[i]}
			if t := w.Touched[v.Starts[k]+i]; t != 0 {
				o = w.States[t-1]
			}
			if r.node == c.Nodes[i] && r.hold == o.Hold {
				continue
			}
			m.count(r, -1)
			if x := t.setOf(v.Starts[k]+i, c, i, &o); x != nil {
				e := m.sets.at(0, x)
				if e.set != x {
					*e = marketSet{x, m.offer(l, job, c, i, &o)}
				}
				*r = e.row
				r.node, r.hold = c.Nodes[i], o.Hold
			} else {
				*r = m.offer(l, job, c, i, &o)
			}
			m.count(r, 1)
		}
	}
}

// offer returns what a row contributes to the market.
func (m *marketRows) offer(l *ledger, job *structs.Job, c *model.Chunk, i int, o *model.Occupancy) marketRow {
	r := marketRow{node: c.Nodes[i], hold: o.Hold, class: -1}
	if !c.Ready[i] || !match.InPool(job, r.node) {
		return r
	}
	g := &m.state
	model.GPUStateOf(c, i, o, g)
	if len(g.Free) == 0 {
		return r
	}
	h := c.Hash[i]
	class, known := m.class[h]
	if !known {
		class = len(m.Classes)
		m.class[h] = class
		m.Classes = append(m.Classes, MarketClass{Suits: l.suit(h, r.node)})
	}
	r.class = int32(class)
	idle := int64(0)
	for _, free := range g.Free {
		r.free += int32(free)
		if free == 1000 {
			idle++
		}
	}
	cpu := c.Total[i].CPU - o.Used.CPU - o.Used.Cores*c.MHz[i]
	for k, at := range m.Wide {
		if m.Classes[class].Suits[at] {
			r.blocks[k] = uint8(min(255, m.Mix.Shapes[at].Blocks(idle, cpu)))
		}
	}
	return r
}
