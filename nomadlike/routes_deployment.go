package nomadlike

import (
	"strings"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func deploymentRoutes() []route {
	const noCanaries = "there are no canaries to promote: a rolling update continues by itself"
	return []route{
		{methods: "GET", pattern: "/v1/deployments", rpc: methods.DeploymentList.Name, handle: deploymentList},
		{methods: "GET", pattern: "/v1/deployment/{id}", rpc: methods.DeploymentGet.Name, handle: deploymentGet},
		{methods: "GET", pattern: "/v1/deployment/allocations/{id}", rpc: methods.DeploymentAllocs.Name, handle: deploymentAllocs},
		{methods: "PUT,POST", pattern: "/v1/deployment/fail/{id}", rpc: methods.DeploymentFail.Name, handle: deploymentFail},
		{methods: "PUT,POST", pattern: "/v1/deployment/promote/{id}", rpc: methods.DeploymentGet.Name, handle: deploymentCannot(noCanaries)},
		{methods: "PUT,POST", pattern: "/v1/deployment/pause/{id}", rpc: methods.DeploymentGet.Name, handle: deploymentCannot("an update is not paused by itself: hold the job with  muster job hold JOB, and continue with  muster job release JOB")},
		{methods: "PUT,POST", pattern: "/v1/deployment/unblock/{id}", rpc: methods.DeploymentGet.Name, handle: deploymentCannot("no deployment waits for another region: a job is of one region")},
		{methods: "PUT,POST", pattern: "/v1/deployment/allocation-health/{id}", rpc: methods.DeploymentGet.Name, handle: deploymentCannot("health is not set by hand: it follows from the tasks and their checks; to stop the update use  nomad deployment fail")},
	}
}

func deploymentsOf(resp *methods.DeploymentListResponse) []*wire.Deployment {
	return each(resp.Deployments, wire.DeploymentFrom)
}

func deploymentList(c *call) (any, error) {
	return invokeList(c, methods.DeploymentList, &methods.ListRequest{}, deploymentsOf)
}

func jobDeployments(c *call) (any, error) {
	return invokeList(c, methods.JobDeployments, &methods.JobGetRequest{JobID: c.params["id"]}, deploymentsOf)
}

// jobDeployment answers with the newest deployment of a job, or null.
func jobDeployment(c *call) (any, error) {
	c.query.Filter, c.query.NextToken = "", ""
	resp, err := invoke(c, methods.JobDeployments, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	c.w.Header().Del("X-Nomad-NextToken")
	if len(resp.Deployments) == 0 {
		return rawAnswer{"application/json", []byte("null")}, nil
	}
	return wire.DeploymentFrom(resp.Deployments[0]), nil
}

func deploymentGet(c *call) (any, error) {
	d, err := c.deployment()
	if err != nil {
		return nil, err
	}
	return wire.DeploymentFrom(d), nil
}

// deployment reads the deployment that the path names.
func (c *call) deployment() (*methods.Deployment, error) {
	id, err := pathID[structs.DeploymentID](c, "deployment")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.DeploymentGet, &methods.DeploymentGetRequest{ID: id})
	if err != nil {
		return nil, err
	}
	if resp.Deployment == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "deployment not found")
	}
	return resp.Deployment, nil
}

func deploymentAllocs(c *call) (any, error) {
	id, err := pathID[structs.DeploymentID](c, "deployment")
	if err != nil {
		return nil, err
	}
	return invokeList(c, methods.DeploymentAllocs, &methods.DeploymentGetRequest{ID: id}, func(resp *methods.AllocListResponse) []*wire.AllocationListStub {
		return allocStubs(resp, true, true)
	})
}

func deploymentFail(c *call) (any, error) {
	id, err := pathID[structs.DeploymentID](c, "deployment")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.DeploymentFail, &methods.DeploymentGetRequest{ID: id})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.DeploymentUpdateResponse{DeploymentModifyIndex: uint64(resp.Index), RevertedJobVersion: resp.Reverts}, nil
}

// deploymentCannot refuses a change of a deployment that has no equivalent, to callers who may read it.
func deploymentCannot(why string) handler {
	return func(c *call) (any, error) {
		d, err := c.deployment()
		if err != nil {
			return nil, err
		}
		return nil, structs.Errorf(structs.CodeUnsupported, "%s", strings.ReplaceAll(why, "JOB", d.JobID))
	}
}
