package contend

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// gpuNode is a ready node with GPUs of so many MiB each.
func gpuNode(n byte, gpus int, mib int64) *structs.Node {
	out := &structs.Node{ID: structs.NodeID{n}, Name: string('a' + rune(n)), Datacenter: "dc1", Pool: structs.NodePoolDefault, Status: structs.NodeReady, Eligibility: structs.NodeEligible}
	out.Resources.CPU, out.Resources.MemoryMiB, out.Resources.DiskMiB = 8000, 64_000, 100_000
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for i := range gpus {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: string('0' + rune(i)), Healthy: true, MemoryMiB: mib})
	}
	out.Resources.Devices = []structs.DeviceGroup{g}
	return out
}

// gpuWork is a workload of a queue that asks for GPUs.
func gpuWork(id string, queue structs.QueuePath, count int, req ...structs.GPURequest) *Workload {
	j := &structs.Job{Namespace: "default", ID: id, Type: structs.JobBatch, Queue: queue, Datacenters: []string{"*"}, Submitter: structs.Submitter{Name: "ada"}}
	j.Groups = []*structs.Group{{Name: "g", Count: count, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 64, GPU: req}}}}}
	return &Workload{Key: j.Key(), Job: j}
}

// heldList implements contend.Placed.
type heldList []*model.Held

func (l *heldList) Len() int               { return len(*l) }
func (l *heldList) Held(i int) *model.Held { return (*l)[i] }

// onGPUs is an allocation of a workload that holds whole GPUs.
func onGPUs(w *Workload, id byte, gpus int64, mib int64) *model.Held {
	h := &model.Held{ID: structs.AllocID{id}, Need: structs.Vector{CPU: 100, MemoryMiB: 64}, Work: model.HeldWork{Job: w.Job, Group: "g"}, Rare: &model.HeldRare{}}
	for i := range gpus {
		h.Rare.Grants = append(h.Rare.Grants, structs.Grant{Device: "nvidia/gpu/H100", Instance: string('0' + rune(i)), SizeMiB: mib})
	}
	return h
}

// TestEstimateIsNeverTooLow: the estimate is the most that a GPU request can be charged.
func TestEstimateIsNeverTooLow(t *testing.T) {
	v := model.NewView(1, []*structs.Node{gpuNode(1, 2, 40_000), gpuNode(2, 2, 80_000)}, nil, nil)
	for _, c := range []struct {
		name string
		req  []structs.GPURequest
		want structs.Amount
	}{
		{"a whole GPU is the largest one", []structs.GPURequest{{Count: 2}}, structs.Amount{GPUMilli: 2000, GPUMemoryMiB: 160_000}},
		{"a share by memory is of the smallest GPU that has it", []structs.GPURequest{{Count: 1, MemoryMiB: 20_000}}, structs.Amount{GPUMilli: 500, GPUMemoryMiB: 20_000}},
		{"one that only the large ones have", []structs.GPURequest{{Count: 1, MemoryMiB: 60_000}}, structs.Amount{GPUMilli: 750, GPUMemoryMiB: 60_000}},
		{"of alternatives the dearest", []structs.GPURequest{{Count: 1, MemoryMiB: 20_000}, {Count: 1}}, structs.Amount{GPUMilli: 1000, GPUMemoryMiB: 80_000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := GPUSizesOf(v).Estimate(gpuWork("j", "r", 1, c.req...).Job.Groups[0])
			if got.GPUMilli != c.want.GPUMilli || got.GPUMemoryMiB != c.want.GPUMemoryMiB {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestLimitsCountWhatThePassPlaced: what a decision has placed counts for the decision at once, and for others when it
// is settled, once.
func TestLimitsCountWhatThePassPlaced(t *testing.T) {
	v := model.NewView(1, []*structs.Node{gpuNode(1, 8, 80_000)}, nil, nil)
	limit := structs.Unlimited
	limit.GPUMilli = 4000
	table := &QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: &limit, RunningUserMax: 2}}, Usage: []*structs.QueueUsage{{Path: "r", Held: structs.Amount{GPUMilli: 1000}}}}
	l := NewLimits(table, v, model.Overlay{}, structs.LogTime(time.Hour))
	one := gpuWork("one", "r", 3, structs.GPURequest{Count: 1})
	group := one.Job.Groups[0]
	var charges Charges
	var placed heldList
	for i := range byte(3) {
		if why := l.OverGroup(one, charges.Count(one, &placed), group, nil); why != nil {
			t.Fatalf("allocation %d: %s", i, why.Text())
		}
		placed = append(placed, onGPUs(one, i+1, 1, 80_000))
	}
	why := l.OverGroup(one, charges.Count(one, &placed), group, nil)
	if why == nil || why.Dimension != structs.DimensionGPU || why.Short != 1 || why.Holder.Name != "r" {
		t.Fatalf("a fourth allocation: %+v, want 1 GPU too many in queue r", why)
	}
	other := gpuWork("other", "r", 1, structs.GPURequest{Count: 1})
	if why := l.OverGroup(other, nil, group, nil); why != nil {
		t.Errorf("another job, before it is settled: %s", why.Text())
	}
	for range 2 { // settling twice counts only what is new
		l.Settle(one, &charges, &placed)
	}
	if held, jobs := l.Held(structs.UseRow{Path: "r"}); held.GPUMilli != 4000 || jobs != 1 {
		t.Errorf("queue r holds %d GPU thousandths of %d jobs, want 4000 of 1", held.GPUMilli, jobs)
	}
	if why := l.OverGroup(other, nil, group, nil); why == nil {
		t.Error("another job fits, and nothing is left")
	}
	placed = placed[:1] // the others were undone
	l.Settle(one, &charges, &placed)
	if held, _ := l.Held(structs.UseRow{Path: "r"}); held.GPUMilli != 2000 {
		t.Errorf("queue r holds %d GPU thousandths after two were taken back, want 2000", held.GPUMilli)
	}
	if why := l.Capped(other); why != nil {
		t.Errorf("ada runs one job of two: %s", why.Text())
	}
	l.Settle(other, &Charges{}, &heldList{onGPUs(other, 9, 1, 80_000)})
	if why := l.Capped(gpuWork("third", "r", 1)); why == nil || why.Dimension != structs.DimensionRunningJobs || why.Subject != "ada" {
		t.Errorf("a third job of ada: %+v, want her cap of two", why)
	}
}

// TestReplacedWorkOfAnotherQueue: work that replaces an allocation of another queue counts in full in its own.
func TestReplacedWorkOfAnotherQueue(t *testing.T) {
	v := model.NewView(1, []*structs.Node{gpuNode(1, 8, 80_000)}, nil, nil)
	limit := structs.Unlimited
	limit.GPUMilli = 1000
	table := &QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: &limit}, {Path: "s"}}, Usage: []*structs.QueueUsage{{Path: "r", Held: structs.Amount{GPUMilli: 1000}}}}
	l := NewLimits(table, v, model.Overlay{}, structs.LogTime(time.Hour))
	next := gpuWork("j", "r", 1, structs.GPURequest{Count: 1})
	for queue, refused := range map[structs.QueuePath]bool{"r": false, "s": true} {
		prev := &structs.Allocation{Namespace: "default", Job: gpuWork("j", queue, 1).Job, Desired: structs.DesiredRun, Client: structs.ClientRunning,
			Grants: []structs.Grant{{Device: "nvidia/gpu/H100", Instance: "0", SizeMiB: 80_000}}}
		if why := l.OverGroup(next, nil, next.Job.Groups[0], prev); (why != nil) != refused {
			t.Errorf("it replaces work of queue %s: %+v", queue, why)
		}
	}
}
