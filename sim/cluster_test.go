package sim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// TestSnapshotHasItsCluster: queues, quotas and reservations of a dump hold in its replay, save where others are given.
func TestSnapshotHasItsCluster(t *testing.T) {
	kinds, err := ParseNodes("1x8")
	if err != nil {
		t.Fatal(err)
	}
	nodes := BuildNodes(kinds)
	now := Epoch.Add(1000 * time.Hour)
	replay := func(q *contend.QueueTable, r []*structs.Reservation, own *Cluster) (wait float64) {
		t.Helper()
		in := scheduler.Input{View: model.NewView(1, nodes, nil, nil), Now: now, Queues: q, Reserved: r}
		for _, id := range []string{"a", "b"} {
			j := &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Type: structs.JobBatch, Priority: structs.JobPriorityDefault, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Queue: "lab",
				Runtime: structs.Runtime{Limit: time.Hour},
				Groups:  []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: Driver, Resources: structs.Resources{CPU: 1, MemoryMiB: 1, GPU: []structs.GPURequest{{Count: 2}}}}}}}}
			in.Pending = append(in.Pending, contend.Workload{Key: j.Key(), Job: j})
		}
		b, err := scheduler.Dump(in, "")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "dump")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		rs, err := Run(t.Context(), &Options{Format: "snapshot", Trace: file, Cluster: own})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range rs[0].Figures {
			if f.Name == "mean_wait" {
				return f.Value
			}
		}
		t.Fatal("no mean_wait")
		return 0
	}
	two := structs.Unlimited
	two.GPUMilli = 2000
	lab := []*structs.Queue{{Path: structs.QueueDefault}, {Path: "lab", Limit: &two}}
	later := now.Add(2 * time.Hour)
	for _, c := range []struct {
		what string
		q    *contend.QueueTable
		r    []*structs.Reservation
		own  *Cluster
		want float64
	}{
		{"nothing", nil, nil, nil, 0},
		{"a limit", &contend.QueueTable{Queues: lab}, nil, nil, 1800},
		{"a limit that a file lifts", &contend.QueueTable{Queues: lab}, nil, &Cluster{Queues: []*structs.Queue{{Path: "lab"}}}, 0},
		{"a quota", &contend.QueueTable{Tenants: []contend.Tenant{{Namespace: structs.NamespaceDefault, Quota: "q", Hard: two}}}, nil, nil, 1800},
		{"a reservation", nil, []*structs.Reservation{{ID: "r", Domain: structs.NodePoolDefault, Nodes: []structs.NodeID{nodes[0].ID}, Start: now, End: later, Users: []string{"eve"}}}, nil, 7200},
	} {
		if got := replay(c.q, c.r, c.own); got != c.want {
			t.Errorf("%s: mean_wait is %v, want %v", c.what, got, c.want)
		}
	}
}
