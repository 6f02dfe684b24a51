package queue

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// FCFS is first come, first served within a priority.
type FCFS struct{}

// Name is "fcfs".
func (FCFS) Name() structs.Order { return structs.OrderFCFS }

// Key orders by priority, high first; ties by submit index as everywhere.
func (FCFS) Key(w *contend.Workload, _ *Scene) Key { return Key{-int64(w.Priority())} }

// Terms are the priority and, in seconds, the wait.
func (FCFS) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return []structs.ScoreTerm{{Name: "priority", Micro: micro * int64(w.Priority())}, waitTerm(w, at)}
}

func waitTerm(w *contend.Workload, at *Scene) structs.ScoreTerm {
	return structs.ScoreTerm{Name: "waited_seconds", Micro: int64(at.Waited(w) / 1000)}
}
