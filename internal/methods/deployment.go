package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// DeploymentStatus is how far a deployment is. The names are Nomad's.
type DeploymentStatus string

// A deployment runs until all that it wants is healthy, it makes no progress in time, or another version comes.
const (
	DeploymentRunning    DeploymentStatus = "running"
	DeploymentPaused     DeploymentStatus = "paused" // the job is on hold or suspended
	DeploymentSuccessful DeploymentStatus = "successful"
	DeploymentFailed     DeploymentStatus = "failed"
	DeploymentCancelled  DeploymentStatus = "cancelled"
)

type (
	// Deployment is the rolling update of a service to one of its versions. It is derived from the version and its allocations.
	Deployment struct {
		ID             structs.DeploymentID
		Namespace      string
		JobID          string
		Version        uint64
		JobModifyIndex structs.Index // of the version
		JobSpecIndex   structs.Index // when the version was registered
		JobCreateIndex structs.Index
		Status         DeploymentStatus
		StatusDesc     string
		Groups         []DeploymentGroup // in the order of the job
		ModifyIndex    structs.Index
		CreateTime     structs.LogTime
		ModifyTime     structs.LogTime
	}
	// DeploymentGroup is the part of one group.
	DeploymentGroup struct {
		Group            structs.GroupName
		AutoRevert       bool
		ProgressDeadline time.Duration
		By               structs.LogTime // when the next allocation must be healthy; 0: no time is set, or none waits
		Want             int64
		Placed           int64
		Healthy          int64
		Unhealthy        int64
	}
	// DeploymentListResponse lists deployments.
	DeploymentListResponse struct {
		Meta
		Deployments []*Deployment
	}
	// DeploymentGetRequest names a deployment.
	DeploymentGetRequest struct {
		Query
		ID structs.DeploymentID
	}
	// DeploymentGetResponse has a deployment; nil when absent.
	DeploymentGetResponse struct {
		Meta
		Deployment *Deployment
	}
	// DeploymentFailResponse answers a request to stop an update. Reverts is the version that is registered again; nil for none.
	DeploymentFailResponse struct {
		Index   structs.Index
		Reverts *uint64
	}
)
