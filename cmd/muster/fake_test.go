package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// The small cluster of the fake agent.
const (
	nodeA   = "46f1c6c4-1111-4aaa-8aaa-000000000001"
	nodeB   = "46f1d7d5-2222-4bbb-8bbb-000000000002"
	allocA  = "8ba85cef-1111-4ccc-8ccc-000000000001"
	allocB  = "8ba85d00-2222-4ddd-8ddd-000000000002"
	evalA   = "26cfc69e-1111-4eee-8eee-000000000001"
	evalB   = "26cfd7af-2222-4fff-8fff-000000000002"
	tokenID = "5e38b4ee-4c2f-4a25-8ac5-bb8dd2c56d43"
)

var fixedNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) int64 { return fixedNow.Add(-d).UnixNano() }

func ptr[T any](v T) *T { return &v }

// agentFake answers as an agent would, and notes what it was asked.
type agentFake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
	whole    bool                                 // note long bodies, too, to their end
	tty      bool                                 // the command's input and output count as a terminal
	ws       func(*http.Request, *websocket.Conn) // answers websockets, or nil
	answers  map[string]any                       // "GET /v1/jobs" -> answer, a func(*http.Request) any, or a failure
}

type failure struct {
	status int
	msg    string
}

func newAgentFake(t *testing.T) *agentFake {
	t.Helper()
	f := &agentFake{answers: canned()}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *agentFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.ws != nil && r.Header.Get("Upgrade") == "websocket" {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		f.ws(r, ws)
		return
	}
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.EscapedPath()
	note := line
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		q.Del("index") // how often it is asked for depends on time
		q.Del("wait")
		if enc := q.Encode(); enc != "" {
			note += "?" + enc
		}
	}
	if len(body) > 0 {
		if len(body) > 400 && !f.whole {
			body = append(body[:400:400], "..."...)
		}
		note += " " + string(body)
	}
	f.mu.Lock()
	if len(f.requests) == 0 || f.requests[len(f.requests)-1] != note {
		f.requests = append(f.requests, note)
	}
	answer, ok := f.answers[line]
	f.mu.Unlock()
	if fn, is := answer.(func(*http.Request) any); is {
		answer = fn(r)
	}
	if fail, is := answer.(failure); is {
		http.Error(w, fail.msg, fail.status)
		return
	}
	if !ok {
		http.Error(w, "no answer for "+line, http.StatusNotFound)
		return
	}
	w.Header().Set("X-Nomad-Index", "42")
	w.Header().Set("X-Nomad-LastContact", "0")
	w.Header().Set("X-Nomad-KnownLeader", "true")
	switch v := answer.(type) {
	case nil:
	case string: // as it is
		_, _ = io.WriteString(w, v)
	default:
		_ = json.NewEncoder(w).Encode(v)
	}
}

// cli runs a command line against the fake.
type result struct {
	code        int
	out, errOut string
}

func (f *agentFake) run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	for _, k := range []string{"ADDR", "TOKEN", "NAMESPACE", "REGION", "CACERT", "CLIENT_CERT", "CLIENT_KEY", "SKIP_VERIFY", "CLI_NO_COLOR", "CLI_FORCE_COLOR"} {
		t.Setenv("MUSTER_"+k, "")
		t.Setenv("NOMAD_"+k, "")
	}
	t.Setenv("MUSTER_ADDR", f.URL)
	var out, errOut bytes.Buffer
	e := &env{in: strings.NewReader(stdin), out: &out, err: &errOut, tty: f.tty, asks: f.tty, now: func() time.Time { return fixedNow }}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	code := e.main(ctx, append([]string{"muster"}, args...))
	clean := func(b []byte) string { return strings.ReplaceAll(string(b), f.URL, "http://AGENT") }
	return result{code, clean(out.Bytes()), clean(errOut.Bytes())}
}

func (f *agentFake) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.requests, "\n")
}

// jobPrefix answers a list of jobs as the servers would: by prefix.
func jobPrefix(list ...*wire.JobListStub) func(*http.Request) any {
	return func(r *http.Request) any {
		out := []*wire.JobListStub{}
		for _, j := range list {
			if strings.HasPrefix(j.ID, r.URL.Query().Get("prefix")) {
				out = append(out, j)
			}
		}
		return out
	}
}

func prefixed[T any](id func(T) string, list ...T) func(*http.Request) any {
	return func(r *http.Request) any {
		out := []T{}
		for _, v := range list {
			if strings.HasPrefix(id(v), r.URL.Query().Get("prefix")) {
				out = append(out, v)
			}
		}
		return out
	}
}

// frame is a piece of a log, as the API sends it.
func frame(s string) string { return frameAt(s, 0) }

func frameAt(s string, at int64) string {
	b, _ := json.Marshal(wire.StreamFrame{File: "alloc/logs/greet.stdout.0", Data: []byte(s), Time: at})
	return string(b) + "\n"
}

func canned() map[string]any {
	job := &wire.Job{
		ID: ptr("example"), Name: ptr("example"), Namespace: ptr("default"), Type: ptr("service"), Priority: ptr(50), Datacenters: []string{"*"}, NodePool: ptr("default"),
		Status: ptr("running"), SubmitTime: ptr(ago(time.Hour)), Version: ptr(uint64(3)), JobModifyIndex: ptr(uint64(17)), Stable: ptr(true), Submitter: &wire.Submitter{Name: "alice"},
		TaskGroups: []*wire.TaskGroup{{Name: ptr("hello"), Count: ptr(2), Tasks: []*wire.Task{{Name: "greet", Driver: "raw_exec"}}}},
	}
	old := *job
	old.Version, old.Stable, old.SubmitTime, old.VersionTag = ptr(uint64(2)), ptr(false), ptr(ago(2*time.Hour)), &wire.JobVersionTag{Name: "known-good"}
	stub := &wire.JobListStub{ID: "example", Name: "example", Namespace: "default", Type: "service", Priority: 50, Status: "running", SubmitTime: ago(time.Hour), Version: 3, JobModifyIndex: 17}
	pair := &wire.JobListStub{ID: "pair", Name: "pair", Namespace: "default", Type: "batch", Priority: 50, Status: "running", SubmitTime: ago(time.Minute)}
	train := &wire.JobListStub{ID: "train", Name: "train", Namespace: "default", Type: "batch", Priority: 60, Status: "pending", SubmitTime: ago(14 * time.Minute)}
	trial := &wire.JobListStub{ID: "trial", Name: "trial", Namespace: "default", Type: "batch", Priority: 50, Status: "dead", Stop: true, SubmitTime: ago(50 * time.Minute)}
	nightly := &wire.JobListStub{ID: "nightly", Name: "nightly", Namespace: "default", Type: "batch", Priority: 50, Status: "running", Periodic: true, SubmitTime: ago(50 * time.Minute)}
	sweep := &wire.JobListStub{ID: "sweep", Name: "sweep", Namespace: "default", Type: "batch", Priority: 50, Status: "running", ParameterizedJob: true, SubmitTime: ago(50 * time.Minute)}

	resources := &wire.AllocatedResources{
		Tasks: map[string]*wire.AllocatedTaskResources{"greet": {Cpu: wire.AllocatedCpuResources{CpuShares: 50}, Memory: wire.AllocatedMemoryResources{MemoryMB: 32},
			Devices: []*wire.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: []string{"GPU-1"}}}}},
		Shared: wire.AllocatedSharedResources{DiskMB: 300, Ports: []wire.PortMapping{{Label: "http", Value: 20123, HostIP: "10.0.0.1"}}},
	}
	states := map[string]*wire.TaskState{"greet": {State: "running", StartedAt: fixedNow.Add(-50 * time.Minute), Events: []*wire.TaskEvent{
		{Type: "Received", Time: ago(51 * time.Minute), DisplayMessage: "Task received by client"}, {Type: "Started", Time: ago(50 * time.Minute), DisplayMessage: "Task started by client"}}}}
	failedStates := map[string]*wire.TaskState{"greet": {State: "dead", Failed: true, Restarts: 2, Events: []*wire.TaskEvent{{Type: "Terminated", Time: ago(40 * time.Minute), DisplayMessage: "Exit Code: 1"}}}}
	metrics := &wire.AllocationMetric{NodesInPool: 2, NodesEvaluated: 2, NodePool: "default", ScoreMetaData: []*wire.NodeScoreMeta{
		{NodeID: nodeA, Scores: map[string]float64{"binpack": 0.8, "job-anti-affinity": 0}, NormScore: 0.8}, {NodeID: nodeB, Scores: map[string]float64{"binpack": 0.5}, NormScore: 0.5}}}
	full := func(id, client string, st map[string]*wire.TaskState) *wire.Allocation {
		return &wire.Allocation{ID: id, Namespace: "default", EvalID: evalA, Name: "example.hello[0]", NodeID: nodeA, NodeName: "gpu-01", JobID: "example", Job: job, TaskGroup: "hello", AllocatedResources: resources,
			Metrics: metrics, DesiredStatus: "run", ClientStatus: client, TaskStates: st, CreateIndex: 18, CreateTime: ago(time.Hour), ModifyTime: ago(50 * time.Minute), JobVersion: 3}
	}
	alloc, failed := full(allocA, "running", states), full(allocB, "failed", failedStates)
	stubOf := func(a *wire.Allocation) *wire.AllocationListStub {
		return &wire.AllocationListStub{ID: a.ID, EvalID: a.EvalID, Name: a.Name, Namespace: "default", NodeID: a.NodeID, NodeName: a.NodeName, JobID: a.JobID, JobVersion: 3, TaskGroup: a.TaskGroup, AllocatedResources: a.AllocatedResources,
			DesiredStatus: a.DesiredStatus, ClientStatus: a.ClientStatus, TaskStates: a.TaskStates, CreateIndex: a.CreateIndex, CreateTime: a.CreateTime, ModifyTime: a.ModifyTime}
	}
	allocs := []*wire.AllocationListStub{stubOf(alloc), stubOf(failed)}

	short := &wire.AllocationMetric{NodesEvaluated: 2, NodesInPool: 2, NodesExhausted: 2, NodePool: "default", NodesAvailable: map[string]int{"dc1": 2, "dc2": 0}, CoalescedFailures: 15, Reason: "RESOURCES",
		Refusals: []wire.Refusal{{Code: structs.ReasonResources, Dimension: structs.DimensionGPU, Subject: "nvidia/gpu/H100", Nodes: 2, Short: 3, Unit: structs.UnitDevices, CuredBy: structs.EventAllocStopped}, {Code: structs.ReasonConstraint, Dimension: structs.DimensionConstraint, Subject: "${attr.kernel.name} = linux", Nodes: 1, CuredBy: structs.EventNodeJoined}}}
	done := &wire.Evaluation{ID: evalA, Priority: 50, Type: "service", TriggeredBy: "job-register", Namespace: "default", JobID: "example", Status: "complete", CreateIndex: 17, CreateTime: ago(time.Hour), ModifyTime: ago(time.Hour)}
	stuck := &wire.Evaluation{ID: evalB, Priority: 60, Type: "batch", TriggeredBy: "job-register", Namespace: "default", JobID: "train", Status: "complete", BlockedEval: evalA, FailedTGAllocs: map[string]*wire.AllocationMetric{"work": short}, CreateIndex: 19, CreateTime: ago(14 * time.Minute), ModifyTime: ago(14 * time.Minute)}

	gpu := func(prefix string, n, sick int) []*wire.NodeDeviceResource {
		g := &wire.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for i := range n {
			g.Instances = append(g.Instances, &wire.NodeDevice{ID: fmt.Sprintf("%s%d", prefix, i), Healthy: i >= sick, MemoryMB: 81920})
		}
		return []*wire.NodeDeviceResource{g}
	}
	nodeRes := func(prefix string, n, sick int) *wire.NodeResources {
		return &wire.NodeResources{Cpu: wire.NodeCpuResources{CpuShares: 8000, TotalCpuCores: 4}, Memory: wire.NodeMemoryResources{MemoryMB: 16384}, Disk: wire.NodeDiskResources{DiskMB: 100000}, Devices: gpu(prefix, n, sick)}
	}
	drivers := map[string]*wire.DriverInfo{"exec": {Detected: true, Healthy: true}, "raw_exec": {Detected: true, Healthy: true}, "docker": {}}
	nodes := []*wire.NodeListStub{
		{ID: nodeA, Name: "gpu-01", Datacenter: "dc1", NodePool: "default", SchedulingEligibility: "eligible", Status: "ready", Version: "0.1.0", Address: "10.0.0.1", NodeResources: nodeRes("GPU-", 4, 0)},
		{ID: nodeB, Name: "gpu-02", Datacenter: "dc1", NodePool: "default", NodeClass: "big", SchedulingEligibility: "eligible", Status: "down", Version: "0.1.0", Address: "10.0.0.2", NodeResources: nodeRes("GPU-b", 4, 1)},
	}
	node := &wire.Node{ID: nodeA, Name: "gpu-01", Datacenter: "dc1", NodePool: "default", SchedulingEligibility: "eligible", Status: "ready", Drivers: drivers, NodeResources: nodeRes("GPU-", 2, 0), Attributes: map[string]string{"kernel.name": "linux"},
		Reliability: &wire.NodeReliability{ReadyTime: int64(90 * time.Minute), ExpectedLoss: int64(217 * 24 * time.Hour), TypicalLoss: int64(4500 * time.Hour)},
		Meta:        map[string]string{"rack": "r7"}, Events: []*wire.NodeEvent{{Message: "Node registered", Subsystem: "Cluster", Timestamp: fixedNow.Add(-2 * time.Hour)}}}
	token := &wire.ACLToken{AccessorID: tokenID, SecretID: "d8f1f9a0-0000-4000-8000-00000000beef", Name: "alice", Type: "client", Policies: []string{"readers"}, CreateTime: fixedNow.Add(-time.Hour), CreateIndex: 7, ModifyIndex: 7}
	plan := &wire.JobPlanResponse{JobModifyIndex: 17, LostGPUSeconds: 5400, Annotations: &wire.PlanAnnotations{DesiredTGUpdates: map[string]*wire.DesiredUpdates{"hello": {Place: 1, DestructiveUpdate: 1}},
		PreemptedAllocs: []*wire.AllocationListStub{{ID: allocB, JobID: "sweep", TaskGroup: "g", NodeName: "gpu-01", DesiredStatus: "evict", DesiredDescription: "preempted by job example (priority 50): 120 GPU seconds are lost, worth less than the 3600 gained"}}},
		Diff: &wire.JobDiff{Type: "Edited", ID: "example", TaskGroups: []*wire.TaskGroupDiff{{Type: "Edited", Name: "hello", Fields: []*wire.FieldDiff{{Type: "Edited", Name: "Count", Old: "1", New: "2", Annotations: []string{"forces create"}}},
			Updates: map[string]uint64{"create": 1, "create/destroy update": 1}, Tasks: []*wire.TaskDiff{{Type: "Edited", Name: "greet", Annotations: []string{"forces create/destroy update"}, Fields: []*wire.FieldDiff{{Type: "Added", Name: "User", New: "nobody"}},
				Objects: []*wire.ObjectDiff{{Type: "Edited", Name: "Resources", Fields: []*wire.FieldDiff{{Type: "Edited", Name: "CPU", Old: "50", New: "100"}, {Type: "None", Name: "MemoryMB", Old: "32", New: "32"}}}}}}}}}}
	gpus := func(n float64) *wire.Amount { return &wire.Amount{GPUs: &n} }
	places := []nomadlike.PlannedPlace{
		{Group: "hello", Index: 0, NodeID: nodeA, NodeName: "gpu-01", GPUs: []nomadlike.PlannedGPU{{ID: "GPU-0", Model: "H100", Index: 0}, {ID: "GPU-1", Model: "H100", Index: 1}, {ID: "GPU-3", Model: "H100", Index: 3}}},
		{Group: "hello", Index: 1, NodeID: nodeB, NodeName: "gpu-02", GPUs: []nomadlike.PlannedGPU{{ID: "GPU-b0", Model: "A100", Index: 2, ShareMiB: 20480}, {ID: "MIG-x", Model: "A100 MIG 1g.5gb", Index: -1}}},
	}
	use := []nomadlike.PlannedUse{{Kind: "quota", Name: "team", Before: gpus(2), After: gpus(6), Limit: gpus(4)}, {Kind: "queue", Name: "research", Before: gpus(12), After: gpus(16), Limit: &wire.Amount{GPUs: gpus(16).GPUs, CPU: ptr(int64(4000))}}}
	risk := &nomadlike.PlanRisk{AllocTime: int64(54_000 * time.Hour), Lost: 12, JobTime: int64(2_000 * time.Hour), Preempted: 3, Groups: []nomadlike.GroupRisk{
		{Group: "hello", ExpectedRun: int64(72 * time.Hour), NodeLosses: 0.128, Preemptions: 0.108, LostGPUSeconds: 148_000, CheckpointInterval: int64(4 * time.Hour), BestInterval: int64(52 * time.Minute),
			WorstNode: &nomadlike.WorstNode{NodeID: nodeB, NodeName: "gpu-02", NodeReliability: wire.NodeReliability{ReadyTime: int64(20 * 24 * time.Hour), Lost: 3, ExpectedLoss: int64(52 * 24 * time.Hour), TypicalLoss: int64(4500 * time.Hour)}}}}}
	why := &nomadlike.Why{JobID: "train", Namespace: "default", Status: "pending", Priority: 60, Queue: "default", Reason: "RESOURCES", Waiting: 16, Position: 3, QueueLength: 17, Ahead: []string{"default/vit-large", "default/sweep-42"}, AheadAsks: []nomadlike.Ask{{GPUs: 8}, {GPUs: 0.5, GPUMemoryMiB: 20480}}, Asks: nomadlike.Ask{GPUs: 16, CPU: 1600, MemoryMiB: 32768}, StartEstimate: fixedNow.Add(40 * time.Minute).UnixNano(),
		Advice: &nomadlike.Advice{Changes: []nomadlike.AdviceChange{{Kind: "count", Text: "13 allocations instead of 16"}, {Kind: "node", Text: "one more node like gpu-01"}}}, SubmitTime: ago(14 * time.Minute), EvalID: evalB,
		Groups: []nomadlike.WhyGroup{{Name: "work", Reason: "RESOURCES", Wanted: 16, InPool: 2, Considered: 2, Filtered: 1, Exhausted: 1, Available: map[string]int64{"dc1": 2},
			Refusals: []nomadlike.Refusal{{Code: structs.ReasonResources, Dimension: structs.DimensionGPU, Subject: "nvidia/gpu/H100", Nodes: 2, Short: 3, Unit: structs.UnitDevices, CuredBy: structs.EventAllocStopped}, {Code: structs.ReasonResources, Dimension: structs.DimensionMemory, Nodes: 1, Short: 2048, Unit: structs.UnitMiB, CuredBy: structs.EventAllocStopped}}}}}
	ev := func(extra any) any {
		m := map[string]any{"EvalID": evalA, "EvalCreateIndex": 17, "JobModifyIndex": 17, "Index": 17}
		if extra != nil {
			b, _ := json.Marshal(extra)
			_ = json.Unmarshal(b, &m)
		}
		return m
	}
	queues := []nomadlike.QueueState{{Queue: wire.Queue{Path: "default", Weight: 1}, Held: gpus(2), Jobs: 1},
		{Queue: wire.Queue{Path: "research", Description: "all of research", Weight: 3, Guarantee: gpus(8), Limit: gpus(16)}, Held: gpus(12), Share: 0.25, Part: 0.75, Target: 0.6, Jain: 0.8, Oldest: int64(14*time.Minute + 3*time.Second + 5), Preemptions: 4, Lost: nomadlike.QueueLoss{Preempt: 9000, Node: 1800}, Jobs: 3, Waiting: 2, Submitted: 6,
			Users: []nomadlike.QueueUser{{Name: "ann", Weight: 2, Held: gpus(12), Mean: gpus(3), Share: 0.375, Part: 0.75, Target: 0.4, Jobs: 3}, {Name: "bob", Weight: 1, Target: 0.2, Waiting: 2, Oldest: int64(14*time.Minute + 3*time.Second + 5), Preempted: 3, Lost: nomadlike.QueueLoss{Preempt: 9000, Node: 1800}}}}}
	for i := range queues {
		queues[i].Effective.Order, queues[i].Effective.Backfill, queues[i].Effective.Preempt = "adaptive", "easy-sjf", "order"
		wait := wire.TextDuration(24 * time.Hour)
		queues[i].Effective.MaxWait = &wait
		queues[i].Effective.PriorityMax, queues[i].Effective.UserPriorityMax = 60, map[string]int64{"ann": 90}
	}
	dbMeta := wire.VariableMetadata{Namespace: "default", Path: "app/db", CreateIndex: 5, ModifyIndex: 7, CreateTime: ago(time.Hour), ModifyTime: ago(time.Minute)}
	db := &wire.Variable{VariableMetadata: dbMeta, Items: map[string]string{"user": "me", "password": "p\"w"}}
	taken := failure{409, `{"Namespace":"default","Path":"app/taken","CreateIndex":5,"CreateTime":1,"ModifyIndex":9,"ModifyTime":1,"Items":{"password":"HIDDEN"}}`}
	quota := &wire.QuotaSpec{Name: "team", Description: "the team", Limits: []*wire.QuotaLimit{{Region: "global", RegionLimit: &wire.QuotaResources{CPU: ptr(4000), MemoryMB: ptr(8192), Devices: []*wire.QuotaDevice{{Name: "nvidia/gpu", Count: ptr(uint64(8))}}}}}, CreateIndex: 7, ModifyIndex: 9}
	course := &wire.Reservation{ID: "course", NodePool: "default", Start: fixedNow.Add(time.Hour), End: fixedNow.Add(5 * time.Hour), Amount: gpus(8), Users: []string{"teacher"}, Queues: []string{"teaching"}, CreateIndex: 11, ModifyIndex: 11}
	evalID := func(e *wire.Evaluation) string { return e.ID }
	return map[string]any{
		"GET /v1/jobs":  jobPrefix(stub, train, trial, pair, nightly, sweep),
		"PUT /v1/jobs":  ev(map[string]any{"Warnings": "1 warning:\n\n* group hello: something odd"}),
		"GET /v1/queue": []nomadlike.QueueItem{{Position: 1, JobID: "train", Namespace: "default", User: "bob", NodePool: "default", Priority: 60, Waiting: 16, Reason: "RESOURCES", SubmitTime: ago(14 * time.Minute), GPUs: 16, CPU: 1600, MemoryMiB: 32768, Model: "H100", StartEstimate: fixedNow.Add(40 * time.Minute).UnixNano()}},

		"GET /v1/queues": queues, "GET /v1/queue/research": queues[1], "PUT /v1/queues": map[string]any{"Warnings": []string{"the guarantees of all queues together exceed what the ready nodes have of GPUs"}},
		"DELETE /v1/queue/research/nlp": nil, "DELETE /v1/queue/research": failure{409, "queue \"research\" has children: research/nlp"}, "GET /v1/queue/nothing": failure{404, "queue \"nothing\" not found"},
		"GET /v1/vars": []*wire.VariableMetadata{&dbMeta}, "GET /v1/var/app/db": db, "PUT /v1/var/app/db": db, "DELETE /v1/var/app/db": nil, "GET /v1/var/app/nothing": failure{404, "variable not found"},
		"PUT /v1/var/app/taken": taken, "DELETE /v1/var/app/taken": taken,
		"GET /v1/quotas": []*wire.QuotaSpec{quota}, "GET /v1/quota/team": quota, "PUT /v1/quota": nil, "DELETE /v1/quota/team": nil, "DELETE /v1/quota/nothing": failure{404, "quota specification not found"}, "GET /v1/quota/nothing": failure{404, "quota specification not found"},
		"GET /v1/quota/usage/team":   &wire.QuotaUsage{Name: "team", Namespaces: []string{"ml", "vision"}, Used: map[string]*wire.QuotaLimit{"global": {Region: "global", RegionLimit: &wire.QuotaResources{CPU: ptr(1500), MemoryMB: ptr(2048), Devices: []*wire.QuotaDevice{{Name: "nvidia/gpu", Count: ptr(uint64(3))}}}}}},
		"GET /v1/reservations":       []*wire.Reservation{course, {ID: "job/default/train", NodePool: "default", Namespace: "default", JobID: "train", Start: fixedNow.Add(40 * time.Minute), Basis: "limit", Nodes: []string{nodeA, nodeB}, Allocations: 16}},
		"GET /v1/reservation/course": course, "PUT /v1/reservations": nil, "DELETE /v1/reservation/course": nil, "DELETE /v1/reservation/nothing": failure{404, "reservation not found"},

		"GET /v1/acct": []nomadlike.AcctRecord{
			{ID: evalA, Namespace: "default", JobID: "prep", User: "bob", Queue: "research", NodePool: "default", Priority: 50, Type: "batch", SubmitTime: ago(3 * time.Hour), StartTime: ago(2 * time.Hour), EndTime: ago(time.Hour), Allocs: 2, GPUs: 8, CPU: 16000, MemoryMiB: 65536, GPUSeconds: 28800, CPUSeconds: 57600, GPUUse: &wire.GPUUse{PeakMiB: 73728, MiBSeconds: 1 << 28, SMSeconds: 23040, EnergyJoules: 1.8e7, Refused: 1}, Longest: int64(time.Hour), Limit: int64(6 * time.Hour), Exit: "success"},
			{ID: evalB, Namespace: "ml", JobID: "sweep", User: "alice", Queue: "research/nlp", NodePool: "default", Priority: 70, Type: "batch", SubmitTime: ago(2 * time.Hour), StartTime: ago(100 * time.Minute), EndTime: ago(50 * time.Minute), Allocs: 5, GPUs: 0.5, CPU: 100, MemoryMiB: 256, GPUSeconds: 1500, CPUSeconds: 300, Preemptions: 2, Exit: "failed", ExitCode: 137},
			{ID: evalB, Namespace: "default", JobID: "never", User: "bob", Queue: "research", NodePool: "default", Priority: 50, Type: "batch", SubmitTime: ago(2 * time.Hour), EndTime: ago(time.Hour), GPUs: 64, Exit: "stopped"}},
		"GET /v1/decisions": []nomadlike.Decision{
			{Seq: 41, Index: 17, Time: ago(time.Hour), Namespace: "default", JobID: "train", EvalID: evalA, Kind: "gang", Places: 16, Nodes: 2, NodeID: nodeA, Queue: "default", Wait: int64(90 * time.Second), Score: 0.8125},
			{Seq: 42, Index: 19, Time: ago(time.Minute), Namespace: "ml", JobID: "sweep", EvalID: evalB, Kind: "stop", Stops: 3, Nodes: 1, NodeID: nodeB, Queue: "research/nlp"},
			{Seq: 43, Index: 20, Time: ago(time.Second), Namespace: "default", JobID: "urgent", EvalID: evalB, Kind: "preempt", Places: 8, Stops: 8, Nodes: 1, NodeID: nodeB, Queue: "default", Policy: "adaptive/easy-sjf/order/strand", Reason: "job-register", Actor: "alice",
				Victims: []nomadlike.DecisionVictim{{Namespace: "default", JobID: "train", Allocs: 7, AllocID: allocA, LostGPUSeconds: 70, Why: "preempted by job urgent: 70 GPU seconds are lost"}, {Namespace: "ml", JobID: "sweep", Allocs: 1, AllocID: allocB, Why: "preempted by job urgent: 70 GPU seconds are lost"}}}},

		"GET /v1/job/example": job, "GET /v1/job/train": &wire.Job{ID: ptr("train"), Name: ptr("train"), Type: ptr("batch"), Priority: ptr(60), Datacenters: []string{"*"}, NodePool: ptr("default"), Status: ptr("pending"), SubmitTime: ptr(ago(14 * time.Minute))},
		"DELETE /v1/job/example": ev(nil), "PUT /v1/job/example/plan": &nomadlike.Plan{JobPlanResponse: *plan, Risk: risk, Places: places, MorePlaces: 3, Use: use}, "PUT /v1/job/train/plan": &nomadlike.Plan{Why: why, JobPlanResponse: wire.JobPlanResponse{
			FailedTGAllocs: map[string]*wire.AllocationMetric{"work": {CoalescedFailures: 15}}, Suggestions: []string{"13 allocations instead of 16"}}},
		"PUT /v1/job/example/evaluate": ev(nil), "PUT /v1/job/example/hold": ev(nil), "PUT /v1/job/example/priority": ev(nil), "PUT /v1/job/train/priority": failure{409, "job \"train\" has ended; its priority cannot be changed"}, "PUT /v1/job/example/release": ev(nil), "PUT /v1/job/example/requeue": ev(nil), "PUT /v1/job/example/retry": ev(nil), "PUT /v1/job/example/revert": ev(nil), "PUT /v1/job/example/scale": ev(nil),
		"PUT /v1/job/example/checkpoint": map[string]any{"Allocations": []nomadlike.AllocCheckpoint{
			{AllocID: allocA, Name: "example.hello[0]", Group: "hello", NodeID: nodeA, NodeName: "n1", NodeRank: 0, Told: true, Tasks: []string{"greet"}, How: "signal SIGUSR1", At: 1, Grace: int64(time.Second)},
			{AllocID: allocB, Name: "example.hello[1]", Group: "hello", NodeID: nodeB, NodeName: "n2", NodeRank: 1, Error: "node " + nodeB + " is not connected to any server"}}},
		"GET /v1/job/pair":         &wire.Job{ID: ptr("pair"), Name: ptr("pair"), Type: ptr("batch"), Priority: ptr(50), Datacenters: []string{"*"}, NodePool: ptr("default"), Status: ptr("running"), SubmitTime: ptr(ago(time.Minute)), TaskGroups: []*wire.TaskGroup{{Name: ptr("g"), Gang: &wire.Gang{}}}},
		"GET /v1/job/pair/summary": &wire.JobSummary{JobID: "pair", Summary: map[string]wire.TaskGroupSummary{"g": {Running: 1, Starting: 1}}}, "GET /v1/job/pair/evaluations": []any{}, "GET /v1/job/pair/allocations": []any{},
		"GET /v1/job/pair/gangs": []nomadlike.Gang{
			{Group: "g", State: "assembling", Running: 1, Asked: 4, Min: 2, Max: 8, Epoch: 3, Restarts: 1, Checkpoint: &nomadlike.GangCheckpoint{Complete: &wire.SavedCheckpoint{Time: ago(10 * time.Minute), Bytes: 3 << 30, Path: "/ckpt/step-100"}, Parts: 2, Newer: 1}, Resizes: &nomadlike.GangResizes{Grown: 2, Shrunk: 1, Time: ago(5 * time.Minute), From: 3, To: 2}, Reason: "member_lost", MasterAddr: "10.0.0.1", MasterPort: 29500, WorldSize: 16, Deadline: fixedNow.Add(90 * time.Second).UnixNano(), AvoidNodes: []string{nodeB},
				Members: []nomadlike.GangMember{{AllocID: allocA, NodeName: "n1", Address: "10.0.0.1", Ranks: 8, GPUs: 8, Status: "running", StartTime: ago(12 * time.Second)}, {AllocID: allocB, NodeName: "n2", Address: "10.0.0.2", NodeRank: 1, FirstRank: 8, Ranks: 8, GPUs: 8, Status: "pending", Event: "Downloading image"}},
				Missing: []nomadlike.GangMissing{{Members: 1, NodeRank: 1, NodeName: "n2", Why: "pending: Downloading image"}, {Members: 2, NodeRank: -1, Report: &nomadlike.WhyGroup{Name: "g", Reason: "RESOURCES", Refusals: []nomadlike.Refusal{{Code: structs.ReasonResources, Dimension: structs.DimensionGrowth, Short: 2, Unit: structs.UnitMembers}}}}}},
			{Group: "h", State: "waiting", Asked: 2, Min: 2, Max: 2, Missing: []nomadlike.GangMissing{{Members: 2, NodeRank: -1, Report: &nomadlike.WhyGroup{Name: "h", Reason: "GANG", Refusals: []nomadlike.Refusal{{Code: structs.ReasonGang, Dimension: structs.DimensionMembers, Count: 1, Of: 2, Short: 1, Unit: structs.UnitMembers}, {Code: structs.ReasonResources, Dimension: structs.DimensionGPU, Subject: "nvidia/gpu", Nodes: 2, Short: 3, Unit: structs.UnitDevices}}}}}}},
		"PUT /v1/job/train/checkpoint": failure{422, "job \"train\" has no checkpoint block"},
		"GET /v1/job/example/scale":    &wire.JobScaleStatusResponse{JobID: "example", TaskGroups: map[string]wire.TaskGroupScaleStatus{"hello": {Desired: 2}}},
		"GET /v1/job/example/summary":  &wire.JobSummary{JobID: "example", Summary: map[string]wire.TaskGroupSummary{"hello": {Running: 1, Failed: 1}}},
		"GET /v1/job/train/summary":    &wire.JobSummary{JobID: "train", Summary: map[string]wire.TaskGroupSummary{"work": {Queued: 16}}},
		"GET /v1/job/example/why":      &nomadlike.Why{JobID: "example", Namespace: "default", Status: "running", Priority: 50, Summary: &wire.JobSummary{Summary: map[string]wire.TaskGroupSummary{"hello": {Running: 2}}}}, "GET /v1/job/train/why": why,
		"GET /v1/job/example/allocations": allocs, "GET /v1/job/train/allocations": []any{}, "GET /v1/job/example/evaluations": []*wire.Evaluation{done}, "GET /v1/job/train/evaluations": []*wire.Evaluation{stuck},
		"GET /v1/job/example/deployments": []any{}, "GET /v1/job/example/deployment": "null",
		"GET /v1/job/example/versions":   &wire.JobVersionsResponse{Versions: []*wire.Job{job, &old}, Diffs: []*wire.JobDiff{{Type: "Edited", ID: "example", Fields: []*wire.FieldDiff{{Type: "Edited", Name: "Priority", Old: "40", New: "50"}}}}},
		"GET /v1/job/example/submission": &wire.JobSubmission{Source: "job \"example\" {}\n", Format: "hcl2"}, "PUT /v1/job/example/versions/good/tag": map[string]any{"Name": "good"}, "DELETE /v1/job/example/versions/good/tag": nil,
		"PUT /v1/job/nightly/periodic/force": ev(nil), "PUT /v1/job/sweep/dispatch": ev(map[string]any{"DispatchedJobID": "sweep/dispatch-1"}),
		"PUT /v1/validate/job": &wire.JobValidateResponse{DriverConfigValidated: true},

		"GET /v1/allocations": prefixed(func(s *wire.AllocationListStub) string { return s.ID }, allocs...), "GET /v1/allocation/" + allocA: alloc, "GET /v1/allocation/" + allocB: failed, "PUT /v1/allocation/" + allocA + "/stop": ev(nil),
		"GET /v1/top": &nomadlike.Top{Time: fixedNow.UnixNano(), Unread: 3, Nodes: []nomadlike.TopNode{{ID: nodeA, Name: "gpu-01", Status: "ready", GPUs: []nomadlike.TopGPU{{ID: "GPU-1", Model: "H100", MemoryMiB: 81559}}}}, Allocs: []nomadlike.TopAlloc{
			{ID: allocB, JobID: "web", Namespace: "default", NodeID: nodeA, NodeName: "gpu-01", Status: "running", Suspension: "suspended", Tasks: []nomadlike.TopTask{{Name: "serve", CPUPercent: 3, Memory: 5 << 20}}},
			{ID: allocA, JobID: "example", Namespace: "default", NodeID: nodeA, NodeName: "gpu-01", Status: "running", GPUs: []nomadlike.TopGrant{{ID: "GPU-1", Model: "H100"}},
				Tasks: []nomadlike.TopTask{{Name: "greet", CPUPercent: 12.4, Memory: 4 << 20, GPUs: []nomadlike.TopTaskGPU{{ID: "GPU-1", MemoryMiB: 2048, ShareMiB: 81559, PeakMiB: 4096, SMMillis: 61_000, EnergyMJ: 90_000, Refused: 1}}}}}}},
		"GET /v1/client/allocation/" + allocA + "/stats":   &wire.AllocResourceUsage{Tasks: map[string]*wire.TaskResourceUsage{"greet": {ResourceUsage: &wire.ResourceUsage{MemoryStats: &wire.MemoryStats{RSS: 3 << 20, Usage: 4 << 20}, CpuStats: &wire.CpuStats{TotalTicks: 12, Percent: 0.5}}}}},
		"PUT /v1/client/allocation/" + allocA + "/restart": map[string]any{"Index": 0}, "PUT /v1/client/allocation/" + allocA + "/signal": map[string]any{"Index": 0}, "GET /v1/client/allocation/" + allocA + "/checks": map[string]*wire.CheckStatus{"c1": {ID: "c1", Check: "alive", Group: "hello", Mode: "healthiness", Service: "llm", Status: "success", StatusCode: 200, Output: "fine"}},
		"GET /v1/services": []*wire.ServicesOfNamespace{{Namespace: "default", Services: []*wire.ServiceStub{{ServiceName: "llm", Tags: []string{"gpu", "v1"}}, {ServiceName: "web", Tags: []string{}}}}},
		"GET /v1/service/llm": []*wire.ServiceRegistration{
			{ID: "reg-1", ServiceName: "llm", Namespace: "default", NodeID: nodeA, JobID: "example", AllocID: allocA, Tags: []string{"gpu"}, Address: "10.0.0.1", Port: 8000, Health: "passing"},
			{ID: "reg-2", ServiceName: "llm", Namespace: "default", NodeID: nodeA, JobID: "example", AllocID: allocB, Tags: []string{}, Address: "10.0.0.1", Port: 8001},
		},
		"GET /v1/service/nobody": []any{}, "DELETE /v1/service/llm/reg-1": nil,
		"GET /v1/client/fs/logs/" + allocA: frame("one\ntwo\n") + "{}\n" + frame("three\n"),
		"GET /v1/client/fs/ls/" + allocA:   []*wire.AllocFileInfo{{Name: "alloc", IsDir: true, Size: 4096, FileMode: "drwxrwxrwx", ModTime: fixedNow}, {Name: "note.txt", Size: 12, FileMode: "-rw-r--r--", ModTime: fixedNow}},
		"GET /v1/client/fs/stat/" + allocA: func(r *http.Request) any {
			return &wire.AllocFileInfo{Name: "x", IsDir: r.URL.Query().Get("path") == "/", Size: 12, FileMode: "-rw-r--r--", ModTime: fixedNow}
		},
		"GET /v1/client/fs/cat/" + allocA: "file content\n",

		"GET /v1/evaluations": prefixed(evalID, done, stuck), "GET /v1/evaluation/" + evalA: done, "GET /v1/evaluation/" + evalB: stuck, "GET /v1/evaluation/" + evalA + "/allocations": allocs[:1], "GET /v1/evaluation/" + evalB + "/allocations": []any{},
		"GET /v1/evaluations/count": map[string]any{"Count": 2}, "DELETE /v1/evaluations": map[string]any{"Count": 1},

		"GET /v1/nodes": prefixed(func(n *wire.NodeListStub) string { return n.ID }, nodes...), "GET /v1/node/" + nodeA: node, "GET /v1/node/" + nodeA + "/allocations": []*wire.Allocation{alloc},
		"PUT /v1/node/" + nodeA + "/drain": map[string]any{"NodeModifyIndex": 20}, "PUT /v1/node/" + nodeA + "/eligibility": map[string]any{"NodeModifyIndex": 20}, "PUT /v1/node/" + nodeA + "/taints": map[string]any{"NodeModifyIndex": 20}, "PUT /v1/node/" + nodeA + "/purge": map[string]any{"NodeModifyIndex": 20},
		"GET /v1/client/stats":    &wire.HostStats{Memory: &wire.HostMemoryStats{Total: 16 << 30, Used: 2 << 30}, Uptime: 3700, CPUTicksConsumed: 120},
		"GET /v1/client/metadata": &wire.NodeMetaResponse{Meta: map[string]string{"rack": "r7"}, Dynamic: map[string]*string{"rack": ptr("r7")}, Static: map[string]string{}}, "PUT /v1/client/metadata": &wire.NodeMetaResponse{},
		"GET /v1/node/pools": []*wire.NodePool{{Name: "all", Description: "every node"}, {Name: "default"}}, "GET /v1/node/pool/default": &wire.NodePool{Name: "default"}, "PUT /v1/node/pools": nil, "DELETE /v1/node/pool/a100": nil,
		"GET /v1/node/pool/default/nodes": nodes, "GET /v1/node/pool/default/jobs": []*wire.JobListStub{stub},

		"GET /v1/agent/members": &wire.ServerMembers{Members: []*wire.AgentMember{{Name: "s1.global", Addr: "10.0.0.1", Port: 4648, Status: "alive", Tags: map[string]string{"region": "global", "dc": "dc1", "port": "4647", "build": "2.0.6", "muster": "0.1.0", "formats": "1-2"}},
			{Name: "s2.global", Addr: "10.0.0.2", Port: 4648, Status: "failed", Tags: map[string]string{"region": "global", "dc": "dc1", "port": "4647", "build": "2.0.6", "muster": "0.1.0", "formats": "1-2"}}}},
		"GET /v1/status/leader": "\"10.0.0.1:4647\"", "PUT /v1/agent/join": map[string]any{"num_joined": 1}, "PUT /v1/agent/force-leave": nil,
		"GET /v1/agent/self":    &wire.AgentSelf{Stats: map[string]map[string]string{"client": {"node_id": nodeA}, "raft": {"state": "Leader"}}},
		"GET /v1/agent/monitor": frame("2026-11-20T12:00:00Z [INFO] server: leader\n"), "GET /v1/agent/keyring/list": &wire.KeyringResponse{Keys: map[string]int{"key=": 3, "old=": 3}, PrimaryKeys: map[string]int{"key=": 3}, NumNodes: 3}, "PUT /v1/agent/keyring/use": &wire.KeyringResponse{},

		"GET /v1/operator/raft/configuration": &wire.RaftConfiguration{Servers: []*wire.RaftServer{{ID: tokenID, Node: "s1.global", Address: "10.0.0.1:4647", Leader: true, Voter: true, RaftProtocol: "3"}}}, "DELETE /v1/operator/raft/peer": nil,
		"PUT /v1/operator/raft/transfer-leadership": &wire.LeadershipTransferResponse{From: wire.RaftServer{Address: "10.0.0.1:4647"}, To: wire.RaftServer{Address: "10.0.0.2:4647"}},
		"GET /v1/operator/scheduler/predictions":    &nomadlike.Predictions{Ended: 1200, Predicted: 996, PredictedShare: 0.83, UnderestimatedShare: 0.12, MedianFactor: 1.4, MeanAbsolute: int64(260 * time.Second), RelativeError: 0.21},
		"GET /v1/operator/scheduler/configuration":  &wire.SchedulerConfigurationResponse{SchedulerConfig: &wire.SchedulerConfiguration{SchedulerAlgorithm: structs.AlgorithmDefault, AlgorithmFollowsDefault: true, ModifyIndex: 5}},
		"PUT /v1/operator/scheduler/configuration":  &wire.SchedulerSetConfigurationResponse{Updated: true, Warnings: []string{`TopologyLevels: no node has "rak"`}},
		"GET /v1/operator/autopilot/configuration":  &wire.AutopilotConfiguration{CleanupDeadServers: true, LastContactThreshold: wire.TextDuration(200 * time.Millisecond), ModifyIndex: 6},
		"PUT /v1/operator/autopilot/configuration":  true,
		"GET /v1/operator/autopilot/health":         &wire.OperatorHealthReply{Healthy: true, FailureTolerance: 1, Leader: "s1", Servers: []wire.ServerHealth{{Name: "s1.global", Address: "10.0.0.1:4647", Leader: true, Voter: true, Healthy: true, SerfStatus: "alive", LastIndex: 42, StableSince: fixedNow.Add(-time.Hour)}}},
		"GET /v1/operator/upgrade": &wire.UpgradeStatus{Format: 1, By: "0.1.0", Next: 2, Servers: []wire.UpgradeServer{{Name: "s1.global", Address: "10.0.0.1:4647", Muster: "0.2.0", Formats: "1-2", RPC: 1, Voter: true, Leader: true}},
			Gates: []wire.UpgradeGate{{Name: "request-ids", Allows: "Writes are repeated safely.", Format: 2}}},
		"PUT /v1/operator/upgrade/finish": &wire.UpgradeFinish{Format: 2, Index: 42},
		"GET /v1/operator/state-hash":     map[string]any{"Server": "s1.global", "Index": 42, "Hash": "abcd", "Format": 1},
		"GET /v1/operator/keyring/keys": []*wire.RootKeyMeta{{KeyID: "abcdef0123456789abcdef0123456789", Algorithm: "RS256", State: "active", CreateTime: fixedNow.Add(-time.Hour).UnixNano(), CreateIndex: 8, ModifyIndex: 8}, {KeyID: "0123456789abcdef0123456789abcdef", Algorithm: "aes256-gcm", State: "rekeying", Variables: 7, Missing: []string{"s2"}, Unknown: []string{"s3"}, CreateTime: fixedNow.Add(-time.Hour).UnixNano(), CreateIndex: 9, ModifyIndex: 40},
			{KeyID: "fedcba9876543210fedcba9876543210", Algorithm: "aes256-gcm", State: "active", Variables: 5, CreateTime: fixedNow.UnixNano(), CreateIndex: 40, ModifyIndex: 40}},
		"PUT /v1/operator/keyring/rotate":                                  &wire.RotateResponse{Key: &wire.RootKeyMeta{KeyID: "fedcba9876543210fedcba9876543210", State: "active"}, Index: 40},
		"DELETE /v1/operator/keyring/key/0123456789abcdef0123456789abcdef": nil,
		"GET /v1/metrics":                              map[string]any{"Gauges": []any{}},
		"PUT /v1/system/gc":                            nil,
		"PUT /v1/system/reconcile/summaries":           nil,
		"GET /v1/event/stream":                         `{"Index":17,"Events":[{"Topic":"Job","Type":"JobRegistered","Key":"example","Namespace":"default","Index":17,"Payload":{"Job":{"Status":"pending"}}}]}` + "\n{}\n",
		"GET /v1/deployments":                          []any{},
		"PUT /v1/search":                               &wire.SearchResponse{Matches: map[string][]string{"jobs": {"example"}, "nodes": {}}},
		"GET /v1/namespaces":                           []*wire.Namespace{{Name: "default", Description: "where jobs go"}, {Name: "ml"}},
		"GET /v1/namespace/ml":                         &wire.Namespace{Name: "ml", Quota: "team", MaxPriority: 80, DefaultPriority: 40, Meta: map[string]string{"team": "vision"}},
		"PUT /v1/namespace":                            nil,
		"DELETE /v1/namespace/ml":                      nil,
		"PUT /v1/acl/bootstrap":                        token,
		"GET /v1/acl/tokens":                           []*wire.ACLTokenListStub{{AccessorID: tokenID, Name: "alice", Type: "client"}},
		"PUT /v1/acl/token":                            token,
		"GET /v1/acl/token/" + tokenID:                 token,
		"PUT /v1/acl/token/" + tokenID:                 token,
		"DELETE /v1/acl/token/" + tokenID:              nil,
		"GET /v1/acl/token/self":                       token,
		"GET /v1/acl/policies":                         []*wire.ACLPolicyListStub{{Name: "readers", Description: "may look"}},
		"GET /v1/acl/policy/self":                      []*wire.ACLPolicyListStub{{Name: "readers"}},
		"GET /v1/acl/policy/readers":                   &wire.ACLPolicy{Name: "readers", Rules: "namespace \"default\" { policy = \"read\" }\n"},
		"PUT /v1/acl/policy/readers":                   nil,
		"DELETE /v1/acl/policy/readers":                nil,
		"GET /v1/acl/roles":                            []*wire.ACLRole{{ID: tokenID, Name: "ops", Policies: []*wire.ACLRolePolicyLink{{Name: "readers"}}}},
		"PUT /v1/acl/role":                             &wire.ACLRole{ID: tokenID, Name: "ops", Policies: []*wire.ACLRolePolicyLink{{Name: "readers"}}},
		"GET /v1/acl/role/" + tokenID:                  &wire.ACLRole{ID: tokenID, Name: "ops", Policies: []*wire.ACLRolePolicyLink{{Name: "readers"}}},
		"GET /v1/acl/role/name/ops":                    &wire.ACLRole{ID: tokenID, Name: "ops"},
		"PUT /v1/acl/role/" + tokenID:                  &wire.ACLRole{ID: tokenID, Name: "ops"},
		"DELETE /v1/acl/role/" + url.PathEscape("ops"): nil,
	}
}
