package structs

import "time"

// PlanEntry is the changes of one decision about one job: the command that workers propose and the planner commits. It
// is columnar (D9): job, evaluation and groups once, then a short row per allocation.
type PlanEntry struct {
	command

	Namespace     string
	JobID         string
	JobVersion    uint64
	JobCreate     Index // CreateIndex of the job it was decided for; 0 if the job may be uncommitted (D25)
	EvalID        EvalID
	SnapshotIndex Index // state that the decision used; ids of placements derive from it
	Groups        []GroupName
	Asks          []Vector   `codec:"-"` // per row of Groups: what one allocation is charged; never logged, Apply derives it from the job
	Nodes         []PlanNode // referred to by position
	Parts         []PlanPart
	Evals         []*Evaluation // the deciding evaluation with its new status, and follow-ups, blocked ones, canceled ones
	Workload      *Workload     // nil: unchanged
	LinkNext      bool          // set Next on replaced allocations
	Job           *Job          `codec:"-"` // the job it was decided for; for the overlay, never logged
	Decided       LogTime       `codec:"-"` // time of the decision; never logged: allocations begin when the entry is applied
	QueueEpoch    Index         // of the job's queue at the decision; parts with placements are refused if it has moved
	Reservation   *Reservation  // of the job, new or changed; one with Start 0 is deleted; nil: unchanged
	Rosters       []*Roster     // of the job's gangs, new or changed; written when the parts that place members are accepted
}

// PlanNode is a node that parts refer to, with the epoch they were verified against (D6).
type PlanNode struct {
	ID    NodeID
	Epoch Index
}

// PlanPart is the smallest set that must take effect together (D18). It is accepted or refused as a whole. Apply
// refuses it if the job's version is absent or stopped, or if the epoch of a node it places on has moved.
type PlanPart struct {
	Places  []PlanPlace
	Stops   []PlanStop
	Updates []PlanUpdate // in-place updates
}

// PlanPlace is one new allocation.
type PlanPlace struct {
	Group    int     // into PlanEntry.Groups
	Node     int     // into PlanEntry.Nodes
	Index    int     // name index
	Version  *uint64 // job version to place, if not PlanEntry.JobVersion
	Grants   []Grant
	Ports    []PortGrant
	Cores    []int64
	WaitsOn  []AllocID
	Previous AllocID
	Resched  []RescheduleEvent
	Expect   time.Duration // predicted run time; 0: none
	Restarts int64         // see Allocation.Restarts
	Requeues int64
	Reason   string
}

// PlanStop stops (or marks) one existing allocation.
type PlanStop struct {
	ID       AllocID
	Desc     string
	Client   ClientStatus  // set when the server declares the outcome ("lost", "unknown"); else ""
	Desired  DesiredStatus // DesiredStop or DesiredEvict; "" keeps it (only FollowupEval changes)
	Followup EvalID        // delayed evaluation that will replace it
	Preempt  AllocID       // the allocation that preempts it
	Cause    string        // CauseDrain or CausePreempt: its work, which moves or gives way with its gang, may save its state first
}

// PlanUpdate moves an allocation to the job version of the plan without restarting it.
type PlanUpdate struct {
	ID AllocID
}

// PlanResult is the deterministic answer of Apply to a PlanEntry.
type PlanResult struct {
	Index    Index
	Accepted []bool // one per part
	Refused  string // why the first refused part was refused, for the log
}
