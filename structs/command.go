package structs

// CommandType numbers the commands of the replicated log.
type CommandType uint8

// IgnorableFlag marks a type that a server may skip if it does not know it (I9).
const IgnorableFlag CommandType = 0x80

// Command is the envelope of one log entry. Everything that is not deterministic is fixed in it before the log: log
// time, seed and submitter. It is encoded as the type byte followed by msgpack of {Time, Seed, By, Body}.
type Command struct {
	Time LogTime
	Seed Seed
	By   Submitter
	Body CommandBody // nil: of a type that this version does not know and may skip
}

// Type is the type of the body; 0 without one.
func (c Command) Type() CommandType {
	if c.Body == nil {
		return 0
	}
	return c.Body.number()
}

// CommandBody is what a command says: a pointer to one of the structs below, or to a PlanEntry.
type CommandBody interface{ number() CommandType }

// CommandTypeOf is the type of the commands whose body is a B.
func CommandTypeOf[B CommandBody]() CommandType {
	var b B
	return b.number()
}

// Each body and its number, in the order of numbers. A number is never used again: a retired one stays in a comment.
// Package fsm has the table of what the commands do.

func (*JobRegisterCommand) number() CommandType     { return 1 }
func (*JobDeregisterCommand) number() CommandType   { return 2 }
func (*JobStableCommand) number() CommandType       { return 3 }
func (*JobTagCommand) number() CommandType          { return 4 }
func (*EvalUpsertCommand) number() CommandType      { return 5 }
func (*PlanEntry) number() CommandType              { return 6 }
func (*NodeRegisterCommand) number() CommandType    { return 7 }
func (*NodePurgeCommand) number() CommandType       { return 8 }
func (*NodeStatusCommand) number() CommandType      { return 9 }
func (*NodeEligibilityCommand) number() CommandType { return 10 }
func (*NodeDrainCommand) number() CommandType       { return 11 }
func (*AllocObservedCommand) number() CommandType   { return 12 }
func (*AllocTransitionCommand) number() CommandType { return 13 }
func (*PoolUpsertCommand) number() CommandType      { return 14 }
func (*PoolDeleteCommand) number() CommandType      { return 15 }
func (*NamespaceUpsertCommand) number() CommandType { return 16 }
func (*NamespaceDeleteCommand) number() CommandType { return 17 }
func (*PolicyUpsertCommand) number() CommandType    { return 18 }
func (*PolicyDeleteCommand) number() CommandType    { return 19 }
func (*TokenUpsertCommand) number() CommandType     { return 20 }
func (*TokenDeleteCommand) number() CommandType     { return 21 }
func (*ACLBootstrapCommand) number() CommandType    { return 22 }
func (*RoleUpsertCommand) number() CommandType      { return 23 }
func (*RoleDeleteCommand) number() CommandType      { return 24 }
func (*OneTimeUpsertCommand) number() CommandType   { return 25 }
func (*OneTimeDeleteCommand) number() CommandType   { return 26 }
func (*SchedulerConfigCommand) number() CommandType { return 27 }
func (*AutopilotConfigCommand) number() CommandType { return 28 }
func (*PeriodicLaunchCommand) number() CommandType  { return 29 }
func (*ScaleCommand) number() CommandType           { return 30 }
func (*CollectCommand) number() CommandType         { return 31 }
func (*ClusterInitCommand) number() CommandType     { return 32 }
func (*RestoredCommand) number() CommandType        { return 33 }
func (*SigningKeyCommand) number() CommandType      { return 34 }
func (*NodeEventCommand) number() CommandType       { return 35 }
func (*EvalDeleteCommand) number() CommandType      { return 36 }
func (*BatchCommand) number() CommandType           { return 37 }
func (*PlansCommand) number() CommandType           { return 38 }
func (*QueueUpsertCommand) number() CommandType     { return 39 }
func (*QueueDeleteCommand) number() CommandType     { return 40 }
func (*ReserveCommand) number() CommandType         { return 41 }
func (*UnreserveCommand) number() CommandType       { return 42 }
func (*WorkloadCommand) number() CommandType        { return 43 }
func (*RosterCommand) number() CommandType          { return 44 }
func (*AcctCollectCommand) number() CommandType     { return 45 }
func (*QuotaUpsertCommand) number() CommandType     { return 46 }
func (*QuotaDeleteCommand) number() CommandType     { return 47 }
func (*VariableSetCommand) number() CommandType     { return 48 }
func (*VariableDeleteCommand) number() CommandType  { return 49 }
func (*SealKeyCommand) number() CommandType         { return 50 }
func (*NodeTaintCommand) number() CommandType       { return 51 }
func (*ServiceDeleteCommand) number() CommandType   { return 52 }
func (*JobPriorityCommand) number() CommandType     { return 53 }
func (*SealRekeyCommand) number() CommandType       { return 54 }
func (*SealKeyDeleteCommand) number() CommandType   { return 55 }
func (*VariableResealCommand) number() CommandType  { return 56 }
func (*SuspendCommand) number() CommandType         { return 57 }

// JobRegisterCommand registers a job version and makes its evaluation, in one entry.
type JobRegisterCommand struct {
	Job               *Job
	Eval              bool // false for templates (periodic, parameterized)
	EvalTrigger       Trigger
	EvalPriority      int // 0: the job's
	EnforceIndex      bool
	SpecIndex         Index // with EnforceIndex: the job's SpecIndex must equal it; 0: the job must be absent
	PreserveCounts    bool  // groups that exist keep their count
	PreserveResources bool  // tasks that exist keep their resources
	Submission        *JobSubmission
}

// JobDeregisterCommand stops (or purges) a job and makes its evaluation.
type JobDeregisterCommand struct {
	Namespace, JobID string
	Purge            bool
	NoShutdownDelay  bool
	EvalPriority     int
}

// JobStableCommand marks a version as (not) stable.
type JobStableCommand struct {
	Namespace, JobID string
	Version          uint64
	Stable           bool
}

// JobTagCommand tags a version, or with a nil Tag removes the tag called Name.
type JobTagCommand struct {
	Namespace, JobID string
	Name             string
	Version          uint64
	Tag              *JobVersionTag
}

// EvalUpsertCommand writes evaluations; an ID of zero is derived from the seed.
type EvalUpsertCommand struct{ Evals []*Evaluation }

// EvalDeleteCommand deletes terminal evaluations by id.
type EvalDeleteCommand struct{ IDs []EvalID }

// NodeRegisterCommand writes what a node reports of itself. Fields owned by the server are kept.
type NodeRegisterCommand struct {
	Node       *Node
	Unregister bool
}

// NodePurgeCommand deletes nodes; their allocations become lost.
type NodePurgeCommand struct{ IDs []NodeID }

// NodeStatusCommand changes what the servers know of a node. Apply makes the evaluations that follow from it; for down,
// the plans that answer them declare the node's allocations lost.
type NodeStatusCommand struct {
	ID     NodeID
	Status NodeStatus
	Desc   string
	Event  *NodeEvent
}

// NodeEligibilityCommand switches placement on a node on or off.
type NodeEligibilityCommand struct {
	ID          NodeID
	Eligibility Eligibility
	Event       *NodeEvent
}

// NodeDrainCommand sets or (nil Strategy) clears a drain.
type NodeDrainCommand struct {
	ID           NodeID
	Strategy     *DrainStrategy
	MarkEligible bool
	Complete     bool // with nil Strategy: the drain finished (else: canceled)
	Meta         map[string]string
	Event        *NodeEvent
}

// NodeTaintCommand sets taints on a node and takes others off: Remove first, of which one without effect means all of its key.
type NodeTaintCommand struct {
	ID          NodeID
	Add, Remove []Taint
	Event       *NodeEvent
}

// NodeEventCommand appends events to nodes.
type NodeEventCommand struct {
	IDs    []NodeID
	Events []NodeEvent
}

// AllocObserved is what an agent saw of one allocation.
type AllocObserved struct {
	ID           AllocID
	Client       ClientStatus
	ClientDesc   string
	TaskStates   map[string]*TaskState
	StartedAt    LogTime
	FinishedAt   LogTime
	NetworkIP    string
	GangEpoch    uint64 // of the roster that GangPort is for
	GangPort     int    // rendezvous port that the agent of node rank 0 has reserved; 0: none
	GPUUse       []GPUUse
	Saved        *Saved                // the newest checkpoint that was seen; nil: nothing new
	Services     []ServiceRegistration // all that the allocation offers now
	HealthySince LogTime               // since when all checks of its services pass; 0: they do not, or there are none
	Frozen       LogTime               // since when its tasks stand still; 0: they do not
}

// AllocObservedCommand is a batch of observations over any number of nodes. Apply ignores those of allocations that it
// does not know or that are terminal already, and makes the evaluations that follow (failure, batch success).
type AllocObservedCommand struct {
	Updates []AllocObserved
}

// AllocTransitionCommand asks for allocations to be stopped, migrated or rescheduled, and makes the evaluations.
type AllocTransitionCommand struct {
	IDs        []AllocID
	Transition Transition
	Trigger    Trigger // of the evaluations: TriggerAllocStop or TriggerNodeDrain
}

// PoolUpsertCommand and the commands below write or delete small tables.
type (
	// PoolUpsertCommand writes node pools.
	PoolUpsertCommand struct{ Pools []*NodePool }
	// PoolDeleteCommand deletes empty node pools.
	PoolDeleteCommand struct{ Names []string }
	// NamespaceUpsertCommand writes namespaces.
	NamespaceUpsertCommand struct{ Namespaces []*Namespace }
	// NamespaceDeleteCommand deletes namespaces without live jobs.
	NamespaceDeleteCommand struct{ Names []string }
	// PolicyUpsertCommand writes ACL policies.
	PolicyUpsertCommand struct{ Policies []*ACLPolicy }
	// PolicyDeleteCommand deletes ACL policies.
	PolicyDeleteCommand struct{ Names []string }
	// TokenUpsertCommand writes tokens; accessor and secret of new ones are minted by the endpoint, not derived from
	// the seed, so that a leaked log entry header reveals nothing.
	TokenUpsertCommand struct{ Tokens []*ACLToken }
	// TokenDeleteCommand deletes tokens.
	TokenDeleteCommand struct{ Accessors []AccessorID }
	// ACLBootstrapCommand makes the first management token; ResetIndex allows it again.
	ACLBootstrapCommand struct {
		Token      *ACLToken
		ResetIndex Index
	}
	// RoleUpsertCommand writes roles.
	RoleUpsertCommand struct{ Roles []*ACLRole }
	// RoleDeleteCommand deletes roles.
	RoleDeleteCommand struct{ IDs []RoleID }
	// OneTimeUpsertCommand writes a one-time token.
	OneTimeUpsertCommand struct{ Token *OneTimeToken }
	// OneTimeDeleteCommand deletes one-time tokens.
	OneTimeDeleteCommand struct{ Secrets []SecretID }
	// SchedulerConfigCommand writes the configuration; with CAS only when its ModifyIndex still is CASIndex.
	SchedulerConfigCommand struct {
		Config   *SchedulerConfig
		CAS      bool
		CASIndex Index
	}
	// AutopilotConfigCommand writes the configuration; with CAS only when its ModifyIndex still is CASIndex.
	AutopilotConfigCommand struct {
		Config   *AutopilotConfig
		CAS      bool
		CASIndex Index
	}
	// PeriodicLaunchCommand registers the child of a periodic job with its evaluation and records the launch.
	PeriodicLaunchCommand struct {
		Namespace, JobID string
		Launch           LogTime
		Child            *Job // nil: skipped, because of prohibit_overlap
		Forced           bool
	}
	// ScaleCommand changes a group's count (a new job version and evaluation) or only records an event.
	ScaleCommand struct {
		Namespace, JobID, Group string
		Count                   *int64
		EnforceIndex            bool
		SpecIndex               Index
		Event                   ScalingEvent
	}
	// CollectCommand deletes what garbage collection chose; Apply checks each again.
	CollectCommand struct {
		Evals  []EvalID
		Allocs []AllocID
		Jobs   []JobKey
		Nodes  []NodeID
		Tokens []AccessorID
	}
	// ClusterInitCommand names the cluster; only the first one counts.
	ClusterInitCommand struct{ ID ClusterID }
	// RestoredCommand marks that an operator restored a snapshot: bumps the restore epoch.
	RestoredCommand struct{}
	// SigningKeyCommand adds a signing key and makes it the active one.
	SigningKeyCommand struct{ Key *SigningKey }
	// BatchCommand is several commands that must be true together, applied in order in one entry.
	BatchCommand struct{ Commands []Command }
)

// Actions of a WorkloadCommand.
const (
	ActionHold    = "hold"    // nothing more of it is placed
	ActionRelease = "release" // the end of a hold
	ActionRequeue = "requeue" // what runs stops and returns to the queue
	ActionMissed  = "missed"  // its deadline is over; written by the leader
	ActionRetry   = "retry"   // what failed for good is done again
	ActionFail    = "fail"    // the job is stopped with Reason as its status description
)

// PlansCommand is several plan entries in one log entry. They are applied in order and, unlike those of BatchCommand,
// each stands or falls alone: the n-th answer of Result.Plans belongs to the n-th entry. A later entry sees what an
// earlier one changed.
type PlansCommand struct{ Entries []*PlanEntry }

// Result is what Apply answers: the index and, depending on the command, what it made. A refused command has Err set
// and changed nothing.
type Result struct {
	Index     Index
	Err       *Error
	EvalID    EvalID // the evaluation that the command made, if one
	SpecIndex Index  // of the registered job
	Version   uint64 // of the registered job
	Evals     []EvalID
	Plan      *PlanResult
	Plans     []*PlanResult // of a PlansCommand, one per entry
	ChildID   string        // of a periodic launch
	Swapped   bool          // of a check-and-set
}

type (
	// QueueUpsertCommand writes queues; parents come before children.
	QueueUpsertCommand struct{ Queues []*Queue }
	// QueueDeleteCommand deletes queues that have neither children nor jobs.
	QueueDeleteCommand struct{ Paths []QueuePath }
	// ReserveCommand writes reservations of operators.
	ReserveCommand struct{ Reservations []*Reservation }
	// QuotaUpsertCommand writes quotas of namespaces.
	QuotaUpsertCommand struct{ Quotas []*QuotaSpec }
	// QuotaDeleteCommand deletes quotas that no namespace names.
	QuotaDeleteCommand struct{ Names []string }
	// VariableSetCommand writes a variable whose items are sealed; with CAS only when its ModifyIndex still is CASIndex (0:
	// when there is none). Apply sets its times and indexes.
	VariableSetCommand struct {
		Variable *Variable
		CAS      bool
		CASIndex Index
	}
	// VariableDeleteCommand deletes a variable; with CAS only when its ModifyIndex still is CASIndex. One that is not there
	// is deleted already.
	VariableDeleteCommand struct {
		Namespace, Path string
		CAS             bool
		CASIndex        Index
	}
	// SealKeyCommand names a key for variables and makes it the active one. Most servers have it in their keystores by then.
	SealKeyCommand struct{ ID string }
	// SealRekeyCommand does what SealKeyCommand does, and retires every other key.
	SealRekeyCommand struct{ ID string }
	// SealKeyDeleteCommand forgets a key for variables that is not the active one and that no variable is sealed with.
	SealKeyDeleteCommand struct{ ID string }
	// VariableResealCommand puts what variables hold under another key. One that was written or deleted meanwhile is left
	// alone; indexes and times stay, since the items do.
	VariableResealCommand struct {
		KeyID     string
		Variables []ResealedVariable
	}
	// ResealedVariable is one variable of a VariableResealCommand: as it was read, and the same items sealed with the new key.
	ResealedVariable struct {
		Namespace, Path string
		ModifyIndex     Index
		OldKeyID        string
		Sealed          []byte
	}
	// ServiceDeleteCommand removes a registration.
	ServiceDeleteCommand struct{ Namespace, Service, ID string }
	// UnreserveCommand deletes reservations of operators.
	UnreserveCommand struct{ IDs []string }
	// WorkloadCommand holds, releases, requeues, retries or ends a job (see the Action constants).
	WorkloadCommand struct {
		Namespace, JobID string
		Action           string
		Reason           string
	}
	// SuspendCommand makes what runs stand still in its place, or go on: a job with all that it has and will have, or one
	// allocation, which is its whole group where that is a gang. The time is the command's.
	SuspendCommand struct {
		Namespace, JobID string  // the job; unused with Alloc
		Alloc            AllocID // zero: all of the job
		Resume           bool
		Reason           string
	}
	// JobPriorityCommand changes the priority of a job that waits or runs, without a new version.
	JobPriorityCommand struct {
		Namespace, JobID string
		Priority         int
	}
	// AcctCollectCommand deletes accounting records beyond retention: those that ended before, and the oldest beyond count.
	AcctCollectCommand struct {
		Before LogTime
		Keep   int64 // 0: by time only
	}
)

// RosterCommand says that the time in which a gang had to assemble is over. Apply stops its members, if it has not
// assembled meanwhile and Epoch is still the roster's.
type RosterCommand struct {
	Namespace, JobID, Group string
	Epoch                   uint64
}
