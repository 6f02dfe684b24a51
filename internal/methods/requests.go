package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Query has the options of every read: consistency, blocking, paging. Region, namespace and token are in the RPC
// header.
type Query struct {
	MinIndex  structs.Index // block until the watched index passes this; 0: answer now
	MaxWait   time.Duration // for a blocking read; 0: 5 minutes, at most 10
	Stale     bool          // any server may answer, and reports its lag
	Prefix    string        // of IDs or names
	Filter    string        // go-bexpr over the wire shape
	PerPage   int           // objects of a page; 0: as many as possible, usually PageMax
	NextToken string
	Reverse   bool
}

// PageMax is the most objects that the answer to a list has. NextToken continues the list.
const PageMax = 10_000

// Meta is the metadata of every response to a read.
type Meta struct {
	Index       structs.Index
	LastContact time.Duration // time since this server heard from the leader; 0 on the leader
	KnownLeader bool
	NextToken   string
}

// ReadRequest is a request that carries query options.
type ReadRequest interface{ QueryOpts() *Query }

// ReadResponse is a response with metadata, which the server fills in.
type ReadResponse interface{ MetaRef() *Meta }

// QueryOpts implements ReadRequest.
func (q *Query) QueryOpts() *Query { return q }

// MetaRef implements ReadResponse.
func (m *Meta) MetaRef() *Meta { return m }

// States of a gang.
const (
	GangWaiting    = "waiting"    // for nodes
	GangAssembling = "assembling" // has nodes, but fewer members run than its minimum
	GangRunning    = "running"
	GangComplete   = "complete"
	GangEnded      = "ended" // its job was stopped or is complete
)

// What an allocation of a new version lacks before a rolling update continues (UpdateHold.Why).
const (
	HoldStarts   = "starting"   // it does not run yet
	HoldChecks   = "unhealthy"  // it runs, and not all of its checks pass
	HoldSettles  = "settling"   // it is healthy, for less than min_healthy_time
	HoldRestarts = "restarting" // a task of it has failed and waits for its restart
	HoldFailed   = "failed"
)

// Requests and responses. A zero Index in the response to a write means that nothing was written.
type (
	// EmptyRequest has no arguments.
	EmptyRequest struct{ Query }
	// EmptyResponse says only that the call succeeded.
	EmptyResponse struct{}
	// WriteResponse acknowledges a write at an index.
	WriteResponse struct {
		Index   structs.Index
		Message string
	}
	// SwapResponse acknowledges a check-and-set.
	SwapResponse struct {
		Index    structs.Index
		Updated  bool
		Warnings []string
	}
	// CountResponse is a number of objects.
	CountResponse struct {
		Meta
		Count int
	}
	// ListRequest lists objects of one kind.
	ListRequest struct {
		Query
		Options map[string]string // endpoint flags such as "resources", "task_states", "os", "meta"
	}
	// NameRequest names an object.
	NameRequest struct {
		Query
		Name string
	}
	// NamedListRequest lists what belongs to a named object.
	NamedListRequest struct {
		Query
		Name string
	}

	// JobRegisterRequest registers (or validates) a job. Defaults and validation happen on the server.
	JobRegisterRequest struct {
		Job               *structs.Job
		EnforceIndex      bool
		JobModifyIndex    structs.Index
		PreserveCounts    bool
		PreserveResources bool
		EvalPriority      int
		Submission        *structs.JobSubmission
		IdempotencyKey    string
	}
	// JobRegisterResponse answers every write that creates an evaluation.
	JobRegisterResponse struct {
		Index          structs.Index
		EvalID         structs.EvalID // zero when no evaluation was made
		EvalIndex      structs.Index
		JobModifyIndex structs.Index
		Version        uint64
		Warnings       string
	}
	// JobValidateResponse lists everything that is wrong with a job.
	JobValidateResponse struct {
		Errors   []string
		Warnings string
	}
	// JobPlanRequest asks what registering the job would do.
	JobPlanRequest struct {
		Job  *structs.Job
		Diff bool
	}
	// JobPlanResponse says what registering would do. Diff is the canonical JSON of Nomad's JobDiff.
	JobPlanResponse struct {
		Index              structs.Index
		JobModifyIndex     structs.Index
		Desired            map[structs.GroupName]*DesiredUpdates // by group
		Failed             []*structs.GroupReport
		Placed             []*structs.GroupReport
		Preempted          []*structs.Allocation // as they would be: DesiredDesc says why, and what is lost
		Lost               int64                 // GPU-seconds that those have worked since their newest checkpoints, or since they started
		Risk               *structs.JobRisk      // nil: nothing was measured, its run time is unknown, or it has no GPUs
		CreatedEvals       []*structs.Evaluation
		Diff               []byte // JSON
		NextPeriodicLaunch structs.LogTime
		Warnings           string
		// changes that would let a job start that would wait; nil if none are needed or there was no time to search
		Advice *Advice
		// what `job why` would report after the pass; nil for a job that is not placed itself, such as a periodic one
		Why *JobWhyResponse
		// where allocations would be placed, by group and index, and how many more than are listed
		Places     []PlannedPlace
		MorePlaces int64
		// what the limits on the job hold before and after: of its namespace's quota, and of its queue and those above it
		Use []PlannedUse
	}
	// PlannedPlace is where a dry run places an allocation.
	PlannedPlace struct {
		Group    structs.GroupName
		Index    int
		NodeID   structs.NodeID
		NodeName string
		GPUs     []PlannedGPU
	}
	// PlannedGPU is a GPU, or a part of one, that a dry run grants.
	PlannedGPU struct {
		ID, Model string
		Index     int64 // among the node's devices of its model, as the driver numbers them; -1: unknown
		ShareMiB  int64 // 0: all of it
	}
	// PlannedUse is what is held of a limit before a job starts, and after: with all allocations that it asks for.
	PlannedUse struct {
		Kind                 string // "quota", "queue"
		Name                 string
		Before, After, Limit structs.Amount // components of Limit that are AmountNoLimit are not limited
	}
	// DesiredUpdates counts a plan's changes to one group.
	DesiredUpdates struct {
		Ignore, Place, Migrate, Stop, InPlaceUpdate, DestructiveUpdate, Canary, Preemptions, RescheduleNow, RescheduleLater, Disconnect, Reconnect uint64
	}
	// JobDeregisterRequest stops a job.
	JobDeregisterRequest struct {
		JobID           string
		Purge           bool
		NoShutdownDelay bool
		EvalPriority    int
	}
	// JobGetRequest names a job of the header's namespace.
	JobGetRequest struct {
		Query
		JobID       string
		Version     *uint64
		Diffs       bool
		DiffVersion *uint64
		DiffTag     string
		All         bool
	}
	// JobGetResponse is a job; nil when absent.
	JobGetResponse struct {
		Meta
		Job *structs.Job
	}
	// JobListItem is one line of a job list.
	JobListItem struct {
		Job     *structs.Job
		Summary *Summary
		End     *JobEnd // nil while it has not ended, and when its accounting record is gone
	}
	// JobEnd is how the newest run of a job ended.
	JobEnd struct {
		Exit string // structs.ExitSuccess and so on
		Code int64
		At   structs.LogTime
	}
	// JobListResponse lists jobs.
	JobListResponse struct {
		Meta
		Jobs []JobListItem
	}
	// JobVersionsResponse lists versions, newest first. Diffs are canonical JSON of Nomad's JobDiff, each against its
	// predecessor (or the version or tag asked for).
	JobVersionsResponse struct {
		Meta
		Versions []*structs.Job
		Diffs    [][]byte
	}
	// JobSubmissionRequest names a version's source.
	JobSubmissionRequest struct {
		Query
		JobID   string
		Version uint64
	}
	// JobSubmissionResponse is the source; nil when not kept.
	JobSubmissionResponse struct {
		Meta
		Submission *structs.JobSubmission
		JobIndex   structs.Index
	}
	// GroupSummary counts a group's allocations by state.
	GroupSummary struct {
		Queued, Complete, Failed, Running, Starting, Lost, Unknown int
	}
	// Summary counts a job's allocations and children by state. It is computed, not stored (D24).
	Summary struct {
		Namespace, JobID                               string
		Groups                                         map[structs.GroupName]GroupSummary
		ChildrenPending, ChildrenRunning, ChildrenDead int64
		CreateIndex, ModifyIndex                       structs.Index
		Ended                                          []structs.ArrayRun // of an array: indices whose allocations may be gone; not in lists
	}
	// JobSummaryResponse is a summary; nil when the job is absent.
	JobSummaryResponse struct {
		Meta
		Summary *Summary
	}
	// JobAllocsRequest lists a job's allocations. All includes those of earlier jobs with the same ID.
	JobAllocsRequest struct {
		Query
		JobID string
		All   bool
	}
	// JobEvaluateRequest makes an evaluation of a job.
	JobEvaluateRequest struct {
		JobID           string
		ForceReschedule bool
	}
	// JobCheckpointRequest asks a job's running allocations to save their state now.
	JobCheckpointRequest struct {
		JobID string
		Group structs.GroupName // "": all
		Rank  *int              // only the allocation that runs this rank; nil: all
	}
	// JobCheckpointResponse has the result of each allocation, in the order of groups and ranks.
	JobCheckpointResponse struct {
		Allocs []AllocCheckpoint
	}
	// AllocCheckpoint is an allocation that was notified, or could not be.
	AllocCheckpoint struct {
		AllocID  structs.AllocID
		Name     string
		Group    structs.GroupName
		NodeID   structs.NodeID
		NodeName string
		NodeRank int               // -1 for an allocation outside of a gang
		Notice   *CheckpointNotice // nil: see Error
		Error    string
	}
	// JobWorkloadRequest holds, releases or requeues a job.
	JobWorkloadRequest struct {
		JobID  string
		Action string // structs.ActionHold, ActionRelease, ActionRequeue
	}
	// JobPriorityRequest changes a job's priority without a new version.
	JobPriorityRequest struct {
		JobID    string
		Priority int
	}
	// JobSuspendRequest suspends a job's running allocations, or resumes them.
	JobSuspendRequest struct {
		JobID  string
		Resume bool
		Reason string
	}
	// AllocSuspendRequest suspends or resumes one allocation, or its gang.
	AllocSuspendRequest struct {
		AllocID structs.AllocID
		Resume  bool
		Reason  string
	}
	// SuspendResponse names the suspended or resumed allocations, and the resources they hold while suspended.
	SuspendResponse struct {
		Index    structs.Index
		EvalID   structs.EvalID
		AllocIDs []structs.AllocID
		Amount   structs.Amount
	}
	// JobRevertRequest makes an earlier version the current one.
	JobRevertRequest struct {
		JobID               string
		Version             uint64
		EnforcePriorVersion *uint64
	}
	// JobStableRequest marks a version.
	JobStableRequest struct {
		JobID   string
		Version uint64
		Stable  bool
	}
	// JobTagRequest tags a version, or (Unset) removes a tag.
	JobTagRequest struct {
		JobID       string
		Name        string
		Description string
		Version     *uint64 // nil: the newest
		Unset       bool
	}
	// JobDispatchRequest launches a parameterized job.
	JobDispatchRequest struct {
		JobID            string
		Payload          []byte
		Meta             map[string]string
		IDPrefixTemplate string
		IdempotencyToken string
		Priority         int
	}
	// JobDispatchResponse names the child.
	JobDispatchResponse struct {
		Index           structs.Index
		DispatchedJobID string
		EvalID          structs.EvalID
		EvalIndex       structs.Index
		JobCreateIndex  structs.Index
	}
	// JobScaleRequest sets a group's count or records an event.
	JobScaleRequest struct {
		JobID          string
		Group          structs.GroupName
		Count          *int64
		Message        string
		Error          bool
		Meta           structs.RawConfig
		PolicyOverride bool
		EnforceIndex   bool
		JobModifyIndex structs.Index
	}
	// GroupScaleStatus is the scaling state of one group.
	GroupScaleStatus struct {
		Desired, Placed, Running, Healthy, Unhealthy int
		Events                                       []structs.ScalingEvent
	}
	// JobScaleStatusResponse is the scaling state of a job; nil Groups when the job is absent.
	JobScaleStatusResponse struct {
		Meta
		Namespace, JobID string
		JobCreateIndex   structs.Index
		JobModifyIndex   structs.Index
		JobStopped       bool
		Groups           map[structs.GroupName]*GroupScaleStatus
	}
	// ScalingListResponse lists jobs with scaling policies, by namespace and id.
	ScalingListResponse struct {
		Meta
		Jobs []*structs.Job
	}
	// ScalingGetResponse is a group with its scaling policy; nil Job when absent.
	ScalingGetResponse struct {
		Meta
		Job   *structs.Job
		Group structs.GroupName
	}
	// JobGangsResponse has the state of a job's gangs, and the job, whose launch blocks have the ranks per member.
	JobGangsResponse struct {
		Meta
		Job     *structs.Job
		Rosters []*structs.Roster
		States  []GangState
	}
	// GangState is the state of one gang.
	GangState struct {
		Group           structs.GroupName
		State           string // GangWaiting, ...
		Running         int
		Asked, Min, Max int          // number of members
		Status          []GangMember // in the order of the roster's members
		Missing         []GangMissing
		Standby         int                    // standbys that the job asks for
		Standbys        []structs.RosterMember // standbys that the gang has, by name index; they have no rank
		Topology        string                 // how near its members are to each other, as "all 8 in leaf l2, 2 racks"; "": fewer than two, or no levels
	}
	// GangMember is the state of a member.
	GangMember struct {
		Client    structs.ClientStatus
		Desired   structs.DesiredStatus // "" for an allocation that no longer exists
		StartedAt structs.LogTime
		Event     string // newest event of its tasks
		Saved     *structs.Saved
	}
	// GangMissing counts members that should run and do not, and says why.
	GangMissing struct {
		Members  int
		NodeRank int    // of the member if it has a node; -1 for members without one
		Why      string // "": see Report
		Report   *structs.GroupReport
	}
	// JobWhyResponse answers "why is it pending" (D23).
	JobWhyResponse struct {
		Meta
		StartEst  structs.LogTime // when its obstacle should end, unless the pass has an estimate that has not passed; 0: unknown
		Starts    string          // that obstacle; "" if it only lacks capacity
		Job       *structs.Job
		Workload  *structs.Workload
		Position  int64 // 1 is next; 0: not waiting
		QueueLen  int64
		Ahead     []structs.JobKey    // at most 10
		AheadAsk  []structs.Amount    // resources that the waiting allocations of each ask for
		Asks      structs.Amount      // the same for this job
		Terms     []structs.ScoreTerm // the terms of its position in the queue
		Advice    *Advice             // nil: it does not wait, or there was no time to search
		Reports   []*structs.GroupReport
		Eval      *structs.Evaluation
		Summary   *Summary
		NodeNames map[string]string            // node id -> name for the nodes in the reports
		Suspended *Suspended                   // nil: nothing of it is suspended
		Saving    *Saving                      // nil: no allocation of the job, or of work it waits for, waits for a turn to save its state
		Refused   string                       // why the namespace refuses launches of a periodic or parameterized job now; "" if it does not
		Topology  map[structs.GroupName]string // how near the members of its gangs are to each other; see GangState.Topology
		Silent    *Silent                      // nil: no allocation of the job is on a silent node that must end it
		Updating  []Updating                   // the groups with a rolling update that has not ended
		Excluded  []ExcludedNode               // if asked for (JobGetRequest.All): the nodes that cannot take an allocation of it now
	}
	// Updating is a rolling update of a group that has not ended: some allocations are of an older version, or those of the newest
	// are not healthy yet.
	Updating struct {
		Group     structs.GroupName
		From, To  uint64          // the newest version that is still to be replaced, and the job's
		Old       int64           // allocations to be replaced
		New       int64           // allocations of the job's version
		Settled   int64           // those of New that have been healthy for min_healthy_time
		AtOnce    int64           // max_parallel
		Since     structs.LogTime // when the last allocation was replaced, or the job submitted
		Next      structs.LogTime // when the job is decided about again; 0: when something changes
		Holds     []UpdateHold    // those of New that are not settled, at most 5
		MoreHolds int64           // beyond these
		Failed    string          // why the update of the job stopped: nothing more is replaced; "": it did not
	}
	// UpdateHold is an allocation of the new version that is not yet healthy for long enough.
	UpdateHold struct {
		ID             structs.AllocID
		Name, NodeName string
		Why            string          // one of the constants Hold*
		Since          structs.LogTime // since when it is so
		Until          structs.LogTime // when it counts as healthy, or is started again; 0: not known
		Restarts       int64           // of its tasks, in place
		ExitCode       int64           // the newest of its tasks that is not 0, if their last events have one
	}
	// ExcludedNode is a node that cannot take an allocation of a group now, and why.
	ExcludedNode struct {
		Group    structs.GroupName
		NodeID   structs.NodeID
		NodeName string
		Why      structs.Refusal
	}
	// Silent counts the allocations of a job that are not replaced yet because their nodes, which fell silent, may still
	// run their tasks (Group.RunsSilent).
	Silent struct {
		Allocs int64
		Nodes  []string        // names, sorted; at most 10
		Until  structs.LogTime // when the first of them is replaced
		Limit  time.Duration   // its stop_on_client_after
	}
	// Suspended counts the suspended allocations of a job.
	Suspended struct {
		Allocs, Frozen int64 // to be suspended; frozen already
		All            bool  // the whole job: nothing more of it is placed
		Since          structs.LogTime
		By, Reason     string // of the last request
	}
	// Saving counts work that waits for its turn to save its state before it ends.
	Saving struct {
		Now, Waiting int64
		Where        string // the limit that most of them wait for
		Limit        int64
	}
	// Advice lists changes that would start a waiting job (suggest.Find).
	Advice struct {
		Starts  bool
		Never   string
		Changes []AdviceChange
		Holders *AdviceHolders // nil: no work would make room if it were preemptible
	}
	// AdviceHolders is work that holds the room of a job only because it is not preemptible (suggest.Holders).
	AdviceHolders struct {
		Allocs, Jobs int64
		Names        []structs.JobKey // of the jobs that the caller may see, at most 5
		Until        structs.LogTime  // when the last of it is expected to end; 0: unknown
	}
	// AdviceChange is one change that would start the job, confirmed by a scheduling decision.
	AdviceChange struct {
		Kind, Text string
		Cost       int64
		Job        *structs.Job // the changed job; nil if something else changes
	}
	// QueueItem is one line of the pending list.
	QueueItem struct {
		StartEst structs.LogTime // when its obstacle should end, unless the pass has an estimate that has not passed; 0: unknown
		Starts   string          // that obstacle
		Workload *structs.Workload
		Job      *structs.Job
		Position int64
	}
	// QueueListResponse is the pending list in queue order.
	QueueListResponse struct {
		Meta
		Items []QueueItem
	}

	// AllocGetRequest names an allocation.
	AllocGetRequest struct {
		Query
		AllocID structs.AllocID
	}
	// AllocGetResponse is an allocation with its job and metrics; nil when absent.
	AllocGetResponse struct {
		Meta
		Alloc  *structs.Allocation
		Job    *structs.Job         // version of the allocation
		Report *structs.GroupReport // from the evaluation that placed it; nil once collected
		Eval   *structs.Evaluation
		Place  string // of its node in the topology, as "rack r3, leaf l2"; "" if the cluster has no levels
		Gang   string // GangState.Topology of its gang
	}
	// AllocListResponse lists allocations. Jobs holds each version that they refer to once.
	AllocListResponse struct {
		Meta
		Allocs  []*structs.Allocation
		Jobs    []*structs.Job
		Reports map[string]*structs.GroupReport // "evalID/group"
	}
	// AllocStopRequest stops an allocation, and reschedules it if Reschedule is set.
	AllocStopRequest struct {
		AllocID         structs.AllocID
		NoShutdownDelay bool
		Reschedule      bool
	}
	// AllocTransitionRequest is sent by the leader's drainer.
	AllocTransitionRequest struct {
		IDs        []structs.AllocID
		Transition structs.Transition
	}

	// EvalGetRequest names an evaluation.
	EvalGetRequest struct {
		Query
		EvalID  structs.EvalID
		Related bool
	}
	// EvalGetResponse is an evaluation; nil when absent.
	EvalGetResponse struct {
		Meta
		Eval    *structs.Evaluation
		Related []*structs.Evaluation
	}
	// EvalListResponse lists evaluations.
	EvalListResponse struct {
		Meta
		Evals []*structs.Evaluation
	}
	// EvalDeleteRequest deletes evaluations by id or filter.
	EvalDeleteRequest struct {
		IDs    []structs.EvalID
		Filter string
	}

	// NodeGetRequest names a node.
	NodeGetRequest struct {
		Query
		NodeID structs.NodeID
	}
	// NodeGetResponse is a node without its secret; nil when absent.
	NodeGetResponse struct {
		Meta
		Node  *structs.Node
		Place string // in the topology, as "rack r3, leaf l2"; "" if it has none
		Risk  *structs.NodeRisk
	}
	// NodeListResponse lists nodes without their secrets.
	NodeListResponse struct {
		Meta
		Nodes []*structs.Node
	}
	// NodeDrainRequest sets or (nil Strategy) clears a drain.
	NodeDrainRequest struct {
		NodeID       structs.NodeID
		Strategy     *structs.DrainStrategy
		MarkEligible bool
		Meta         map[string]string
	}
	// NodeLeaveRequest is sent by a node that drains itself, because its agent stops or because of a fault.
	NodeLeaveRequest struct {
		NodeAuth
		Strategy structs.DrainStrategy
		Look     bool // do not drain; only report whether the node takes work
	}
	// NodeEligibilityRequest switches placement on or off.
	NodeEligibilityRequest struct {
		NodeID      structs.NodeID
		Eligibility structs.Eligibility
	}
	// NodeTaintRequest adds and removes taints.
	NodeTaintRequest struct {
		NodeID      structs.NodeID
		Add, Remove []structs.Taint
	}
	// NodeWriteResponse answers writes to nodes.
	NodeWriteResponse struct {
		Index           structs.Index
		EvalIDs         []structs.EvalID
		EvalCreateIndex structs.Index
		NodeModifyIndex structs.Index
		Eligible        bool // answer to NodeLeaveRequest.Look: the node accepts new work
	}

	// NodeAuth proves which node sends a request.
	NodeAuth struct {
		NodeID structs.NodeID
		Secret structs.SecretID
		Start  structs.StartID // of the agent; CodeFenced if another agent has registered the node since
	}
	// NodeRegisterRequest registers a node. Node.SecretID is its secret. If another agent has registered the node, the
	// answer is CodeBusy until it is certain whether that agent lives, and CodeFenced if it does.
	NodeRegisterRequest struct {
		Node         *structs.Node
		Introduction string // token for the first registration; "": none
		RPC          uint64 // feature.RPC of the agent
		// Cluster is the one that the node belongs to, zero if it has obeyed none yet. In another cluster it does not become
		// ready: the agent will refuse the answers.
		Cluster structs.ClusterID
	}
	// NodeIntroduceRequest asks for an introduction token.
	NodeIntroduceRequest struct {
		NodeName string           // of the node that may use it; "": any
		Pool     structs.PoolName // of that node; "": any
		TTL      time.Duration    // 0: 30 minutes; at most a day
	}
	// NodeIntroduceResponse is the token. The servers keep only its hash.
	NodeIntroduceResponse struct {
		Index     structs.Index
		Token     string
		ExpiresAt structs.LogTime
	}
	// GossipAdvice says whether an agent should gossip. Neither field set: it stays as it is.
	GossipAdvice struct {
		Join  []string // gossip addresses of servers
		Leave bool     // it should stop
	}
	// NodeRegisterResponse answers a registration.
	NodeRegisterResponse struct {
		Index        structs.Index
		HeartbeatTTL time.Duration // the next heartbeat must come within it
		Cluster      structs.ClusterID
		RestoreEpoch uint64
		Servers      []string // RPC addresses of all servers
		Now          structs.LogTime
		RPC          uint64 // feature.RPC of the leader
		Gossip       GossipAdvice
		Format       structs.Format // at least in force when the registration was written; 0: of an older server
	}
	// NodeHeartbeatRequest reports that a node is alive. It is logged only if the node's status must change.
	NodeHeartbeatRequest struct {
		NodeAuth
		Status structs.NodeStatus // the node's own view: ready, or down when it leaves
		// Refuses says why the agent obeys no answer of these servers, "" while it does. Status is initializing then.
		Refuses string
	}
	// NodeHeartbeatResponse answers a heartbeat.
	NodeHeartbeatResponse struct {
		Index        structs.Index
		HeartbeatTTL time.Duration
		Servers      []string
		Unknown      bool // the servers do not know the node: it must register again
		Now          structs.LogTime
		Gossip       GossipAdvice
		Format       structs.Format // in force. If it is newer than that of the registration, the node registers again: what it reports was left out in part
	}
	// NodePollRequest waits for the allocations of a node to change (D13, D14).
	NodePollRequest struct {
		NodeAuth
		Query
		RestoreEpoch uint64        // newest one seen; a server on an older history refuses to answer
		SeenState    structs.Index // StateIndex of the last answer; a server whose state is older refuses to answer
		Known        uint64        // from the last answer, if the node has acted on all of it; 0: send all refs
	}
	// AllocRef is one allocation that belongs on a node.
	AllocRef struct {
		ID         structs.AllocID
		AllocIndex structs.Index
	}
	// NodePollResponse is the set of allocations that belong on a node: refs to all, and in full those changed after
	// MinIndex. An agent stops allocations that are missing in Refs only if the answer's history (cluster, restore
	// epoch, index) is not older than what it has seen. If no allocation that the agent knows was removed, Partial is
	// set and Refs has only the changed ones. Otherwise a node with many allocations would receive refs to all of them
	// for each new one.
	NodePollResponse struct {
		Meta
		Cluster      structs.ClusterID
		RestoreEpoch uint64
		StateIndex   structs.Index // index of the state that was read; Index is that of the newest change in the answer
		Partial      bool
		Known        uint64 // checksum over what belongs on the node as of Index, for the next request
		Refs         []AllocRef
		Changed      []*structs.Allocation
		Jobs         []*structs.Job    // each version that Changed refers to, once
		Rosters      []*structs.Roster // changed after MinIndex, with members on the node
	}
	// NodeObserveRequest reports what an agent has observed.
	NodeObserveRequest struct {
		NodeAuth
		Number  uint64 // rises with each report since the agent started, so that a late one does not replace a newer one
		Updates []structs.AllocObserved
	}
	// NodeEventRequest reports events of a node.
	NodeEventRequest struct {
		NodeAuth
		Events []structs.NodeEvent
	}
	// NodeSaveTurnRequest asks whether an allocation may save its state now, before it ends.
	NodeSaveTurnRequest struct {
		NodeAuth
		AllocID  structs.AllocID
		Periodic bool // it runs on: the interval of its checkpoint block has passed
	}
	// NodeIdentityRequest asks for the token of one identity of a task on the node.
	NodeIdentityRequest struct {
		NodeAuth
		AllocID        structs.AllocID
		Task, Identity string
	}
	// NodeIdentityResponse is a signed token.
	NodeIdentityResponse struct {
		Token           string
		Issued, Expires structs.LogTime
	}
	// SaveTurn answers whether it may, and if not, what it waits for.
	SaveTurn struct {
		Now    bool
		Before int64           // allocations ahead of it that have not saved their state
		Limit  int64           // allocations that may save at the same time; 0: unknown
		Where  string          // the scope of the limit: "storage lustre1"
		Again  time.Duration   // pause before the next request
		Due    structs.LogTime // of a periodic save: when it was due; 0: when the agent says
	}
	// NodeServersRequest asks for the servers' addresses.
	NodeServersRequest struct{ NodeAuth }
	// NodeServersResponse lists the servers' RPC addresses, leader first.
	NodeServersResponse struct{ Servers []string }

	// PoolGetResponse is a pool; nil when absent.
	PoolGetResponse struct {
		Meta
		Pool *structs.NodePool
	}
	// PoolListResponse lists pools.
	PoolListResponse struct {
		Meta
		Pools []*structs.NodePool
	}
	// PoolUpsertRequest writes a pool.
	PoolUpsertRequest struct {
		Name string // of Pool; needed for authorisation
		Pool *structs.NodePool
	}
	// NamespaceGetResponse is a namespace; nil when absent.
	NamespaceGetResponse struct {
		Meta
		Namespace *structs.Namespace
	}
	// NamespaceListResponse lists the namespaces that the caller may see.
	NamespaceListResponse struct {
		Meta
		Namespaces []*structs.Namespace
	}
	// NamespaceUpsertRequest writes a namespace.
	NamespaceUpsertRequest struct{ Namespace *structs.Namespace }
)
