package reconcile

import (
	"sync"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Want is one placement that a reconciliation asks for.
type Want struct {
	Index      int
	Prev       *structs.Allocation // what it replaces, or nil
	Stop       *structs.PlanStop   // of Prev; in the same part
	StopAnyway bool                // the stop happens even when no place is found
	MayWait    bool                // may wait for Prev on its own node
	MustWait   bool                // only the place of Prev keeps the queue within its limit
	Stays      bool                // Prev is one of GroupPlan.Staying until it is replaced
	Avoid      []structs.NodeID    // where this work failed
	Prefer     structs.NodeID      // sticky disk, or zero
	Pinned     structs.NodeID      // the only node in question (system jobs), or zero
	Resched    []structs.RescheduleEvent
	Over       *structs.Allocation // of a gang that starts again: the allocation in the place that this one had; or nil
	Standby    bool                // holds a place for a member that may be lost
	gang       *restartOf          // of a gang that starts again: what all of its members continue; or nil
}

// wantLists reuses the memory of wants of gangs that found no place: a pass meets the same gangs again and again.
var wantLists = sync.Pool{New: func() any { return new(wantList) }}

type wantList struct{ wants []Want }

// takeWants returns an empty list with room for n wants.
func takeWants(n int) []Want {
	if l := wantLists.Get().(*wantList); cap(l.wants) >= n {
		return l.wants[:0]
	}
	return make([]Want, 0, n)
}

// KeepWants takes back the memory of wants that are no longer used.
func KeepWants(ws []Want) {
	if cap(ws) > 0 {
		clear(ws)
		wantLists.Put(&wantList{ws[:0]})
	}
}

// restartOf is what restarted work continues: why it ended and how often it did.
type restartOf struct {
	reason             string
	restarts, requeues int64
}

// GroupPlan is what a reconciliation wants to do about one group.
type GroupPlan struct {
	Name    structs.GroupName
	Tg      *structs.Group // nil: not in the job any more
	Ask     *match.Ask
	Wants   []Want
	Stops   []structs.PlanStop
	Updates []structs.PlanUpdate
	Staying []*structs.Allocation // live ones that are unchanged, or that wants replace: they count for spread and distinctness
	Counts  DesiredUpdates
	More    int64                       // allocations to start after those that are wanted now (startsMax)
	Missed  int64                       // of those: counted as missed
	Capped  bool                        // of an array: only its concurrency cap holds further indices back
	Nowhere bool                        // a system group with no feasible node
	former  map[int]*structs.Allocation // by name index: allocations that were preempted or lost, have ended, and return

	// Of gangs and elastic groups: see gang.go.
	Gang      bool
	Roster    *structs.Roster // or nil
	Expansion []Want          // what it may grow to once no group waits for its minimum

	// Standbys of a gang: see standby.go.
	Restart       bool                  // the gang restarts in the places that it had and in those of standbys
	Standby       []*structs.Allocation // that it holds
	RefillStandby []Want                // wants for the missing standbys
	Ending        int64                 // members of the last start that are still ending

	Refused *structs.Refusal // nothing of it may be placed, whichever node offers it; nil: nodes decide
}

// Later is a request for an evaluation at a time.
type Later struct {
	At      structs.LogTime
	Trigger structs.Trigger
	Desc    string
	Group   structs.GroupName
	Stops   []structs.PlanStop // that name it as their follow-up
}

// Input is what a reconciliation depends on.
type Input struct {
	View    *model.View
	Now     structs.LogTime
	Job     *structs.Job // nil: purged
	Evals   []*structs.Evaluation
	Rosters []*structs.Roster
	Ended   *structs.ArrayState
	Ask     func(*structs.Group) *match.Ask
}

// Work is what should change about a job.
type Work struct {
	Groups []*GroupPlan
	Later  []Later
	Spent  string // why some work does not return to the queue again; "" for none

	from *reconciler
}

// DesiredUpdates counts what a decision wants to do with one group, as `job plan` shows it.
type DesiredUpdates struct {
	Group       structs.GroupName
	Ignore      int64
	Place       int64
	Migrate     int64
	Stop        int64
	InPlace     int64
	Destructive int64
	Canary      int64
	Preemptions int64
	Disconnect  int64
	Reconnect   int64
	Reschedule  int64 // now
	Delayed     int64 // will be rescheduled by a follow-up evaluation
}

// reconciler compares what a job wants with what it has.
type reconciler struct {
	Work
	view    *model.View
	now     structs.LogTime
	job     *structs.Job // nil: purged
	evals   []*structs.Evaluation
	rosters []*structs.Roster
	joint   []*gangState // the joint groups
	force   bool
	ended   *structs.ArrayState
	changed map[*structs.Job]map[structs.GroupName]bool // results of Destructive, by old job and group
	ask     func(*structs.Group) *match.Ask
}
