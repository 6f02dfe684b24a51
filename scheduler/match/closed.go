package match

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Closed is a GPU model that a request has to do without, because a limit of that model is reached.
type Closed struct {
	Device int              // the request: into Ask.Devices
	Words  string           // of the models, as in structs.ModelAmount
	By     structs.Obstacle // the limit
	Short  int64            // by how many thousandths of GPUs one more allocation could exceed it
}

// operandOtherModel is the operator of the condition that a GPU is of no model that matches words.
const operandOtherModel = "not_model"

// Models are the device groups of GPUs of a cluster, one for each model, MIG profile and size.
type Models []*structs.DeviceGroup

// Add adds the GPUs of a node.
func (m *Models) Add(n *structs.Node) {
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if g.Type == "gpu" && !slices.ContainsFunc(*m, func(o *structs.DeviceGroup) bool { return sameModel(o, g) }) {
			*m = append(*m, g)
		}
	}
}

func sameModel(a, b *structs.DeviceGroup) bool {
	return a.ID() == b.ID() && a.MIGProfile() == b.MIGProfile() &&
		slices.EqualFunc(a.Instances, b.Instances, func(x, y structs.DeviceInstance) bool { return x.MemoryMiB == y.MemoryMiB })
}

// NeedOf returns how many thousandths of GPUs that match words a request may take (0: it cannot), and whether it could
// take others instead. Only conditions on the model count. each returns the most that one GPU of a group counts in
// thousandths, for a request of so much memory (MiB), share and compute (percent).
func (m Models) NeedOf(d *DeviceAsk, words string, each func(g *structs.DeviceGroup, memory, share, compute int64) int64) (milli int64, others bool) {
	for _, g := range m {
		in := structs.IsModel(g.Name, words)
		for k := range d.Alts {
			alt := &d.Alts[k]
			if !alt.names(g) || slices.ContainsFunc(alt.checks, func(c Condition) bool {
				return c.L == structs.ModelTarget && c.Op != operandOtherModel && !c.holdsOnDevice(g)
			}) {
				continue
			}
			if !in {
				others = true
				continue
			}
			one := int64(1000)
			if alt.Shared() {
				one = each(g, alt.mem, alt.Share, alt.Compute)
			}
			milli = max(milli, one*alt.Count)
		}
	}
	return milli, others
}

// Without returns the ask with models closed; a itself if none is.
func (a *Ask) Without(closed []Closed) *Ask {
	if len(closed) == 0 {
		return a
	}
	out := *a
	out.open, out.Closed, out.Devices = a, closed, slices.Clone(a.Devices)
	for _, c := range closed {
		d := &out.Devices[c.Device]
		d.Alts = slices.Clone(d.Alts)
		for k := range d.Alts {
			alt := &d.Alts[k]
			alt.checks = append(slices.Clip(alt.checks), Condition{L: structs.ModelTarget, Op: operandOtherModel, R: c.Words})
		}
	}
	return &out
}

// Opened returns the ask without closed models.
func (a *Ask) Opened() *Ask {
	if a.open != nil {
		return a.open
	}
	return a
}

// ClosedOn returns the limit that keeps request i off a node that has GPUs for it; nil if that is not what it lacks.
func (a *Ask) ClosedOn(i int, n *structs.Node) *Closed {
	if a.open == nil {
		return nil
	}
	for _, c := range a.open.Devices[i].Choices(n) {
		for k := range a.Closed {
			if x := &a.Closed[k]; x.Device == i && structs.IsModel(n.Resources.Devices[c.Group].Name, x.Words) {
				return x
			}
		}
	}
	return nil
}
