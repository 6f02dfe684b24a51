package scheduler_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// world is a cluster in a property run: what the store would hold, a view that is advanced, and plans in flight.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	index  structs.Index
	now    structs.LogTime
	nodes  map[structs.NodeID]*structs.Node
	jobs   map[structs.JobKey]*structs.Job
	allocs map[structs.AllocID]*structs.Allocation
	evals  map[structs.EvalID]*structs.Evaluation
	queue  map[structs.JobKey]*structs.Workload
	gangs  map[structs.RosterKey]*structs.Roster
	queues *scheduler.QueueTable
	config structs.SchedulerConfig
	taken  []*structs.Preemptions
	budget int64 // power of the default pool, in watts; 0: no limit
	least  map[structs.RosterKey]leastOf
	cursor structs.NodeID // scripts only: of the last pass that rotates
	gpuFit string
	view   *scheduler.View
	delta  structs.Delta
	flight scheduler.Overlay
	wait   []inFlight
	last   map[structs.JobKey][]*structs.GroupReport     // of the last decision, while it waits
	events map[structs.JobKey]map[structs.EventKind]bool // since the last decision
	nextID int
	counts map[string]int
	checks int
	dumps  func(input, plan []byte) // told of every replay, or nil
}

type inFlight struct {
	id      uint64
	entry   *structs.PlanEntry
	verdict scheduler.Verdict
}

func newWorld(t *testing.T, seed uint64, counts map[string]int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: structs.LogTime(1_700_000_000_000_000_000), index: 1,
		nodes: map[structs.NodeID]*structs.Node{}, jobs: map[structs.JobKey]*structs.Job{}, allocs: map[structs.AllocID]*structs.Allocation{},
		evals: map[structs.EvalID]*structs.Evaluation{}, queue: map[structs.JobKey]*structs.Workload{}, counts: counts, gangs: map[structs.RosterKey]*structs.Roster{}, least: map[structs.RosterKey]leastOf{},
		last: map[structs.JobKey][]*structs.GroupReport{}, events: map[structs.JobKey]map[structs.EventKind]bool{}}
	w.view = scheduler.NewView(w.index, nil, nil, nil)
	return w
}

func (w *world) check(ok bool, format string, args ...any) {
	w.checks++
	if !ok {
		w.t.Helper()
		w.t.Fatalf(format, args...)
	}
}

func (w *world) pick(n int) int { return w.rng.IntN(n) }

func (w *world) putNode(n *structs.Node) {
	before := w.nodes[n.ID]
	n.ModifyIndex, n.Epoch = w.index+1, w.index+1
	w.nodes[n.ID] = n
	w.delta.Nodes = append(w.delta.Nodes, structs.Changed[structs.Node]{Before: before, After: n})
}

func (w *world) putAlloc(a *structs.Allocation) {
	before := w.allocs[a.ID]
	a.ModifyIndex = w.index + 1
	w.allocs[a.ID] = a
	w.delta.Allocs = append(w.delta.Allocs, structs.Changed[structs.Allocation]{Before: before, After: a})
}

// commit ends a batch: the view advances, and must equal one that is rebuilt.
func (w *world) commit() {
	w.settleGangs()
	w.index++
	w.delta.Index = w.index
	for _, c := range w.delta.Nodes {
		if c.After != nil {
			w.happened(structs.EventNodeJoined, structs.EventNodeEligible, structs.EventDriverHealthy, structs.EventDeviceHealthy)
		}
	}
	for _, c := range w.delta.Allocs {
		if c.Before != nil && structs.Holds(c.Before) && !structs.Holds(c.After) || c.After.Terminal() && !c.Before.Terminal() {
			w.happened(structs.EventAllocStopped)
		}
	}
	w.checkPower()
	old := w.view.AppendCanonical(nil)
	prev := w.view
	w.view = w.view.Advance(w.delta)
	w.delta = structs.Delta{}
	if w.pick(4) == 0 {
		w.check(bytes.Equal(old, prev.AppendCanonical(nil)), "advancing changed the view it started from")
	}
	rebuilt := scheduler.NewView(w.index, values(w.nodes, func(n *structs.Node) structs.NodeID { return n.ID }),
		values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }), nil)
	a, b := w.view.AppendCanonical(nil), rebuilt.AppendCanonical(nil)
	w.check(bytes.Equal(a, b), "view advanced to %d differs from the view rebuilt", w.index)
	w.counts["views compared"]++
}

// happened notes events for everybody who waits.
func (w *world) happened(kinds ...structs.EventKind) {
	for key := range w.last {
		if w.events[key] == nil {
			w.events[key] = map[structs.EventKind]bool{}
		}
		for _, k := range kinds {
			w.events[key][k] = true
		}
	}
}

// skippable lists the workloads that would be left out of a pass, because nothing happened that could cure them.
func (w *world) skippable(in scheduler.Input) map[structs.JobKey]bool {
	out := map[structs.JobKey]bool{}
	for _, l := range in.Pending {
		groups, known := w.last[l.Key]
		if len(l.Evals) > 0 || !known {
			continue
		}
		var kinds []structs.EventKind
		for k := range w.events[l.Key] {
			kinds = append(kinds, k)
		}
		out[l.Key] = queue.Skip(groups, kinds)
	}
	return out
}

func values[K ~[16]byte, V any](m map[K]*V, key func(*V) K) []*V {
	out := make([]*V, 0, len(m))
	for _, v := range m {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b *V) int { x, y := key(a), key(b); return bytes.Compare(x[:], y[:]) })
	return out
}

func (w *world) randomNode() *structs.Node {
	w.nextID++
	n := node(w.nextID)
	n.ID = structs.NodeID(id("node", w.nextID))
	n.Name = fmt.Sprintf("n%d", w.nextID)
	n.Datacenter = fmt.Sprintf("dc%d", 1+w.pick(2))
	n.Attributes = map[string]string{"kernel.name": []string{"linux", "linux", "linux", "windows"}[w.pick(4)], "unique.hostname": n.Name}
	n.Meta = map[string]string{"rack": fmt.Sprintf("r%d", w.pick(3))}
	n.Resources.CPU = int64(1000 * (1 + w.pick(4)))
	n.Resources.Cores = n.Resources.CPU / 1000
	n.Resources.MemoryMiB = int64(1024 * (1 + w.pick(4)))
	n.Reserved.MemoryMiB = int64(w.pick(2) * 100)
	if w.pick(3) == 0 {
		n.Meta[structs.GPUReserveAttribute] = "960"
	}
	if w.pick(2) == 0 {
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: []string{"A100", "H100"}[w.pick(2)],
			Attributes: map[string]structs.Attribute{"memory": {Kind: "int", Int: int64(40 * (1 + w.pick(2))), Unit: "GiB"}}}
		for i := range 1 + w.pick(8) {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", w.nextID, i), Healthy: w.pick(10) > 0, Island: fmt.Sprintf("i%d", i/4), MemoryMiB: 40960})
		}
		w.setPower(&g)
		n.Resources.Devices = []structs.DeviceGroup{g}
	}
	n.PowerBudgetW = w.budget
	return n
}

func (w *world) randomJob() *structs.Job {
	w.nextID++
	j := job(fmt.Sprintf("j%d", w.nextID), 1+w.pick(6))
	j.Type = []structs.JobType{structs.JobService, structs.JobService, structs.JobBatch, structs.JobSystem, structs.JobSysBatch}[w.pick(5)]
	j.CreateIndex, j.SpecIndex = w.index, w.index
	j.AllAtOnce = w.pick(10) == 0
	g := j.Groups[0]
	t := g.Tasks[0]
	if j.Type == structs.JobSystem || j.Type == structs.JobSysBatch {
		g.Count = 1
	}
	t.Resources.CPU = int64(100 + 100*w.pick(6))
	t.Resources.MemoryMiB = int64(100 + 100*w.pick(6))
	switch w.pick(12) {
	case 9: // shares
		t.Resources.GPU = []structs.GPURequest{w.randomShare()}
	case 10: // alternatives
		t.Resources.GPU = []structs.GPURequest{{Count: int64(1 + w.pick(2)), Model: "H100"}, w.randomShare()}
	case 11: // two tasks of one allocation, on the same GPU or another
		t.Resources.GPU = []structs.GPURequest{w.randomShare()}
		second := *t
		second.Name = "second"
		second.Resources.CPU, second.Resources.MemoryMiB = 50, 50
		second.Resources.GPU = []structs.GPURequest{w.randomShare()}
		g.Tasks = append(g.Tasks, &second)
	case 0:
		t.Resources.Devices = []structs.DeviceRequest{{Name: []string{"gpu", "nvidia/gpu", "nvidia/gpu/H100"}[w.pick(3)], Count: int64(1 + w.pick(3))}}
	case 1:
		t.Resources.Devices = []structs.DeviceRequest{{Name: "gpu", Count: 1, Constraints: []structs.Constraint{{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "60 GiB"}}}, {Name: "nvidia/gpu/A100", Count: 1}}
	case 2:
		g.Networks = []structs.Network{{StaticPorts: []structs.Port{{Label: "s", Value: 8000 + w.pick(3)}}, DynamicPorts: []structs.Port{{Label: "d"}, {Label: "e", To: -1}}}}
	case 3:
		t.Resources.CPU, t.Resources.Cores = 0, int64(1+w.pick(2))
	case 4:
		j.Constraints = []structs.Constraint{{Operand: structs.OperandDistinctHosts}}
	case 5:
		g.Constraints = []structs.Constraint{{LTarget: "${meta.rack}", Operand: structs.OperandDistinctProperty, RTarget: "2"}}
	case 6:
		j.Spreads = []structs.Spread{{Attribute: "${node.datacenter}", Weight: 100}}
		g.Spreads = []structs.Spread{{Attribute: "${attr.unique.hostname}", Weight: 50}}
	case 7:
		g.Constraints = []structs.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"}}
		g.Affinities = []structs.Affinity{{LTarget: "${meta.rack}", Operand: "=", RTarget: "r1", Weight: 50}}
	}
	if w.pick(2) == 0 {
		g.Reschedule = structs.Reschedule{Delay: time.Duration(w.pick(2)) * 30 * time.Second, DelayFunction: []string{"constant", "exponential", "fibonacci"}[w.pick(3)], MaxDelay: time.Hour, Unlimited: true}
	} else {
		g.Reschedule = structs.Reschedule{Attempts: 1, Interval: time.Hour}
	}
	if w.pick(2) == 0 {
		g.Update = &structs.Update{MaxParallel: 1 + w.pick(2), Stagger: 10 * time.Second}
	}
	if w.pick(2) == 0 {
		g.Disconnect = &structs.Disconnect{LostAfter: time.Minute}
	}
	if w.pick(8) == 0 {
		g.MaxRunDuration = time.Minute
	}
	if (j.Type == structs.JobService || j.Type == structs.JobBatch) && w.pick(4) == 0 {
		g.Gang = &structs.Gang{Min: w.pick(3) * w.pick(2), OnFailure: []string{structs.GangRestartAll, structs.GangContinue}[w.pick(2)], Spares: []int{0, 0, 0, 0, 1, 2}[w.pick(6)]}
		switch w.pick(4) {
		case 0:
			g.Topology = &structs.Topology{Across: "rack", Mode: []string{structs.TopologyRequired, structs.TopologyPreferred}[w.pick(2)]}
		case 1:
			g.Topology = &structs.Topology{Inside: "nvlink", Mode: []string{structs.TopologyRequired, structs.TopologyPreferred}[w.pick(2)]}
		}
	}
	w.randomPeers(j, g)
	if w.pick(3) == 0 {
		g2 := *g
		g2.Name = "h"
		j.Groups = append(j.Groups, &g2)
	}
	return j
}

func (w *world) randomShare() structs.GPURequest {
	r := structs.GPURequest{Count: int64(1 + w.pick(2)), Compute: int64(25 * w.pick(4))}
	if w.pick(2) == 0 {
		r.Share = int64(20 + 20*w.pick(4))
	} else {
		r.MemoryMiB = int64(5000 * (1 + w.pick(7)))
	}
	return r
}

func (w *world) addEval(key structs.JobKey, trigger structs.Trigger) {
	w.nextID++
	e := &structs.Evaluation{ID: structs.EvalID(id("eval", w.nextID)), Namespace: key.Namespace, JobID: key.ID, Trigger: trigger, Status: structs.EvalPending, CreateIndex: w.index, Priority: 50}
	w.evals[e.ID] = e
}

func sortedJobs(m map[structs.JobKey]*structs.Job) []structs.JobKey {
	var ks []structs.JobKey
	for k := range m {
		ks = append(ks, k)
	}
	slices.SortFunc(ks, func(a, b structs.JobKey) int { return strings.Compare(a.String(), b.String()) })
	return ks
}

// step makes something happen to the cluster.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.pick(20)) * time.Second)
	jobs := sortedJobs(w.jobs)
	nodes := values(w.nodes, func(n *structs.Node) structs.NodeID { return n.ID })
	allocs := values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID })
	switch k := w.pick(20); {
	case k < 3 || len(nodes) < 3:
		w.putNode(w.randomNode())
	case k < 6 && len(jobs) < 25:
		j := w.randomJob()
		w.jobs[j.Key()] = j
		w.addEval(j.Key(), structs.TriggerJobRegister)
	case k < 9 && len(jobs) > 0: // a new version
		key := jobs[w.pick(len(jobs))]
		j := *w.jobs[key]
		j.Version++
		j.SpecIndex = w.index
		g := *j.Groups[0]
		t := *g.Tasks[0]
		g.Tasks = slices.Clone(g.Tasks)
		g.Tasks[0] = &t
		j.Groups = slices.Clone(j.Groups)
		j.Groups[0] = &g
		switch w.pick(6) {
		case 5: // another share
			if len(t.Resources.GPU) > 0 {
				t.Resources.GPU = []structs.GPURequest{w.randomShare()}
			}
		case 0:
			g.Count = w.pick(8)
		case 1:
			t.Env = map[string]string{"v": strconv.Itoa(int(j.Version))}
		case 2:
			t.Resources.MemoryMiB = int64(100 + 100*w.pick(8))
		case 3:
			t.KillTimeout = time.Duration(j.Version) * time.Second
		case 4:
			j.Stop = w.pick(2) == 0
		}
		w.jobs[key] = &j
		w.addEval(key, structs.TriggerJobRegister)
	case k < 10 && len(jobs) > 0 && w.pick(3) == 0: // purged
		key := jobs[w.pick(len(jobs))]
		delete(w.jobs, key)
		w.addEval(key, structs.TriggerJobDeregister)
	case k < 12: // a node changes
		n := *nodes[w.pick(len(nodes))]
		switch w.pick(8) {
		case 0:
			n.Status = structs.NodeDown
		case 1, 6, 7:
			n.Status = structs.NodeDisconnected
		case 2:
			n.Eligibility = structs.NodeIneligible
		case 3:
			n.Drain = &structs.DrainStrategy{Deadline: time.Minute}
			for _, a := range allocs {
				if a.NodeID == n.ID && !a.Terminal() {
					b := *a
					b.Transition.Migrate = true
					w.putAlloc(&b)
				}
			}
		default:
			n.Status, n.Eligibility, n.Drain = structs.NodeReady, structs.NodeEligible, nil
		}
		w.putNode(&n)
		for _, key := range jobs {
			w.addEval(key, structs.TriggerNodeUpdate)
		}
	case k < 13 && len(nodes) > 6: // a node goes for good
		n := nodes[w.pick(len(nodes))]
		delete(w.nodes, n.ID)
		w.delta.Nodes = append(w.delta.Nodes, structs.Changed[structs.Node]{Before: n})
		for _, key := range jobs {
			w.addEval(key, structs.TriggerNodeUpdate)
		}
	default: // agents report
		for range 4 {
			if len(allocs) == 0 {
				break
			}
			a := *w.allocs[allocs[w.pick(len(allocs))].ID]
			n := w.nodes[a.NodeID]
			if a.ClientTerminal() || n == nil || n.Status != structs.NodeReady {
				continue
			}
			blocked := false
			for _, id := range a.WaitsOn {
				if v := w.allocs[id]; v != nil && structs.Holds(v) {
					blocked = true
				}
			}
			switch {
			case a.ServerTerminal():
				a.Client = structs.ClientComplete
			case blocked:
				continue
			case a.Client == structs.ClientPending || a.Client == structs.ClientUnknown:
				a.Client, a.StartedAt = structs.ClientRunning, w.now
			case w.pick(2) == 0:
				a.Client, a.FinishedAt = structs.ClientFailed, w.now
			case w.pick(2) == 0:
				a.Client, a.FinishedAt = structs.ClientComplete, w.now
			}
			w.putAlloc(&a)
			w.addEval(a.JobKey(), structs.TriggerRetryFailed)
		}
	}
	w.commit()
}

// pending gathers the workloads that have something to answer, in an order by key.
func (w *world) pending() []scheduler.Workload {
	byJob := map[structs.JobKey]*scheduler.Workload{}
	get := func(k structs.JobKey) *scheduler.Workload {
		l := byJob[k]
		if l == nil {
			l = &scheduler.Workload{Key: k, Job: w.jobs[k], Queue: w.queue[k]}
			byJob[k] = l
		}
		return l
	}
	for _, e := range values(w.evals, func(e *structs.Evaluation) structs.EvalID { return e.ID }) {
		switch {
		case e.Status == structs.EvalBlocked:
			get(e.JobKey()).Blocked = e
		case e.Status == structs.EvalPending && e.WaitUntil <= w.now:
			get(e.JobKey()).Evals = append(get(e.JobKey()).Evals, e)
		}
	}
	for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
		if l := byJob[a.JobKey()]; l != nil {
			l.Allocs = append(l.Allocs, a)
		}
	}
	for k, l := range byJob {
		for _, ro := range w.gangs {
			if ro.Key().Job == k {
				l.Rosters = append(l.Rosters, ro)
			}
		}
		slices.SortFunc(l.Rosters, func(a, b *structs.Roster) int { return strings.Compare(a.Group, b.Group) })
	}
	var out []scheduler.Workload
	var keys []structs.JobKey
	for k := range byJob {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b structs.JobKey) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		out = append(out, *byJob[k])
	}
	return out
}

// pass decides, verifies, and puts what was accepted in flight.
func (w *world) pass(p scheduler.Policy) {
	in := scheduler.Input{View: w.view, Pending: w.pending(), Flight: w.flight, Now: w.now, Seed: 1, Config: structs.SchedulerConfig{GPUFit: w.gpuFit}, Power: w.powered()}
	plan, rep := scheduler.Schedule(in, p)
	again, _ := scheduler.Schedule(in, p)
	w.check(bytes.Equal(scheduler.AppendPlan(nil, plan), scheduler.AppendPlan(nil, again)), "the same input gave two plans")
	// A pass that skips what cannot be cured decides as this one, which did not.
	skip := w.skippable(in)
	grows := w.grows() // growth looks at the whole pass: who else waits
	if grows {
		skip = nil
	}
	rest := in
	rest.Pending = slices.DeleteFunc(slices.Clone(in.Pending), func(l scheduler.Workload) bool { return skip[l.Key] })
	if len(rest.Pending) < len(in.Pending) {
		w.counts["skipped"] += len(in.Pending) - len(rest.Pending)
		short, _ := scheduler.Schedule(rest, p)
		for _, e := range plan.Entries {
			w.check(!skip[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}] || len(e.Parts) == 0, "skipping %s would have missed a chance: %+v\nit failed with %v, since: %v", e.JobID, e.Parts, scheduler.GroupText(w.last[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]), w.events[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}])
		}
		short.Deferred, plan.Deferred = nil, nil
		kept := plan
		kept.Entries = slices.DeleteFunc(slices.Clone(plan.Entries), func(e *structs.PlanEntry) bool { return skip[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}] })
		if len(kept.Entries) == 0 {
			kept.Entries = nil
		}
		w.check(bytes.Equal(scheduler.AppendPlan(nil, short), scheduler.AppendPlan(nil, kept)), "a pass with skipping differs from one without")
	}
	if w.pick(5) == 0 {
		w.replay(in, p, plan)
		if !grows {
			w.oneByOne(in, p, plan)
		}
	}
	for _, r := range rep.Workloads {
		delete(w.last, r.Key)
		delete(w.events, r.Key)
		if r.Failed {
			w.last[r.Key] = r.Groups
		}
	}
	for _, r := range rep.Workloads {
		w.check(r.Refused == "" || strings.Contains(r.Refused, "all_at_once"), "refused: %s", r.Refused)
		for _, g := range r.Groups {
			w.counts["wanted"] += int(g.Wanted)
			w.check(g.Placed <= g.Wanted, "placed more than wanted")
			if g.Placed < g.Wanted {
				w.counts["refused places"] += int(g.Wanted - g.Placed)
				for _, x := range g.Refusals {
					w.counts["refused "+string(x.Code)]++
					if strings.HasPrefix(x.Dimension, "GPU ") {
						w.counts["short of "+x.Dimension]++
						w.check(x.Short > 0, "no amount: %+v", x)
					}
				}
				w.check(len(g.Refusals) > 0 && g.Code != structs.ReasonNone, "a failed group without a reason: %+v", g)
			}
		}
		for _, u := range r.Updates {
			w.counts["in place"] += int(u.InPlace)
			w.counts["destructive"] += int(u.Destructive)
			w.counts["migrate"] += int(u.Migrate)
			w.counts["reschedule"] += int(u.Reschedule)
			w.counts["delayed"] += int(u.Delayed)
			w.counts["disconnect"] += int(u.Disconnect)
		}
	}
	flight := w.flight
	for _, e := range plan.Entries {
		v := scheduler.Verify(w.view, flight, e)
		w.check(v.All(), "Verify refuses what Schedule proposed: %+v", v.Refused)
		w.partial(e)
		w.nextID++
		flight = flight.Add(uint64(w.nextID), e, nil)
		w.wait = append(w.wait, inFlight{uint64(w.nextID), e, v})
	}
	w.flight = flight
}

// replay dumps an input, loads it and decides again.
func (w *world) replay(in scheduler.Input, p scheduler.Policy, plan scheduler.Plan) {
	b, err := scheduler.Dump(in, p.Name())
	w.check(err == nil, "dump: %v", err)
	loaded, name, err := scheduler.Load(b)
	w.check(err == nil && name == p.Name(), "load: %v", err)
	again, _ := scheduler.Schedule(loaded, p)
	again.Deferred, plan.Deferred = nil, nil
	w.check(bytes.Equal(scheduler.AppendPlan(nil, plan), scheduler.AppendPlan(nil, again)), "the loaded dump gives another plan")
	c, err := scheduler.Dump(loaded, p.Name())
	w.check(err == nil && bytes.Equal(b, c), "dumping what was loaded gives other bytes")
	w.counts["replayed"]++
	if w.dumps != nil {
		w.dumps(b, scheduler.AppendPlan(nil, plan))
	}
}

// oneByOne decides the workloads of a pass in passes of their own, each over the plans before it: nothing that a pass
// remembers from one workload to the next may change a decision.
func (w *world) oneByOne(in scheduler.Input, p scheduler.Policy, plan scheduler.Plan) {
	got := scheduler.Plan{Cursor: in.Cursor}
	alone := in
	for i := range in.Pending {
		alone.Pending, alone.Cursor = in.Pending[i:i+1], got.Cursor
		one, _ := scheduler.Schedule(alone, p)
		for k, e := range one.Entries {
			alone.Booked = booked(alone.Booked, e.Reservation)
			alone.Flight = alone.Flight.Add(1_000_000+uint64(100*i+k), e, nil)
		}
		got.Entries, got.Cursor = append(got.Entries, one.Entries...), one.Cursor
	}
	plan.Deferred = nil
	w.check(bytes.Equal(scheduler.AppendPlan(nil, plan), scheduler.AppendPlan(nil, got)), "a pass differs from its workloads decided one by one")
	w.counts["passes split"]++
}

// booked is the reservations after one changed.
func booked(rs []*structs.Reservation, r *structs.Reservation) []*structs.Reservation {
	if r == nil {
		return rs
	}
	out := slices.DeleteFunc(slices.Clone(rs), func(x *structs.Reservation) bool { return x.ID == r.ID })
	if r.Start != 0 {
		out = append(out, r)
	}
	return out
}

// land commits plans in flight, as Apply would.
func (w *world) land() {
	for len(w.wait) > 0 {
		f := w.wait[0]
		w.wait = w.wait[1:]
		key := structs.JobKey{Namespace: f.entry.Namespace, ID: f.entry.JobID}
		v := scheduler.Verify(w.view, w.flight.Remove(f.id), f.entry)
		refusedJob := scheduler.VerifyJob(w.jobs[key], f.entry)
		before := w.over()
		for i, part := range f.entry.Parts {
			if len(part.Places)+len(part.Updates) > 0 && (refusedJob != "" || !v.Accepted[i] || w.cutShort(f.entry, &part)) {
				w.counts["parts refused"]++
				w.happened(structs.EventAllocStopped) // what was debited in flight is free again
				continue
			}
			w.counts["parts applied"]++
			w.tookSpares(&part)
			w.apply(f.entry, &part)
		}
		w.applyRosters(f.entry)
		for _, e := range f.entry.Evals {
			x := *e
			if !v.All() || refusedJob != "" {
				if x.ID == f.entry.EvalID && x.Status == structs.EvalComplete && w.jobs[key] != nil {
					x.Status = structs.EvalPending
				}
			}
			w.evals[e.ID] = &x
			w.counts["eval "+string(x.Status)]++
			if !x.WaitUntil.Time().IsZero() && x.Status == structs.EvalPending {
				w.counts["follow-ups"]++
			}
		}
		if f.entry.Workload != nil {
			q := *f.entry.Workload
			if old := w.queue[key]; old != nil {
				q.Preempted = old.Preempted
			}
			w.queue[key] = &q
		}
		w.flight = w.flight.Remove(f.id)
		w.commit()
		after := w.over()
		for n, x := range after {
			w.check(x <= before[n], "plan for %s made node %s over-committed: %d, before %d", f.entry.JobID, n.Short(), x, before[n])
		}
		w.audit()
	}
}

func (w *world) apply(e *structs.PlanEntry, part *structs.PlanPart) {
	for _, s := range part.Stops {
		old := w.allocs[s.ID]
		if old == nil {
			continue
		}
		a := *old
		if s.Desired != "" && a.Desired == structs.DesiredRun {
			a.Desired, a.DesiredDesc = s.Desired, s.Desc
			w.counts["stops"]++
			w.preempted(e, &a, &s)
		}
		if s.Client != "" && !a.ClientTerminal() {
			a.Client = s.Client
			if s.Client == structs.ClientUnknown {
				a.DisconnectedAt = w.now
			}
			if k := (structs.RosterKey{Job: a.JobKey(), Group: a.Group}); s.Client == structs.ClientLost && w.gangs[k] != nil && w.gangs[k].Rank(a.ID) < 0 {
				w.gangs[k] = w.gangs[k].Blame(a.NodeID)
			}
			w.counts["declared "+string(s.Client)]++
		}
		if !s.Followup.IsZero() {
			a.FollowupEval = s.Followup
		}
		w.putAlloc(&a)
	}
	if len(part.Places)+len(part.Updates) > 0 {
		w.happened(structs.EventAllocPlaced)
	}
	j := w.jobs[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]
	for _, u := range part.Updates {
		a := *w.allocs[u.ID]
		a.Job, a.JobVersion = j, j.Version
		w.putAlloc(&a)
	}
	for _, p := range part.Places {
		g := e.Groups[p.Group]
		a := &structs.Allocation{ID: structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, g, p.Index), EvalID: e.EvalID, Namespace: e.Namespace, JobID: e.JobID,
			JobVersion: j.Version, Job: j, Group: g, NameIndex: p.Index, NodeID: e.Nodes[p.Node].ID, Resources: structs.GroupVector(j.Group(g)), Grants: p.Grants,
			Ports: p.Ports, Cores: p.Cores, Desired: structs.DesiredRun, Client: structs.ClientPending, WaitsOn: p.WaitsOn, Previous: p.Previous,
			Restarts: p.Restarts, Requeues: p.Requeues, RestartReason: p.Reason, Reschedules: p.Resched, CreateIndex: w.index + 1, CreateTime: w.now, Expect: p.Expect}
		if q := w.queue[a.JobKey()]; q != nil {
			a.Preempted = q.Preempted
		}
		w.check(w.allocs[a.ID] == nil, "allocation id %s made twice", a.ID)
		w.check(e.Asks[p.Group] == a.Resources, "the entry's ask %v is not the group's %v", e.Asks[p.Group], a.Resources)
		if len(p.WaitsOn) > 0 {
			w.counts["waits on"]++
		}
		if len(p.Grants) > 0 {
			w.counts["devices given"] += len(p.Grants)
			for _, g := range p.Grants {
				if g.MemoryMiB > 0 {
					w.counts["shares given"]++
					if len(p.WaitsOn) > 0 {
						w.counts["shares waited for"]++
					}
				}
			}
		}
		if len(p.Ports) > 0 {
			w.counts["ports given"] += len(p.Ports)
		}
		if len(p.Cores) > 0 {
			w.counts["cores given"] += len(p.Cores)
		}
		w.counts["placements"]++
		if prev := w.allocs[p.Previous]; prev != nil {
			b := *prev
			b.Next = a.ID
			w.putAlloc(&b)
		}
		w.putAlloc(a)
	}
}

// over tells by how much each node is over its capacity: amounts, and things given twice.
func (w *world) over() map[structs.NodeID]int64 {
	byNode := map[structs.NodeID][]*structs.Allocation{}
	for _, a := range w.allocs {
		if structs.Holds(a) {
			byNode[a.NodeID] = append(byNode[a.NodeID], a)
		}
	}
	out := map[structs.NodeID]int64{}
	for id, as := range byNode {
		n := w.nodes[id]
		if n == nil {
			continue
		}
		out[id] += w.overGPUs(n, as)
		u := structs.Usage(as)
		r := n.Resources
		may := func(have, percent int64) int64 { return have * cmp.Or(percent, 100) / 100 }
		out[id] += max(0, u.CPU+u.Cores*r.MHzPerCore-may(r.CPU-n.Reserved.CPU, n.Overcommit.CPU)) + max(0, u.MemoryMiB-may(r.MemoryMiB-n.Reserved.MemoryMiB, n.Overcommit.Memory)) +
			max(0, u.DiskMiB-r.DiskMiB) + max(0, u.Cores-r.Cores)
		given := map[string]*structs.Allocation{}
		waited := map[structs.AllocID]int{}
		for _, a := range as {
			for _, id := range a.WaitsOn {
				waited[id]++
				if waited[id] > 1 {
					out[id2node(a)]++
				}
			}
			var things []string
			for _, g := range a.Grants {
				if g.MemoryMiB == 0 {
					things = append(things, "device "+g.Instance)
				}
			}
			for _, p := range a.Ports {
				things = append(things, fmt.Sprintf("port %s %d", p.HostIP, p.Value))
			}
			for _, c := range a.Cores {
				things = append(things, fmt.Sprintf("core %d", c))
			}
			for _, x := range things {
				o := given[x]
				if o != nil && !slices.Contains(a.WaitsOn, o.ID) && !slices.Contains(o.WaitsOn, a.ID) {
					out[id]++
				}
				given[x] = a
			}
		}
	}
	return out
}

// overGPUs counts, GPU by GPU and without the scheduler's help, what is given beyond memory and compute, and GPUs given
// whole and in shares at the same time. Whoever waits for others is on the GPU only once they are gone: both states are
// looked at.
func (w *world) overGPUs(n *structs.Node, as []*structs.Allocation) int64 {
	var over int64
	reserve := n.GPUReserveMiB()
	for gi := range n.Resources.Devices {
		for _, in := range n.Resources.Devices[gi].Instances {
			waitedFor := map[structs.AllocID]bool{}
			for _, a := range as {
				for _, id := range a.WaitsOn {
					waitedFor[id] = true
				}
			}
			live := map[structs.AllocID]bool{}
			for _, a := range as {
				live[a.ID] = true
			}
			for _, later := range []bool{false, true} {
				var mem, compute, whole, shares int64
				for _, a := range as {
					waits := slices.ContainsFunc(a.WaitsOn, func(id structs.AllocID) bool { return live[id] })
					if waits && !later || waitedFor[a.ID] && later {
						continue
					}
					mine := false
					for _, g := range a.Grants {
						switch {
						case g.Instance != in.ID:
						case g.MemoryMiB == 0:
							whole++
						default:
							mem, compute, mine = mem+g.MemoryMiB, compute+g.Compute, true
						}
					}
					if mine {
						shares++
					}
				}
				over += max(0, mem-(in.MemoryMiB-reserve)) + max(0, compute-100) + max(0, whole-1)
				if whole > 0 && shares > 0 {
					over += 1000
				}
				if shares > 1 {
					w.counts["GPUs shared by several"]++
				}
			}
		}
	}
	return over
}

func id2node(a *structs.Allocation) structs.NodeID { return a.NodeID }

// audit checks what must be true of every job at every index.
func (w *world) audit() {
	names := map[string]bool{}
	for _, a := range w.allocs {
		if a.Terminal() || a.Client == structs.ClientUnknown || !a.Next.IsZero() {
			continue
		}
		k := a.Namespace + a.Name()
		w.checks++
		if names[k] && w.jobs[a.JobKey()] != nil {
			w.t.Fatalf("two live allocations are called %s", a.Name())
		}
		names[k] = true
	}
	w.auditGangs()
}

func propertyChecks(t *testing.T) int {
	n := 200_000
	if s := os.Getenv("MUSTER_PROPERTY_CHECKS"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 {
			t.Fatalf("MUSTER_PROPERTY_CHECKS=%q: want a positive number", s)
		}
		n = v
	}
	return n
}

// TestProperties runs random clusters. MUSTER_PROPERTY_CHECKS sets how many checks are made at least,
// MUSTER_PROPERTY_SEED repeats one world.
func TestProperties(t *testing.T) {
	goal := propertyChecks(t)
	counts := map[string]int{}
	checks := 0
	names := policy.Names()
	one := uint64(0)
	if s := os.Getenv("MUSTER_PROPERTY_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("MUSTER_PROPERTY_SEED=%q: want a number", s)
		}
		one = v
	}
	seed := uint64(1)
	for ; checks < goal; seed++ {
		if one != 0 {
			seed = one
		}
		w := newWorld(t, seed, counts)
		if seed%3 == 0 {
			w.budget = 1500 + int64(seed%7)*900
		}
		w.gpuFit = structs.GPUFits[int(seed/uint64(len(names)))%len(structs.GPUFits)]
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w.t = t
			p := policy.Builtin[names[int(seed)%len(names)]]
			for range 5 {
				w.putNode(w.randomNode())
			}
			w.commit()
			for range 60 {
				w.step()
				if w.pick(2) == 0 {
					w.pass(p)
				}
				if w.pick(2) == 0 {
					w.land()
				}
			}
		})
		checks += w.checks
		if !ok {
			t.Fatalf("world with MUSTER_PROPERTY_SEED=%d failed", seed)
		}
		if one != 0 {
			return
		}
	}
	var lines []string
	for k, n := range counts {
		lines = append(lines, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(lines)
	t.Logf("%d checks in %d worlds: %s", checks, seed-1, strings.Join(lines, ", "))
	for _, k := range []string{"placements", "refused places", "stops", "in place", "destructive", "migrate", "reschedule", "delayed", "disconnect", "waits on",
		"devices given", "shares given", "shares waited for", "GPUs shared by several", "short of GPU memory", "short of GPU compute", "refused FRAGMENTATION", "ports given", "cores given", "parts refused", "follow-ups", "declared lost", "declared unknown", "eval blocked", "eval canceled", "views compared", "skipped", "replayed", "passes split",
		"gangs placed", "gangs grown", "gangs restarted", "gangs reduced", "refused GANG", "refused TOPOLOGY", "parts of gangs cut",
		"spares held", "spares used"} {
		if counts[k] == 0 {
			t.Errorf("%q never happened: the run proves nothing about it", k)
		}
	}
}
