package scheduler_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/scheduler/verify"
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
	queues *contend.QueueTable
	config structs.SchedulerConfig
	taken  []*structs.Preemptions
	budget int64 // power of the default pool, in watts; 0: no limit
	least  map[structs.RosterKey]leastOf
	whole  map[structs.JobKey]structs.Index // of joint jobs: the newest version of which all groups have run
	cursor structs.NodeID                   // scripts only: of the last pass that rotates
	gpuFit string
	view   *model.View
	delta  structs.Delta
	flight model.Overlay
	wait   []inFlight
	last   map[structs.JobKey][]*structs.GroupReport     // of the last decision, while it waits
	events map[structs.JobKey]map[structs.EventKind]bool // since the last decision
	// Only TestProperties keeps reservations: the digests of TestDecisions were made without them.
	reserves bool
	reserved []*structs.Reservation
	freed    map[structs.JobKey]bool // jobs that waited when a reservation went, since the last decision

	nextID  int
	counts  map[string]int
	checks  int
	dumps   func(input, plan []byte)               // called with every replay, or nil
	decided func(scheduler.Plan, scheduler.Report) // called after every pass, or nil
}

type inFlight struct {
	id      uint64
	entry   *structs.PlanEntry
	verdict verify.Verdict
}

func newWorld(t *testing.T, seed uint64, counts map[string]int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: structs.LogTime(1_700_000_000_000_000_000), index: 1,
		nodes: map[structs.NodeID]*structs.Node{}, jobs: map[structs.JobKey]*structs.Job{}, allocs: map[structs.AllocID]*structs.Allocation{},
		evals: map[structs.EvalID]*structs.Evaluation{}, queue: map[structs.JobKey]*structs.Workload{}, counts: counts, gangs: map[structs.RosterKey]*structs.Roster{}, least: map[structs.RosterKey]leastOf{}, whole: map[structs.JobKey]structs.Index{},
		last: map[structs.JobKey][]*structs.GroupReport{}, events: map[structs.JobKey]map[structs.EventKind]bool{}, freed: map[structs.JobKey]bool{}}
	w.view = model.NewView(w.index, nil, nil, nil)
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
		} else {
			w.happened(structs.EventAllocStopped) // what is held there is held nowhere now
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
	rebuilt := model.NewView(w.index, values(w.nodes, func(n *structs.Node) structs.NodeID { return n.ID }),
		values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }), nil)
	a, b := w.view.AppendCanonical(nil), rebuilt.AppendCanonical(nil)
	w.check(bytes.Equal(a, b), "view advanced to %d differs from the view rebuilt", w.index)
	w.counts["views compared"]++
}

// happened records an event for every waiting job.
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

// reserve records what a plan reserves, as the state would. Waiting jobs are unblocked when a reservation goes, as the
// broker does; a reservation that a pass moves unblocks no job.
func (w *world) reserve(r *structs.Reservation) {
	if !w.reserves || r == nil {
		return
	}
	before := len(w.reserved)
	if w.reserved = booked(w.reserved, r); len(w.reserved) < before {
		for key := range w.last {
			w.freed[key] = true
		}
		w.counts["reservations ended"]++
	}
}

// endReservations drops the reservations of jobs that are stopped or gone, and unblocks jobs when a reservation begins.
func (w *world) endReservations(from structs.LogTime) {
	for _, r := range slices.Clone(w.reserved) {
		if j := w.jobs[structs.JobKey{Namespace: r.Namespace, ID: r.JobID}]; j == nil || j.Stop {
			w.reserve(&structs.Reservation{ID: r.ID})
		} else if r.Start > from && r.Start <= w.now {
			w.happened(structs.EventTime)
		}
	}
}

// skippable lists the workloads that the broker would leave out of a pass, because nothing happened that unblocks them.
func (w *world) skippable(in scheduler.Input) map[structs.JobKey]bool {
	out := map[structs.JobKey]bool{}
	for _, l := range in.Pending {
		groups, known := w.last[l.Key]
		holds := slices.ContainsFunc(w.reserved, func(r *structs.Reservation) bool { return r.ID == structs.ReservationID(l.Key) })
		if len(l.Evals) > 0 || !known || holds { // a job that holds a reservation joins every pass
			continue
		}
		var kinds []structs.EventKind
		for k := range w.events[l.Key] {
			kinds = append(kinds, k)
		}
		happened := unblock.Of(kinds...)
		if w.freed[l.Key] {
			happened |= unblock.ReservationGone
		}
		events := unblock.UnblockingEvents(groups)
		// Without reservations it is not known which job holds one and so joins every pass.
		out[l.Key] = events&happened == 0 && (w.reserves || events != unblock.Any)
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
	for range max(0, w.nextID%8-5) {
		n.Periods = append(n.Periods, structs.ReadyPeriod{From: w.now.Add(-time.Hour), To: w.now, Lost: true})
	}
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
		g.Reschedule = structs.Reschedule{Delay: time.Duration(w.pick(2)) * 30 * time.Second, DelayFunction: []structs.DelayFunction{structs.DelayConstant, structs.DelayExponential, structs.DelayFibonacci}[w.pick(3)], MaxDelay: time.Hour, Unlimited: true}
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
		g.Gang = &structs.Gang{Min: w.pick(3) * w.pick(2), OnFailure: []string{structs.GangRestartAll, structs.GangContinue}[w.pick(2)], Standby: []int{0, 0, 0, 0, 1, 2}[w.pick(6)]}
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
	j.Join()
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
	from := w.now
	w.now = w.now.Add(time.Duration(w.pick(20)) * time.Second)
	w.endReservations(from)
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
func (w *world) pending() []contend.Workload {
	byJob := map[structs.JobKey]*contend.Workload{}
	get := func(k structs.JobKey) *contend.Workload {
		l := byJob[k]
		if l == nil {
			l = &contend.Workload{Key: k, Job: w.jobs[k], Queue: w.queue[k]}
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
		slices.SortFunc(l.Rosters, func(a, b *structs.Roster) int { return cmp.Compare(a.Group, b.Group) })
	}
	var out []contend.Workload
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
