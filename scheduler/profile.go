package scheduler

import "github.com/muster-sched/muster/structs"

// reservedPlace is what one allocation of a blocked workload will hold on a node.
type reservedPlace struct {
	job        structs.JobKey
	start, end structs.LogTime // end 0: open
	held       *held
}

// rowProfile is what the promises on a row leave, given what is held there now.
type rowProfile struct {
	hold    *holding
	version int
	points  []profilePoint
	merged  *holding // what is held now or promised, for choosing ports, cores and devices; nil: only amounts are promised
}

// profilePoint is a time at which a promise begins, and what will be used then.
type profilePoint struct {
	at   structs.LogTime
	used structs.Vector
	job  structs.JobKey
}

func ReservedID(reservation string, i int) structs.AllocID {
	return structs.DeriveID[structs.AllocID](structs.Seed{}, "promise", reservation, uint64(i))
}

// profileOf tells what will be used when each promise begins, given what is held now. The promises are by start.
func profileOf(ps []*reservedPlace, hold *holding, now structs.LogTime) []profilePoint {
	return profileBy(ps, now, func(at structs.LogTime) (used structs.Vector) {
		for e := range hold.all() {
			if end := e.work.foreseen(now); end == 0 || end > at {
				used = used.Add(e.need)
			}
		}
		return used
	})
}

// profileBy is pointsOf, given what is used of what is held now at a time.
func profileBy(ps []*reservedPlace, now structs.LogTime, held func(at structs.LogTime) structs.Vector) (out []profilePoint) {
	for k, p := range ps {
		pt := profilePoint{at: max(p.start, now), job: p.job}
		if k > 0 && out[len(out)-1].at == pt.at {
			continue
		}
		pt.used = held(pt.at)
		for _, q := range ps {
			if q.start <= pt.at && (q.end == 0 || q.end > pt.at) {
				pt.used = pt.used.Add(q.held.need)
			}
		}
		out = append(out, pt)
	}
	return out
}

// refuses tells what an allocation that holds need until a time would take of what is promised on a row.
func (x *rowProfile) refuses(total, need structs.Vector, mhz int64, until structs.LogTime) (shortage, structs.JobKey) {
	for k := range x.points {
		p := &x.points[k]
		if p.at >= until {
			break
		}
		if s := fitsAmounts(total, p.used, p.used.Add(need), mhz); s.dim != structs.DimensionNone {
			return s, p.job
		}
	}
	return shortage{}, structs.JobKey{}
}

// closes reports whether an operator's reservation of a node keeps a job's work away that would hold until some time.
// Work that never ends by itself may run up to a maintenance: the nodes are drained then, and it moves.
func closes(r *structs.Reservation, j *structs.Job, until, now structs.LogTime) bool {
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

// subtract lowers free capacity to what is left of it once all reservations of the node have begun.
func (x *rowProfile) subtract(free *structs.Vector, total structs.Vector, mhz int64) {
	for k := range x.points {
		used := &x.points[k].used
		left := total.Sub(*used)
		left.CPU -= used.Cores * mhz
		free.CPU, free.Cores = min(free.CPU, left.CPU), min(free.Cores, left.Cores)
		free.MemoryMiB, free.DiskMiB = min(free.MemoryMiB, left.MemoryMiB), min(free.DiskMiB, left.DiskMiB)
	}
}
