package queue

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Fair is dominant resource fairness (Ghodsi et al., NSDI'11) with memory: the turn is of who has the least weighted
// share, a share being the mean of what is held now and of what was held lately (decayed usage as an amount), of the
// resource of which it is most. Divide is the same rule on resources that can be divided.
//
// Naive: what is held now alone. Then whoever keeps the cluster to himself over a quiet week pays nothing for it when
// others come. Only decayed usage, as is usual elsewhere: a burst of placements then costs nothing until time has
// passed, and one pass may give everything to one. The mean of both has neither fault, and when everybody asks all the
// time it becomes what plain DRF gives.
type Fair struct{}

// Name is "fair".
func (Fair) Name() structs.Order { return structs.OrderFair }

// Key orders the workloads of one submitter: by priority.
func (Fair) Key(w *contend.Workload, _ *Scene) Key { return Key{-int64(priorityOf(w))} }

// Share is the weighted share in units of 1e-9: the dominant one, or of billing units (Scene.Share).
func (Fair) Share(e *Entity, at *Scene) int64 {
	sum := e.Held
	if e.Usage != nil {
		sum = sum.Add(e.Usage.MeanAt(at.Now, at.Queue.HalfLife))
	}
	return at.Share(sum) / 2 / max(e.Weight, 1)
}

// Terms are the priority among the submitter's own, and the wait.
func (Fair) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm { return FCFS{}.Terms(w, at) }
