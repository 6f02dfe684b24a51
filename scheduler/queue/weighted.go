package queue

import (
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Weighted is weighted fair queueing: each one has a virtual time that advances with the service he gets, divided by
// his weight, and the turn is of who is furthest behind. Service is the dominant share held, or the share of billing units
// where the queue has weights of billing, times time.
//
// Who asks for nothing does not save up: when he comes back, his virtual time is lifted to the least one of those who
// hold something (QueueUsage.Credit). Work in hand counts as if it went on for a quantum, because otherwise one pass,
// in which no time passes, would give everything to one.
type Weighted struct{}

// quantum is how long work in hand is taken to go on.
const quantum = 10 * time.Minute

// Name is "weighted-fair".
func (Weighted) Name() structs.Order { return structs.OrderWeighted }

// Key orders the workloads of one submitter: by priority.
func (Weighted) Key(w *contend.Workload, _ *Scene) Key { return Key{-int64(priorityOf(w))} }

// Share is the virtual time in units of 1e-6 cluster-seconds.
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

// Terms are the priority among the submitter's own, and the wait.
func (Weighted) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return FCFS{}.Terms(w, at)
}
