package model

import "github.com/muster-sched/muster/structs"

// ReservedPlace is what one allocation of a blocked workload will hold on a node.
type ReservedPlace struct {
	Job        structs.JobKey
	Start, End structs.LogTime // end 0: open
	Held       *Held
}

// RowProfile is what the reservations on a row leave free, given what is held there now.
type RowProfile struct {
	Hold    *Holding
	Version int
	Points  []profilePoint
	Merged  *Holding // what is held now or reserved, for choosing ports, cores and devices; nil: only amounts are reserved
}

// profilePoint is a time at which a reservation begins, and what will be used then.
type profilePoint struct {
	At   structs.LogTime
	used structs.Vector
	job  structs.JobKey
}

// ReservedID returns an allocation ID for the i-th place of a reservation.
func ReservedID(reservation string, i int) structs.AllocID {
	return structs.DeriveID[structs.AllocID](structs.Seed{}, "promise", reservation, uint64(i))
}

// ProfileOf returns what will be used when each reservation begins, given what is held now. ps is ordered by start.
func ProfileOf(ps []*ReservedPlace, hold *Holding, now structs.LogTime) []profilePoint {
	return ProfileBy(ps, now, func(at structs.LogTime) (used structs.Vector) {
		for e := range hold.All() {
			if end := e.Work.Predicted(now); end == 0 || end > at {
				used = used.Add(e.Need)
			}
		}
		return used
	})
}

// ProfileBy is ProfileOf with a function that returns how much of what is held now is still used at a time.
func ProfileBy(ps []*ReservedPlace, now structs.LogTime, held func(at structs.LogTime) structs.Vector) (out []profilePoint) {
	for k, p := range ps {
		pt := profilePoint{At: max(p.Start, now), job: p.Job}
		if k > 0 && out[len(out)-1].At == pt.At {
			continue
		}
		pt.used = held(pt.At)
		for _, q := range ps {
			if q.Start <= pt.At && (q.End == 0 || q.End > pt.At) {
				pt.used = pt.used.Add(q.Held.Need)
			}
		}
		out = append(out, pt)
	}
	return out
}

// Refuses returns the shortage, and whose reservation it is, if an allocation that holds need until a time would take
// reserved capacity of a row.
func (x *RowProfile) Refuses(total, need structs.Vector, mhz int64, until structs.LogTime) (Shortage, structs.JobKey) {
	for k := range x.Points {
		p := &x.Points[k]
		if p.At >= until {
			break
		}
		if s := FitsAmounts(total, p.used, p.used.Add(need), mhz); s.Dim != structs.DimensionNone {
			return s, p.job
		}
	}
	return Shortage{}, structs.JobKey{}
}

// Closes reports whether an operator's reservation of a node keeps a job's work away that would run until a given time.
// Work that never ends by itself may run until a maintenance begins: the nodes are drained then, and it moves.
func Closes(r *structs.Reservation, j *structs.Job, until, now structs.LogTime) bool {
	if r.Start >= until || r.End != 0 && r.End <= now {
		return false
	}
	if r.Maintenance && j != nil && now < r.Start && (j.Type == structs.JobService || j.Type == structs.JobSystem) {
		return false
	}
	queue, user := structs.QueueDefault, ""
	if j != nil {
		queue, user = j.QueueName(), j.Submitter.Name
	}
	return !r.Admits(queue, user)
}

// Subtract lowers free capacity to what is left of it once all reservations of the node have begun.
func (x *RowProfile) Subtract(free *structs.Vector, total structs.Vector, mhz int64) {
	for k := range x.Points {
		used := &x.Points[k].used
		left := total.Sub(*used)
		left.CPU -= used.Cores * mhz
		free.CPU, free.Cores = min(free.CPU, left.CPU), min(free.Cores, left.Cores)
		free.MemoryMiB, free.DiskMiB = min(free.MemoryMiB, left.MemoryMiB), min(free.DiskMiB, left.DiskMiB)
	}
}
