package structs

import "time"

// EvalStatus is the state of an evaluation.
type EvalStatus string

// pending -> complete | failed | canceled (superseded)
// blocked -> pending (capacity appeared) | canceled
const (
	EvalPending  EvalStatus = "pending"
	EvalBlocked  EvalStatus = "blocked"
	EvalComplete EvalStatus = "complete"
	EvalFailed   EvalStatus = "failed"
	EvalCanceled EvalStatus = "canceled"
)

// Trigger says why an evaluation was created. The names are Nomad's.
type Trigger string

// Every trigger in use.
const (
	TriggerJobRegister    Trigger = "job-register"
	TriggerJobDeregister  Trigger = "job-deregister"
	TriggerPeriodic       Trigger = "periodic-job"
	TriggerNodeUpdate     Trigger = "node-update"
	TriggerNodeDrain      Trigger = "node-drain"
	TriggerAllocStop      Trigger = "alloc-stop"
	TriggerScheduled      Trigger = "scheduled"
	TriggerRollingUpdate  Trigger = "rolling-update"
	TriggerRetryFailed    Trigger = "alloc-failure"
	TriggerFailedFollowUp Trigger = "failed-follow-up"
	TriggerMaxPlans       Trigger = "max-plan-attempts"
	TriggerQueued         Trigger = "queued-allocs"
	TriggerPreemption     Trigger = "preemption"
	TriggerScale          Trigger = "job-scaling"
	TriggerReconnect      Trigger = "reconnect"
	TriggerMaxRun         Trigger = "max-run-duration"
	TriggerHold           Trigger = "job-hold"     // held or released
	TriggerPriority       Trigger = "job-priority" // a new priority
	TriggerRequeue        Trigger = "job-requeue"  // by hand
	TriggerArray          Trigger = "job-array"    // further indices of an array may start
)

// Evaluation is a request to decide about one job. It completes as soon as a pass has answered (D4).
type Evaluation struct {
	ID             EvalID
	Namespace      string
	JobID          string
	Type           JobType
	Priority       int
	Trigger        Trigger
	JobSpecIndex   Index // of the job when the evaluation was created
	NodeID         NodeID
	NodeIndex      Index
	DeploymentID   DeploymentID
	Status         EvalStatus
	StatusDesc     string
	Wait           time.Duration
	WaitUntil      LogTime // not before this time; 0 for now
	NextEval       EvalID
	PreviousEval   EvalID
	BlockedEval    EvalID
	FailedGroups   []*GroupReport    // groups that did not place fully, by group name
	PlacedGroups   []*GroupReport    // why the winners won, by group name: the metrics of this evaluation's allocations
	Queued         map[GroupName]int // per group: allocations that still wait
	AnnotatePlan   bool
	SnapshotIndex  Index // state that the deciding pass used
	ForceResch     bool  // reschedule failed allocations now
	CreateIndex    Index
	ModifyIndex    Index
	CreateTime     LogTime
	ModifyTime     LogTime
	Successor      EvalID // the evaluation that replaces a canceled one
	EscapedClass   bool
	ClassEligible  map[uint64]bool `codec:"-"` // hint in memory only
	QuotaLimitName string
	By             string `since:"2"` // who caused it, where a user did: see Trigger.Acted; "": no user, or anonymous
}

// JobKey returns the key of the evaluation's job.
func (e *Evaluation) JobKey() JobKey { return JobKey{Namespace: e.Namespace, ID: e.JobID} }

// Acted reports whether an evaluation with the trigger follows from what a user asked for, and not from what happened.
func (t Trigger) Acted() bool {
	switch t {
	case TriggerJobRegister, TriggerJobDeregister, TriggerScale, TriggerHold, TriggerPriority, TriggerRequeue, TriggerAllocStop, TriggerNodeDrain:
		return true
	}
	return false
}

// Terminal reports whether the evaluation has its final answer.
func (e *Evaluation) Terminal() bool {
	return e.Status == EvalComplete || e.Status == EvalFailed || e.Status == EvalCanceled
}

// ReasonCode is a one-word reason why work waits. It is an enum of the API and never renamed (D23).
type ReasonCode string

// The reason codes.
const (
	ReasonNone              ReasonCode = ""
	ReasonResources         ReasonCode = "RESOURCES"
	ReasonPriority          ReasonCode = "PRIORITY"
	ReasonQuota             ReasonCode = "QUOTA"
	ReasonPower             ReasonCode = "POWER" // the power budget of a node pool
	ReasonGang              ReasonCode = "GANG"
	ReasonTopology          ReasonCode = "TOPOLOGY"
	ReasonFragmentation     ReasonCode = "FRAGMENTATION"
	ReasonConstraint        ReasonCode = "CONSTRAINT"
	ReasonDriver            ReasonCode = "DRIVER"
	ReasonDeviceUnhealthy   ReasonCode = "DEVICE_UNHEALTHY"
	ReasonNodeIneligible    ReasonCode = "NODE_INELIGIBLE"
	ReasonReservation       ReasonCode = "RESERVATION"
	ReasonDependency        ReasonCode = "DEPENDENCY"
	ReasonBeginTime         ReasonCode = "BEGIN_TIME"
	ReasonRateLimit         ReasonCode = "RATE_LIMIT"
	ReasonPreemptionPending ReasonCode = "PREEMPTION_PENDING"
	ReasonHeld              ReasonCode = "HELD" // on hold until a user releases it
)

// ScoreTerm is one named part of a score, in millionths of [0,1] before its weight.
type ScoreTerm struct {
	Name  string
	Micro int64
}

// NodeScore is the score of one node, a winner or a runner-up.
type NodeScore struct {
	NodeID NodeID
	Terms  []ScoreTerm
	Micro  int64 // weighted sum, millionths
}

// GroupReport says why a group was placed as it was, or not.
type GroupReport struct {
	Group      GroupName
	Code       ReasonCode // why the rest waits; ReasonNone when everything was placed
	Wanted     int64      // allocations asked for in this pass
	Placed     int64
	Coalesced  int64            // further failures for the same reasons
	InPool     int64            // nodes of the pool
	Available  map[string]int64 // ready nodes by datacenter
	Considered int64            // nodes whose class was evaluated
	Filtered   int64            // nodes that constraints, drivers or volumes refused
	Exhausted  int64            // nodes that had too little left
	Refusals   []Refusal        // most nodes first, then by dimension
	ClassFilt  map[string]int64 // by node class: filtered
	ClassExh   map[string]int64 // by node class: exhausted
	Scores     []NodeScore      // best first, at most 5
	Duration   time.Duration    // measured outside the decision; 0 in comparisons
}

// Workload is a job as the queue sees it: the replicated queue entry (D4).
type Workload struct {
	Namespace   string
	JobID       string
	Domain      PoolName // node pool
	SubmitIndex Index    // order within a priority
	SubmitTime  LogTime
	Priority    int
	Queue       QueuePath
	BlockedEval EvalID // stable id of its blocked evaluation; zero when nothing waits
	Reason      ReasonCode
	Position    int64
	Waiting     int64         // allocations that wait
	Held        bool          // on hold: passes skip it until it is released
	NotBefore   LogTime       // not decided before: the pause after a requeue; 0 for now
	Met         bool          // the jobs that it depends on have reached the state that it waits for
	Attained    int64         // GPU-seconds (seconds for work without GPUs) of its ended allocations
	Preempted   int64         // how often it was preempted
	Requeued    int64         // how often its work returned to the queue; a gang that returns as one counts once
	StartEst    LogTime       // expected start; 0: unknown
	Amount      int64         // amount missing, in the unit of the reason
	Returned    RequeueCounts // Requeued by reason
	Missed      LogTime       // its deadline, if it passed before the job ended; 0: not missed
	Spent       string        // why some of its work failed for good instead of returning again; "" for none
	Suspended   LogTime       // since when the whole job is suspended, and nothing more is placed; 0: it is not
	Told        LogTime       // when amount and estimate were last written: while the reason stays, at most once a minute (D23)
	CreateIndex Index
	ModifyIndex Index
}
