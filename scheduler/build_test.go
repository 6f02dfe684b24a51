package scheduler_test

import (
	"fmt"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// Builders make a valid object in one line; a test mentions only what it is about.

func id(kind string, n int) structs.Seed {
	return structs.Seed(structs.DeriveID[structs.NodeID](structs.Seed{}, kind, "", uint64(n)))
}

func node(n int) *structs.Node {
	nid := structs.NodeID{byte(n >> 8), byte(n)}
	nid[15] = 1
	return &structs.Node{
		ID: nid, Name: fmt.Sprintf("n%d", n), Datacenter: "dc1", Pool: structs.NodePoolDefault,
		Attributes: map[string]string{"kernel.name": "linux", "cpu.arch": "amd64"},
		Resources: structs.NodeResources{CPU: 4000, Cores: 4, MHzPerCore: 1000, MemoryMiB: 8192, DiskMiB: 100_000,
			Networks: []structs.NodeNetwork{{Device: "eth0", IP: "10.0.0.1", Alias: "default"}}},
		Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}},
		Status:  structs.NodeReady, Eligibility: structs.NodeEligible, Epoch: 1,
	}
}

func job(name string, count int) *structs.Job {
	return &structs.Job{
		Namespace: "default", ID: name, Name: name, Type: structs.JobService, Priority: 50,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, CreateIndex: 5, SpecIndex: 5, ModifyIndex: 5,
		Groups: []*structs.Group{{
			Name: "g", Count: count, Disk: structs.EphemeralDisk{SizeMiB: 100},
			Tasks: []*structs.Task{{Name: "t", Driver: "exec", Resources: structs.Resources{CPU: 500, MemoryMiB: 256}}},
		}},
	}
}

func eval(j *structs.Job, n int) *structs.Evaluation {
	return &structs.Evaluation{ID: structs.EvalID(id("eval", n)), Namespace: j.Namespace, JobID: j.ID, Type: j.Type, Priority: j.Priority,
		Trigger: structs.TriggerJobRegister, Status: structs.EvalPending}
}

func load(j *structs.Job, n int, allocs ...*structs.Allocation) contend.Workload {
	return contend.Workload{Key: j.Key(), Job: j, Evals: []*structs.Evaluation{eval(j, n)}, Allocs: allocs}
}

var binpack = policy.Builtin["binpack"]
