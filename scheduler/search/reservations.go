package search

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Reserve reserves a place on a row.
func (b *Reservations) Reserve(row int, p *model.ReservedPlace) {
	if b.Rows == nil {
		b.Rows, b.seen = make(map[int][]*model.ReservedPlace), make(map[int]*model.RowProfile)
		b.marked = make([]uint64, b.W.View.Rows/64+1)
	}
	b.marked[row/64] |= 1 << (row % 64)
	ps := append(b.Rows[row], p)
	slices.SortStableFunc(ps, func(x, y *model.ReservedPlace) int { return cmp.Compare(x.Start, y.Start) })
	b.Rows[row] = ps
	b.version++
	b.W.Touch() // a search that failed before may be refused for another reason now
}

// ReservedOn returns what is reserved on a row, by start.
func (b *Reservations) ReservedOn(row int) []*model.ReservedPlace {
	if b.Rows == nil || b.marked[row/64]&(1<<(row%64)) == 0 {
		return nil
	}
	return b.Rows[row]
}

// ReservedAny reports whether anything is reserved on some rows.
func (b *Reservations) ReservedAny(row, n int) bool {
	if b == nil || b.Rows == nil {
		return false
	}
	for r := row; r < row+n; r++ {
		if b.marked[r/64]&(1<<(r%64)) != 0 {
			return true
		}
	}
	return false
}

// At returns the reservations of a row, given its present occupancy, or nil when it has none.
func (b *Reservations) At(row int, c *model.Chunk, i int, o *model.Occupancy) *model.RowProfile {
	ps := b.ReservedOn(row)
	if len(ps) == 0 {
		return nil
	}
	if x := b.seen[row]; x != nil && x.Hold == o.Hold && x.Version == b.version {
		return x
	}
	x := &model.RowProfile{Hold: o.Hold, Version: b.version}
	if o.Hold != nil && o.Hold.Waits == 0 && o.Hold.Size() >= model.ReleasesLong {
		t := b.W.View.ReleaseTimes(row, o.Hold, b.Now)
		x.Points = model.ProfileBy(ps, b.Now, func(at structs.LogTime) structs.Vector {
			used := o.Used
			for k := range t.Over(at) {
				used = used.Sub(t.Ends[k].Held.Need)
			}
			return used
		})
	} else {
		x.Points = model.ProfileOf(ps, o.Hold, b.Now)
	}
	if slices.ContainsFunc(ps, func(p *model.ReservedPlace) bool { return p.Held.Rare != nil }) {
		all := slices.Clone(o.Hold.List())
		for _, p := range ps {
			all = append(all, p.Held)
		}
		slices.SortFunc(all, func(x, y *model.Held) int { return model.CompareID(x.ID, y.ID) })
		x.Merged = model.Occupied(c.Nodes[i], all).Hold
	}
	b.seen[row] = x
	return x
}

// ClosedTo returns the operator's reservation that keeps a job off a row until some time, or "".
func (b *Reservations) ClosedTo(row int, job *structs.Job, until structs.LogTime) string {
	for _, r := range b.Windows[row] {
		if model.Closes(r, job, until, b.Now) {
			return r.ID
		}
	}
	return ""
}

// Keeps reports whether there are any reservations.
func (b *Reservations) Keeps() bool {
	return b != nil && (b.Rows != nil || len(b.Windows) > 0)
}

// reservedFor returns the job with the first reservation of ports, cores or devices on a row.
func (b *Reservations) reservedFor(row int) structs.JobKey {
	for _, p := range b.Rows[row] {
		if p.Held.Rare != nil {
			return p.Job
		}
	}
	return structs.JobKey{}
}

// Reservations are what searches keep free: places that are reserved on rows, and the windows of operators.
type Reservations struct {
	W       *Pass
	Now     structs.LogTime
	Rows    map[int][]*model.ReservedPlace // by row, by start; nil: nothing is reserved
	marked  []uint64                       // a bit for each row in Rows: most searches look at all rows
	seen    map[int]*model.RowProfile      // what was computed about a row
	Windows map[int][]*structs.Reservation
	version int // of the reservations
}
