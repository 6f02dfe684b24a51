package structs

// CommandType numbers the commands of the replicated log.
type CommandType uint8

// IgnorableFlag marks a type that a server may skip if it does not know it (I9).
const IgnorableFlag CommandType = 0x80

// Command is the envelope of one log entry. Everything that is not deterministic is fixed before the log: time, seed
// and submitter. It is encoded as the type byte followed by msgpack of {Time, Seed, By, Body}.
type Command struct {
	Time LogTime
	Seed Seed
	By   Submitter
	Body CommandBody // nil: a type that this version does not know and may skip
}

// CommandBody is what a command says: a pointer to a struct that embeds command. Package fsm has the table of the
// commands, with the number and the effect of each.
type CommandBody interface{ isCommand() }

// command marks the struct that embeds it as the body of a command.
type command struct{}

func (*command) isCommand() {}

// JobRegisterCommand registers a job version and creates its evaluation, in one entry.
type JobRegisterCommand struct {
	command

	Job               *Job
	Eval              bool // false for templates (periodic, parameterized)
	EvalTrigger       Trigger
	EvalPriority      int // 0: the job's
	EnforceIndex      bool
	SpecIndex         Index // with EnforceIndex: the job's SpecIndex must equal it; 0: the job must be absent
	PreserveCounts    bool  // existing groups keep their count
	PreserveResources bool  // existing tasks keep their resources
	Submission        *JobSubmission
}

// JobDeregisterCommand stops (or purges) a job and creates its evaluation.
type JobDeregisterCommand struct {
	command

	Namespace, JobID string
	Purge            bool
	NoShutdownDelay  bool
	EvalPriority     int
}

// JobStableCommand marks a version as (not) stable.
type JobStableCommand struct {
	command

	Namespace, JobID string
	Version          uint64
	Stable           bool
	Failed           string `since:"2"` // why the rolling update to the version stopped: it replaces nothing more; "": it did not
}

// JobTagCommand tags a version, or with a nil Tag removes the tag Name.
type JobTagCommand struct {
	command

	Namespace, JobID string
	Name             string
	Version          uint64
	Tag              *JobVersionTag
}

// EvalUpsertCommand writes evaluations; a zero ID is derived from the seed.
type EvalUpsertCommand struct {
	command
	Evals []*Evaluation
}

// EvalDeleteCommand deletes terminal evaluations by id.
type EvalDeleteCommand struct {
	command
	IDs []EvalID
}

// NodeRegisterCommand writes what a node reports about itself. Fields owned by the server are kept.
type NodeRegisterCommand struct {
	command

	Node         *Node
	Unregister   bool
	Introduction string // hash of the introduction that a new node uses up, or ""
}

// IntroduceCommand writes an introduction and deletes those that have expired.
type IntroduceCommand struct {
	command
	Introduction *Introduction
}

// NodePurgeCommand deletes nodes; their allocations become lost.
type NodePurgeCommand struct {
	command
	IDs []NodeID
}

// NodeStatusCommand changes the status of a node. Apply creates the evaluations that follow. For down, the plans that
// answer them declare the node's allocations lost.
type NodeStatusCommand struct {
	command

	ID     NodeID
	Status NodeStatus
	Desc   string
	Event  *NodeEvent
	Silent bool // the node missed its heartbeat, so its tasks may still run; false: they are known to have ended, or the node answers
}

// NodeEligibilityCommand enables or disables placement on a node.
type NodeEligibilityCommand struct {
	command

	ID          NodeID
	Eligibility Eligibility
	Event       *NodeEvent
}

// NodeDrainCommand sets or (nil Strategy) clears a drain.
type NodeDrainCommand struct {
	command

	ID           NodeID
	Strategy     *DrainStrategy
	MarkEligible bool
	Complete     bool // with nil Strategy: the drain finished (else: canceled)
	Meta         map[string]string
	Event        *NodeEvent
}

// NodeTaintCommand sets taints on a node and removes others. Remove comes first; an entry without effect removes all
// taints of its key.
type NodeTaintCommand struct {
	command

	ID          NodeID
	Add, Remove []Taint
	Event       *NodeEvent
}

// NodeEventCommand appends events to nodes.
type NodeEventCommand struct {
	command

	IDs    []NodeID
	Events []NodeEvent
}

// AllocObserved is an agent's report of one allocation.
type AllocObserved struct {
	ID           AllocID
	Client       ClientStatus
	ClientDesc   string
	TaskStates   TaskStates
	StartedAt    LogTime
	FinishedAt   LogTime
	NetworkIP    string
	GangEpoch    uint64 // of the roster that GangPort is for
	GangPort     int    // rendezvous port that the agent of node rank 0 has reserved; 0: none
	GPUUse       []GPUUse
	Saved        *Saved                // the newest complete checkpoint; nil: nothing new
	Services     []ServiceRegistration // all services that the allocation offers now
	HealthySince LogTime               // since when all checks of its services pass; 0: they do not, or there are none
	Frozen       LogTime               // since when its tasks are frozen; 0: they are not
	Lapsed       bool                  // it was ended because of stop_on_client_after: Apply records it as lost
}

// AllocObservedCommand is a batch of reports about allocations of any number of nodes. Apply ignores those of
// allocations that are unknown or terminal, and creates the evaluations that follow (failure, batch success).
type AllocObservedCommand struct {
	command

	Updates []AllocObserved
}

// AllocTransitionCommand asks for allocations to be stopped, migrated or rescheduled, and creates the evaluations.
type AllocTransitionCommand struct {
	command

	IDs        []AllocID
	Transition Transition
	Trigger    Trigger // of the evaluations: TriggerAllocStop or TriggerNodeDrain
}

// PoolUpsertCommand and the commands below write or delete small tables.
type (
	// PoolUpsertCommand writes node pools.
	PoolUpsertCommand struct {
		command
		Pools []*NodePool
	}
	// PoolDeleteCommand deletes empty node pools.
	PoolDeleteCommand struct {
		command
		Names []PoolName
	}
	// NamespaceUpsertCommand writes namespaces.
	NamespaceUpsertCommand struct {
		command
		Namespaces []*Namespace
	}
	// NamespaceDeleteCommand deletes namespaces without live jobs.
	NamespaceDeleteCommand struct {
		command
		Names []string
	}
	// PolicyUpsertCommand writes ACL policies.
	PolicyUpsertCommand struct {
		command
		Policies []*ACLPolicy
	}
	// PolicyDeleteCommand deletes ACL policies.
	PolicyDeleteCommand struct {
		command
		Names []string
	}
	// TokenUpsertCommand writes tokens. The endpoint mints accessor and secret of new ones instead of deriving them
	// from the seed, so that a leaked header of a log entry reveals nothing.
	TokenUpsertCommand struct {
		command
		Tokens []*ACLToken
	}
	// TokenDeleteCommand deletes tokens.
	TokenDeleteCommand struct {
		command
		Accessors []AccessorID
	}
	// ACLBootstrapCommand creates the first management token; ResetIndex allows it again.
	ACLBootstrapCommand struct {
		command

		Token      *ACLToken
		ResetIndex Index
	}
	// RoleUpsertCommand writes roles.
	RoleUpsertCommand struct {
		command
		Roles []*ACLRole
	}
	// RoleDeleteCommand deletes roles.
	RoleDeleteCommand struct {
		command
		IDs []RoleID
	}
	// OneTimeUpsertCommand writes a one-time token.
	OneTimeUpsertCommand struct {
		command
		Token *OneTimeToken
	}
	// OneTimeDeleteCommand deletes one-time tokens.
	OneTimeDeleteCommand struct {
		command
		Secrets []SecretID
	}
	// SchedulerConfigCommand writes the configuration; with CAS only if its ModifyIndex still is CASIndex.
	SchedulerConfigCommand struct {
		command

		Config   *SchedulerConfig
		CAS      bool
		CASIndex Index
	}
	// AutopilotConfigCommand writes the configuration; with CAS only if its ModifyIndex still is CASIndex.
	AutopilotConfigCommand struct {
		command

		Config   *AutopilotConfig
		CAS      bool
		CASIndex Index
	}
	// PeriodicLaunchCommand registers the child of a periodic job with its evaluation and records the launch.
	PeriodicLaunchCommand struct {
		command

		Namespace, JobID string
		Launch           LogTime
		Child            *Job // nil: skipped, because of prohibit_overlap
		Forced           bool
	}
	// ScaleCommand changes a group's count (a new job version and evaluation) or only records an event.
	ScaleCommand struct {
		command

		Namespace, JobID string
		Group            GroupName
		Count            *int64
		EnforceIndex     bool
		SpecIndex        Index
		Event            ScalingEvent
	}
	// CollectCommand deletes the objects that garbage collection chose; Apply checks each again.
	CollectCommand struct {
		command

		Evals  []EvalID
		Allocs []AllocID
		Jobs   []JobKey
		Nodes  []NodeID
		Tokens []AccessorID
	}
	// ClusterInitCommand names the cluster and puts its first format in force; only the first one has an effect.
	ClusterInitCommand struct {
		command
		ID     ClusterID
		Format Format
		By     string // release of the leader
	}
	// UpgradeFinishCommand raises the format in force.
	UpgradeFinishCommand struct {
		command
		Format Format
		By     string // release of the leader
	}
	// RestoredCommand records that an operator restored a snapshot: it raises the restore epoch.
	RestoredCommand struct {
		command
		// Epoch is the least epoch that the new history has: the leader's time of the restore, in ms since 1970. So it is newer than what agents
		// have seen of the cluster that the snapshot is from, also where a new cluster, which knows nothing of that one's end, restores it.
		Epoch uint64 `since:"2"`
	}
	// SigningKeyCommand publishes a signing key and makes it the active one. Keys whose last token has expired are dropped.
	SigningKeyCommand struct {
		command
		Key *SigningKey
	}
	// BatchCommand is several commands that must take effect together, applied in order in one entry.
	BatchCommand struct {
		command
		Commands []Command
	}
)

// Actions of a WorkloadCommand.
const (
	ActionHold    = "hold"    // nothing more of the job is placed
	ActionRelease = "release" // ends a hold
	ActionRequeue = "requeue" // running work stops and returns to the queue
	ActionMissed  = "missed"  // its deadline has passed; written by the leader
	ActionRetry   = "retry"   // work that failed for good is done again
	ActionFail    = "fail"    // the job is stopped with Reason as its status description
)

// PlansCommand is several plan entries in one log entry. They are applied in order and, unlike those of BatchCommand,
// independently: the n-th answer of Result.Plans belongs to the n-th entry. A later entry sees the changes of an
// earlier one.
type PlansCommand struct {
	command
	Entries []*PlanEntry
}

// Result is the answer of Apply: the index and, depending on the command, what it created. A refused command has Err
// set and changed nothing.
type Result struct {
	Index     Index
	Err       *Error
	EvalID    EvalID // the evaluation that the command created, if any
	SpecIndex Index  // of the registered job
	Version   uint64 // of the registered job
	Evals     []EvalID
	Plan      *PlanResult
	Plans     []*PlanResult // of a PlansCommand, one per entry
	ChildID   string        // of a periodic launch
	Swapped   bool          // of a check-and-set
	Variable  *Variable     // that was written, or found by a check-and-set that failed; or nil
}

type (
	// QueueUpsertCommand writes queues; parents come before children.
	QueueUpsertCommand struct {
		command
		Queues []*Queue
	}
	// QueueDeleteCommand deletes queues that have neither children nor jobs.
	QueueDeleteCommand struct {
		command
		Paths []QueuePath
	}
	// ReserveCommand writes reservations of operators.
	ReserveCommand struct {
		command
		Reservations []*Reservation
	}
	// QuotaUpsertCommand writes quotas of namespaces.
	QuotaUpsertCommand struct {
		command
		Quotas []*QuotaSpec
	}
	// QuotaDeleteCommand deletes quotas that no namespace uses.
	QuotaDeleteCommand struct {
		command
		Names []string
	}
	// VariableSetCommand writes a variable whose items are sealed; with CAS only if its ModifyIndex still is CASIndex
	// (0: if there is none). Apply sets its times and indexes.
	VariableSetCommand struct {
		command

		Variable *Variable
		CAS      bool
		CASIndex Index
	}
	// VariableDeleteCommand deletes a variable; with CAS only if its ModifyIndex still is CASIndex. Deleting an absent
	// variable succeeds.
	VariableDeleteCommand struct {
		command

		Namespace, Path string
		CAS             bool
		CASIndex        Index
	}
	// SealKeyCommand names a key for variables and makes it active. By then most servers have it in their keystores.
	SealKeyCommand struct {
		command
		ID string
	}
	// SealRekeyCommand is SealKeyCommand and also retires every other key.
	SealRekeyCommand struct {
		command
		ID string
	}
	// SealKeyDeleteCommand deletes a key for variables that is neither active nor in use.
	SealKeyDeleteCommand struct {
		command
		ID string
	}
	// VariableResealCommand seals variables with another key. A variable that was written or deleted meanwhile is left
	// alone. Indexes and times stay, since the items do.
	VariableResealCommand struct {
		command

		KeyID     string
		Variables []ResealedVariable
	}
	// ResealedVariable is one variable of a VariableResealCommand: the version that was read, and its items sealed with
	// the new key.
	ResealedVariable struct {
		Namespace, Path string
		ModifyIndex     Index
		OldKeyID        string
		Sealed          []byte
	}
	// ServiceDeleteCommand removes a registration.
	ServiceDeleteCommand struct {
		command
		Namespace, Service, ID string
	}
	// UnreserveCommand deletes reservations of operators.
	UnreserveCommand struct {
		command
		IDs []string
	}
	// WorkloadCommand holds, releases, requeues, retries or ends a job (see the Action constants).
	WorkloadCommand struct {
		command

		Namespace, JobID string
		Action           string
		Reason           string
	}
	// SuspendCommand freezes or resumes running work: a job with its present and future allocations, or one allocation,
	// which stands for its whole group if that is a gang. The time is the command's.
	SuspendCommand struct {
		command

		Namespace, JobID string  // the job; unused with Alloc
		Alloc            AllocID // zero: all of the job
		Resume           bool
		Reason           string
	}
	// JobPriorityCommand changes the priority of a waiting or running job without a new version.
	JobPriorityCommand struct {
		command

		Namespace, JobID string
		Priority         int
	}
	// AcctCollectCommand deletes accounting records beyond retention: those that ended earlier, and the oldest beyond
	// the count.
	AcctCollectCommand struct {
		command

		Before LogTime
		Keep   int64 // 0: by time only
	}
)

// RosterCommand records that a gang's time to assemble is over. Apply stops its members, unless it has assembled
// meanwhile or Epoch is no longer the roster's.
type RosterCommand struct {
	command

	Namespace, JobID string
	Group            GroupName
	Epoch            uint64
}
