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
