package scheduler_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

func nodes(n int) []*structs.Node {
	out := make([]*structs.Node, n)
	for i := range out {
		out[i] = node(i)
	}
	return out
}

func TestAdvanceCopiesTouchedChunksOnly(t *testing.T) {
	ns := nodes(1000)
	v := model.NewView(1, ns, nil, nil)
	if v.ChunkCount() != 8 {
		t.Fatalf("%d chunks, want 8", v.ChunkCount())
	}
	alloc := func(i, n int) structs.Changed[structs.Allocation] {
		return structs.Changed[structs.Allocation]{After: &structs.Allocation{ID: structs.AllocID(id("a", n)), NodeID: ns[i].ID, Client: structs.ClientPending, Resources: structs.Vector{CPU: 1}}}
	}
	next := v.Advance(structs.Delta{Index: 2, Allocs: []structs.Changed[structs.Allocation]{alloc(0, 1), alloc(1, 2), alloc(999, 3)}})
	if next.ChunksCopied() != 2 {
		t.Errorf("three placements on two chunks copied %d", next.ChunksCopied())
	}
	// An update of an allocation that holds the same resources, like a heartbeat, copies nothing.
	running := *next.Node(ns[0].ID)
	_ = running
	a := alloc(0, 1).After
	b := *a
	b.Client = structs.ClientRunning
	same := next.Advance(structs.Delta{Index: 3, Allocs: []structs.Changed[structs.Allocation]{{Before: a, After: &b}}})
	if same.ChunksCopied() != 0 || same.Index() != 3 {
		t.Errorf("a change of status copied %d chunks", same.ChunksCopied())
	}
	if used, _, ok := same.Usage(ns[0].ID); !ok || used.CPU != 1 {
		t.Errorf("used %+v", used)
	}
	// Nodes that join one by one fill chunks; the rows stay in order.
	var grown *model.View = model.NewView(1, nil, nil, nil)
	for i := range 500 {
		grown = grown.Advance(structs.Delta{Index: structs.Index(i + 2), Nodes: []structs.Changed[structs.Node]{{After: ns[(i*7)%500]}}})
	}
	want := model.NewView(501, ns[:500], nil, nil)
	if !bytes.Equal(grown.AppendCanonical(nil), want.AppendCanonical(nil)) {
		t.Error("a view grown node by node differs from one built at once")
	}
}

// A job that needs more than one log entry gets several; all of them are accepted. One decision starts no more than
// 2,000 of its allocations, and another one continues.
func TestLargeJobIsSplit(t *testing.T) {
	var ns []*structs.Node
	for i := range 300 {
		n := node(i)
		n.Resources.CPU, n.Resources.MemoryMiB = 1_000_000, 1_000_000
		ns = append(ns, n)
	}
	v := model.NewView(10, ns, nil, nil)
	j := job("big", 20_000)
	var ports structs.Network
	for i := range 10 {
		ports.DynamicPorts = append(ports.DynamicPorts, structs.Port{Label: fmt.Sprintf("port-%d", i)})
	}
	j.Groups[0].Networks = []structs.Network{ports}
	in := scheduler.Input{View: v, Now: 1, Pending: []contend.Workload{load(j, 1)}}
	plan, rep := scheduler.Schedule(in, binpack)
	total := 0
	f := model.Overlay{}
	for i, e := range plan.Entries {
		total += len(e.Parts)
		if last := i == len(plan.Entries)-1; last != (len(e.Evals) > 0) {
			t.Errorf("entry %d of %d has %d evaluations; they belong into the last", i, len(plan.Entries), len(e.Evals))
		}
		if size := len(scheduler.AppendPlan(nil, scheduler.Plan{Entries: []*structs.PlanEntry{e}})); size > 1<<20 {
			t.Errorf("entry %d has %d bytes", i, size)
		}
		if !verify.Verify(v, f, e).All() {
			t.Errorf("entry %d is refused", i)
		}
		f = f.Add(uint64(i), e, nil)
	}
	if total != 2_000 || len(plan.Entries) < 2 || rep.Workloads[0].Failed {
		t.Errorf("%d parts in %d entries, failed: %v", total, len(plan.Entries), rep.Workloads[0].Failed)
	}
	next := plan.Entries[len(plan.Entries)-1].Evals
	if !slices.ContainsFunc(next, func(e *structs.Evaluation) bool {
		return e.Trigger == structs.TriggerQueued && e.Status == structs.EvalPending && e.WaitUntil <= 1
	}) {
		t.Errorf("no decision about the rest follows: %+v", next)
	}
	j.Groups[0].Networks = nil
	j.AllAtOnce = true
	plan, rep = scheduler.Schedule(in, binpack)
	if len(rep.Workloads) != 1 || !strings.Contains(rep.Workloads[0].Refused, "all_at_once") || len(plan.Entries) != 1 || len(plan.Entries[0].Parts) != 0 {
		t.Errorf("20,000 at once: %+v", rep.Workloads[0].Refused)
	}
}

// TestMemoryOfLargeCount: a pass about a job with a count of 100,000 allocates a bounded number of bytes, whether its
// allocations find a place or not.
func TestMemoryOfLargeCount(t *testing.T) {
	for what, perNode := range map[string]int64{"all fit": 1_000_000, "none fits": 1} {
		var ns []*structs.Node
		for i := range 300 {
			n := node(i)
			n.Resources.CPU, n.Resources.MemoryMiB = perNode, perNode
			ns = append(ns, n)
		}
		in := scheduler.Input{View: model.NewView(10, ns, nil, nil), Now: 1, Pending: []contend.Workload{load(job("big", 100_000), 1)}}
		scheduler.Schedule(in, binpack) // caches of the view
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, rep := scheduler.Schedule(in, binpack)
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 16 {
			t.Errorf("%s: the pass allocated %d MiB, want at most 16", what, n)
		}
		if g := rep.Workloads[0].Groups[0]; perNode == 1 && g.Wanted != 100_000 {
			t.Errorf("%s: the report says that %d wait, want all 100,000", what, g.Wanted)
		}
	}
}

func TestBudgetAndFlight(t *testing.T) {
	v := model.NewView(10, nodes(100), nil, nil)
	a, b, c := job("a", 1), job("b", 1), job("c", 1)
	in := scheduler.Input{View: v, Now: 1, Steps: 150, Pending: []contend.Workload{load(a, 1), load(b, 2), load(c, 3)}}
	plan, rep := scheduler.Schedule(in, binpack)
	if len(plan.Entries) != 2 || len(plan.Deferred) != 1 || plan.Deferred[0] != c.Key() || rep.Steps < 150 {
		t.Errorf("with a budget of 150 nodes: %d entries, deferred %v, %d steps", len(plan.Entries), plan.Deferred, rep.Steps)
	}
	in.Steps, in.Places = 0, 2
	if plan, _ := scheduler.Schedule(in, binpack); len(plan.Entries) != 2 || len(plan.Deferred) != 1 || plan.Deferred[0] != c.Key() {
		t.Errorf("with a budget of 2 placements: %d entries, deferred %v", len(plan.Entries), plan.Deferred)
	}
	in.Places = 0
	in.Flight = model.Overlay{}.Add(1, plan.Entries[0], nil)
	plan, _ = scheduler.Schedule(in, binpack)
	if len(plan.Entries) != 2 || len(plan.Deferred) != 1 || plan.Deferred[0] != a.Key() {
		t.Errorf("with a plan of %q in flight: %d entries, deferred %v", a.ID, len(plan.Entries), plan.Deferred)
	}
	empty := contend.Workload{Key: a.Key(), Job: a}
	if _, rep := scheduler.Schedule(scheduler.Input{View: v, Pending: []contend.Workload{empty}}, binpack); rep.Workloads[0].Refused == "" {
		t.Error("a workload without an evaluation is answered")
	}
}

// TestReplayInOtherProcess decides dumped inputs again in other processes, where maps are iterated in another order,
// and compares the plans byte for byte.
func TestReplayInOtherProcess(t *testing.T) {
	if dir := os.Getenv("MUSTER_REPLAY_DIR"); dir != "" {
		replayAll(t, dir)
		return
	}
	dir := t.TempDir()
	var want []string
	w := newWorld(t, 99, map[string]int{})
	w.dumps = func(input, plan []byte) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d", len(want))), input, 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(plan)
		want = append(want, hex.EncodeToString(sum[:]))
	}
	for i := range 150 {
		w.step()
		w.pass(policy.Builtin[policy.Names()[i%len(policy.Names())]])
		w.land()
	}
	if len(want) < 10 {
		t.Fatalf("only %d inputs were dumped", len(want))
	}
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReplayInOtherProcess$")
		cmd.Env = append(os.Environ(), "MUSTER_REPLAY_DIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		got, err := os.ReadFile(filepath.Join(dir, "sums"))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != strings.Join(want, "\n") {
			t.Fatalf("another process made other plans:\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	}
	t.Logf("%d inputs decided alike in 3 processes", len(want))
}

func replayAll(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "0*"))
	if err != nil {
		t.Fatal(err)
	}
	var sums []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		in, name, err := scheduler.Load(b)
		if err != nil {
			t.Fatal(err)
		}
		plan, _ := scheduler.Schedule(in, policy.Builtin[name])
		plan.Deferred = nil
		sum := sha256.Sum256(scheduler.AppendPlan(nil, plan))
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	if err := os.WriteFile(filepath.Join(dir, "sums"), []byte(strings.Join(sums, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, b := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte{0xff}, 100)} {
		if _, _, err := scheduler.Load(b); err == nil {
			t.Errorf("%q was loaded", b)
		}
	}
}

// On a full cluster equal workloads are not searched for again and again.
func TestHopelessAsksAreSearchedOnce(t *testing.T) {
	in := scheduler.Input{View: model.NewView(10, nodes(100), nil, nil), Now: 1}
	for i := range 200 {
		j := job(fmt.Sprintf("j%03d", i), 2)
		j.Groups[0].Tasks[0].Resources.CPU = 5000 + int64(i%2)
		in.Pending = append(in.Pending, load(j, i))
	}
	_, rep := scheduler.Schedule(in, binpack)
	if rep.Steps > 2*100+200 {
		t.Errorf("%d steps for two kinds of ask on 100 nodes", rep.Steps)
	}
	for i, r := range rep.Workloads {
		if g := r.Groups[0]; !r.Failed || g.Wanted != 2 || g.Placed != 0 || g.Refusals[0].Short != 1000+int64(i%2) || g.Exhausted != 100 {
			t.Fatalf("workload %d: %+v", i, g)
		}
	}
}

// TestDumpKeepsWhatTheChooserKnows: a loaded input has the chooser's history of run times, which its choices depend on.
func TestDumpKeepsWhatTheChooserKnows(t *testing.T) {
	lives := &queue.Lifetimes{}
	lives.Ended(1, time.Hour)
	in := scheduler.Input{View: model.NewView(10, nodes(1), nil, nil), Now: 1, Chooser: queue.Choosers{Lives: lives}}
	b, err := scheduler.Dump(in, "binpack")
	if err != nil {
		t.Fatal(err)
	}
	back, _, err := queue.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := back.Chooser.(queue.Choosers).State(), (queue.Choosers{Lives: lives}).State(); !bytes.Equal(got, want) {
		t.Errorf("after loading it knows %x, want %x", got, want)
	}
}
