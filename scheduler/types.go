package scheduler

import (
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Input is everything a decision may depend on. Same Input, same Plan, byte for byte.
type Input struct {
	View     *model.View
	Pending  []Workload    // in queue order
	Flight   model.Overlay // plans proposed, not yet committed
	Config   structs.SchedulerConfig
	Now      structs.LogTime
	Seed     uint64                         // for policies that draw lots (random); a decision draws anew for every workload
	Cursor   structs.NodeID                 // where next-fit goes on: Plan.Cursor of the pass before, or zero
	Mix      *model.Mix                     // what is asked of the cluster, for policies that look into GPUs; nil: what is held now
	History  map[structs.NodeID]search.Past // how work went on nodes, for policies that learn; nodes not in it have no past
	Steps    int                            // budget in nodes looked at; 0: no limit. The first workload is always decided
	Line     Line                           // who is next; nil: Pending in its order
	Queues   *QueueTable                    // limits, rules and usage of queues; nil: one queue without limits
	Running  []Workload                     // what holds and competes with Pending by order, for queues with that rule; Allocs and Queue set
	Reserved []*structs.Reservation         // in force: of blocked workloads and of operators, by id
	Evicted  []*structs.Preemptions         // on behalf of each queue, by queue
	Power    bool                           // some node pool has a power budget
	Waits    bool                           // others of the domain, not in Pending, wait for capacity: nothing may grow
	Tell     structs.JobKey                 // a dry run is about this job: when it could start is estimated though its queue promises it nothing
	Chooser  Chooser                        // who of Running and Pending should hold places, in queues with that rule; nil: nobody competes
}

// Line says which pending workload is decided next. It sees what the pass has placed, so that orders by share take
// turns. The ones of scheduler/queue are pure: equal inputs and answers give an equal line.
type Line interface {
	// Next gives a place in Input.Pending, each at most once, or -1 at the end.
	Next() int
	// Placed tells what the pass has placed for a workload that Next gave, before Next is asked again. A Line that has a
	// method Blocked(i int) is told, before that, that something of the workload found no place.
	Placed(i int, use structs.Amount)
}

// QueueTable is the queues of the cluster as a decision sees them.
type QueueTable struct {
	Queues []*structs.Queue      // by path: parents before children
	Usage  []*structs.QueueUsage // by path, then user
	Total  structs.Amount        // what the cluster has
	Models []structs.GPUCount    // the GPUs of Total by model; nil: not known
	// Turnover is the mean time until what is held now is given back, as learned (predict.Similar); 0: not known.
	Turnover time.Duration
	Tenants  []Tenant // namespaces with a quota, by name
}

// Workload is one job to decide about, with all that is known of it.
type Workload struct {
	Key     structs.JobKey
	Job     *structs.Job          // nil: purged
	Evals   []*structs.Evaluation // pending ones, oldest first; the last one decides, the others are canceled
	Blocked *structs.Evaluation   // its blocked evaluation, or nil; decides when Evals is empty
	Queue   *structs.Workload     // its queue entry, or nil before the first decision
	Allocs  []*structs.Allocation // of the job, ended ones included, Allocation.Job linked; any order
	Expect  time.Duration         // predicted run time of an allocation; 0: none
	Gate    *structs.Refusal      // what stands in its way whatever nodes offer (on hold, too early, a dependency, a cap), or nil
	Until   structs.LogTime       // with Gate: when to look again; 0: only when something happens
	Met     bool                  // the jobs that it depends on have got so far (see Gate.Met)
	Ended   *structs.ArrayState   // of an array: the indices that ended and were collected; nil for none
	Rosters []*structs.Roster     // of its gangs, by group
	Cost    int64                 // what it costs to let it go first (predict.Estimate); 0: not known
	Least   *Least                // LeastOf(Job), kept by whoever decides about it again and again; nil: not known
	Ran     time.Duration         // how long it has run, in all its runs; 0: as Queue.Attained and Allocs tell
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
	Passed  bool                       // backfilled: something of it was placed while capacity was promised to others
	Refused string                     // the decision as a whole failed: why (too large, nonsensical)
	Start   structs.LogTime            // when what found no place is expected to start; 0: nobody asked, or it is not known
}
