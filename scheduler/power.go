package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Power: the GPUs of a node pool that are in use never draw more together than the pool's budget (Node.PowerBudgetW), taken
// by what the driver lets each of them draw, or what the task that has it whole wants it held to (GPURequest.PowerLimitW): the
// agent sets that before the task starts, or does not start it. A GPU counts from when somebody is given it, or a share or a slice of it, until
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
	limits := limitsSet(o.hold)
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
				if l, set := limits[in.ID]; set {
					if sum += l.watts; !l.own {
						continue
					}
					sum += max(0, structs.GPUPowerW(g, powerUnknown)-l.watts)
					continue
				}
				sum += structs.GPUPowerW(g, powerUnknown)
			}
		}
		first += len(g.Instances)
	}
	return sum
}

// limitSet is to how many watts tasks hold a GPU; own: somebody has it, too, who leaves it as it is.
type limitSet struct {
	watts int64
	own   bool
}

// limitsSet gives the power limits that tasks set, by GPU; nil where none does. Who waits for another's GPU has it after that
// one: both count, the larger one.
func limitsSet(h *holding) (out map[string]limitSet) {
	if h == nil || h.rares == 0 {
		return nil
	}
	for e := range h.all() {
		if g := e.group(); g != nil && e.rare != nil && slices.ContainsFunc(g.Tasks, setsPower) {
			out = map[string]limitSet{}
			break
		}
	}
	if out == nil {
		return nil
	}
	for e := range h.all() {
		if e.rare == nil {
			continue
		}
		limit := map[string]int64{} // by task
		if g := e.group(); g != nil {
			for _, t := range g.Tasks {
				if setsPower(t) {
					mine := slices.DeleteFunc(slices.Clone(e.rare.grants), func(x structs.Grant) bool { return x.Task != t.Name || !x.IsGPU() })
					if r := structs.GPURequestOf(t.Resources.GPU, mine); r != nil {
						limit[t.Name] = r.PowerLimitW
					}
				}
			}
		}
		for i := range e.rare.grants {
			x := &e.rare.grants[i]
			l := out[x.Instance]
			l.watts = max(l.watts, limit[x.Task])
			l.own = l.own || limit[x.Task] == 0
			out[x.Instance] = l
		}
	}
	return out
}

// setsPower reports whether a task may be given GPUs with a power limit of its own.
func setsPower(t *structs.Task) bool {
	return slices.ContainsFunc(t.Resources.GPU, func(r structs.GPURequest) bool { return r.PowerLimitW > 0 })
}

// group is the group of an allocation in the version that it runs, or nil.
func (h *held) group() *structs.Group {
	if h.work.job == nil {
		return nil
	}
	return h.work.job.Group(h.work.group)
}

// powerCheck counts for Verify.
type powerCheck struct {
	v    *View
	f    Overlay
	used map[string]int64
	part []powerBooked // of the part that is looked at
}

func newPowerCheck(v *View, f Overlay) *powerCheck { return &powerCheck{v: v, f: f} }

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
