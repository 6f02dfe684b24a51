package search

import (
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

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
		s.why.ReservedFor(s.Reserved.reservedFor(row))
	}
}

// nameGPUs sets s.why to the GPUs that a node lacks, if it lacks some in addition to what s.why names. Who asks for GPUs with their
// part of the node's memory wants to know that the GPUs are taken.
func (s *Search) nameGPUs(c *model.Chunk, i int, v *Verdict, o *model.Occupancy) {
	if _, _, x := s.devices(c, i, o, v); x.Dim != structs.DimensionNone {
		s.why = x
	}
}

// withReserved returns a row's occupancy with what is reserved there, as the group has to see it.
func (s *Search) withReserved(c *model.Chunk, i, row int, o model.Occupancy) (model.Occupancy, match.ShortageOf) {
	if !s.Reserved.Keeps() {
		return o, match.ShortageOf{}
	}
	merged, short := s.kept(c, i, row, &o)
	if short.Dim == structs.DimensionNone && merged != nil {
		o.Hold = merged
	}
	return o, short
}
