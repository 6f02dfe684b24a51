package scheduler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/script"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// suggestion prints what would start a job. It makes every change, after which the job must start, with a plan that
// Verify accepts.
func suggestion(t *testing.T, w *world, c *script.Case) string {
	key := structs.JobKey{Namespace: "default", ID: c.Args[0].Key}
	var load *contend.Workload
	pending := w.pending()
	for i := range pending {
		if pending[i].Key == key {
			load = &pending[i]
		}
	}
	if load == nil {
		t.Fatalf("%s: %s does not wait", c.Pos, key.ID)
	}
	if c.Has("gate") {
		load.Gate = &structs.Refusal{Code: structs.ReasonCode(c.String("gate", "")), Obstacle: gateOf(c.String("of", "")), Short: int64(c.Int(t, "short", 0)), Unit: structs.Unit(c.String("unit", "")), CuredBy: structs.EventQueueUsage}
	}
	in := scheduler.Input{View: w.view, Now: w.now}
	adv := suggest.Find(in, policy.Builtin[structs.AlgorithmDefault], *load)
	var b strings.Builder
	if adv.Starts {
		b.WriteString("starts\n")
	}
	if adv.Never != "" {
		fmt.Fprintf(&b, "never: %s\n", adv.Never)
	}
	for i := range adv.Changes {
		ch := &adv.Changes[i]
		if why := tryChange(in, *load, ch); why != "" {
			t.Errorf("%s: with %q: %s", c.Pos, ch.Text, why)
		}
		fmt.Fprintf(&b, "%s %d: %s\n", ch.Kind, ch.Cost, ch.Text)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// tryChange makes a change and decides; "" when the job starts.
func tryChange(in scheduler.Input, load contend.Workload, ch *suggest.Change) string {
	if ch.Job != nil {
		load.Job = ch.Job
	}
	if ch.Lifts {
		load.Gate = nil
	}
	d := structs.Delta{Index: in.View.Index()}
	for _, n := range ch.Nodes {
		d.Nodes = append(d.Nodes, structs.Changed[structs.Node]{Before: in.View.Node(n.ID), After: n})
	}
	in.View = in.View.Advance(d)
	in.Pending = []contend.Workload{load}
	plan, rep := scheduler.Schedule(in, policy.Builtin[structs.AlgorithmDefault])
	if rep.Workloads[0].Failed {
		return "it does not start: " + groupText(rep.Workloads[0].Groups)
	}
	for _, e := range plan.Entries {
		if v := verify.Verify(in.View, model.Overlay{}, e); !v.All() {
			return fmt.Sprintf("Verify refuses: %+v", v.Refused)
		}
	}
	return ""
}

// TestSuggestions makes random clusters and jobs that do not fit, and every change that is suggested.
func TestSuggestions(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d (repeat with MUSTER_SEED)", seed)
	seen, tries, most := map[string]int{}, 0, 0
	wanted := []string{"never", suggest.ChangeAmount, suggest.ChangeCount, suggest.ChangeConstraint, suggest.ChangeLimit, suggest.ChangeNode,
		"cured RESOURCES", "cured CONSTRAINT", "cured FRAGMENTATION", "cured NODE_INELIGIBLE", "cured DEVICE_UNHEALTHY", "cured DRIVER", "cured QUOTA"}
	rounds := uint64(800)
	for round := uint64(0); round < rounds; round++ {
		r := rand.New(rand.NewPCG(seed, round))
		in, load := randomMisfit(r)
		adv := suggest.Find(in, policy.Builtin[structs.AlgorithmDefault], load)
		again := suggest.Find(in, policy.Builtin[structs.AlgorithmDefault], load)
		if fmt.Sprint(texts(adv)) != fmt.Sprint(texts(again)) || adv.Tries != again.Tries {
			t.Fatalf("round %d: asked twice, it says\n%q\n%q", round, texts(adv), texts(again))
		}
		tries, most = tries+adv.Tries, max(most, adv.Tries)
		if adv.Starts {
			seen["starts"]++
			continue
		}
		in.Pending = []contend.Workload{load}
		_, rep := scheduler.Schedule(in, policy.Builtin[structs.AlgorithmDefault])
		named := suggest.Nodes(in, policy.Builtin[structs.AlgorithmDefault], load.Job)
		for _, g := range rep.Workloads[0].Groups {
			if g.Placed == 0 && g.Considered > 0 && load.Job.Group(g.Group).Gang == nil && len(load.Allocs) == 0 && len(in.Reserved) == 0 {
				seen["nodes named"]++
				if why := namesDiffer(g, named); why != "" {
					t.Errorf("round %d (seed %d): %s", round, seed, why)
				}
			}
			if g.Placed < g.Wanted {
				seen["waits for "+string(g.Code)]++
				if len(adv.Changes) > 0 {
					seen["cured "+string(g.Code)]++
				}
			}
		}
		if adv.Never != "" {
			seen["never"]++
		}
		if len(adv.Changes) == 0 {
			seen["no change found"]++
			if adv.Never == "" {
				seen["no change found, though it may start"]++
			}
		}
		for i := range adv.Changes {
			ch := &adv.Changes[i]
			seen[ch.Kind]++
			if why := tryChange(in, load, ch); why != "" {
				t.Fatalf("round %d: with %q: %s", round, ch.Text, why)
			}
			if i > 0 && ch.Cost < adv.Changes[i-1].Cost {
				t.Fatalf("round %d: %q costs less than the one before it", round, ch.Text)
			}
			if ch.Kind == suggest.ChangeNode && ch.Cost < 1000 && adv.Never != "" {
				t.Fatalf("round %d: %q, although it can never start: %s", round, ch.Text, adv.Never)
			}
		}
		if round == rounds-1 && rounds < 8000 && slices.ContainsFunc(wanted, func(w string) bool { return seen[w] == 0 }) {
			rounds += 800 // some are rare
		}
	}
	t.Logf("%d tries in %d rounds, at most %d: %v", tries, rounds, most, seen)
	for _, want := range wanted {
		if seen[want] == 0 {
			t.Errorf("never happened: %s", want)
		}
	}
}

func texts(a suggest.Advice) (out []string) {
	out = append(out, a.Never)
	for i := range a.Changes {
		out = append(out, a.Changes[i].Text)
	}
	return out
}

// randomMisfit is a small cluster, mostly in use, and a job that mostly does not fit.
func randomMisfit(r *rand.Rand) (scheduler.Input, contend.Workload) {
	var nodes []*structs.Node
	var allocs []*structs.Allocation
	for i := range 1 + r.IntN(6) {
		n := &structs.Node{ID: structs.NodeID{byte(i + 1)}, Name: fmt.Sprint("n", i), Datacenter: []string{"dc1", "dc2"}[r.IntN(5)/4], Pool: structs.NodePoolDefault,
			Attributes: map[string]string{"kernel.name": []string{"linux", "darwin"}[r.IntN(4)/3]}, Resources: structs.NodeResources{CPU: 8000, MemoryMiB: 16384, DiskMiB: 100000},
			Status: structs.NodeReady, Eligibility: structs.NodeEligible,
			Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: r.IntN(8) > 0}}}
		switch r.IntN(8) {
		case 0:
			n.Eligibility = structs.NodeIneligible
		case 1:
			n.Status = structs.NodeDown
		}
		if r.IntN(3) > 0 {
			g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: []string{"H100", "A100"}[r.IntN(2)]}
			for k := range 1 + r.IntN(4) {
				id := fmt.Sprintf("GPU-%d-%d", i, k)
				g.Instances = append(g.Instances, structs.DeviceInstance{ID: id, Healthy: r.IntN(4) > 0, MemoryMiB: 81920})
				if r.IntN(2) == 0 {
					grant := structs.Grant{Task: "main", Device: g.ID(), Instance: id}
					if r.IntN(2) == 0 {
						grant.MemoryMiB = int64(1+r.IntN(70)) * 1024
					}
					allocs = append(allocs, &structs.Allocation{ID: structs.AllocID{byte(i + 1), byte(k + 1)}, NodeID: n.ID, Desired: structs.DesiredRun, Client: structs.ClientRunning,
						Resources: structs.Vector{CPU: 10, MemoryMiB: 10}, Grants: []structs.Grant{grant}})
				}
			}
			n.Resources.Devices = []structs.DeviceGroup{g}
		}
		if r.IntN(2) == 0 {
			allocs = append(allocs, &structs.Allocation{ID: structs.AllocID{byte(i + 1), 99}, NodeID: n.ID, Desired: structs.DesiredRun, Client: structs.ClientRunning,
				Resources: structs.Vector{CPU: int64(r.IntN(8000)), MemoryMiB: int64(r.IntN(16000))}})
		}
		n.ComputedClass = structs.ComputeClass(n)
		nodes = append(nodes, n)
	}
	j := job("x", 1+r.IntN(4)*r.IntN(2))
	task := j.Groups[0].Tasks[0]
	task.Resources.CPU, task.Resources.MemoryMiB = int64(100+r.IntN(6000)), int64(100+r.IntN(14000))
	if r.IntN(12) == 0 {
		task.Resources.MemoryMiB = 1 << 20
	}
	switch r.IntN(5) {
	case 0, 1:
		task.Resources.GPU = []structs.GPURequest{{Count: int64(1 + r.IntN(4)), Model: []string{"", "H100"}[r.IntN(2)]}}
	case 2, 3:
		task.Resources.CPU, task.Resources.MemoryMiB = 100, 100
		task.Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: int64(30+r.IntN(50)) * 1024}}
	}
	if r.IntN(3) == 0 {
		j.Constraints = []structs.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: []string{"linux", "plan9"}[r.IntN(2)]}}
	}
	if r.IntN(6) == 0 {
		j.Datacenters = []string{"dc2"}
	}
	load := contend.Workload{Key: j.Key(), Job: j}
	if r.IntN(8) == 0 {
		load.Gate = &structs.Refusal{Code: structs.ReasonQuota, Obstacle: gateOf("queue research: gpu"), Short: 2, Unit: structs.UnitGPUs, CuredBy: structs.EventQueueUsage}
	}
	load.Evals = []*structs.Evaluation{{ID: structs.EvalID{1}, Namespace: j.Namespace, JobID: j.ID, Type: j.Type, Status: structs.EvalPending}}
	return scheduler.Input{View: model.NewView(9, nodes, allocs, nil), Now: 1_700_000_000_000_000_000}, load
}

// gateOf reads "queue PATH: gpu"; anything else is used as it is.
func gateOf(of string) structs.Obstacle {
	if path, ok := strings.CutPrefix(strings.TrimSuffix(of, ": gpu"), "queue "); ok {
		return structs.Obstacle{Dimension: structs.DimensionGPU, Holder: structs.Holder{Kind: structs.HolderQueue, Name: path}}
	}
	return structs.Obstacle{Dimension: structs.DimensionConstraint, Subject: of}
}

// TestTellsOnceAMinute: while the reason stays, the missing amount is written at most once a minute.
func TestTellsOnceAMinute(t *testing.T) {
	n := &structs.Node{ID: structs.NodeID{1}, Name: "n", Datacenter: "dc1", Pool: structs.NodePoolDefault, Resources: structs.NodeResources{CPU: 4000, MemoryMiB: 1024, DiskMiB: 1000},
		Status: structs.NodeReady, Eligibility: structs.NodeEligible, Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}}}
	start := structs.LogTime(1_700_000_000_000_000_000)
	entry := &structs.Workload{Namespace: "default", JobID: "x", Domain: structs.NodePoolDefault, SubmitTime: start, Priority: 50}
	decide := func(after time.Duration, need int64) *structs.Workload {
		j := job("x", 1)
		j.Priority = 50
		j.Groups[0].Tasks[0].Resources.MemoryMiB = need
		ev := &structs.Evaluation{ID: structs.EvalID{1}, Namespace: j.Namespace, JobID: j.ID, Type: j.Type, Status: structs.EvalPending}
		plan, _ := scheduler.Schedule(scheduler.Input{View: model.NewView(9, []*structs.Node{n}, nil, nil), Now: start.Add(after),
			Pending: []contend.Workload{{Key: j.Key(), Job: j, Evals: []*structs.Evaluation{ev}, Queue: entry}}}, policy.Builtin[structs.AlgorithmDefault])
		w := plan.Entries[0].Workload
		if w != nil {
			entry = w
		}
		return w
	}
	if w := decide(0, 1024+100); w == nil || w.Amount != 100 || w.Reason != structs.ReasonResources || w.Told != start {
		t.Fatalf("at first: %+v", w)
	}
	if w := decide(50*time.Second, 1024+200); w != nil {
		t.Errorf("50 s later: %+v", w)
	}
	if w := decide(61*time.Second, 1024+200); w == nil || w.Amount != 200 || w.Told != start.Add(61*time.Second) {
		t.Errorf("61 s later: %+v", w)
	}
	if w := decide(200*time.Second, 1024+200); w != nil {
		t.Errorf("nothing changed, and %+v is written", w)
	}
	if w := decide(201*time.Second, 512); w == nil || w.Amount != 0 || w.Told != 0 {
		t.Errorf("placed: %+v", w)
	}
}

// namesDiffer compares the nodes that are named for a group with the numbers of its report; "" when they agree.
func namesDiffer(g *structs.GroupReport, named []suggest.Excluded) string {
	count := map[string]int64{}
	for _, x := range named {
		if x.Group == g.Group {
			count[x.Why.Text()]++
		}
	}
	want := map[string]int64{} // the same thing may be missing in several ways: in pieces, or ill
	for _, r := range g.Refusals {
		if r.Nodes > 0 {
			want[r.Text()] += r.Nodes
		}
	}
	if !maps.Equal(count, want) {
		return fmt.Sprintf("nodes are refused for %v, and named for %v", want, count)
	}
	return ""
}
