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
	n := c.Nodes[i]
	r := &x.asked.rows[row]
	if r.node != n || r.hold != o.Hold {
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

// charge returns what a placement pays at the current prices.
func (s *Search) charge(v *Verdict, milli, idle, idleAfter, cpu, cpuAfter int64) int64 {
	x := &s.gpus
	sum := int64(0)
	m := &x.l.market
	if len(x.prices.Rent) > 0 && milli > 0 {
		if class, ok := m.class[v.hash]; ok {
			sum += x.prices.Rent[class] * milli / model.Micro
		}
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
	*r = rated{node: n, hold: o.Hold}
	before, after := &x.state.before, &x.state.after
	model.GPUStateOf(c, i, o, before)
	before.Suits = s.suits(v)
	after.Suits = before.Suits
	before.FreeCPU = c.Total[i].CPU - o.Used.CPU - o.Used.Cores*c.MHz[i]
	after.FreeCPU = before.FreeCPU - a.Need.CPU - a.Need.Cores*c.MHz[i]
	after.Free = append(after.Free[:0], before.Free...)
	offer := func(k int, milli int64) {
		value := rater.Value(after)
		if !r.can[k] || rater.Score(r.before, value) > rater.Score(r.before, r.after[k]) {
			r.after[k], r.milli[k], r.can[k] = value, int32(milli), true
		}
	}
	if len(a.Devices) > 0 {
		s.Picker.By = nil
		if short := s.Picker.PickDevices(a, n, model.HoldingOr(o.Hold), v.Choices); short.Dim != structs.DimensionNone {
			r.why = x.asked.whyOf(short)
			return
		}
	}
	now := &x.l.now[row]
	if now.node != n || now.hold != o.Hold {
		*now = valued{n, o.Hold, rater.Value(before)}
	}
	r.before, r.idle = now.value, uint8(min(255, model.IdleGPUs(before.Free)))
	if len(a.Devices) == 0 {
		offer(0, 0)
		return
	}
	if !a.Shares {
		for _, p := range s.Picker.Picks {
			if at := gpuOrder(n, p.Pos); at >= 0 {
				r.takes++
				after.Free[at] = 0
			}
		}
		offer(1, 1000*int64(r.takes))
		return
	}
	r.takes = 1
	p := s.Picker.Picks[0]
	g := &n.Resources.Devices[p.Group]
	alt := &a.Devices[0].Alts[0]
	reserve := n.GPUReserveMiB()
	first := p.Pos - p.Index
	at := gpuOrder(n, first) // of the first healthy GPU from here on
	if at < 0 {
		at = s.healthyBefore(n, first)
	}
	seen := 0
	for j := range g.Instances {
		if !g.Instances[j].Healthy {
			continue
		}
		order := at + seen
		seen++
		free := before.Free[order]
		if free == 0 || slices.Contains(before.Free[at:order], free) && g.Instances[j].MemoryMiB == g.Instances[0].MemoryMiB {
			continue // equal to one that was tried already
		}
		capacity := g.Instances[j].MemoryMiB - reserve
		t := o.Hold.Taken(first + j)
		mem := alt.MemoryOn(capacity)
		if t.Whole || mem <= 0 || t.Mem+mem > capacity || t.Compute+alt.Compute > structs.GPUComputeMax {
			continue
		}
		t.Mem, t.Compute = t.Mem+mem, t.Compute+alt.Compute
		after.Free[order] = model.FreeMilli(capacity, t)
		k := 0
		if free == 1000 {
			k = 1
		}
		offer(k, free-after.Free[order])
		after.Free[order] = free
	}
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
	var g model.GPUState
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
			*r = marketRow{node: c.Nodes[i], hold: o.Hold, class: -1}
			if !c.Ready[i] || !match.InPool(job, r.node) {
				continue
			}
			model.GPUStateOf(c, i, &o, &g)
			if len(g.Free) == 0 {
				continue
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
			m.count(r, 1)
		}
	}
}
