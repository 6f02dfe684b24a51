package wire

import (
	"strconv"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Evaluation is a request to decide about one job.
type Evaluation struct {
	ID                      string
	Priority                int
	Type                    string
	TriggeredBy             string
	Namespace               string
	JobID                   string
	JobModifyIndex          uint64
	NodeID                  string
	NodeModifyIndex         uint64
	DeploymentID            string
	Status                  string
	StatusDescription       string
	Wait                    time.Duration
	WaitUntil               time.Time
	NextEval                string
	PreviousEval            string
	BlockedEval             string
	RelatedEvals            []*EvaluationStub `json:",omitempty"`
	FailedTGAllocs          map[string]*AllocationMetric
	PlanAnnotations         *PlanAnnotations
	ClassEligibility        map[string]bool
	EscapedComputedClass    bool
	QuotaLimitReached       string
	MissingNonNodeResources []string `json:",omitempty"`
	AnnotatePlan            bool
	QueuedAllocations       map[string]int
	SnapshotIndex           uint64
	CreateIndex             uint64
	ModifyIndex             uint64
	CreateTime              int64
	ModifyTime              int64

	Successor string `json:",omitempty"` // Muster's own: the evaluation that replaces a canceled one
}

// EvaluationStub is an evaluation in a list.
type EvaluationStub struct {
	ID                string
	Priority          int
	Type              string
	TriggeredBy       string
	Namespace         string
	JobID             string
	NodeID            string
	DeploymentID      string
	Status            string
	StatusDescription string
	WaitUntil         time.Time
	NextEval          string
	PreviousEval      string
	BlockedEval       string
	CreateIndex       uint64
	ModifyIndex       uint64
	CreateTime        int64
	ModifyTime        int64
}

// EvalDeleteRequest deletes evaluations.
type EvalDeleteRequest struct {
	EvalIDs []string
	Filter  string
	WriteRequest
}

// EvalDeleteResponse reports how many were deleted.
type EvalDeleteResponse struct {
	Count int
	Index uint64
}

// EvalCountResponse counts evaluations.
type EvalCountResponse struct {
	Count int
	QueryMeta
}

// EvalFromStructs converts an evaluation; pool is its job's node pool, "" when the job is gone.
func EvalFromStructs(e *structs.Evaluation, pool structs.PoolName, related []*structs.Evaluation) *Evaluation {
	out := &Evaluation{
		ID: e.ID.String(), Priority: e.Priority, Type: string(e.Type), TriggeredBy: string(e.Trigger), Namespace: e.Namespace,
		JobID: e.JobID, JobModifyIndex: uint64(e.JobSpecIndex), NodeID: e.NodeID.String(), NodeModifyIndex: uint64(e.NodeIndex),
		DeploymentID: e.DeploymentID.String(), Status: string(e.Status), StatusDescription: e.StatusDesc, Wait: e.Wait,
		WaitUntil: e.WaitUntil.Time(), NextEval: e.NextEval.String(), PreviousEval: e.PreviousEval.String(),
		BlockedEval: e.BlockedEval.String(), EscapedComputedClass: e.EscapedClass, QuotaLimitReached: e.QuotaLimitName,
		AnnotatePlan: e.AnnotatePlan, QueuedAllocations: queuedFrom(e.Queued), SnapshotIndex: uint64(e.SnapshotIndex),
		CreateIndex: uint64(e.CreateIndex), ModifyIndex: uint64(e.ModifyIndex), CreateTime: int64(e.CreateTime),
		ModifyTime: int64(e.ModifyTime), Successor: e.Successor.String(),
	}
	for _, r := range e.FailedGroups {
		if out.FailedTGAllocs == nil {
			out.FailedTGAllocs = map[string]*AllocationMetric{}
		}
		out.FailedTGAllocs[string(r.Group)] = MetricFromStructs(r, pool)
	}
	for class, ok := range e.ClassEligible {
		if out.ClassEligibility == nil {
			out.ClassEligibility = map[string]bool{}
		}
		out.ClassEligibility["v1:"+strconv.FormatUint(class, 10)] = ok
	}
	for _, r := range related {
		out.RelatedEvals = append(out.RelatedEvals, EvalStubFromStructs(r))
	}
	return out
}

// EvalStubFromStructs converts an evaluation for a list.
func EvalStubFromStructs(e *structs.Evaluation) *EvaluationStub {
	return &EvaluationStub{
		ID: e.ID.String(), Priority: e.Priority, Type: string(e.Type), TriggeredBy: string(e.Trigger), Namespace: e.Namespace,
		JobID: e.JobID, NodeID: e.NodeID.String(), DeploymentID: e.DeploymentID.String(), Status: string(e.Status),
		StatusDescription: e.StatusDesc, WaitUntil: e.WaitUntil.Time(), NextEval: e.NextEval.String(),
		PreviousEval: e.PreviousEval.String(), BlockedEval: e.BlockedEval.String(), CreateIndex: uint64(e.CreateIndex),
		ModifyIndex: uint64(e.ModifyIndex), CreateTime: int64(e.CreateTime), ModifyTime: int64(e.ModifyTime),
	}
}

// queuedFrom returns the waiting allocations of each group; nil for nil.
func queuedFrom(queued map[structs.GroupName]int) map[string]int {
	if queued == nil {
		return nil
	}
	out := make(map[string]int, len(queued))
	for g, n := range queued {
		out[string(g)] = n
	}
	return out
}
