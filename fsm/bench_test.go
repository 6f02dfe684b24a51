package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// cluster is a state with nodes for benchmarks, and what is needed to add to it.
type cluster struct {
	tb    testing.TB
	f     *FSM
	index structs.Index
	seed  uint64
	nodes []structs.PlanNode
}

func newCluster(tb testing.TB, nodes int) *cluster {
	c := &cluster{tb: tb, f: New(Options{}), index: 10}
	for i := range nodes {
		n := &structs.Node{
			ID: structs.DeriveID[structs.NodeID](structs.Seed{1}, "node", "", uint64(i)), SecretID: structs.SecretID{1}, Name: fmt.Sprintf("node-%05d", i),
			Datacenter: "dc1", Attributes: map[string]string{"kernel.name": "linux", "cpu.arch": "amd64"}, Resources: structs.NodeResources{CPU: 64000, MemoryMiB: 262144},
		}
		c.apply(&structs.NodeRegisterCommand{Node: n})
		c.apply(&structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
		c.nodes = append(c.nodes, structs.PlanNode{ID: n.ID, Epoch: c.index})
	}
	return c
}

func (c *cluster) entry(body structs.CommandBody) Entry {
	c.tb.Helper()
	return c.entryBy(body, structs.Submitter{})
}

func (c *cluster) entryBy(body structs.CommandBody, by structs.Submitter) Entry {
	c.tb.Helper()
	c.index++
	c.seed++
	var seed structs.Seed
	binary.BigEndian.PutUint64(seed[:], c.seed)
	data, err := Encode(structs.Command{Time: structs.LogTime(c.index) * 1e6, Seed: seed, By: by, Body: body}, c.f.Snapshot().Format())
	if err != nil {
		c.tb.Fatal(err)
	}
	return Entry{Index: c.index, Data: data}
}

func (c *cluster) apply(body structs.CommandBody) structs.Result {
	c.tb.Helper()
	res, _, _ := c.f.ApplyBatch([]Entry{c.entry(body)})
	if res[0].Err != nil {
		c.tb.Fatal(res[0].Err)
	}
	return res[0]
}

func benchJob(id string, count int) *structs.Job {
	return &structs.Job{
		Namespace: "default", ID: id, Name: id, Type: structs.JobBatch, Priority: 50, Datacenters: []string{"*"}, NodePool: "default",
		Groups: []*structs.Group{{Name: "group", Count: count, Tasks: []*structs.Task{{Name: "task", Driver: "exec", Config: []byte(`{"command":"true"}`),
			Resources: structs.Resources{CPU: 10, MemoryMiB: 10}}}}},
	}
}

// planFor places count allocations of a registered job, spread over the nodes.
func (c *cluster) planFor(id string, eval structs.EvalID, from, count int) *structs.PlanEntry {
	p := &structs.PlanEntry{Namespace: "default", JobID: id, EvalID: eval, SnapshotIndex: c.index, Groups: []structs.GroupName{"group"}}
	used := map[int]int{}
	for i := range count {
		n := (from + i*7) % len(c.nodes)
		at, ok := used[n]
		if !ok {
			at = len(p.Nodes)
			used[n] = at
			p.Nodes = append(p.Nodes, c.nodes[n])
		}
		p.Parts = append(p.Parts, structs.PlanPart{Places: []structs.PlanPlace{{Node: at, Index: i}}})
	}
	p.Evals = []*structs.Evaluation{{ID: eval, Namespace: "default", JobID: id, Type: structs.JobBatch, Priority: 50, Status: structs.EvalComplete, SnapshotIndex: c.index}}
	return p
}

// place registers a job and places its allocations.
func (c *cluster) place(id string, count int) {
	c.tb.Helper()
	res := c.apply(&structs.JobRegisterCommand{Job: benchJob(id, count), Eval: true})
	r := c.apply(c.planFor(id, res.EvalID, int(c.seed)*31, count))
	for _, ok := range r.Plan.Accepted {
		if !ok {
			c.tb.Fatal(r.Plan.Refused)
		}
	}
}

// BenchmarkInsertAlloc applies plans of 30 allocations in batches of 20 entries onto a state of 100,000 allocations on
// 5,000 nodes. Goal: at most 14 us per allocation, decoding, hashing and publishing included.
func BenchmarkInsertAlloc(b *testing.B) {
	c := newCluster(b, 5000)
	for i := range 100 {
		c.place(fmt.Sprintf("old-%d", i), 1000)
	}
	const jobs, count = 20, 30
	allocs := 0
	var spent time.Duration
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		var batch []Entry
		for i := range jobs {
			id := fmt.Sprintf("new-%d-%d", n, i)
			res := c.apply(&structs.JobRegisterCommand{Job: benchJob(id, count), Eval: true})
			batch = append(batch, c.entry(c.planFor(id, res.EvalID, n*601+i*97, count)))
		}
		b.StartTimer()
		start := time.Now()
		res, _, _ := c.f.ApplyBatch(batch)
		spent += time.Since(start)
		allocs += jobs * count
		if !res[0].Plan.Accepted[0] {
			b.Fatal(res[0].Plan.Refused)
		}
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(allocs), "us/alloc")
}

// BenchmarkPlanApply is one plan of one allocation per batch: the cost of a small job's commit.
func BenchmarkPlanApply(b *testing.B) {
	c := newCluster(b, 5000)
	for i := range 20 {
		c.place(fmt.Sprintf("old-%d", i), 1000)
	}
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		id := fmt.Sprintf("new-%d", n)
		res := c.apply(&structs.JobRegisterCommand{Job: benchJob(id, 1), Eval: true})
		e := c.entry(c.planFor(id, res.EvalID, n*601, 1))
		b.StartTimer()
		c.f.ApplyBatch([]Entry{e})
	}
}

// BenchmarkJobRegister is one job with its evaluation per batch.
func BenchmarkJobRegister(b *testing.B) {
	c := newCluster(b, 10)
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		e := c.entry(&structs.JobRegisterCommand{Job: benchJob(fmt.Sprintf("job-%d", n), 1), Eval: true})
		b.StartTimer()
		c.f.ApplyBatch([]Entry{e})
	}
}

// BenchmarkAllocObserved is a batch of 300 observations of one task each.
func BenchmarkAllocObserved(b *testing.B) {
	c := newCluster(b, 5000)
	for i := range 20 {
		c.place(fmt.Sprintf("old-%d", i), 1000)
	}
	var ids []structs.AllocID
	for a := range c.f.Snapshot().Allocs() {
		ids = append(ids, a.ID)
	}
	const size = 300
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		cmd := &structs.AllocObservedCommand{}
		for i := range size {
			cmd.Updates = append(cmd.Updates, structs.AllocObserved{ID: ids[(n*size+i)%len(ids)], Client: structs.ClientRunning, StartedAt: structs.LogTime(n + 1),
				TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"task": {State: "running", StartedAt: structs.LogTime(n + 1), Events: []structs.TaskEvent{{Type: "Started", Time: structs.LogTime(n + 1)}}}})})
		}
		e := c.entry(cmd)
		b.StartTimer()
		c.f.ApplyBatch([]Entry{e})
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size), "us/observation")
}

// BenchmarkSnapshot100k writes and restores 100,000 allocations. Goals: at most 40 MB, written in 1 s,
// restored in 2 s, 250 MB of memory.
func BenchmarkSnapshot100k(b *testing.B) { benchSnapshot(b, 100) }

// BenchmarkSnapshot500k is the same of 500,000 allocations: what a server restores before it votes at its start, and
// while it votes later (server/DESIGN.md).
func BenchmarkSnapshot500k(b *testing.B) { benchSnapshot(b, 500) }

// benchSnapshot writes and restores so many thousand allocations on 5,000 nodes.
func benchSnapshot(b *testing.B, thousands int) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := newCluster(b, 5000)
	for i := range thousands {
		c.place(fmt.Sprintf("job-%d", i), 1000)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	var file bytes.Buffer
	var wrote, read time.Duration
	for b.Loop() {
		file.Reset()
		start := time.Now()
		if err := WriteSnapshot(&file, c.f.Snapshot()); err != nil {
			b.Fatal(err)
		}
		wrote += time.Since(start)
		start = time.Now()
		s, err := state.Read(bytes.NewReader(file.Bytes()), state.Options{})
		if err != nil {
			b.Fatal(err)
		}
		read += time.Since(start)
		runtime.KeepAlive(s)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(1000*thousands), "heapB/alloc")
	b.ReportMetric(float64(file.Len())/1e6, "MB")
	b.ReportMetric(float64(wrote.Milliseconds())/float64(b.N), "ms/write")
	b.ReportMetric(float64(read.Milliseconds())/float64(b.N), "ms/restore")
	runtime.KeepAlive(c)
}

// TestPlanEntryBytes holds D9: at most 100 bytes of log per allocation, for a job of one too few to share anything.
func TestPlanEntryBytes(t *testing.T) {
	c := newCluster(t, 2000)
	for _, count := range []int{30, 1000} {
		id := fmt.Sprintf("job-%d", count)
		res := c.apply(&structs.JobRegisterCommand{Job: benchJob(id, count), Eval: true})
		p := c.planFor(id, res.EvalID, 5, count)
		plain := len(c.entry(p).Data)
		for i := range p.Parts {
			pl := &p.Parts[i].Places[0]
			pl.Ports = []structs.PortGrant{{Label: "http", Value: 20000 + i}}
			pl.Grants = []structs.Grant{{Task: "task", Device: "nvidia/gpu/H100", Instance: gpuPrefix + structs.AllocID(structs.Seed{byte(i), 1, 2}).String()}}
		}
		full := len(c.entry(p).Data)
		t.Logf("%d allocations: %d bytes each, with a port and a GPU %d", count, plain/count, full/count)
		if plain/count > 100 || full/count > 100 {
			t.Errorf("over 100 bytes per allocation")
		}
	}
}
