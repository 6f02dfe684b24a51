package contend

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// SetAside is the amounts that operators have set aside (Reservation.Amount): so much of the node pool is kept free for
// some users or queues during a window, on any nodes. What these users or queues hold counts as part of the amount.
// Other work that would still run in the window is placed as long as the rest of the pool has room for it.
//
// It is counted over the pool and not over nodes: an amount does not guarantee that a wide job fits on one node. For
// that an operator reserves nodes.
type SetAside struct {
	sizes GPUSizes
	now   structs.LogTime
	rows  []setAsideRow
}

// setAsideRow is one reserved amount with what is held of its pool.
type setAsideRow struct {
	r               *structs.Reservation
	total           structs.Amount // of the pool's ready nodes
	members, others structs.Amount // held in the window, by those who may use the amount, and by the rest
}

// NewSetAside returns nil when no amounts are set aside.
func NewSetAside(reserved []*structs.Reservation, w *model.WhatIf, now structs.LogTime) *SetAside {
	var a *SetAside
	for _, r := range reserved {
		if r.JobID != "" || r.Amount == nil || r.End <= now {
			continue
		}
		if a == nil {
			a = &SetAside{sizes: GPUSizesOf(w.View), now: now}
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
					if end := h.Work.Predicted(now); end == 0 || end > x.r.Start {
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

// hold counts what a job holds in the window.
func (x *setAsideRow) hold(j *structs.Job, sum structs.Amount) {
	if j != nil && x.r.Admits(j.QueueName(), j.Submitter.Name) {
		x.members = x.members.Add(sum)
	} else {
		x.others = x.others.Add(sum)
	}
}

// left returns what others may hold of the pool: all but the amount, or all but what its members hold, if that is more.
// Dimensions of which nothing is set aside are not limited.
func (x *setAsideRow) left() structs.Amount {
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
	return left
}

// Refuses returns which reserved amount a workload that is not a member would reduce by holding so much until some
// time. nil: none.
func (a *SetAside) Refuses(load *Workload, until structs.LogTime, amount structs.Amount) *structs.Refusal {
	for k := range a.rows {
		x := &a.rows[k]
		if x.r.Start >= until || x.r.Admits(load.QueueName(), load.User()) {
			continue
		}
		if x.r.Domain != structs.NodePoolAll && load.Job.NodePool != structs.NodePoolAll && poolName(load.Job.NodePool) != poolName(x.r.Domain) {
			continue
		}
		if what, over := structs.Breaks(x.others, amount, x.left()); over > 0 {
			why := limitRefusal(structs.Holder{Kind: structs.HolderReservation, Name: x.r.ID}, "", what, over)
			why.Code, why.CuredBy = structs.ReasonReservation, structs.EventNone // the end of other work cures it, or time alone
			return why
		}
	}
	return nil
}

// PlacedAmount counts the amount that a decision has placed so far. The zero value has counted nothing.
type PlacedAmount struct {
	sum     structs.Amount
	counted int // of the placements
	settled int // of the placements
}

// RefusesGroup is Refuses for one more allocation of a group, added to what the decision has placed.
func (a *SetAside) RefusesGroup(load *Workload, g *structs.Group, p *PlacedAmount, placed Placed) *structs.Refusal {
	if p.counted > placed.Len() {
		p.counted, p.sum = 0, structs.Amount{}
	}
	for ; p.counted < placed.Len(); p.counted++ {
		p.sum = p.sum.Add(placed.Held(p.counted).Amount())
	}
	work := load.WorkOf(g, a.now)
	return a.Refuses(load, work.Latest(a.now), p.sum.Add(a.sizes.Estimate(g)))
}

// Settle counts what a decision has placed, so that later decisions of the pass count it.
func (a *SetAside) Settle(load *Workload, p *PlacedAmount, placed Placed) {
	if a == nil {
		return
	}
	for ; p.settled < placed.Len(); p.settled++ {
		h := placed.Held(p.settled)
		for k := range a.rows {
			if x := &a.rows[k]; x.r.Start < h.Work.Latest(a.now) {
				x.hold(load.Job, h.Amount())
			}
		}
	}
}
