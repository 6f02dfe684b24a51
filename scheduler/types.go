package scheduler

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Input is everything a decision may depend on. Same Input, same Plan, byte for byte.
type Input struct {
	View     *model.View
	Pending  []contend.Workload // in queue order
	Flight   model.Overlay      // plans proposed, not yet committed
	Config   structs.SchedulerConfig
	Now      structs.LogTime
	Seed     uint64                         // for policies that draw lots (random); a decision draws anew for every workload
	Cursor   structs.NodeID                 // where next-fit continues: Plan.Cursor of the pass before, or zero
	Mix      *model.Mix                     // what is asked of the cluster, for policies that look into GPUs; nil: what is held now
	History  map[structs.NodeID]search.Past // how work went on nodes, for policies that learn; nodes not in it have no past
	Steps    int                            // budget in nodes looked at; 0: no limit. The first workload is always decided
	Line     contend.Line                   // who is next; nil: Pending in its order
	Queues   *contend.QueueTable            // limits, rules and usage of queues; nil: one queue without limits
	Running  []contend.Workload             // what holds and competes with Pending by order, for queues with that rule; Allocs and Queue set
	Reserved []*structs.Reservation         // in force: of blocked workloads and of operators, by id
	Evicted  []*structs.Preemptions         // on behalf of each queue, by queue
	Power    bool                           // some node pool has a power budget
	Waits    bool                           // others of the domain, not in Pending, wait for capacity: nothing may grow
	Tell     structs.JobKey                 // a dry run is about this job: its start is estimated though its queue reserves nothing for it
	Chooser  contend.Chooser                // who of Running and Pending should hold places, in queues with that rule; nil: no work competes
}

// Plan is what a pass proposes.
type Plan struct {
	Entries  []*structs.PlanEntry // in the order of the workloads; a job has several only when one would be too large
	Deferred []structs.JobKey     // not decided: the budget ended, or the job has a plan in flight
	Cursor   structs.NodeID       // for the next pass's Input
}

// Report tells why a plan is as it is: one row per decided workload, in order.
type Report struct {
	Workloads []WorkloadReport
	Steps     int             // nodes looked at
	Wake      structs.LogTime // when work that competes for places may have to change them though nothing happens; 0: never
}

// WorkloadReport explains the decision about one job.
type WorkloadReport struct {
	Key     structs.JobKey
	EvalID  structs.EvalID
	Groups  []*structs.GroupReport     // one per group that wanted places, by group name
	Updates []reconcile.DesiredUpdates // one per group, by group name
	Failed  bool                       // some group was not placed fully
	Passed  bool                       // backfilled: something of it was placed while capacity was reserved for others
	Refused string                     // the decision as a whole failed: why (too large, nonsensical)
	Start   structs.LogTime            // when what found no place is expected to start; 0: it was not asked for, or it is not known
}
