package queue

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Fair is dominant resource fairness (Ghodsi et al., NSDI'11) with memory: the submitter or queue with the least
// weighted share goes first. A share is the mean of what is held now and what was held lately (decayed usage as an
// amount), of the dominant resource. drf_test.go has the same rule on resources that can be divided.
//
// Naive: what is held now alone. Then a user who keeps the cluster to himself over a quiet week pays nothing for it
// when others come. Or only decayed usage, as is usual elsewhere: then a burst of placements costs nothing until time
// has passed, and one pass may give everything to one user. The mean of both has neither fault, and when all users ask
// all the time it equals plain DRF.
type Fair struct{}

// Name is "fair".
func (Fair) Name() structs.Order { return structs.OrderFair }

// Key orders the workloads of one submitter: by priority.
func (Fair) Key(w *contend.Workload, _ *Scene) Key { return Key{-int64(w.Priority())} }

// Share returns the weighted share in units of 1e-9: the dominant one, or that of billing units (Scene.Share).
func (Fair) Share(e *Entity, at *Scene) int64 {
	return at.Share(e.Usage.WithMean(e.Held, at.Now, at.Queue.HalfLife)) / (2 * structs.MeanFine) / max(e.Weight, 1)
}

// Terms are the priority within the submitter's work, and the wait.
func (Fair) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm { return FCFS{}.Terms(w, at) }
