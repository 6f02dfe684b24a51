package contend

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Env is what contention in a pass depends on.
type Env struct {
	W        *search.Pass // the picture that the pass works on
	Now      structs.LogTime
	Rules    *Rules
	Flight   model.Overlay
	Pending  []Workload
	Running  []Workload
	Reserved []*structs.Reservation
	Evicted  Evictions
	Chooser  Chooser        // nil: running work does not compete
	Tell     structs.JobKey // its start is estimated though its queue reserves nothing for it
}
