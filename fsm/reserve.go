package fsm

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// reservationsMax limits the reservations of operators.
const reservationsMax = 1000

func applyReserve(x *tx, c *structs.ReserveCommand) *structs.Error {
	for _, in := range c.Reservations {
		if in == nil {
			return structs.Errorf(structs.CodeInvalid, "the command carries a reservation that is nothing")
		}
		if err := in.Check(); err != nil {
			return err
		}
		old := state.Reservations.Get(x, in.ID)
		switch {
		case state.Pools.Get(x, in.Domain) == nil:
			return structs.Errorf(structs.CodeInvalid, "reservation %q: node pool %q does not exist", in.ID, in.Domain)
		case in.End <= x.time:
			return structs.Errorf(structs.CodeInvalid, "reservation %q: its window ended at %s already", in.ID, in.End.Time().Format("2006-01-02 15:04:05Z"))
		case old == nil && state.Reservations.Len(x) >= reservationsMax && x.operatorsReserved() >= reservationsMax:
			return structs.Errorf(structs.CodeInvalid, "there are %d reservations; a cluster may have no more", reservationsMax)
		}
		for _, id := range in.Nodes {
			n := state.Nodes.Get(x, id)
			if n == nil {
				return structs.Errorf(structs.CodeInvalid, "reservation %q: node %s does not exist", in.ID, id)
			}
			if in.Domain != structs.NodePoolAll && n.Pool != in.Domain && !(n.Pool == "" && in.Domain == structs.NodePoolDefault) {
				return structs.Errorf(structs.CodeInvalid, "reservation %q: node %s is in pool %q, the reservation is of pool %q", in.ID, id, n.Pool, in.Domain)
			}
		}
		for _, path := range in.Queues {
			if state.Queues.Get(x, path) == nil && path != structs.QueueDefault && path != structs.QueueRoot {
				return structs.Errorf(structs.CodeInvalid, "reservation %q: queue %q does not exist", in.ID, path)
			}
		}
		n := *in
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old != nil {
			n.CreateIndex = old.CreateIndex
		}
		state.Reservations.Put(x, &n)
	}
	return nil
}

func (x *tx) operatorsReserved() (n int) {
	for r := range state.Reservations.All(x) {
		if r.JobID == "" {
			n++
		}
	}
	return n
}

func applyUnreserve(x *tx, c *structs.UnreserveCommand) *structs.Error {
	for _, id := range c.IDs {
		r := state.Reservations.Get(x, id)
		switch {
		case r == nil:
			return structs.Errorf(structs.CodeNotFound, "reservation %q not found", id)
		case r.JobID != "":
			return structs.Errorf(structs.CodeInvalid, "reservation %q belongs to a job that waits and is not an operator's to delete", id)
		}
		state.Reservations.Delete(x, id)
	}
	return nil
}

// reserve writes the reservation of a plan (D20) if it differs. It deletes the old one if the job got a place and the
// plan has no new one.
func (pl *planApply) reserve(whole, placed bool) {
	id := structs.ReservationID(pl.key)
	old := state.Reservations.Get(pl, id)
	switch r := pl.p.Reservation; {
	case r == nil && !placed, r != nil && !whole:
	case r == nil || r.Start == 0:
		if old != nil {
			state.Reservations.Delete(pl, id)
		}
	case pl.job == nil || !pl.job.Placeable():
	default:
		n := *r
		n.ID, n.Namespace, n.JobID = id, pl.key.Namespace, pl.key.ID
		n.CreateIndex, n.ModifyIndex = pl.index, pl.index
		if old != nil {
			n.CreateIndex = old.CreateIndex
			if sameReservation(old, &n) {
				return
			}
		}
		state.Reservations.Put(pl, &n)
	}
}

// sameReservation compares the content of two reservations, not when they were written.
func sameReservation(a, b *structs.Reservation) bool {
	if a.Domain != b.Domain || a.Start != b.Start || a.End != b.End || a.Basis != b.Basis || !slices.Equal(a.Queues, b.Queues) || len(a.Places) != len(b.Places) {
		return false
	}
	for i := range a.Places {
		x, y := &a.Places[i], &b.Places[i]
		if x.Node != y.Node || x.Group != y.Group || x.Need != y.Need || len(x.Grants) != len(y.Grants) {
			return false
		}
		for k := range x.Grants {
			if x.Grants[k] != y.Grants[k] {
				return false
			}
		}
	}
	return true
}

// unreserve deletes the reservation of a job that can no longer use it.
func (x *tx) unreserve(k structs.JobKey) {
	if id := structs.ReservationID(k); state.Reservations.Get(x, id) != nil {
		state.Reservations.Delete(x, id)
	}
}
