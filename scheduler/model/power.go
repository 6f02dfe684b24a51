package model

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Power: the GPUs in use in a node pool never draw more together than the pool's budget (Node.PowerBudgetW). A GPU
// counts as what the driver lets it draw, or as the limit that the task which has it whole asks for
// (GPURequest.PowerLimitW); the agent sets that limit before the task starts, or does not start it. A GPU counts as
// long as any allocation has it, or a share or slice of it. A pass counts in its what-if, so that power rolls back with
// it, and the planner counts again over everything in flight (Verify). Nothing of this runs where no pool has a budget.

// PowerUnknown is what a GPU counts whose power limit is unknown: more than any budget.
const PowerUnknown = int64(1) << 40

// PowerOf returns how many watts the GPUs in use on a node may draw.
func PowerOf(n *structs.Node, o Occupancy) int64 {
	if o.Hold == nil {
		return 0
	}
	sum, first := int64(0), 0
	var seen []string // GPUs of which several slices may be in use
	limits := limitsSet(o.Hold)
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if g.Type == "gpu" {
			for j := range g.Instances {
				in := &g.Instances[j]
				if !o.Hold.Devs.Has(first + j) {
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
					sum += max(0, structs.GPUPowerW(g, PowerUnknown)-l.watts)
					continue
				}
				sum += structs.GPUPowerW(g, PowerUnknown)
			}
		}
		first += len(g.Instances)
	}
	return sum
}

// limitSet is the power limit in watts that tasks set on a GPU; own: another task uses the GPU without a limit.
type limitSet struct {
	watts int64
	own   bool
}

// limitsSet returns the power limits that tasks set, by GPU; nil if no task sets one. A task that waits for another's
// GPU gets it later: the larger limit of the two counts.
func limitsSet(h *Holding) (out map[string]limitSet) {
	if h == nil || h.rares == 0 {
		return nil
	}
	for e := range h.All() {
		if g := e.group(); g != nil && e.Rare != nil && slices.ContainsFunc(g.Tasks, setsPower) {
			out = map[string]limitSet{}
			break
		}
	}
	if out == nil {
		return nil
	}
	for e := range h.All() {
		if e.Rare == nil {
			continue
		}
		limit := map[string]int64{} // by task
		if g := e.group(); g != nil {
			for _, t := range g.Tasks {
				if setsPower(t) {
					mine := slices.DeleteFunc(slices.Clone(e.Rare.Grants), func(x structs.Grant) bool { return x.Task != t.Name || !x.IsGPU() })
					if r := structs.GPURequestOf(t.Resources.GPU, mine); r != nil {
						limit[t.Name] = r.PowerLimitW
					}
				}
			}
		}
		for i := range e.Rare.Grants {
			x := &e.Rare.Grants[i]
			l := out[x.Instance]
			l.watts = max(l.watts, limit[x.Task])
			l.own = l.own || limit[x.Task] == 0
			out[x.Instance] = l
		}
	}
	return out
}

// setsPower reports whether a task may get GPUs with a power limit.
func setsPower(t *structs.Task) bool {
	return slices.ContainsFunc(t.Resources.GPU, func(r structs.GPURequest) bool { return r.PowerLimitW > 0 })
}

// group returns the group of an allocation in the version that it runs, or nil.
func (h *Held) group() *structs.Group {
	if h.Work.Job == nil {
		return nil
	}
	return h.Work.Job.Group(h.Work.Group)
}

// PowerCheck counts power for Verify.
type PowerCheck struct {
	v    *View
	f    Overlay
	used map[structs.PoolName]int64
	part []powerReserved // of the current part
}

// NewPowerCheck returns a PowerCheck over a view and what is in flight.
func NewPowerCheck(v *View, f Overlay) *PowerCheck { return &PowerCheck{v: v, f: f} }

type powerReserved struct {
	pool  structs.PoolName
	watts int64
}

// Refuses returns by how many watts a placement exceeds the pool's budget. It counts the placement if it does not.
func (p *PowerCheck) Refuses(n *structs.Node, before, after Occupancy) int64 {
	if n.PowerBudgetW == 0 {
		return 0
	}
	more := PowerOf(n, after) - PowerOf(n, before)
	if more == 0 {
		return 0
	}
	if p.used == nil {
		p.used = map[structs.PoolName]int64{}
	}
	if _, counted := p.used[n.Pool]; !counted {
		sum := int64(0)
		for _, c := range p.v.Chunks {
			for i, o := range c.Nodes {
				if o.Pool == n.Pool {
					sum += PowerOf(o, p.f.Over(o, Occupancy{c.Used[i], c.Hold[i]}))
				}
			}
		}
		p.used[n.Pool] = sum
	}
	if short := p.used[n.Pool] + more - n.PowerBudgetW; more > 0 && short > 0 {
		return short
	}
	p.used[n.Pool] += more
	p.part = append(p.part, powerReserved{n.Pool, more})
	return 0
}

// Begin starts a part.
func (p *PowerCheck) Begin() { p.part = p.part[:0] }

// Back removes what the current part has added, because the part failed.
func (p *PowerCheck) Back() {
	for _, b := range p.part {
		p.used[b.pool] -= b.watts
	}
}
