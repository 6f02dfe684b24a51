package methods

import (
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

const now = structs.LogTime(1795409592131910581)

func id(i int) (id [16]byte) {
	for k := range id {
		id[k] = byte(37*i + 11*k + 1)
	}
	return id
}

func sampleJob(i int) *structs.Job {
	update := &structs.Update{Stagger: 30 * time.Second, MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute}
	name := fmt.Sprintf("train-%d", i)
	return &structs.Job{
		Namespace: "default", ID: name, Name: name, Region: "global", Type: structs.JobBatch, Priority: 50, Datacenters: []string{"*"}, NodePool: "default",
		Groups: []*structs.Group{{
			Name: "workers", Count: 30, Update: update,
			Tasks: []*structs.Task{{
				Name: "train", Driver: "exec", Config: []byte(`{"command":"/usr/bin/python3","args":["train.py","--epochs","10"]}`),
				Env: map[string]string{"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}, KillTimeout: 5 * time.Second,
				Resources: structs.Resources{CPU: 4000, MemoryMiB: 16384},
			}},
			Restart: structs.Restart{Attempts: 2, Interval: 30 * time.Minute, Delay: 15 * time.Second, Mode: "fail"},
		}},
		Update: update, Meta: map[string]string{"team": "vision"}, SubmitTime: now, CreateIndex: 669, ModifyIndex: 698, SpecIndex: 669,
	}
}

func sampleAlloc(i int) *structs.Allocation {
	return &structs.Allocation{
		ID: id(i), EvalID: id(i / 30), Namespace: "default", JobID: "train-1", Group: "workers", NameIndex: i, NodeID: id(7), NodeName: "node-7",
		Resources: structs.Vector{CPU: 4000, MemoryMiB: 16384, DiskMiB: 300}, Desired: structs.DesiredRun, CreateTime: now, CreateIndex: 669, AllocIndex: 669, ModifyIndex: 669, ModifyTime: now,
		Grants: []structs.Grant{{Task: "train", Device: "nvidia/gpu/H100", Instance: "GPU-54638be3-2a4c-435f-884c-c5da16e93ef1", SizeMiB: 81920}},
	}
}

func sampleTask() *structs.TaskState {
	return &structs.TaskState{State: "running", StartedAt: now, Events: []structs.TaskEvent{
		{Type: "Received", Time: now, Message: "Task received by client"}, {Type: "Started", Time: now, Message: "Task started by client"},
	}}
}

func running(a *structs.Allocation) *structs.Allocation {
	a.Client, a.ClientDesc, a.TaskStates, a.StartedAt, a.NetworkIP = structs.ClientRunning, "tasks are running", structs.CompactTaskStates(map[string]*structs.TaskState{"train": sampleTask()}), now, "10.0.0.154"
	return a
}

func sampleNode(i int) *structs.Node {
	n := &structs.Node{
		ID: id(i), SecretID: id(i + 1), Name: fmt.Sprintf("node-%d", i), Datacenter: "dc1", Pool: "default", HTTPAddr: "10.0.0.154:4646", Version: "0.1.0",
		Attributes: map[string]string{}, Status: structs.NodeReady, Eligibility: structs.NodeEligible, StatusAt: now, CreateIndex: 7, ModifyIndex: 9, ComputedClass: 1 << 50,
		Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}, "docker": {Detected: true, Healthy: true}},
	}
	for k := range 40 {
		n.Attributes[fmt.Sprintf("cpu.attribute-%d", k)] = "value of it"
	}
	return n
}

// list returns n samples.
func list[T any](n int, sample func(int) T) (out []T) {
	for i := range n {
		out = append(out, sample(i))
	}
	return out
}

// samples are messages as agents and users send them, rows of the large tables of a snapshot, and an agent's records.
var samples = []struct {
	name  string
	value any // a pointer
}{
	{"Node.Poll: 30 allocations", &NodePollResponse{
		Meta: Meta{Index: 719, KnownLeader: true}, Cluster: id(1), StateIndex: 728, Known: 3800567629395121201,
		Refs: list(30, func(i int) AllocRef { return AllocRef{id(i), 669} }), Changed: list(30, sampleAlloc), Jobs: []*structs.Job{sampleJob(1)},
	}},
	{"Node.Observe: 30 allocations", &NodeObserveRequest{NodeAuth: NodeAuth{NodeID: id(7), Secret: id(8)}, Updates: list(30, func(i int) structs.AllocObserved {
		return structs.AllocObserved{ID: id(i), Client: structs.ClientRunning, ClientDesc: "tasks are running", StartedAt: now, NetworkIP: "10.0.0.154", TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"train": sampleTask()})}
	})}},
	{"Node.Poll: request", &NodePollRequest{NodeAuth: NodeAuth{NodeID: id(7), Secret: id(8)}, Query: Query{MinIndex: 719}, Known: 3800567629395121201}},
	{"Node.Heartbeat: request", &NodeHeartbeatRequest{NodeAuth: NodeAuth{NodeID: id(7), Secret: id(8)}}},
	{"Node.Register: request", &NodeRegisterRequest{Node: sampleNode(7)}},
	{"Job.Register: request", &JobRegisterRequest{Job: sampleJob(1)}},
	{"Job.Register: response", &JobRegisterResponse{EvalID: id(3), Index: 719, JobModifyIndex: 719}},
	{"Job.List: 100 jobs", &JobListResponse{Meta: Meta{Index: 719}, Jobs: list(100, func(i int) JobListItem {
		return JobListItem{Job: sampleJob(i), Summary: &Summary{Namespace: "default", JobID: "train"}}
	})}},
	{"Alloc.List: 100 allocations", &AllocListResponse{Meta: Meta{Index: 719}, Allocs: list(100, func(i int) *structs.Allocation { return running(sampleAlloc(i)) }), Jobs: []*structs.Job{sampleJob(1)}}},
	{"Node.List: 100 nodes", &NodeListResponse{Meta: Meta{Index: 719}, Nodes: list(100, sampleNode)}},
	{"row: job", sampleJob(1)},
	{"row: allocation", running(sampleAlloc(1))},
	{"row: node", sampleNode(1)},
	{"row: evaluation", &structs.Evaluation{
		ID: id(1), Namespace: "default", JobID: "train-1", Type: structs.JobBatch, Priority: 50, Trigger: structs.TriggerJobRegister, JobSpecIndex: 669, Status: structs.EvalComplete,
		SnapshotIndex: 669, CreateIndex: 669, ModifyIndex: 670, CreateTime: now, ModifyTime: now,
	}},
	{"agent: allocation and job", &struct {
		Alloc *structs.Allocation
		Job   *structs.Job
	}{sampleAlloc(1), sampleJob(1)}},
	{"agent: task", &struct {
		Attempt int64
		Handle  []byte
		State   *structs.TaskState
		Phase   uint8
		BootID  string
	}{1, []byte(`{"id":"54638be3-2a4c-435f-884c-c5da16e93ef1","pid":1234}`), sampleTask(), 2, "54638be3-2a4c-435f-884c-c5da16e93ef1"}},
}

// processorTime returns the processor time that this process has used, in all its threads.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkCodecs compares package pack with go-msgpack by the processor time of encoding and decoding. They run in
// turns, and the results are medians. Run it with -benchtime 20x.
func BenchmarkCodecs(b *testing.B) {
	for _, s := range samples {
		b.Run(s.name, func(b *testing.B) {
			// Inside another struct the message is not rpc.Packed, so package rpc uses go-msgpack.
			v := reflect.New(wrapped(reflect.TypeOf(s.value)))
			v.Elem().Field(0).Set(reflect.ValueOf(s.value))
			raw, _ := pack.Wire.Append(nil, v.Interface())
			if lib, err := rpc.Encode(v.Interface()); err != nil || len(lib) != len(raw) {
				b.Fatal(len(lib), len(raw), err)
			}
			empty := func() any { return reflect.New(v.Type().Elem()).Interface() }
			steps := []struct {
				unit string
				once func()
				took []time.Duration
			}{
				{"pack-enc-ns", func() { pack.Wire.Append(make([]byte, 0, len(raw)), v.Interface()) }, nil},
				{"lib-enc-ns", func() { _, _ = rpc.Encode(v.Interface()) }, nil},
				{"pack-dec-ns", func() { _, _ = pack.Wire.Decode(raw, empty()) }, nil},
				{"lib-dec-ns", func() { _ = rpc.Decode(raw, empty()) }, nil},
			}
			rounds := max(10, 1_000_000/len(raw)/2)
			for b.Loop() {
				for i := range steps {
					start := processorTime()
					for range rounds {
						steps[i].once()
					}
					steps[i].took = append(steps[i].took, (processorTime()-start)/time.Duration(rounds))
				}
			}
			med := map[string]float64{}
			for _, s := range steps {
				slices.Sort(s.took)
				med[s.unit] = float64(s.took[len(s.took)/2])
				b.ReportMetric(med[s.unit], s.unit)
			}
			b.ReportMetric(float64(len(raw)), "bytes")
			b.ReportMetric(med["lib-enc-ns"]/med["pack-enc-ns"], "enc-ratio")
			b.ReportMetric(med["lib-dec-ns"]/med["pack-dec-ns"], "dec-ratio")
		})
	}
}
