package scheduler_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// decisionLog hashes decisions as typed values: where work is placed, which work is stopped, what is reserved, in which
// order, and the reason codes of what waits. Sentences are left out, so that they can be rewritten while decisions do
// not change.
type decisionLog struct {
	sum                                      hash.Hash
	places, stops, reservations, refusals, n int
}

func newDecisionLog() *decisionLog { return &decisionLog{sum: sha256.New()} }

func (d *decisionLog) add(p scheduler.Plan, r scheduler.Report) {
	d.n++
	f := func(format string, args ...any) { fmt.Fprintf(d.sum, format+"\n", args...) }
	f("plan cursor=%x deferred=%v", p.Cursor, p.Deferred)
	for _, e := range p.Entries {
		f("entry %s %d eval=%x workload=%v", e.JobID, e.JobVersion, e.EvalID, e.Workload != nil)
		for _, part := range e.Parts {
			f("part")
			for _, s := range part.Stops {
				d.stops++
				f("stop %x %s %s %x %x", s.ID, s.Desired, s.Client, s.Preempt, s.Followup)
			}
			for _, u := range part.Updates {
				f("update %x", u.ID)
			}
			for _, x := range part.Places {
				d.places++
				f("place %s %d on %x waits=%x prev=%x ports=%v cores=%v expect=%v reason=%v", e.Groups[x.Group], x.Index, e.Nodes[x.Node].ID, x.WaitsOn, x.Previous, x.Ports, x.Cores, x.Expect, x.Reason)
				for _, g := range x.Grants {
					f("grant %s %s %s %d %d", g.Task, g.Device, g.Instance, g.MemoryMiB, g.Compute)
				}
			}
		}
		for _, v := range e.Evals {
			f("eval %x %s %s %d", v.ID, v.Status, v.Trigger, v.WaitUntil)
		}
		for _, ro := range e.Rosters {
			f("roster %s", ro.Group)
			for _, m := range ro.Members {
				f("member %x", m.Alloc)
			}
		}
		if rs := e.Reservation; rs != nil {
			d.reservations++
			f("reservation %x %d %d %s", rs.ID, rs.Start, rs.End, rs.Basis)
			for _, x := range rs.Places {
				f("at %x %+v %v", x.Node, x.Need, x.Grants)
			}
		}
	}
	f("wake %d", r.Wake)
	for _, w := range r.Workloads {
		f("report %s failed=%v passed=%v start=%d", w.Key, w.Failed, w.Passed, w.Start)
		for _, u := range w.Updates {
			f("updates %+v", u)
		}
		for _, g := range w.Groups {
			f("group %s %s %d/%d filtered=%d exhausted=%d", g.Group, g.Code, g.Placed, g.Wanted, g.Filtered, g.Exhausted)
			var codes []string
			for _, x := range g.Refusals {
				d.refusals++
				codes = append(codes, fmt.Sprintf("%s %d %s", x.Code, x.Nodes, x.CuredBy))
			}
			slices.Sort(codes)
			f("%v", codes)
			for _, s := range g.Scores {
				f("score %x %d", s.NodeID, s.Micro)
			}
		}
	}
}

// digest is short enough for a table that people compare by eye.
func (d *decisionLog) digest() string {
	return fmt.Sprintf("%s passes=%d places=%d stops=%d reservations=%d refusals=%d", hex.EncodeToString(d.sum.Sum(nil)[:8]), d.n, d.places, d.stops, d.reservations, d.refusals)
}

// decisionsOfWorlds covers random clusters under a policy: updates, gangs, shares, drains and nodes that fail.
func decisionsOfWorlds(t *testing.T, name string, k int) string {
	d := newDecisionLog()
	for seed := uint64(7000 + 10*k); seed < uint64(7000+10*k+10); seed++ {
		w := newWorld(t, seed, map[string]int{})
		w.decided = d.add
		if seed%3 == 0 {
			w.budget = 1500 + int64(seed%7)*900
		}
		w.gpuFit = structs.GPUFits[int(seed)%len(structs.GPUFits)]
		for range 5 {
			w.putNode(w.randomNode())
		}
		w.commit()
		for range 40 {
			w.step()
			if w.pick(2) == 0 {
				w.pass(policy.Builtin[name])
			}
			if w.pick(2) == 0 {
				w.land()
			}
		}
	}
	return d.digest()
}

// decisionsOfPreemption covers clusters whose queues preempt by priority, by guarantee, or by order.
func decisionsOfPreemption(t *testing.T, order structs.Order) string {
	d := newDecisionLog()
	for seed := uint64(8000); seed < 8014; seed++ {
		w := preemptWorld(t, seed, map[string]int{})
		w.decided = d.add
		if order != "" {
			w.putQueue(&structs.Queue{Path: "a", Preempt: structs.PreemptOrder, Order: order})
			w.putQueue(&structs.Queue{Path: "b", Preempt: structs.PreemptOrder, Order: order, Backfill: structs.BackfillConservative})
		}
		for range 12 {
			w.now = w.now.Add(time.Duration(w.pick(240)) * time.Second)
			for range w.pick(3) {
				w.preemptJob()
			}
			if order != "" {
				w.decideByOrder(order)
			} else {
				w.decide()
			}
			if w.pick(2) == 0 {
				w.agents()
			}
		}
	}
	return d.digest()
}

// decideByOrder makes one pass in which running and pending work compete for places, and lands it.
func (w *world) decideByOrder(order structs.Order) {
	in := scheduler.Input{View: w.view, Pending: w.pending(), Now: w.now, Queues: w.queueTable(), Evicted: w.taken, Chooser: queue.Choosers{}, Config: structs.SchedulerConfig{Order: order}, Seed: 3}
	waits := map[structs.JobKey]bool{}
	for i := range in.Pending {
		waits[in.Pending[i].Key] = true
		w.entryOf(&in.Pending[i])
	}
	for _, k := range sortedJobs(w.jobs) {
		l := contend.Workload{Key: k, Job: w.jobs[k], Queue: w.queue[k]}
		for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
			if a.JobKey() == k && structs.Holds(a) {
				l.Allocs = append(l.Allocs, a)
			}
		}
		if len(l.Allocs) > 0 && !waits[k] {
			w.entryOf(&l)
			in.Running = append(in.Running, l)
		}
	}
	in.Line = line(&in)
	plan, rep := scheduler.Schedule(in, binpack)
	w.decided(plan, rep)
	for _, e := range plan.Entries {
		w.check(verify.Verify(w.view, w.flight, e).All(), "Verify refuses %s", e.JobID)
		w.nextID++
		w.wait = append(w.wait, inFlight{id: uint64(w.nextID), entry: e})
		w.flight = w.flight.Add(uint64(w.nextID), e, nil)
	}
	w.land()
}

// entryOf gives a workload a queue entry and a prediction.
func (w *world) entryOf(l *contend.Workload) {
	if l.Job == nil {
		return
	}
	l.Expect = l.Job.Runtime.Expected
	if l.Queue == nil {
		l.Queue = &structs.Workload{Namespace: l.Key.Namespace, JobID: l.Key.ID, Domain: structs.NodePoolDefault, Priority: l.Job.Priority, SubmitIndex: l.Job.CreateIndex, SubmitTime: 1_700_000_000_000_000_000}
	}
}

// decisionsOfReservations covers passes over full clusters: backfilling of every kind with reservations.
func decisionsOfReservations(first uint64, policyName string) string {
	d := newDecisionLog()
	for seed := first; seed < first+200; seed++ {
		in := bookWorld(rand.New(rand.NewPCG(seed, 13)))
		if seed%2 == 0 {
			for i := range in.Pending {
				in.Pending[i].Least = contend.LeastOf(in.Pending[i].Job)
			}
		}
		in.Line = line(&in)
		plan, rep := scheduler.Schedule(in, policy.Builtin[policyName])
		d.add(plan, rep)
		for _, e := range plan.Entries { // once more, with the reservations in force
			in.Reserved = booked(in.Reserved, e.Reservation)
		}
		in.Line = line(&in)
		d.add(scheduler.Schedule(in, policy.Builtin[policyName]))
	}
	return d.digest()
}

// TestDecisions compares the decisions about some hundred random clusters with recorded ones. A change that only
// rearranges code must not change the digests; one that changes decisions rewrites them with -rewrite and explains why.
func TestDecisions(t *testing.T) {
	file := filepath.Join("testdata", "decisions")
	var got strings.Builder
	for k, name := range policy.Names() {
		fmt.Fprintf(&got, "policy %s: %s\n", name, decisionsOfWorlds(t, name, k))
	}
	for _, order := range []structs.Order{"", structs.OrderAdaptive, structs.OrderSRTF, structs.OrderSRSF, structs.OrderMLFQ, structs.OrderFair + "," + structs.OrderEDF} {
		fmt.Fprintf(&got, "preemption %q: %s\n", order, decisionsOfPreemption(t, order))
	}
	for k, name := range []string{"binpack", "worst-fit", "next-fit"} {
		fmt.Fprintf(&got, "reservations %s: %s\n", name, decisionsOfReservations(uint64(1000*k), name))
	}
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wanted := strings.Split(string(want), "\n")
	for i, g := range strings.Split(got.String(), "\n") {
		if i >= len(wanted) || g != wanted[i] {
			t.Errorf("decisions differ from %s, line %d:\ngot  %s\nwant %s", file, i+1, g, strings.Join(wanted[min(i, len(wanted)):min(i+1, len(wanted))], ""))
		}
	}
}
