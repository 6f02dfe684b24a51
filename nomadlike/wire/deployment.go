package wire

import (
	"time"

	"github.com/muster-sched/muster/internal/methods"
)

// Deployment is the rolling update of a service to one of its versions.
type Deployment struct {
	ID                 string
	Namespace          string
	JobID              string
	JobVersion         uint64
	JobModifyIndex     uint64
	JobSpecModifyIndex uint64
	JobCreateIndex     uint64
	IsMultiregion      bool
	TaskGroups         map[string]*DeploymentState
	Status             string
	StatusDescription  string
	CreateIndex        uint64
	ModifyIndex        uint64
	CreateTime         int64
	ModifyTime         int64
}

// DeploymentState is the rollout of a group.
type DeploymentState struct {
	PlacedCanaries    []string
	AutoRevert        bool
	ProgressDeadline  time.Duration
	RequireProgressBy time.Time
	Promoted          bool
	DesiredCanaries   int
	DesiredTotal      int
	PlacedAllocs      int
	HealthyAllocs     int
	UnhealthyAllocs   int
}

// DeploymentUpdateResponse answers a change of a deployment.
type DeploymentUpdateResponse struct {
	EvalID                string
	EvalCreateIndex       uint64
	DeploymentModifyIndex uint64
	RevertedJobVersion    *uint64
}

// DeploymentFrom converts a deployment.
func DeploymentFrom(d *methods.Deployment) *Deployment {
	out := &Deployment{
		ID: d.ID.String(), Namespace: d.Namespace, JobID: d.JobID, JobVersion: d.Version, JobModifyIndex: uint64(d.JobModifyIndex),
		JobSpecModifyIndex: uint64(d.JobSpecIndex), JobCreateIndex: uint64(d.JobCreateIndex), TaskGroups: map[string]*DeploymentState{},
		Status: string(d.Status), StatusDescription: d.StatusDesc, CreateIndex: uint64(d.JobSpecIndex), ModifyIndex: uint64(d.ModifyIndex),
		CreateTime: int64(d.CreateTime), ModifyTime: int64(d.ModifyTime),
	}
	for _, g := range d.Groups {
		out.TaskGroups[string(g.Group)] = &DeploymentState{
			AutoRevert: g.AutoRevert, ProgressDeadline: g.ProgressDeadline, RequireProgressBy: g.By.Time(),
			DesiredTotal: int(g.Want), PlacedAllocs: int(g.Placed), HealthyAllocs: int(g.Healthy), UnhealthyAllocs: int(g.Unhealthy),
		}
	}
	return out
}
