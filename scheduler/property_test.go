package scheduler_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// pass decides, verifies, and puts what was accepted in flight.
func (w *world) pass(p search.Policy) {
	in := scheduler.Input{View: w.view, Pending: w.pending(), Flight: w.flight, Now: w.now, Seed: 1, Config: structs.SchedulerConfig{GPUFit: w.gpuFit}, Power: w.powered(), Reserved: w.reserved}
	plan, rep := scheduler.Schedule(in, p)
	if w.decided != nil {
		w.decided(plan, rep)
	}
	again, _ := scheduler.Schedule(in, p)
	w.check(bytes.Equal(scheduler.AppendPlan(nil, plan), scheduler.AppendPlan(nil, again)), "the same input gave two plans")
	// A pass without the jobs that no event could unblock decides as this one, which includes them.
	skip := w.skippable(in)
	grows := w.grows() // growth depends on the whole pass: what else waits
	if grows {
		skip = nil
	}
	rest := in
	rest.Pending = slices.DeleteFunc(slices.Clone(in.Pending), func(l contend.Workload) bool { return skip[l.Key] })
	if len(rest.Pending) < len(in.Pending) {
		w.counts["skipped"] += len(in.Pending) - len(rest.Pending)
		short, _ := scheduler.Schedule(rest, p)
		for _, e := range plan.Entries {
			w.check(!skip[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}] || len(e.Parts) == 0, "skipping %s would have missed a chance: %+v\nit failed with %v, since: %v", e.JobID, e.Parts, groupText(w.last[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]), w.events[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}])
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
		if !grows { // without the reservations of earlier passes: a pass makes those of its jobs again, in its order
			alone := in
			alone.Reserved = nil
			whole, _ := scheduler.Schedule(alone, p)
			w.oneByOne(alone, p, whole)
		}
	}
	for _, r := range rep.Workloads {
		delete(w.last, r.Key)
		delete(w.events, r.Key)
		delete(w.freed, r.Key)
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
					switch x.Dimension {
					case structs.DimensionGPUMemory, structs.DimensionGPUCompute, structs.DimensionEmptyGPUMemory:
						w.counts["short of "+x.Text()]++
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
	// From here on, rules about other jobs see what the plan places or moves to another version.
	if slices.ContainsFunc(plan.Entries, func(e *structs.PlanEntry) bool {
		return slices.ContainsFunc(e.Parts, func(p structs.PlanPart) bool { return len(p.Places)+len(p.Updates) > 0 })
	}) {
		w.happened(structs.EventAllocPlaced)
	}
	flight := w.flight
	for _, e := range plan.Entries {
		v := verify.Verify(w.view, flight, e)
		w.check(v.All(), "Verify refuses what Schedule proposed: %+v", v.Refused)
		w.partial(e)
		w.reserve(e.Reservation)
		w.nextID++
		if v.All() {
			flight = flight.AddVerified(uint64(w.nextID), e, v.Sums)
		} else {
			flight = flight.Add(uint64(w.nextID), e, nil)
		}
		w.wait = append(w.wait, inFlight{uint64(w.nextID), e, v})
	}
	w.flight = flight
	w.sums()
}

// sums checks that what plans in flight hold with what the view holds does not depend on what their verification noted.
func (w *world) sums() {
	if w.flight.Len() != len(w.wait) {
		return // a test that puts plans in flight itself
	}
	var bare model.Overlay
	for _, f := range w.wait {
		bare = bare.Add(f.id, f.entry, nil)
	}
	for _, ch := range w.view.Chunks {
		for i, n := range ch.Nodes {
			view := model.Occupancy{Used: ch.Used[i], Hold: ch.Hold[i]}
			got, want := w.flight.Over(n, view), bare.Over(n, view)
			if !reflect.DeepEqual(occupied(got), occupied(want)) {
				w.check(false, "node %s with what is in flight: %+v, counted afresh %+v", n.ID.Short(), occupied(got), occupied(want))
			}
			w.counts["sums"]++
		}
	}
}

// occupied returns everything that an occupancy says.
func occupied(o model.Occupancy) (out struct {
	Used               structs.Vector
	Held               []*model.Held
	Cores, Devs        model.Bitset
	Shares             []model.Share
	Waits, Yields, Shy int
}) {
	out.Used = o.Used
	if h := o.Hold; h != nil {
		out.Held, out.Cores, out.Devs, out.Shares, out.Waits, out.Yields, out.Shy = h.List(), h.Cores, h.Devs, h.Shares, h.Waits, h.Yields, h.Shy
	}
	return out
}

// replay dumps an input, loads it and decides again.
func (w *world) replay(in scheduler.Input, p search.Policy, plan scheduler.Plan) {
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

// oneByOne decides each workload of a pass in a separate pass, over the plans before it: nothing that a pass caches
// from one workload to the next may change a decision.
func (w *world) oneByOne(in scheduler.Input, p search.Policy, plan scheduler.Plan) {
	got := scheduler.Plan{Cursor: in.Cursor}
	alone := in
	for i := range in.Pending {
		alone.Pending, alone.Cursor = in.Pending[i:i+1], got.Cursor
		one, _ := scheduler.Schedule(alone, p)
		for k, e := range one.Entries {
			alone.Reserved = booked(alone.Reserved, e.Reservation)
			alone.Flight = alone.Flight.Add(1_000_000+uint64(100*i+k), e, nil)
		}
		got.Entries, got.Cursor = append(got.Entries, one.Entries...), one.Cursor
	}
	plan.Deferred = nil
	w.check(bytes.Equal(scheduler.AppendPlan(nil, plan), scheduler.AppendPlan(nil, got)), "a pass differs from its workloads decided one by one")
	w.counts["passes split"]++
}

// booked returns the reservations after one changed.
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
		v := verify.Verify(w.view, w.flight.Remove(f.id), f.entry)
		refusedJob := verify.Job(w.jobs[key], f.entry)
		before := w.over()
		for i, part := range f.entry.Parts {
			if len(part.Places)+len(part.Updates) > 0 && (refusedJob != "" || !v.Accepted[i] || w.cutShort(f.entry, &part)) {
				w.counts["parts refused"]++
				w.happened(structs.EventAllocStopped) // what was debited in flight is free again
				continue
			}
			w.counts["parts applied"]++
			w.tookStandbys(&part)
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
		w.sums()
		w.commit()
		w.sums()
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
				a.OwnLineage().DisconnectedAt = w.now
			}
			if k := (structs.RosterKey{Job: a.JobKey(), Group: a.Group}); s.Client == structs.ClientLost && w.gangs[k] != nil && w.gangs[k].Rank(a.ID) < 0 {
				w.gangs[k] = w.gangs[k].Blame(a.NodeID)
			}
			w.counts["declared "+string(s.Client)]++
		}
		if !s.Followup.IsZero() {
			a.OwnLineage().FollowupEval = s.Followup
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
			Ports: p.Ports, Cores: p.Cores, Desired: structs.DesiredRun, Client: structs.ClientPending, WaitsOn: p.WaitsOn, Line: &structs.Lineage{Previous: p.Previous, Restarts: p.Restarts, Requeues: p.Requeues, RestartReason: p.Reason, Reschedules: p.Resched}, CreateIndex: w.index + 1, CreateTime: w.now, Expect: p.Expect}
		if q := w.queue[a.JobKey()]; q != nil {
			a.OwnLineage().Preempted = q.Preempted
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
			b.OwnLineage().Next = a.ID
			w.putAlloc(&b)
		}
		w.putAlloc(a)
	}
}

// over returns by how much each node is over its capacity: amounts, and things given twice.
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

// overGPUs counts, GPU by GPU and without the scheduler's code, what is given beyond memory and compute, and GPUs given
// whole and in shares at the same time. An allocation that waits for others is on the GPU only once they are gone: both
// states are checked.
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
		if a.Terminal() || a.Client == structs.ClientUnknown || !a.Lineage().Next.IsZero() {
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

// TestProperties runs random clusters. MUSTER_PROPERTY_CHECKS sets the least number of checks, MUSTER_PROPERTY_SEED
// repeats one world.
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
		w.reserves = true
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
		"gangs placed", "gangs grown", "gangs restarted", "gangs reduced", "refused GANG", "refused TOPOLOGY", "parts of gangs cut", "joint jobs ran", "joint groups ended",
		"standbys held", "standbys used", "reservations ended"} {
		if counts[k] == 0 {
			t.Errorf("%q never happened: the run proves nothing about it", k)
		}
	}
}
