package search

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
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

// kept returns what the reservations of a row change for one allocation of the group: the holding to use instead when
// ports, cores and devices are chosen (nil: the present one), or a shortage.
func (s *Search) kept(c *model.Chunk, i, row int, o *model.Occupancy) (*model.Holding, match.ShortageOf) {
	if len(s.Reserved.Windows) > 0 {
		if name := s.Reserved.ClosedTo(row, s.Ask.Job, s.Work.Latest(s.Reserved.Now)); name != "" {
			return nil, match.ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionClaim, Short: 1}, By: &structs.Obstacle{Holder: structs.Holder{Kind: structs.HolderReservation, Name: name}}, Reserved: true}
		}
	}
	x := s.Reserved.At(row, c, i, o)
	if x == nil {
		return nil, match.ShortageOf{}
	}
	if short, whose := x.Refuses(c.Total[i], s.Ask.Need, c.MHz[i], s.Until); short.Dim != structs.DimensionNone {
		return nil, match.ShortageOf{Shortage: short, By: &structs.Obstacle{Dimension: short.Dim, Holder: structs.Holder{Kind: structs.HolderJob, Name: whose.ID}}, Reserved: true}
	}
	if len(x.Points) == 0 || x.Points[0].At >= s.Until {
		return nil, match.ShortageOf{}
	}
	return x.Merged, match.ShortageOf{}
}

// blame sets s.why to name the job with the reservation, if only reserved devices are missing on a row.
func (s *Search) blame(c *model.Chunk, i, row int, v *Verdict, o, seen *model.Occupancy) {
	if seen == o {
		return
	}
	if _, _, x := s.devices(c, i, o, v); x.Dim == structs.DimensionNone {
		s.why.ReservedFor(s.Reserved.promisee(row))
	}
}

// promisee returns the job with the first reservation of ports, cores or devices on a row.
func (b *Reservations) promisee(row int) structs.JobKey {
	for _, p := range b.Rows[row] {
		if p.Held.Rare != nil {
			return p.Job
		}
	}
	return structs.JobKey{}
}

// beside returns a row's occupancy with what is reserved there, as the group has to see it.
func (s *Search) beside(c *model.Chunk, i, row int, o model.Occupancy) (model.Occupancy, match.ShortageOf) {
	if !s.Reserved.Keeps() {
		return o, match.ShortageOf{}
	}
	merged, short := s.kept(c, i, row, &o)
	if short.Dim == structs.DimensionNone && merged != nil {
		o.Hold = merged
	}
	return o, short
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
