package search

import (
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// WhyNot returns why one node is not among the candidates for an ask: the refusal under which Report counts it. ok is
// false for a candidate, and for a node that the job does not ask for (another pool or datacenter).
func WhyNot(a *match.Ask, w *Pass, p Policy, row int) (why structs.Refusal, ok bool) {
	s := New(a, w, p, 0)
	defer s.Done()
	s.built = true
	c, i := w.View.At(row)
	v := s.ClassVerdict(&c.Classes[c.Class[i]])
	if v.Outside || v.Far {
		return why, false
	}
	if s.counted(c, i, v) {
		o := w.Get(row)
		s.candidateAt(c, i, row, v, &o)
	}
	for d := structs.DimensionNone + 1; d < structs.NodeDimensions; d++ {
		if t := s.amounts[d]; t.nodes > 0 {
			return structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: d}, Nodes: 1, Short: t.short, Unit: model.UnitOf[d], CuredBy: structs.EventAllocStopped}, true
		}
	}
	for _, x := range s.refusals {
		if x.Nodes > 0 {
			return x.Refusal, true
		}
	}
	return why, false
}
