package match

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Particular devices. A condition on ${device.ids} says which instances of a device group a task may be given, not only
// which groups have them: a user who tests a suspect GPU must get that GPU. Such a condition may be in a device or gpu
// block, or in the task, group or job; there it holds for every device that the tasks below it ask for.

// aboutIDs reports whether the condition is about single devices: their IDs, or the RDMA adapters near them.
func (c *Condition) aboutIDs() bool {
	return isIDs(c.L) || isIDs(c.R) || isAdapters(c.L) || isAdapters(c.R)
}

func isAdapters(target string) bool {
	name, ok := interpolation(target)
	return ok && name == structs.DeviceAdapters
}

func isIDs(target string) bool {
	name, ok := interpolation(target)
	return ok && name == structs.DeviceIDs
}

// DeviceConstraints returns those of cs that are about the IDs of devices; nil for none.
func DeviceConstraints(cs []structs.Constraint) (out []structs.Constraint) {
	for i := range cs {
		if c := (Condition{L: cs[i].LTarget, R: cs[i].RTarget}); c.aboutIDs() {
			out = append(out, cs[i])
		}
	}
	return out
}

func deviceAffinities(as []structs.Affinity) (out []structs.Affinity) {
	for i := range as {
		if c := (Condition{L: as[i].LTarget, R: as[i].RTarget}); c.aboutIDs() {
			out = append(out, as[i])
		}
	}
	return out
}

// admits reports whether the condition is true of one device. The set operators ask whether the device is one of the
// devices listed; the others compare its ID.
func (c *Condition) admits(in *structs.DeviceInstance) bool {
	l, r := c.L, c.R
	if isAdapters(c.L) || isAdapters(c.R) {
		near := in.Adapters
		if isAdapters(c.R) {
			return c.compare(l, true, near, near != "")
		}
		return c.compare(near, near != "", r, true)
	}
	if isIDs(c.L) {
		l = in.ID
	}
	if isIDs(c.R) {
		r = in.ID
	}
	switch c.Op {
	case structs.OperandSetContains, structs.OperandSetContainsAll, structs.OperandSetContainsAny:
		if isIDs(c.L) {
			l, r = r, l
		}
		return slices.Contains(splitSet(l), r)
	}
	return c.compare(l, true, r, true)
}

// holdsAmong reports whether a device group has the devices that the condition asks for: all those listed for
// set_contains, else at least one that it admits.
func (c *Condition) holdsAmong(g *structs.DeviceGroup) bool {
	has := func(id string) bool {
		return slices.ContainsFunc(g.Instances, func(in structs.DeviceInstance) bool { return in.ID == id })
	}
	if isIDs(c.L) && (c.Op == structs.OperandSetContains || c.Op == structs.OperandSetContainsAll) {
		return !slices.ContainsFunc(splitSet(c.R), func(id string) bool { return !has(id) })
	}
	return slices.ContainsFunc(g.Instances, func(in structs.DeviceInstance) bool { return c.admits(&in) })
}

// Admits reports whether an alternative may be served with a device.
func (d *DeviceAlt) Admits(in *structs.DeviceInstance) bool {
	return len(d.ids) == 0 || !slices.ContainsFunc(d.ids, func(c Condition) bool { return !c.admits(in) })
}

// likes returns the weight of the wishes about IDs that a device meets.
func (d *DeviceAlt) likes(in *structs.DeviceInstance) (got int64) {
	for i := range d.idWishes {
		got += d.idWishes[i].Fulfilled(d.idWishes[i].Cond.admits(in))
	}
	return got
}

// likesMost returns the weight that the best device of a group meets.
func (d *DeviceAlt) likesMost(g *structs.DeviceGroup) (most int64) {
	if len(d.idWishes) > 0 {
		for i := range g.Instances {
			most = max(most, d.likes(&g.Instances[i]))
		}
	}
	return most
}

// on restricts the choices of a node to the groups that have the particular devices asked for. The groups with the
// devices that are liked most come first.
func (d *DeviceAsk) on(n *structs.Node, list []DeviceChoice) []DeviceChoice {
	var out []DeviceChoice
	for _, c := range list {
		alt, g := &d.Alts[c.alt], &n.Resources.Devices[c.Group]
		enough := int64(0)
		for i := range g.Instances {
			if alt.Admits(&g.Instances[i]) {
				enough++
			}
		}
		if enough < alt.Count || slices.ContainsFunc(alt.ids, func(x Condition) bool { return !x.holdsAmong(g) }) {
			continue
		}
		if alt.WishTotal > 0 {
			c.Micro += alt.likesMost(g) * model.Micro / alt.WishTotal
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b DeviceChoice) int { return cmp.Or(a.alt-b.alt, cmp.Compare(b.Micro, a.Micro)) })
	return out
}

// WithoutDevices returns the refusal of a node that has none of the particular devices asked for.
func (a *Ask) WithoutDevices(n *structs.Node) (Refusal, bool) {
	for i := range a.Devices {
		if d := &a.Devices[i]; d.PerNode && len(d.on(n, d.Choices(n))) == 0 {
			for k := range d.Alts {
				if ids := d.Alts[k].ids; len(ids) > 0 {
					if isAdapters(ids[0].L) && ids[0].Op == structs.OperandIsSet {
						return Cannot(structs.DimensionMissingDevice, d.Alts[k].label()+" near an RDMA adapter", "", structs.EventNodeJoined), true
					}
					return ids[0].Refusal(structs.EventNodeJoined), true
				}
			}
			return Cannot(structs.DimensionMissingDevice, d.Alts[0].label(), "", structs.EventNodeJoined), true
		}
	}
	return Refusal{}, false
}

// best returns those of the open devices that a request for count of them chooses from. must are the first of them, all
// of which are taken: those that are liked more than the last one needed.
func (d *DeviceAlt) best(g *structs.DeviceGroup, open []int, count int) (must, rest []int) {
	if len(d.idWishes) == 0 || len(open) <= count {
		return nil, open
	}
	like := func(j int) int64 { return d.likes(&g.Instances[j]) }
	byLike := slices.Clone(open)
	slices.SortStableFunc(byLike, func(x, y int) int { return cmp.Compare(like(y), like(x)) })
	last := like(byLike[max(count, 1)-1])
	for _, j := range byLike {
		switch x := like(j); {
		case x > last:
			must = append(must, j)
		case x == last:
			rest = append(rest, j)
		}
	}
	return must, rest
}

// inUse returns the obstacle of a node on which others have the particular devices asked for: which device, and the job
// that has it.
func (d *DeviceAlt) inUse(g *structs.DeviceGroup, n *structs.Node, first int, free *model.Holding) *structs.Obstacle {
	if len(d.ids) == 0 {
		return &d.Obstacle
	}
	for j := range g.Instances {
		if !d.Admits(&g.Instances[j]) {
			continue
		}
		for h := range free.All() {
			if h.Rare == nil || h.Work.Job == nil {
				continue
			}
			for i := range h.Rare.Grants {
				if x := &h.Rare.Grants[i]; model.InstancePos(n, x.Device, x.Instance) == first+j {
					by := d.Obstacle
					by.Subject = fmt.Sprintf("%s (job %s has %s)", by.Subject, h.Work.Job.ID, g.Instances[j].ID)
					return &by
				}
			}
		}
	}
	return &d.Obstacle
}

// Misgiven returns why a task must not have the devices of an allocation, or "": the conditions on ${device.ids} of its
// job forbid one. A plan is checked with it.
func Misgiven(job *structs.Job, tg *structs.Group, n *structs.Node, grants []structs.Grant) string {
	if len(grants) == 0 || !asksParticular(job, tg) {
		return ""
	}
	a := CompileAsk(job, tg, "")
	for i := range grants {
		x := &grants[i]
		serves := func(d DeviceAsk) bool {
			return d.task == x.Task && slices.ContainsFunc(d.Alts, func(alt DeviceAlt) bool {
				return slices.ContainsFunc(n.Resources.Devices, func(g structs.DeviceGroup) bool {
					return g.ID() == x.Device && alt.names(&g) && slices.ContainsFunc(g.Instances, func(in structs.DeviceInstance) bool { return in.ID == x.Instance && alt.Admits(&in) })
				})
			})
		}
		if !slices.ContainsFunc(a.Devices, serves) {
			return fmt.Sprintf("task %s may not have device %s", x.Task, x.Instance)
		}
	}
	return ""
}

// asksParticular reports whether some condition of a group is about the IDs of devices.
func asksParticular(job *structs.Job, tg *structs.Group) bool {
	found := func(cs []structs.Constraint) bool { return len(cs) > 0 && len(DeviceConstraints(cs)) > 0 }
	return found(job.Constraints) || found(tg.Constraints) || slices.ContainsFunc(tg.Tasks, func(t *structs.Task) bool {
		return found(t.Constraints) ||
			slices.ContainsFunc(t.Resources.Devices, func(d structs.DeviceRequest) bool { return found(d.Constraints) }) ||
			slices.ContainsFunc(t.Resources.GPU, func(g structs.GPURequest) bool { return g.RDMA == structs.RDMARequired || found(g.Constraints) })
	})
}
