package scheduler_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// preemptWorld is a small cluster whose queues preempt by a rule.
func preemptWorld(t *testing.T, seed uint64, counts map[string]int) *world {
	w := newWorld(t, seed, counts)
	for range 3 + w.pick(4) {
		n := node(0)
		w.nextID++
		n.ID, n.Name = structs.NodeID(id("node", w.nextID)), fmt.Sprintf("n%d", w.nextID)
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for i := range 4 {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", w.nextID, i), Healthy: true, MemoryMiB: 40960})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
		w.putNode(n)
	}
	w.commit()
	rule := []string{structs.PreemptPriority, structs.PreemptReclaim, structs.PreemptPriority}[seed%3]
	for _, path := range []string{"a", "b"} {
		w.putQueue(&structs.Queue{Path: structs.QueuePath(path), Preempt: rule, PreemptMinRuntime: 30 * time.Second, PreemptMax: 3, PreemptRate: int64(w.pick(3) * 4),
			Backfill: structs.BackfillGreedy, Guarantee: &structs.Amount{GPUMilli: 1000 * int64(2*len(w.nodes))}})
	}
	return w
}

func (w *world) preemptJob() {
	w.nextID++
	j := job(fmt.Sprintf("j%03d", w.nextID), 1+w.pick(3))
	j.Type, j.Priority, j.Queue = structs.JobBatch, 10*(1+w.pick(8)), []structs.QueuePath{"a", "b"}[w.pick(2)]
	j.CreateIndex, j.SpecIndex = w.index, w.index
	j.Preemptible = w.pick(4) > 0
	j.Runtime.Expected = time.Duration(1+w.pick(100)) * time.Minute
	g := j.Groups[0]
	g.Tasks[0].Resources = structs.Resources{CPU: 100, MemoryMiB: 100, GPU: []structs.GPURequest{{Count: int64(1 + w.pick(4))}}}
	if w.pick(4) == 0 {
		g.Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: int64(10000 * (1 + w.pick(4)))}}
	}
	switch w.pick(4) {
	case 0:
		g.Gang = &structs.Gang{}
	case 1:
		g.Elastic = &structs.Elastic{Min: 1, Max: g.Count + 1}
	}
	if w.pick(3) == 0 {
		g.Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: 20 * time.Second}
	}
	w.jobs[j.Key()] = j
	w.addEval(j.Key(), structs.TriggerJobRegister)
}

// decide makes one pass in queue order and lands it; it counts what the pass evicted.
func (w *world) decide() (evicted int) {
	in := scheduler.Input{View: w.view, Pending: w.pending(), Now: w.now, Queues: w.queueTable(), Evicted: w.taken}
	slices.SortStableFunc(in.Pending, func(a, b contend.Workload) int {
		pa, pb := 0, 0
		if a.Job != nil {
			pa = a.Job.Priority
		}
		if b.Job != nil {
			pb = b.Job.Priority
		}
		return pb - pa
	})
	before := w.counts["evicted"]
	plan, rep := scheduler.Schedule(in, binpack)
	if w.decided != nil {
		w.decided(plan, rep)
	}
	perQueue := map[structs.QueuePath]map[structs.JobKey]bool{}
	told := map[structs.JobKey]structs.QueuePath{} // the queue for which an eviction counts: of the first preemptor that takes a place of the job
	for _, e := range plan.Entries {
		v := verify.Verify(w.view, w.flight, e)
		w.check(v.All(), "Verify refuses: %+v", v.Refused)
		for i := range e.Parts {
			p := &e.Parts[i]
			for _, s := range p.Stops {
				a := w.allocs[s.ID]
				if s.Preempt.IsZero() || a.Desired != structs.DesiredRun {
					continue
				}
				w.check(len(p.Places) > 0, "a victim without a preemptor in its part")
				by := w.jobs[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]
				switch s.Desired {
				case structs.DesiredEvict:
					w.check(a.Job.MayPreempt(), "%s does not say that it may be preempted", a.JobID)
					w.check(w.now.Sub(a.CreateTime) >= 30*time.Second, "%s was preempted %v after it was placed", a.JobID, w.now.Sub(a.CreateTime))
					lost, gained := 0, 0 // lost is 0 for work that this pass has already stopped
					_, why, _ := strings.Cut(s.Desc, ": ")
					byPriority := !strings.HasPrefix(why, "its queue gets back")
					w.check(!byPriority || w.queues.Queues[0].Preempt == structs.PreemptPriority, "%s is told %q", a.JobID, s.Desc)
					if byPriority {
						_, err := fmt.Sscanf(why, "%d GPU seconds are lost, worth less than the %d gained", &lost, &gained)
						w.check(err == nil && lost < gained, "%s is told %q", a.JobID, s.Desc)
					} else {
						_, err := fmt.Sscanf(why, "its queue gets back what it is guaranteed; %d GPU seconds are lost", &lost)
						w.check(err == nil, "%s is told %q", a.JobID, s.Desc)
					}
					w.check(a.Lineage().Preempted < 3, "%s was preempted %d times before", a.JobID, a.Lineage().Preempted)
					if byPriority {
						w.check(a.Job.Priority < by.Priority, "%s of priority %d was preempted for %s of %d", a.JobID, a.Job.Priority, by.ID, by.Priority)
					} else {
						w.check(a.Job.QueueName() != by.QueueName(), "%s took from its own queue", by.ID)
					}
					if perQueue[by.Queue] == nil {
						perQueue[by.Queue] = map[structs.JobKey]bool{}
					}
					if first, ok := told[a.JobKey()]; !ok || first == by.Queue {
						told[a.JobKey()], perQueue[by.Queue][a.JobKey()] = by.Queue, true
					}
					if a.Job.Groups[0].Gang != nil {
						w.counts["gang members evicted"]++
					}
				default:
					w.check(a.Job.Groups[0].Elastic != nil, "%s is shrunk and not elastic", a.JobID)
				}
			}
		}
	}
	for _, q := range w.queues.Queues {
		n := 0
		for _, e := range w.taken {
			if e.Queue == q.Path {
				n = int(e.Within(w.now))
			}
		}
		if more := len(perQueue[q.Path]); q.PreemptRate > 0 {
			w.check(more == 0 || n+more <= int(q.PreemptRate), "queue %s preempted %d jobs in the hour, then %d; the limit is %d", q.Path, n, more, q.PreemptRate)
			if n+more == int(q.PreemptRate) {
				w.counts["rate reached"]++
			}
		}
	}
	for _, e := range plan.Entries {
		w.nextID++
		w.wait = append(w.wait, inFlight{id: uint64(w.nextID), entry: e})
		w.flight = w.flight.Add(uint64(w.nextID), e, nil)
	}
	w.land()
	return w.counts["evicted"] - before
}

// agents ends what was asked to stop, and runs what no longer waits for others.
func (w *world) agents() {
	for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
		if a = w.allocs[a.ID]; a.ClientTerminal() {
			continue
		}
		b := *a
		switch {
		case a.ServerTerminal():
			b.Client, b.FinishedAt = structs.ClientComplete, w.now
			w.addEval(a.JobKey(), structs.TriggerPreemption)
		case a.Client == structs.ClientPending && !slices.ContainsFunc(a.WaitsOn, func(id structs.AllocID) bool { return w.allocs[id] != nil && structs.Holds(w.allocs[id]) }):
			b.Client, b.StartedAt = structs.ClientRunning, w.now
			if len(a.WaitsOn) > 0 {
				w.counts["preemptors started"]++
			}
		default:
			continue
		}
		w.putAlloc(&b)
	}
	w.commit()
}

// TestPreemptionProperties runs random clusters whose queues preempt. GPU memory is never over-committed and no gang
// runs partly (both checked whenever a plan lands), the rules and the rate hold for every victim, and at a fixed time
// and usage preemption comes to an end: with passes and agents alone, without arrivals and ends of work, evictions stop
// after a few rounds, and the preemptors run.
func TestPreemptionProperties(t *testing.T) {
	goal := propertyChecks(t) / 2
	counts := map[string]int{}
	checks, seed := 0, uint64(1)
	for ; checks < goal; seed++ {
		w := preemptWorld(t, seed, counts)
		for range 25 {
			w.now = w.now.Add(time.Duration(w.pick(240)) * time.Second)
			for range w.pick(3) {
				w.preemptJob()
			}
			w.decide()
			if w.pick(2) == 0 {
				w.agents()
			}
			if w.pick(3) == 0 { // some work ends
				for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
					if a = w.allocs[a.ID]; a.Client == structs.ClientRunning && !a.Terminal() && w.pick(4) == 0 {
						b := *a
						b.Client, b.FinishedAt = structs.ClientComplete, w.now
						w.putAlloc(&b)
						w.addEval(a.JobKey(), structs.TriggerRetryFailed)
					}
				}
				w.commit()
			}
		}
		// Time does not advance.
		quiet := 0
		for round := 0; quiet < 3; round++ {
			w.check(round < 40, "seed %d: after 40 rounds at one time work is still evicted", seed)
			n := w.decide()
			w.agents()
			for _, k := range sortedJobs(w.jobs) {
				w.addEval(k, structs.TriggerNodeUpdate) // every job is decided
			}
			if quiet++; n > 0 {
				quiet = 0
			}
		}
		for _, a := range w.allocs {
			if len(a.WaitsOn) > 0 && !a.Terminal() {
				w.check(a.Client == structs.ClientRunning, "%s waits for ever", a.Name())
			}
		}
		counts["settled"]++
		checks += w.checks
	}
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		lines = append(lines, fmt.Sprintf("%s %d", k, counts[k]))
	}
	t.Logf("%d checks, seeds 1 to %d: %s", checks, seed-1, strings.Join(lines, ", "))
	for _, k := range []string{"evicted", "shrunk", "gang members evicted", "preemptors started", "rate reached", "gangs placed", "gangs restarted", "shares given", "settled"} {
		if counts[k] == 0 {
			t.Errorf("%q never happened: the run proves nothing about it", k)
		}
	}
}
