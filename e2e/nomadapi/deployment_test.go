package nomadapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// deployments follows updates as Nomad's clients do: from the evaluation of a registration to its deployment, and by blocking reads to
// the end. A good update is successful. One whose task ends at once fails, and auto_revert goes back to the version before, which is
// another deployment.
func deployments(t *testing.T, a *agent, _ *api.NodeListStub) {
	job := shell("deployed", "service", "sleep 300")
	job.TaskGroups[0].Count = ptr(2)
	job.Update = &api.UpdateStrategy{MaxParallel: ptr(1), MinHealthyTime: ptr(time.Second), HealthyDeadline: ptr(5 * time.Second), ProgressDeadline: ptr(6 * time.Second),
		AutoRevert: ptr(true), Stagger: ptr(30 * time.Second), HealthCheck: ptr("task_states"), Canary: ptr(0)}
	follow := func(version uint64, evalID, want string) *api.Deployment {
		t.Helper()
		eval, _, err := a.Evaluations().Info(evalID, nil)
		ok(t, err)
		check(t, len(eval.DeploymentID) == 36, "evaluation %s names deployment %q", evalID, eval.DeploymentID)
		q := &api.QueryOptions{AllowStale: true, WaitTime: 2 * time.Second}
		var last *api.Deployment
		eventually(t, fmt.Sprintf("the deployment of version %d to be %s", version, want), func() error {
			d, meta, err := a.Deployments().Info(eval.DeploymentID, q)
			if err != nil {
				return err
			}
			last, q.WaitIndex = d, meta.LastIndex
			if d.Status != want {
				return fmt.Errorf("%s: %s", d.Status, d.StatusDescription)
			}
			return nil
		})
		equal(t, "version", last.JobVersion, version)
		return last
	}
	resp, _, err := a.Jobs().Register(job, nil)
	ok(t, err)
	first := follow(0, resp.EvalID, api.DeploymentStatusSuccessful)
	g := first.TaskGroups["g"]
	check(t, g.DesiredTotal == 2 && g.PlacedAllocs == 2 && g.HealthyAllocs == 2 && g.UnhealthyAllocs == 0 && g.AutoRevert && g.ProgressDeadline == 6*time.Second, "group %+v", g)

	job.TaskGroups[0].Tasks[0].Config["args"] = []string{"-c", "sleep 301"}
	resp, _, err = a.Jobs().Register(job, nil)
	ok(t, err)
	good := follow(1, resp.EvalID, api.DeploymentStatusSuccessful)
	stubs, _, err := a.Deployments().Allocations(good.ID, nil)
	ok(t, err)
	equal(t, "allocations", len(stubs), 2)
	alloc, _, err := a.Allocations().Info(stubs[0].ID, nil)
	ok(t, err)
	equal(t, "deployment of an allocation", alloc.DeploymentID, good.ID)
	_, _, err = a.Deployments().Fail(good.ID, nil)
	equal(t, "stopping one that has ended", status(err), 400)

	job.TaskGroups[0].Tasks[0].Config["args"] = []string{"-c", "exit 7"}
	resp, _, err = a.Jobs().Register(job, nil)
	ok(t, err)
	bad := follow(2, resp.EvalID, api.DeploymentStatusFailed)
	check(t, strings.Contains(bad.StatusDescription, "auto_revert: version 1 is registered again") && bad.TaskGroups["g"].UnhealthyAllocs > 0, "%s; %+v", bad.StatusDescription, bad.TaskGroups["g"])
	eventually(t, "the version before to be back", func() error {
		d, _, err := a.Jobs().LatestDeployment("deployed", nil)
		if err != nil {
			return err
		}
		if d == nil || d.JobVersion != 3 || d.Status != api.DeploymentStatusSuccessful {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	mine, _, err := a.Jobs().Deployments("deployed", false, nil)
	ok(t, err)
	equal(t, "deployments of the job", len(mine), 4)
	list, _, err := a.Deployments().List(&api.QueryOptions{Filter: `JobID == "deployed" and Status == "failed"`})
	ok(t, err)
	check(t, len(list) == 1 && list[0].ID == bad.ID, "failed ones: %v", list)
	list, _, err = a.Deployments().PrefixList(bad.ID[:8])
	ok(t, err)
	check(t, len(list) == 1 && list[0].ID == bad.ID, "by prefix: %v", list)

	// What has no equivalent says what to do instead.
	_, _, err = a.Deployments().PromoteAll(bad.ID, nil)
	equal(t, "promoting", status(err), 501)
	_, _, err = a.Deployments().Pause(bad.ID, true, nil)
	check(t, status(err) == 501 && strings.Contains(err.Error(), "muster job hold deployed"), "pausing: %v", err)
	_, _, err = a.Deployments().Info("d0000000-0000-4000-8000-00000000000d", nil)
	equal(t, "one that does not exist", status(err), 404)
	_, _, err = a.Jobs().Deregister("deployed", true, nil)
	ok(t, err)
	list, _, err = a.Deployments().List(nil)
	ok(t, err)
	for _, d := range list {
		check(t, d.JobID != "deployed", "a purged job has deployment %s", d.ID)
	}
}
