package queue

import (
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Weighted is weighted fair queueing: each entity has a virtual time that advances with the service it gets, divided by
// its weight, and the entity with the least goes first. Service is the dominant share held, or the share of billing
// units if the queue has billing weights, times time.
//
// An idle entity does not save up credit: when it returns, its virtual time is raised to the least one of those that
// hold something (QueueUsage.Credit). Held work counts as if it ran for a quantum longer, because otherwise one pass,
// in which no time passes, would give everything to one entity.
type Weighted struct{}

// quantum is how much longer held work is assumed to run.
const quantum = 10 * time.Minute

// Name is "weighted-fair".
func (Weighted) Name() structs.Order { return structs.OrderWeighted }

// Key orders the workloads of one submitter: by priority.
func (Weighted) Key(w *contend.Workload, _ *Scene) Key { return Key{-int64(w.Priority())} }

// Share returns the virtual time in units of 1e-6 cluster-seconds.
func (Weighted) Share(e *Entity, at *Scene) int64 {
	service := e.Held.Times(int64(quantum / time.Second))
	if e.Usage != nil {
		service = service.Add(e.Usage.TotalAt(at.Now)).Add(e.Usage.Credit)
	}
	t := at.Total
	if at.Queue.Billing != nil {
		return ratio(service.Billed, max(t.Billed, 1), micro) / max(e.Weight, 1)
	}
	return max(ratio(service.GPUMilli, t.GPUMilli, micro), ratio(service.GPUMemoryMiB, t.GPUMemoryMiB, micro),
		ratio(service.CPU, t.CPU, micro), ratio(service.MemoryMiB, t.MemoryMiB, micro)) / max(e.Weight, 1)
}

// Terms are the priority within the submitter's work, and the wait.
func (Weighted) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return FCFS{}.Terms(w, at)
}
