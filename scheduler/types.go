package scheduler

import (
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Input is everything a decision may depend on. Same Input, same Plan, byte for byte.
type Input struct {
	View        *model.View
	Pending     []contend.Workload // in queue order
	Flight      model.Overlay      // plans proposed, not yet committed
	Config      structs.SchedulerConfig
	Now         structs.LogTime
	Seed        uint64                         // for policies that draw lots (random); every workload gets different lots
	Cursor      structs.NodeID                 // where next-fit continues: Plan.Cursor of the previous pass, or zero
	Mix         *model.Mix                     // what the cluster is asked for, for policies that look into GPUs; nil: what is held now
	History     map[structs.NodeID]search.Past // how work went on nodes, for policies that learn; other nodes have no history
	Typical     time.Duration                  // the mean time until a node is lost of which nothing is known; 0: no loss was measured
	Steps       int                            // limit on nodes looked at; 0: no limit. The first workload is always decided
	Places      int                            // limit on placements; 0: no limit. A workload is decided whole, and the first one always
	Line        contend.Line                   // the order of decisions; nil: the order of Pending
	Queues      *contend.QueueTable            // limits, rules and usage of queues; nil: one queue without limits
	Running     []contend.Workload             // running work that competes with Pending, for queues that preempt by order; Allocs and Queue set
	Reserved    []*structs.Reservation         // in force: of blocked workloads and of operators, by ID
	Evicted     []*structs.Preemptions         // on behalf of each queue, by queue
	OldEvents   bool                           // the format in force does not have EventSaved: refusals name EventNone instead
	OldLimits   bool                           // the format in force does not have structs.Moves: what replaces draining work is charged in full
	Freed       []model.Freed                  // room that became free lately, oldest first: gangs that run wait before they grow into it
	GangTimes   []contend.GangTimes            // what is known of gangs that run, by job and group: when they were resized, and saved
	Power       bool                           // some node pool has a power budget
	Yields      bool                           // a what-if: all running work counts as preemptible
	Waits       bool                           // others of the domain, not in Pending, wait for capacity: nothing may grow
	EstimateFor structs.JobKey                 // the job of a dry run: its start is estimated even if its queue reserves nothing for it
	Chooser     contend.Chooser                // decides which of Running and Pending should hold places, in queues that preempt by order; nil: no work competes
}

// Plan is what a pass proposes.
type Plan struct {
	Entries  []*structs.PlanEntry // in the order of the workloads, then what may grow, unless it preempts; a job has several only when one would be too large
	Deferred []structs.JobKey     // not decided: Steps or Places were used up, or the job has a plan in flight
	Cursor   structs.NodeID       // for the next pass's Input
}

// Report explains a plan: one row per decided workload, in order.
type Report struct {
	Workloads []WorkloadReport
	Steps     int             // nodes looked at
	Wake      structs.LogTime // when work that competes for places may have to change them even if nothing happens; 0: never
}

// WorkloadReport explains the decision about one job.
type WorkloadReport struct {
	Key     structs.JobKey
	EvalID  structs.EvalID
	Groups  []*structs.GroupReport     // one per group that wanted places, by group name
	Updates []reconcile.DesiredUpdates // one per group, by group name
	Failed  bool                       // some group was not placed completely
	Passed  bool                       // backfilled: a part of it was placed while capacity was reserved for others
	Refused string                     // why the decision as a whole failed (too large, invalid)
	Start   structs.LogTime            // when the wants without a place are expected to start; 0: unknown, or not computed
}
