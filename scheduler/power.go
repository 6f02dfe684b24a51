package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Power: the GPUs of a node pool that are in use never draw more together than the pool's budget (Node.PowerBudgetW), taken
// by what the driver lets each of them draw. A GPU counts from when somebody is given it, or a share or a slice of it, until
// nobody has any of it. What a pass has tried is counted by its picture of the cluster, so that it rolls back with it, and
// the planner counts again over everything in flight (Verify). Where no pool has a budget nothing of this runs.

// powerUnknown is what a GPU counts that does not tell: more than any budget.
const powerUnknown = int64(1) << 40

// powerOf is how many watts the GPUs in use on a node may draw.
func powerOf(n *structs.Node, o occupancy) int64 {
	if o.hold == nil {
		return 0
	}
	sum, first := int64(0), 0
	var seen []string // GPUs of which several slices may be in use
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if g.Type == "gpu" {
			for j := range g.Instances {
				in := &g.Instances[j]
				if !o.hold.devs.has(first + j) {
					continue
				}
				if in.Parent != "" {
					if slices.Contains(seen, in.Parent) {
						continue
					}
					seen = append(seen, in.Parent)
				}
				sum += structs.GPUPowerW(g, powerUnknown)
			}
		}
		first += len(g.Instances)
	}
	return sum
}

// powerBooks are how many watts are used of the pools with a budget.
type powerBooks struct{ used map[string]int64 }

// countPower begins to count.
func (w *whatIf) countPower() {
	w.power = &powerBooks{used: map[string]int64{}}
	for r := range w.touched {
		c, i := w.v.at(r)
		if n := c.nodes[i]; n.PowerBudgetW > 0 {
			w.power.used[n.Pool] += powerOf(n, w.get(r))
		}
	}
}

// moved books that what is held on a row changes.
func (p *powerBooks) moved(w *whatIf, row int, from, to occupancy) {
	if p == nil {
		return
	}
	c, i := w.v.at(row)
	if n := c.nodes[i]; n.PowerBudgetW > 0 {
		p.used[n.Pool] += powerOf(n, to) - powerOf(n, from)
	}
}

// powerShort is how many watts are missing for what would be held on a row; 0 or less: none.
func (s *scan) powerShort(row int, n *structs.Node, after occupancy) int64 {
	if s.w.power == nil || n.PowerBudgetW == 0 {
		return 0
	}
	more := powerOf(n, after) - powerOf(n, s.w.get(row))
	if more <= 0 {
		return 0
	}
	return s.w.power.used[n.Pool] + more - n.PowerBudgetW
}

// unpowered notes that a row has no place because of its pool's budget.
func (s *scan) unpowered(v *verdict, n *structs.Node, short int64) {
	v.exhausted++
	s.lacksPower = true
	r := refusal{code: structs.ReasonPower, what: structs.DimensionPower + n.Pool, short: short, unit: "W", cure: structs.EventAllocStopped}
	if short >= powerUnknown/2 {
		r.what, r.short, r.unit, r.cure = "GPUs that do not tell their power limit, in node pool "+n.Pool+", which has a budget", 0, "", structs.EventConfigChanged
	}
	s.refuse(r)
}

// powerCheck counts for Verify.
type powerCheck struct {
	v    *View
	f    Overlay
	used map[string]int64
	part []powerBooked // of the part that is looked at
}

type powerBooked struct {
	pool  string
	watts int64
}

// refuses says by how many watts a pool's budget would be passed, and books what is not refused.
func (p *powerCheck) refuses(n *structs.Node, before, after occupancy) int64 {
	if n.PowerBudgetW == 0 {
		return 0
	}
	more := powerOf(n, after) - powerOf(n, before)
	if more == 0 {
		return 0
	}
	if p.used == nil {
		p.used = map[string]int64{}
	}
	if _, counted := p.used[n.Pool]; !counted {
		sum := int64(0)
		for _, c := range p.v.chunks {
			for i, o := range c.nodes {
				if o.Pool == n.Pool {
					sum += powerOf(o, p.f.over(o, occupancy{c.used[i], c.hold[i]}))
				}
			}
		}
		p.used[n.Pool] = sum
	}
	if short := p.used[n.Pool] + more - n.PowerBudgetW; more > 0 && short > 0 {
		return short
	}
	p.used[n.Pool] += more
	p.part = append(p.part, powerBooked{n.Pool, more})
	return 0
}

// begin is called before a part.
func (p *powerCheck) begin() { p.part = p.part[:0] }

// back takes back what a part has booked that failed.
func (p *powerCheck) back() {
	for _, b := range p.part {
		p.used[b.pool] -= b.watts
	}
}
