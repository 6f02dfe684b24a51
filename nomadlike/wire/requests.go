package wire

import "time"

// WriteRequest is embedded in request bodies by Nomad's client; the values in headers and query win.
type WriteRequest struct {
	Region    string `json:",omitempty"`
	Namespace string `json:",omitempty"`
	SecretID  string `json:",omitempty"`
}

// QueryMeta is embedded in some answers; clients read the headers instead.
type QueryMeta struct {
	LastIndex   uint64        `json:",omitempty"`
	LastContact time.Duration `json:",omitempty"`
	KnownLeader bool          `json:",omitempty"`
	RequestTime time.Duration `json:",omitempty"`
	NextToken   string        `json:",omitempty"`
}

// The bodies of the job endpoints.
type (
	// JobRegisterRequest registers a job.
	JobRegisterRequest struct {
		Submission        *JobSubmission
		Job               *Job
		EnforceIndex      bool   `json:",omitempty"`
		JobModifyIndex    uint64 `json:",omitempty"`
		PolicyOverride    bool   `json:",omitempty"`
		PreserveCounts    bool   `json:",omitempty"`
		PreserveResources bool   `json:",omitempty"`
		EvalPriority      int    `json:",omitempty"`
		WriteRequest
	}
	// JobRegisterResponse answers a registration, and a revert.
	JobRegisterResponse struct {
		EvalID          string
		EvalCreateIndex uint64
		JobModifyIndex  uint64
		Warnings        string
		Index           uint64
		QueryMeta
	}
	// JobDeregisterResponse answers a stop.
	JobDeregisterResponse struct {
		EvalID          string
		EvalCreateIndex uint64
		JobModifyIndex  uint64
		QueryMeta
	}
	// JobPlanRequest asks what a registration would do.
	JobPlanRequest struct {
		Job            *Job
		Diff           bool
		PolicyOverride bool
		WriteRequest
	}
	// JobPlanResponse answers a plan.
	JobPlanResponse struct {
		JobModifyIndex     uint64
		CreatedEvals       []*Evaluation
		Diff               *JobDiff
		Annotations        *PlanAnnotations
		FailedTGAllocs     map[string]*AllocationMetric
		NextPeriodicLaunch time.Time
		Warnings           string
		NeverFits          string   `json:",omitempty"` // Muster's own: why not even an empty cluster could hold it
		Suggestions        []string `json:",omitempty"` // Muster's own: each would let everything be placed now, the smallest change first
		LostGPUSeconds     int64    `json:",omitempty"` // Muster's own: what the preempted allocations have worked since their newest checkpoints
	}
	// JobValidateRequest asks whether a job is valid.
	JobValidateRequest struct {
		Job *Job
		WriteRequest
	}
	// JobValidateResponse answers a validation.
	JobValidateResponse struct {
		DriverConfigValidated bool
		ValidationErrors      []string
		Error                 string
		Warnings              string
	}
	// JobsParseRequest asks for a job file as JSON.
	JobsParseRequest struct {
		JobHCL       string
		Variables    string
		Canonicalize bool
	}
	// JobRevertRequest goes back to a version.
	JobRevertRequest struct {
		JobID               string
		JobVersion          uint64
		EnforcePriorVersion *uint64
		WriteRequest
		ConsulToken string `json:",omitempty"`
		VaultToken  string `json:",omitempty"`
	}
	// JobStabilityRequest marks a version.
	JobStabilityRequest struct {
		JobID      string
		JobVersion uint64
		Stable     bool
		WriteRequest
	}
	// JobStabilityResponse answers it.
	JobStabilityResponse struct {
		JobModifyIndex uint64
		Index          uint64
	}
	// JobEvaluateRequest forces an evaluation.
	JobEvaluateRequest struct {
		JobID       string
		EvalOptions EvalOptions
		WriteRequest
	}
	// EvalOptions refine a forced evaluation.
	EvalOptions struct{ ForceReschedule bool }
	// JobDispatchRequest launches a child of a parameterized job.
	JobDispatchRequest struct {
		JobID            string
		Payload          []byte
		Meta             map[string]string
		IdPrefixTemplate string
		Priority         int
	}
	// JobDispatchResponse names the child.
	JobDispatchResponse struct {
		DispatchedJobID string
		EvalID          string
		EvalCreateIndex uint64
		JobCreateIndex  uint64
		Index           uint64
	}
	// PeriodicForceResponse names the evaluation of a forced launch.
	PeriodicForceResponse struct {
		EvalID          string
		EvalCreateIndex uint64
		Index           uint64
	}
	// JobVersionsResponse lists versions, newest first.
	JobVersionsResponse struct {
		Versions []*Job
		Diffs    []*JobDiff
		QueryMeta
	}
	// TagVersionRequest names a version.
	TagVersionRequest struct {
		Version     uint64
		Latest      bool
		Description string
		WriteRequest
	}
	// JobStatusesRequest asks for the status of many jobs at once.
	JobStatusesRequest struct {
		Jobs            []NamespacedID
		IncludeChildren bool
	}
	// NamespacedID names a job.
	NamespacedID struct {
		Namespace string
		ID        string
	}
	// ScalingRequest sets a count or records an event.
	ScalingRequest struct {
		Count   *int64
		Target  map[string]string
		Message string
		Error   bool
		Meta    map[string]any
		WriteRequest
		PolicyOverride bool
		JobModifyIndex uint64
	}
	// JobScaleStatusResponse is the scale of each group.
	JobScaleStatusResponse struct {
		JobID          string
		Namespace      string
		JobCreateIndex uint64
		JobModifyIndex uint64
		JobStopped     bool
		TaskGroups     map[string]TaskGroupScaleStatus
	}
	// TaskGroupScaleStatus is the scale of one group.
	TaskGroupScaleStatus struct {
		Desired   int
		Placed    int
		Running   int
		Healthy   int
		Unhealthy int
		Events    []ScalingEvent
	}
	// ScalingEvent is one change of a count.
	ScalingEvent struct {
		Count         *int64
		PreviousCount int64
		Error         bool
		Message       string
		Meta          map[string]any
		EvalID        *string
		Time          uint64
		CreateIndex   uint64
	}
	// ScalingPolicyListStub is a scaling policy in a list.
	ScalingPolicyListStub struct {
		ID          string
		Enabled     bool
		Type        string
		Target      map[string]string
		CreateIndex uint64
		ModifyIndex uint64
	}
)

// JobSummary counts allocations by group, and children by status.
type JobSummary struct {
	JobID       string
	Namespace   string
	Summary     map[string]TaskGroupSummary
	Children    *JobChildrenSummary
	CreateIndex uint64
	ModifyIndex uint64
	Ended       []IndexRange `json:",omitempty"` // Muster's own: indices of an array that have ended
}

// IndexRange is a range of an array's indices with the same result.
type IndexRange struct {
	From, To int // both included
	Failed   bool
}

// JobChildrenSummary counts children.
type JobChildrenSummary struct {
	Pending int64
	Running int64
	Dead    int64
}

// TaskGroupSummary counts the allocations of a group.
type TaskGroupSummary struct {
	Queued   int
	Complete int
	Failed   int
	Running  int
	Starting int
	Lost     int
	Unknown  int
}

// JobListStub is a job in a list.
type JobListStub struct {
	ID                string
	ParentID          string
	Name              string
	Namespace         string `json:",omitempty"`
	Datacenters       []string
	NodePool          string
	Multiregion       *Multiregion
	Type              string
	Priority          int
	Periodic          bool
	ParameterizedJob  bool
	Stop              bool
	Status            string
	StatusDescription string
	JobSummary        *JobSummary
	CreateIndex       uint64
	ModifyIndex       uint64
	JobModifyIndex    uint64
	SubmitTime        int64
	Meta              map[string]string `json:",omitempty"`
	Queue             string            `json:",omitempty"` // Muster's own
	User              string            `json:",omitempty"` // Muster's own: who submitted it
	End               *JobEnd           `json:",omitempty"` // Muster's own: how it ended
	Version           uint64
	VersionTag        *JobVersionTag `json:",omitempty"`
}

// JobEnd is how the newest run of a job ended.
type JobEnd struct {
	Exit     string // "success", "failed", "stopped", "preempted", "limit", "deadline" or "lost"
	ExitCode int64  // of the task that failed; 0: none
	Time     int64
}

// JobDiff is what changes between two versions. Types are "None", "Added", "Deleted" and "Edited".
type JobDiff struct {
	Type       string
	ID         string
	Fields     []*FieldDiff
	Objects    []*ObjectDiff
	TaskGroups []*TaskGroupDiff
}

// TaskGroupDiff is what changes in a group.
type TaskGroupDiff struct {
	Type    string
	Name    string
	Fields  []*FieldDiff
	Objects []*ObjectDiff
	Tasks   []*TaskDiff
	Updates map[string]uint64
}

// TaskDiff is what changes in a task.
type TaskDiff struct {
	Type        string
	Name        string
	Fields      []*FieldDiff
	Objects     []*ObjectDiff
	Annotations []string
}

// FieldDiff is one changed field.
type FieldDiff struct {
	Type        string
	Name        string
	Old, New    string
	Annotations []string
}

// ObjectDiff is a changed block.
type ObjectDiff struct {
	Type    string
	Name    string
	Fields  []*FieldDiff
	Objects []*ObjectDiff
}

// PlanAnnotations is what a plan would do.
type PlanAnnotations struct {
	DesiredTGUpdates map[string]*DesiredUpdates
	PreemptedAllocs  []*AllocationListStub
}

// DesiredUpdates counts what a plan would do to a group.
type DesiredUpdates struct {
	Ignore            uint64
	Place             uint64
	Migrate           uint64
	Stop              uint64
	InPlaceUpdate     uint64
	DestructiveUpdate uint64
	Canary            uint64
	Preemptions       uint64
	Disconnect        uint64
	Reconnect         uint64
	RescheduleNow     uint64
	RescheduleLater   uint64
}
