package structs

import (
	"iter"
	"time"
)

// LiftCredit returns the rows of usage whose credit rises because they have just begun to hold something: to the least service,
// by weight, of their siblings that hold something, under weighted-fair. Rows that become active at the same time (woke) do not
// count as siblings, so their order does not matter. order returns the order of a queue, weight that of a row.
func LiftCredit(woke []UseRow, rows iter.Seq[*QueueUsage], now LogTime, order func(QueuePath) Order, weight func(*QueueUsage) int64) (lifted []*QueueUsage) {
	if len(woke) == 0 {
		return nil
	}
	isNew := make(map[UseRow]bool, len(woke))
	for _, k := range woke {
		isNew[k] = true
	}
	for _, k := range woke {
		if k.Path.IsNamespace() || k == (UseRow{Path: QueueRoot}) {
			continue
		}
		parent := k.Path
		if k.User == "" {
			parent = k.Path.Parent()
		}
		if !order(parent).Has(OrderWeighted) {
			continue
		}
		var floor *Amount
		var own *QueueUsage
		for u := range rows {
			if u.Path == k.Path && u.User == k.User {
				own = u
			}
			sibling := u.Path == parent && u.User != "" || u.User == "" && u.Path != QueueRoot && u.Path != parent &&
				!u.Path.IsNamespace() && u.Path.Parent() == parent
			if !sibling || u.Allocs == 0 || isNew[UseRow{Path: u.Path, User: u.User}] {
				continue
			}
			at := u.perWeight(now, weight(u))
			if floor == nil {
				floor = &at
				continue
			}
			floor.GPUMilli, floor.GPUMemoryMiB = min(floor.GPUMilli, at.GPUMilli), min(floor.GPUMemoryMiB, at.GPUMemoryMiB)
			floor.CPU, floor.MemoryMiB, floor.Billed = min(floor.CPU, at.CPU), min(floor.MemoryMiB, at.MemoryMiB), min(floor.Billed, at.Billed)
		}
		if floor == nil || own == nil {
			continue
		}
		up := floor.Times(weight(own)).Sub(own.Total)
		n := *own
		n.Credit = Amount{GPUMilli: max(up.GPUMilli, n.Credit.GPUMilli), GPUMemoryMiB: max(up.GPUMemoryMiB, n.Credit.GPUMemoryMiB),
			CPU: max(up.CPU, n.Credit.CPU), MemoryMiB: max(up.MemoryMiB, n.Credit.MemoryMiB), Billed: max(up.Billed, n.Credit.Billed)}
		if n.Credit != own.Credit {
			lifted = append(lifted, &n)
		}
	}
	return lifted
}

// perWeight returns the service of a row until now, divided by its weight.
func (u *QueueUsage) perWeight(now LogTime, w int64) Amount {
	a := u.TotalAt(now).Add(u.Credit)
	return Amount{GPUMilli: a.GPUMilli / w, GPUMemoryMiB: a.GPUMemoryMiB / w, CPU: a.CPU / w, MemoryMiB: a.MemoryMiB / w, Billed: a.Billed / w}
}

// EndingOf returns what an allocation with a wall-clock limit adds to QueueUsage.Ending and Ends.
func EndingOf(a *Allocation) (ending, ends int64) {
	if a.Job == nil {
		return 0, 0
	}
	g := a.Job.Group(a.Group)
	if g == nil {
		return 0, 0
	}
	limit := a.Job.RunLimit(g)
	if limit <= 0 {
		return 0, 0
	}
	ending = AmountOf(a).GPUMilli
	return ending, ending * int64(a.CreateTime.Add(limit+a.SuspendedFor())/LogTime(time.Second))
}
