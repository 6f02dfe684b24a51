package contend

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Env is what contention in a pass depends on.
type Env struct {
	W           *search.Pass // the cluster as the pass sees it
	Now         structs.LogTime
	Rules       *Rules
	Flight      model.Overlay
	Pending     []Workload
	Running     []Workload
	Reserved    []*structs.Reservation
	Evicted     Evictions
	Chooser     Chooser        // nil: running work does not compete
	GangTimes   []GangTimes    // what is known of gangs that run, by job and group
	EstimateFor structs.JobKey // the job of a dry run: its start is estimated even if its queue reserves nothing for it
}
