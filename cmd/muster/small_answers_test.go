package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// TestWhySaysSinceWhen: job why counts from when the job became pending last, and names no time that has passed.
func TestWhySaysSinceWhen(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/jobs"] = jobPrefix(&wire.JobListStub{ID: "train", Name: "train", Namespace: "default", Status: "pending"})
	ago := func(d time.Duration) int64 { return fixedNow.Add(-d).UnixNano() }
	for want, w := range map[string]*nomadlike.Why{
		"is pending for 3m (submitted 2h ago)":                          {SubmitTime: ago(2 * time.Hour), PendingSince: ago(3 * time.Minute)},
		"is pending for 2h; position 1 of 1":                            {SubmitTime: ago(2 * time.Hour), PendingSince: ago(2 * time.Hour)},
		"starts   at any moment, if nothing changes":                    {SubmitTime: ago(time.Hour), StartEstimate: ago(30 * time.Second)},
		"starts   it is late: in about 5m (2026-11-20 12:05), if there": {Starts: "it is late", StartEstimate: fixedNow.Add(5 * time.Minute).UnixNano()},
		"others   queue b holds 3 GPUs\n           queue a may not":     {OtherQueues: []string{"queue b holds 3 GPUs", "queue a may not"}},
	} {
		w.JobID, w.Namespace, w.Priority, w.Status, w.Reason, w.Waiting, w.Position, w.QueueLength = "train", "default", 50, "pending", "RESOURCES", 1, 1, 1
		f.answers["GET /v1/job/train/why"] = w
		if r := f.run(t, "", "job", "why", "train"); r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("exit %d %s: job why lacks %q:\n%s", r.code, r.errOut, want, r.out)
		}
	}
}

// TestReservationByName: a file of reservations names nodes by name or ID, and a name of several nodes is refused.
func TestReservationByName(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/nodes"] = []*wire.NodeListStub{{ID: nodeA, Name: "gpu-01", Status: "ready"}, {ID: nodeB, Name: "46", Status: "ready"}, {ID: allocA, Name: "twin", Status: "ready"}, {ID: allocB, Name: "twin", Status: "down"}}
	f.answers["PUT /v1/reservations"] = nil
	apply := func(nodes string) result {
		path := filepath.Join(t.TempDir(), "r.hcl")
		if err := os.WriteFile(path, []byte("reservation \"repair\" {\n  nodes = ["+nodes+"]\n  duration = \"1h\"\n}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return f.run(t, "", "reservation", "apply", path)
	}
	// The name "46" is also the beginning of the first node's ID.
	if r := apply(`"gpu-01", "46", "` + allocA + `"`); r.code != 0 || !strings.Contains(strings.Join(f.requests, "\n"), `"Nodes":["`+nodeA+`","`+nodeB+`","`+allocA+`"]`) {
		t.Errorf("exit %d, %s:\n%s", r.code, r.errOut, strings.Join(f.requests, "\n"))
	}
	if r := apply(`"twin"`); r.code == 0 || !strings.Contains(r.errOut, `apply reservation "repair": 2 nodes have the name "twin"; give the id of one`) || !strings.Contains(r.errOut, allocB+" (twin, down)") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
	if r := apply(`"gpu-99"`); r.code == 0 || !strings.Contains(r.errOut, `no node has the name "gpu-99"`) {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
}

// TestInstancesAreNotShared: a MIG instance that is in use is held whole.
func TestInstancesAreNotShared(t *testing.T) {
	const name = "H100 MIG 1g.10gb"
	var nodes []*wire.NodeListStub
	n := &wire.NodeListStub{ID: nodeA, Name: "gpu-01", Status: "ready", SchedulingEligibility: "eligible", NodeResources: &wire.NodeResources{}}
	n.NodeResources.Devices = []*wire.NodeDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: name, Instances: []*wire.NodeDevice{{ID: "MIG-1", Healthy: true, MemoryMB: 9728}, {ID: "MIG-2", Healthy: true, MemoryMB: 9728}}}}
	nodes = append(nodes, n)
	allocs := []*wire.AllocationListStub{{NodeID: nodeA, ClientStatus: "running", AllocatedResources: &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{
		"t": {Devices: []*wire.AllocatedDeviceResource{{DeviceIDs: []string{"MIG-1"}, Shares: []wire.DeviceShare{{DeviceID: "MIG-1", MemoryMB: 9728, Backend: "mig"}}}}}}}}}
	list := gpuModels(nodes, allocs)
	if len(list) != 1 || list[0].Shared != 0 || list[0].Free != 1 || list[0].FreeMemoryMiB != 9728 || list[0].Used != 50 {
		t.Errorf("%+v", list[0])
	}
}

// TestRefusalsOfTheServersNameTheCure: a version that a job does not have, and tokens where ACLs are off.
func TestRefusalsOfTheServersNameTheCure(t *testing.T) {
	f := newAgentFake(t)
	f.answers["PUT /v1/job/example/revert"] = failure{http.StatusNotFound, `job "example" at version 7 not found; it runs version 0 and has no other version`}
	if r := f.run(t, "", "job", "revert", "example", "7"); r.code != 1 || !strings.Contains(r.errOut, "has no other version (404); muster job history example lists versions") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	f.answers["GET /v1/acl/token/self"] = failure{http.StatusBadRequest, "ACL support disabled"}
	if r := f.run(t, "", "acl", "token", "self"); r.code != 1 || !strings.Contains(r.errOut, "ACL support disabled (400): set acl { enabled = true }") || !strings.Contains(r.errOut, "muster acl bootstrap") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
	r := structs.Refusal{Code: structs.ReasonConstraint, Obstacle: structs.Obstacle{Dimension: structs.DimensionNoNode, Subject: "gpu"}, CuredBy: structs.EventNodeJoined}
	if got := cure(r); !strings.HasPrefix(got, "a node in pool gpu and one of the job's datacenters becomes ready, or") {
		t.Errorf("no node in the datacenters: until %s", got)
	}
}
