package suggest

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/structs"
)

// knob is an amount of a task that a job could ask less of.
type knob struct {
	name string // of the amount, for users: "GPU memory"
	unit structs.Unit
	dims []structs.Dimension // dimensions of refusals that it may cure; nil: those with its unit
	get  func(t *structs.Task) int64
	set  func(t *structs.Task, v int64)
}

var knobs = []knob{
	{"GPU memory", structs.UnitMiB, nil,
		func(t *structs.Task) int64 {
			if len(t.Resources.GPU) > 0 {
				return t.Resources.GPU[0].MemoryMiB
			}
			return 0
		},
		func(t *structs.Task, v int64) { t.Resources.GPU[0].MemoryMiB = v }},
	{"each GPU's memory", structs.UnitPercent, nil,
		func(t *structs.Task) int64 {
			if len(t.Resources.GPU) > 0 {
				return t.Resources.GPU[0].Share
			}
			return 0
		},
		func(t *structs.Task, v int64) { t.Resources.GPU[0].Share = v }},
	{"each GPU's compute", structs.UnitPercent, nil,
		func(t *structs.Task) int64 {
			if len(t.Resources.GPU) > 0 {
				return t.Resources.GPU[0].Compute
			}
			return 0
		},
		func(t *structs.Task, v int64) { t.Resources.GPU[0].Compute = v }},
	{"GPUs", structs.UnitGPUs, nil,
		func(t *structs.Task) int64 {
			if len(t.Resources.GPU) > 0 {
				return max(t.Resources.GPU[0].Count, 1)
			}
			return 0
		},
		func(t *structs.Task, v int64) { t.Resources.GPU[0].Count = v }},
	{"devices", structs.UnitDevices, nil,
		func(t *structs.Task) int64 {
			if len(t.Resources.Devices) > 0 {
				return max(t.Resources.Devices[0].Count, 1)
			}
			return 0
		},
		func(t *structs.Task, v int64) { t.Resources.Devices[0].Count = v }},
	{"memory", structs.UnitMiB, []structs.Dimension{structs.DimensionMemory}, func(t *structs.Task) int64 { return t.Resources.MemoryMiB }, func(t *structs.Task, v int64) { t.Resources.MemoryMiB = v }},
	{"CPU", structs.UnitMHz, []structs.Dimension{structs.DimensionCPU}, func(t *structs.Task) int64 {
		if t.Resources.Cores > 0 {
			return 0
		}
		return t.Resources.CPU
	}, func(t *structs.Task, v int64) { t.Resources.CPU = v }},
	{"cores", structs.UnitCores, []structs.Dimension{structs.DimensionCores}, func(t *structs.Task) int64 { return t.Resources.Cores }, func(t *structs.Task, v int64) { t.Resources.Cores = v }},
}

// group tries changes of one group that was not placed.
func (a *adviser) group(r *structs.GroupReport) {
	tg := a.load.Job.Group(r.Group)
	if tg == nil {
		return
	}
	for i := range knobs {
		a.less(tg, &knobs[i], r)
	}
	if tg.Disk.SizeMiB > 1 {
		a.search(tg.Disk.SizeMiB, hint(r, []structs.Dimension{structs.DimensionDisk}, structs.UnitMiB, tg.Disk.SizeMiB), "disk space", structs.UnitMiB, tg.Name, func(j *structs.Job, v int64) { j.Group(tg.Name).Disk.SizeMiB = v })
	}
	a.fewer(tg, r)
	a.conditions(tg)
}

// less tries less of one amount in the task that asks for the most of it.
func (a *adviser) less(tg *structs.Group, k *knob, r *structs.GroupReport) {
	most, at := int64(0), -1
	for i, t := range tg.Tasks {
		if v := k.get(t); v > most {
			most, at = v, i
		}
	}
	if at < 0 || most <= 1 {
		return
	}
	name, unit := k.name, k.unit
	if unit == structs.UnitDevices && structs.IsGPUDevice(tg.Tasks[at].Resources.Devices[0].Name) {
		name, unit = "GPUs", structs.UnitGPUs
	}
	a.search(most, hint(r, k.dims, unit, most), name, unit, tg.Name, func(j *structs.Job, v int64) { k.set(j.Group(tg.Name).Tasks[at], v) })
}

// hint returns the amount to try first, by the refusals; 0 for none.
func hint(r *structs.GroupReport, dims []structs.Dimension, unit structs.Unit, most int64) int64 {
	for i := range r.Refusals {
		x := &r.Refusals[i]
		switch {
		case dims != nil && !(x.Plain() && slices.Contains(dims, x.Dimension)), dims == nil && x.Plain() && x.Largest == 0:
			continue
		case dims == nil && unit == structs.UnitGPUs:
			if x.Unit != structs.UnitDevices && x.Unit != structs.UnitGPUs {
				continue
			}
		case x.Unit != unit:
			continue
		}
		if x.Largest > 0 && x.Largest < most {
			return x.Largest
		}
		if x.Short > 0 && x.Short < most {
			return most - x.Short
		}
	}
	return 0
}

// search finds the largest amount with which the job would start: the hint, or by bisection. Bisection is exact because
// less is never harder to place. Where rules like islands break that, the result is still checked, but may not be the
// largest. If the cluster has no room for any of it, that costs one try.
func (a *adviser) search(asked, hint int64, what string, unit structs.Unit, group structs.GroupName, set func(*structs.Job, int64)) {
	try := func(v int64) (*structs.Job, bool) {
		return a.job(func(j *structs.Job) { set(j, v) })
	}
	best, job := int64(0), (*structs.Job)(nil)
	if hint > 0 && hint < asked {
		if j, ok := try(hint); ok {
			best, job = hint, j
		}
	}
	if best == 0 {
		j, ok := try(1)
		if !ok {
			return
		}
		best, job = 1, j
		lo, hi, step := int64(1), asked, max(asked/32, 1)
		if hint > 0 && hint < asked {
			hi = hint
		}
		for hi-lo > step && !a.spent() {
			mid := lo + (hi-lo)/2
			if step > 1 {
				mid = max(mid/step*step, lo+1)
			}
			if j, ok := try(mid); ok {
				lo, best, job = mid, mid, j
			} else {
				hi = mid
			}
		}
		if best*20 < asked {
			return // next to nothing: something else prevents the start
		}
	}
	text := fmt.Sprintf("%s of %s instead of %s", exactText(best, unit), what, structs.AmountText(asked, unit))
	if string(unit) == what { // "6 GPUs", not "6 GPUs of GPUs"
		text = fmt.Sprintf("%s instead of %d", structs.AmountText(best, unit), asked)
	}
	if len(a.load.Job.Groups) > 1 {
		text += fmt.Sprintf(" in group %s", group)
	}
	kind := ChangeAmount
	if what == "allocations" {
		kind = ChangeCount
	}
	a.found(Change{Kind: kind, Text: text, Cost: 1000 * (asked - best) / asked, Job: job})
}

// fewer tries fewer allocations, and for a gang a smaller minimum.
func (a *adviser) fewer(tg *structs.Group, r *structs.GroupReport) {
	set := func(j *structs.Job, v int64) {
		g := j.Group(tg.Name)
		g.Count = int(v)
		if g.Gang != nil {
			gang := *g.Gang
			gang.Min = min(gang.Min, g.Count)
			g.Gang = &gang
		}
		if g.Elastic != nil {
			e := *g.Elastic
			e.Min = min(e.Min, g.Count)
			g.Elastic = &e
		}
	}
	hint := int64(tg.Count) - (r.Wanted - r.Placed) // what has a place, or would get one
	if tg.Count > 1 {
		a.search(int64(tg.Count), hint, "allocations", structs.UnitAllocations, tg.Name, set)
	}
}

// conditions tries to leave out each condition.
func (a *adviser) conditions(tg *structs.Group) {
	drop := func(cost int64, text string, edit func(*structs.Job)) {
		if j, ok := a.job(edit); ok {
			a.found(Change{Kind: ChangeConstraint, Text: text, Cost: cost, Job: j})
		}
	}
	say := func(c *structs.Constraint) string {
		return "without the constraint " + (&match.Condition{L: c.LTarget, R: c.RTarget, Op: c.Operand}).String()
	}
	for i := range a.load.Job.Constraints {
		drop(150, say(&a.load.Job.Constraints[i]), func(j *structs.Job) { j.Constraints = slices.Delete(j.Constraints, i, i+1) })
	}
	for i := range tg.Constraints {
		drop(150, say(&tg.Constraints[i]), func(j *structs.Job) {
			g := j.Group(tg.Name)
			g.Constraints = slices.Delete(g.Constraints, i, i+1)
		})
	}
	for k, t := range tg.Tasks {
		for i := range t.Constraints {
			drop(150, say(&t.Constraints[i]), func(j *structs.Job) {
				x := j.Group(tg.Name).Tasks[k]
				x.Constraints = slices.Delete(x.Constraints, i, i+1)
			})
		}
		if t.Resources.NUMA.Wants() == structs.NUMARequire {
			drop(80, "cores of one NUMA node preferred, not required", func(j *structs.Job) {
				r := &j.Group(tg.Name).Tasks[k].Resources
				r.NUMA = &structs.NUMA{Affinity: structs.NUMAPrefer, Devices: r.NUMA.Devices}
			})
		}
		for i := range t.Resources.Devices {
			for c, x := range t.Resources.Devices[i].Constraints {
				text := "without the device's constraint " + (&match.Condition{L: x.LTarget, R: x.RTarget, Op: x.Operand}).String()
				if words := structs.ModelWords(x.RTarget); x.LTarget == structs.ModelTarget && words != "" {
					text = "any model of GPU instead of " + words
				}
				drop(120, text, func(j *structs.Job) {
					d := &j.Group(tg.Name).Tasks[k].Resources.Devices[i]
					d.Constraints = slices.Delete(slices.Clone(d.Constraints), c, c+1)
				})
			}
		}
		for i := range t.Resources.GPU {
			if g := &t.Resources.GPU[i]; g.Model != "" {
				drop(120, "any model of GPU instead of "+g.Model, func(j *structs.Job) { j.Group(tg.Name).Tasks[k].Resources.GPU[i].Model = "" })
			}
			if g := &t.Resources.GPU[i]; len(g.Constraints) > 0 {
				drop(140, "without the GPU's constraints", func(j *structs.Job) { j.Group(tg.Name).Tasks[k].Resources.GPU[i].Constraints = nil })
			}
		}
	}
	if dcs := a.load.Job.Datacenters; len(dcs) > 0 && !slices.Contains(dcs, "*") {
		drop(100, "any datacenter", func(j *structs.Job) { j.Datacenters = []string{"*"} })
	}
	if tg.Topology != nil && tg.Topology.Mode == structs.TopologyRequired {
		drop(80, "a topology that is preferred, not required", func(j *structs.Job) {
			g := j.Group(tg.Name)
			t := *g.Topology
			t.Mode = structs.TopologyPreferred
			g.Topology = &t
		})
	}
	if a.load.Job.AllAtOnce {
		drop(110, "without all_at_once: what fits starts", func(j *structs.Job) { j.AllAtOnce = false })
	}
	if len(a.load.Job.Tolerations) == 0 && a.tainted() {
		drop(130, "with a toleration of the nodes' taints", func(j *structs.Job) { j.Tolerations = []structs.Toleration{{}} })
	}
}

// tainted reports whether any node has a taint.
func (a *adviser) tainted() bool {
	yes := false
	a.in.View.EachNode(func(n *structs.Node) bool {
		for k := range n.Meta { // the result does not depend on the order
			yes = yes || len(k) > len("taint.") && k[:len("taint.")] == "taint."
		}
		return !yes
	})
	return yes
}

// exactText returns an amount to ask for: also in MiB, as job files have it, where the text is rounded.
func exactText(n int64, unit structs.Unit) string {
	text := structs.AmountText(n, unit)
	if unit == structs.UnitMiB && n > 1024 && n%1024 != 0 {
		text += fmt.Sprintf(" (%d MiB)", n)
	}
	return text
}
