package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// ending makes the fake's job "train" run for the first looks and then end in the given way.
func ending(f *agentFake, looks int, end *wire.JobEnd, summary map[string]wire.TaskGroupSummary) {
	n := 0
	status := func() string {
		if n > looks {
			return "dead"
		}
		return "running"
	}
	f.answers["GET /v1/job/train"] = func(*http.Request) any {
		n++
		return &wire.Job{ID: ptr("train"), Namespace: ptr("default"), Status: ptr(status())}
	}
	f.answers["GET /v1/jobs"] = func(*http.Request) any {
		j := &wire.JobListStub{ID: "train", Namespace: "default", Status: status(), SubmitTime: ago(time.Minute), JobSummary: &wire.JobSummary{Summary: summary}}
		if j.Status == "dead" {
			j.End = end
		}
		return []*wire.JobListStub{j}
	}
}

func TestJobWaitReturnsTheExitCodeOfTheJob(t *testing.T) {
	for _, c := range []struct {
		name string
		end  *wire.JobEnd
		sum  wire.TaskGroupSummary
		code int
		says string
	}{
		{"success", &wire.JobEnd{Exit: "success", Time: ago(0)}, wire.TaskGroupSummary{Complete: 1}, 0, `Job "train" complete, 1m after it was submitted`},
		{"failed", &wire.JobEnd{Exit: "failed", ExitCode: 7, Time: ago(0)}, wire.TaskGroupSummary{Failed: 1}, 7, "failed (exit 7)"},
		{"no exit code", &wire.JobEnd{Exit: "failed", Time: ago(0)}, wire.TaskGroupSummary{Failed: 1}, 3, "failed"},
		{"stopped", &wire.JobEnd{Exit: "stopped", Time: ago(0)}, wire.TaskGroupSummary{Complete: 1}, 3, "stopped"},
		{"over its limit", &wire.JobEnd{Exit: "limit", ExitCode: 143, Time: ago(0)}, wire.TaskGroupSummary{Failed: 1}, 3, "failed (limit)"},
		{"no record, complete", nil, wire.TaskGroupSummary{Complete: 2}, 0, "complete"},
		{"no record, failed", nil, wire.TaskGroupSummary{Complete: 2, Failed: 1}, 3, "failed"},
	} {
		f := newAgentFake(t)
		ending(f, 2, c.end, map[string]wire.TaskGroupSummary{"g": c.sum})
		if r := f.run(t, "", "job", "wait", "train"); r.code != c.code || !strings.Contains(r.out, c.says) {
			t.Errorf("%s: exit code %d, want %d: %q %s", c.name, r.code, c.code, r.out, r.errOut)
		}
	}
}

func TestJobWaitEndsWithItsTimeout(t *testing.T) {
	f := newAgentFake(t)
	ending(f, 1<<30, nil, nil)
	r := f.run(t, "", "job", "wait", "-timeout", "400ms", "train")
	if r.code != exitTimeout || !strings.Contains(r.errOut, "muster job status train") {
		t.Errorf("exit code %d: %q %q", r.code, r.out, r.errOut)
	}
	for _, args := range [][]string{{"job", "wait", "-for", "ever", "train"}, {"job", "wait", "nightly"}, {"job", "wait", "-timeout", "-1s", "train"}} {
		if r := newAgentFake(t).run(t, "", args...); r.code != exitError {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.errOut)
		}
	}
}

func TestJobWaitForRunning(t *testing.T) {
	f := newAgentFake(t)
	ending(f, 1<<30, nil, nil)
	looks := 0
	f.answers["GET /v1/job/train/summary"] = func(*http.Request) any {
		if looks++; looks < 3 {
			return &wire.JobSummary{Summary: map[string]wire.TaskGroupSummary{"g": {Running: 1, Starting: 1}}}
		}
		return &wire.JobSummary{Summary: map[string]wire.TaskGroupSummary{"g": {Running: 2}}}
	}
	if r := f.run(t, "", "job", "wait", "-for", "running", "train"); r.code != 0 || looks != 3 || !strings.Contains(r.out, "runs: 2 allocations") {
		t.Errorf("exit code %d after %d looks: %q %q", r.code, looks, r.out, r.errOut)
	}
}

func TestJobStatusWatchAppendsWhatChanges(t *testing.T) {
	f := newAgentFake(t)
	n := 0
	f.answers["GET /v1/jobs"] = func(*http.Request) any {
		j := &wire.JobListStub{ID: "train", Namespace: "default", Status: "running", JobSummary: &wire.JobSummary{Summary: map[string]wire.TaskGroupSummary{"g": {Running: 2}}}}
		if n++; n > 3 {
			j.Status, j.End = "dead", &wire.JobEnd{Exit: "success"}
			j.JobSummary.Summary["g"] = wire.TaskGroupSummary{Complete: 2}
		}
		return []*wire.JobListStub{j}
	}
	r := f.run(t, "", "job", "status", "-watch", "train")
	if want := "train  running, 2 running\n2026-11-20T12:00:00Z  train  complete, 2 complete\n"; r.code != 0 || !strings.HasSuffix(r.out, want) || strings.Count(r.out, "\n") != 2 {
		t.Errorf("exit code %d: %q %s", r.code, r.out, r.errOut)
	}
}

func TestArrayByIndex(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/jobs"] = []*wire.JobListStub{{ID: "sweep", Namespace: "default", Status: "running"}}
	f.answers["GET /v1/job/sweep"] = &wire.Job{ID: ptr("sweep"), Status: ptr("running"), Array: &wire.Array{Count: ptr(12)}}
	f.answers["GET /v1/job/sweep/gangs"] = []any{}
	f.answers["GET /v1/job/sweep/evaluations"] = []any{}
	f.answers["GET /v1/job/sweep/summary"] = &wire.JobSummary{Ended: []wire.IndexRange{{From: 0, To: 3}, {From: 4, To: 4, Failed: true}}}
	f.answers["GET /v1/job/sweep/allocations"] = []*wire.AllocationListStub{
		{ID: "new", Name: "sweep.g[6]", ClientStatus: "running", CreateIndex: 9}, {ID: "old", Name: "sweep.g[6]", ClientStatus: "failed", CreateIndex: 3},
		{ID: "five", Name: "sweep.g[5]", ClientStatus: "failed", TaskStates: map[string]*wire.TaskState{"t": {Failed: true, Events: []*wire.TaskEvent{{Type: "Terminated", ExitCode: 9}}}}},
	}
	r := f.run(t, "", "job", "status", "sweep")
	for _, want := range []string{"complete         4      0-3\n", "failed           1      4\n", "failed (exit 9)  1      5\n", "running          1      6\n", "waiting          5      7-11\n", "6      running          new"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in:\n%s%s", want, r.out, r.errOut)
		}
	}
}

func TestWideListsHaveMoreColumns(t *testing.T) {
	rolling := []*wire.Deployment{{ID: evalA, JobID: "example", Namespace: "default", Status: "running", TaskGroups: map[string]*wire.DeploymentState{"a": {DesiredTotal: 3, PlacedAllocs: 2}, "b": {DesiredTotal: 4, HealthyAllocs: 1}}}}
	for _, c := range [][3]string{ // a command, a head and a cell that it has with -o wide only
		{"job status", "Node Pool"}, {"job allocs example", "Exit"}, {"node status", "GPUs", "4xH100"}, {"queue", "STARTS AFTER", "H100"},
		{"alloc status", "GPUs", "gpu-01"}, {"eval list", "Waits Until", "service"}, {"queue list", "PREEMPTIONS", "all of research"}, {"job deployments example", "Progress By", " 7 "}, {"deployment list", "Progress By", " 7 "},
		{"node pool list", "Power Budget", "1600 W"}, {"node pool nodes default", "Drivers", "10.0.0.1"}, {"node pool jobs default", "Queue", "default"}, {"namespace list", "Quota", "team"}, {"reservation list", "BASIS", "limit"},
		{"quota list", "GPU memory", "unlimited"}, {"var list", "Check Index", "5             7"}, {"service list", "Registrations  Passing  Jobs", "2              1        example"}, {"server members", "Raft ID"},
		{"acl policy list", "Workload", "ml/train/g"}, {"acl policy self", "Modify Index", " 31"}, {"acl role list", "Modify Index", " 32"}, {"acl token list", "Policies  Roles", "readers   ops"},
	} {
		f := newAgentFake(t)
		f.answers["GET /v1/job/example/deployments"], f.answers["GET /v1/deployments"] = rolling, rolling
		f.answers["GET /v1/node/pools"] = []*wire.NodePool{{Name: "rack7", SchedulerConfiguration: &wire.PoolSchedulerSettings{PowerBudgetW: 1600}}, {Name: "default"}}
		f.answers["GET /v1/acl/policies"] = []*wire.ACLPolicyListStub{{Name: "p", JobACL: &wire.JobACL{Namespace: "ml", JobID: "train", Group: "g"}}}
		f.answers["GET /v1/acl/policy/self"] = []*wire.ACLPolicyListStub{{Name: "p", ModifyIndex: 31}}
		f.answers["GET /v1/acl/roles"] = []*wire.ACLRole{{ID: tokenID, Name: "r", ModifyIndex: 32}}
		f.answers["GET /v1/acl/tokens"] = []*wire.ACLTokenListStub{{AccessorID: tokenID, Name: "alice", Policies: []string{"readers"}, Roles: []*wire.ACLTokenRoleLink{{Name: "ops"}}}}
		f.answers["GET /v1/service/web"] = []any{}
		f.answers["GET /v1/namespaces"] = []*wire.Namespace{{Name: "ml", Quota: "team"}}
		if r := f.run(t, "", strings.Fields(c[0])...); r.code != 0 || c[0] != "job status" && strings.Contains(r.out, c[1]) || c[2] != "" && strings.Contains(r.out, c[2]) {
			t.Errorf("%s: %q", c[0], r.out)
		}
		if r := f.run(t, "", append(strings.Fields(c[0]), "-o", "wide")...); r.code != 0 || !strings.Contains(strings.SplitN(r.out, "\n", 2)[0], c[1]) || !strings.Contains(r.out, c[2]) {
			t.Errorf("%s -o wide: %q %s", c[0], r.out, r.errOut)
		}
		if r := f.run(t, "", append(strings.Fields(c[0]), "-o", "narrow")...); r.code == 0 {
			t.Errorf("%s -o narrow: %q", c[0], r.out)
		}
	}
}
