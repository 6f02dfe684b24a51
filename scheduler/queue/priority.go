package queue

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Priority orders by the job's priority, raised by waiting: by one for each Queue.Aging. So from some time on, newly
// submitted work passes a waiting workload only if its priority is higher than the raised one. Queue.AgingMax is the
// most that waiting adds.
type Priority struct{}

// Name is "priority".
func (Priority) Name() structs.Order { return structs.OrderPriority }

// aged returns the raised priority in thousandths.
func (Priority) aged(w *contend.Workload, at *Scene) int64 {
	raised := ratio(int64(at.Waited(w)), int64(at.Queue.Aging), 1000)
	if top := at.Queue.AgingMax; top > 0 {
		raised = min(raised, 1000*top)
	}
	return 1000*int64(w.Priority()) + raised
}

// Key orders by raised priority, high first.
func (o Priority) Key(w *contend.Workload, at *Scene) Key { return Key{-o.aged(w, at)} }

// Terms are the priority and what waiting has added to it.
func (o Priority) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	own := micro * int64(w.Priority())
	return []structs.ScoreTerm{{Name: "priority", Micro: own}, {Name: "aging", Micro: 1000*o.aged(w, at) - own}}
}
