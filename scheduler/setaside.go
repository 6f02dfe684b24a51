package scheduler

import (
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// setAside is what operators have set aside as amounts (structs.Reservation.Amount): so much of the node pool is kept free for
// some users or queues during a window, on whatever nodes. What those who may use it hold counts as part of it. Work of
// others that would still run in the window is placed as long as the rest of the pool has room for it.
//
// It is counted over the pool, not over nodes: an amount is no promise that a wide job fits on one node. Who needs that
// reserves nodes.
type setAside struct {
	in   *Input
	size *limits // for estimates
	rows []setAsideRow
}

type setAsideRow struct {
	r               *structs.Reservation
	total           structs.Amount // of the pool's ready nodes
	members, others structs.Amount // held in the window, by those who may use the amount, and by the rest
}

// newSetAside gives nil when no amounts are set aside.
func newSetAside(in *Input, w *search.Pass) *setAside {
	var a *setAside
	for _, r := range in.Reserved {
		if r.JobID != "" || r.Amount == nil || r.End <= in.Now {
			continue
		}
		if a == nil {
			a = &setAside{in: in, size: &limits{in: in}}
			a.size.gpuSizes()
		}
		a.rows = append(a.rows, setAsideRow{r: r})
	}
	if a == nil {
		return nil
	}
	row := -1
	for _, c := range w.View.Chunks {
		for i, n := range c.Nodes {
			row++
			if !c.Ready[i] {
				continue
			}
			total := structs.Amount{CPU: c.Total[i].CPU, MemoryMiB: c.Total[i].MemoryMiB}
			for k := range n.Resources.Devices {
				if g := &n.Resources.Devices[k]; g.Type == "gpu" {
					for m := range g.Instances {
						if g.Instances[m].Healthy {
							total = total.Add(structs.Amount{GPUMilli: 1000, GPUMemoryMiB: g.Instances[m].MemoryMiB})
						}
					}
				}
			}
			for k := range a.rows {
				x := &a.rows[k]
				if x.r.Domain != structs.NodePoolAll && poolName(n.Pool) != poolName(x.r.Domain) {
					continue
				}
				x.total = x.total.Add(total)
				for h := range w.Get(row).Hold.All() {
					if end := h.Work.Predicted(in.Now); end == 0 || end > x.r.Start {
						x.hold(h.Work.Job, h.Amount())
					}
				}
			}
		}
	}
	return a
}

func poolName(name structs.PoolName) structs.PoolName {
	if name == "" {
		return structs.NodePoolDefault
	}
	return name
}

// Hold counts what a job holds in the window.
func (x *setAsideRow) hold(j *structs.Job, sum structs.Amount) {
	if j != nil && x.r.Admits(j.QueueName(), j.Submitter.Name) {
		x.members = x.members.Add(sum)
	} else {
		x.others = x.others.Add(sum)
	}
}

// Refuses says what the decision's job would take of an amount that is not its own to use, with so much more; nil when
// nothing.
func (a *setAside) refuses(d *decision, until structs.LogTime, add structs.Amount) *structs.Refusal {
	for k := range a.rows {
		x := &a.rows[k]
		if x.r.Start >= until || x.r.Admits(d.load.QueueName(), d.load.User()) {
			continue
		}
		if x.r.Domain != structs.NodePoolAll && d.load.Job.NodePool != structs.NodePoolAll && poolName(d.load.Job.NodePool) != poolName(x.r.Domain) {
			continue
		}
		// What is left to others: all but the amount, or but what its members hold, if that is more.
		left := x.total.Sub(structs.Amount{GPUMilli: max(x.r.Amount.GPUMilli, x.members.GPUMilli), GPUMemoryMiB: max(x.r.Amount.GPUMemoryMiB, x.members.GPUMemoryMiB),
			CPU: max(x.r.Amount.CPU, x.members.CPU), MemoryMiB: max(x.r.Amount.MemoryMiB, x.members.MemoryMiB)})
		for _, c := range [...]struct {
			of   int64
			left *int64
		}{{x.r.Amount.GPUMilli, &left.GPUMilli}, {x.r.Amount.GPUMemoryMiB, &left.GPUMemoryMiB}, {x.r.Amount.CPU, &left.CPU}, {x.r.Amount.MemoryMiB, &left.MemoryMiB}} {
			if c.of == 0 {
				*c.left = structs.AmountNoLimit
			} else {
				*c.left = max(0, *c.left)
			}
		}
		if what, over := structs.Breaks(x.others, add, left); over > 0 {
			why := limitRefusal(structs.Holder{Kind: structs.HolderReservation, Name: x.r.ID}, what, over)
			why.Code, why.CuredBy = structs.ReasonReservation, structs.EventNone // an end, or mere time
			return why
		}
	}
	return nil
}

// respectsSetAside reports whether one more allocation of a group leaves what is set aside for others. It notes with the group
// what stands in the way.
func (d *decision) respectsSetAside(tg *structs.Group) bool {
	if d.setAside == nil || d.load.Job == nil {
		return true
	}
	if d.settled.counted > len(d.placed) {
		d.settled.counted, d.settled.amount = 0, structs.Amount{}
	}
	for ; d.settled.counted < len(d.placed); d.settled.counted++ {
		d.settled.amount = d.settled.amount.Add(d.placed[d.settled.counted].at.Held.Amount())
	}
	work := d.workOf(tg)
	why := d.setAside.refuses(d, work.Latest(d.in.Now), d.settled.amount.Add(d.setAside.size.estimate(tg)))
	if why == nil {
		return true
	}
	for _, g := range d.groups {
		if g.Tg == tg && (g.over == nil || g.over.Holder.Kind == structs.HolderReservation) {
			g.over = why
		}
	}
	return false
}

// settle counts what a decision has placed, for those after it in the pass.
func (a *setAside) settle(d *decision) {
	if a == nil {
		return
	}
	for ; d.settled.told < len(d.placed); d.settled.told++ {
		p := &d.placed[d.settled.told]
		for k := range a.rows {
			if x := &a.rows[k]; x.r.Start < p.at.Held.Work.Latest(a.in.Now) {
				x.hold(d.load.Job, p.at.Held.Amount())
			}
		}
	}
}
