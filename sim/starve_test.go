package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// TestNobodyStarves: narrow work arrives all the time and would keep nodes from ever being free for work that needs a
// whole one. Under every order and backfilling, with and without known run times, a job that has waited for its queue's
// bound starts soon after: when the work running then has ended.
func TestNobodyStarves(t *testing.T) {
	const bound, longest = 4 * time.Hour, time.Hour
	starved, checks := 0, 0
	for seed := range uint64(2) {
		for _, limits := range []bool{true, false} {
			for _, order := range []structs.Order{structs.OrderAdaptive, structs.OrderSJF, structs.OrderSRSF, structs.OrderEDF, structs.OrderFCFS, structs.OrderPriority} {
				for _, backfill := range []string{structs.BackfillGreedy, structs.BackfillEASY, structs.BackfillSJF} {
					for _, wait := range []time.Duration{bound, math.MaxInt64} {
						worst := widestWait(t, seed, limits, longest, structs.Queue{Path: structs.QueueRoot, Order: order, Backfill: backfill, MaxWait: wait})
						name := fmt.Sprintf("seed %d, %s, %s, limits %v", seed, order, backfill, limits)
						switch {
						case wait == bound && worst > bound+3*longest:
							t.Errorf("%s: a wide job waited %v", name, worst)
						case wait == bound:
							checks++
						case worst > bound+3*longest:
							starved++
						}
					}
				}
			}
		}
	}
	if starved < checks/6 {
		t.Errorf("without a bound only %d of %d runs starve: they prove nothing about it", starved, checks)
	}
	t.Logf("%d runs; without a bound %d of them starve", checks, starved)
}

// TestNobodyStarvesWherePreempted: the same with work that may be preempted, under every order: what runs competes with
// what waits then.
func TestNobodyStarvesWherePreempted(t *testing.T) {
	const bound, longest = 4 * time.Hour, time.Hour
	for _, order := range append(queue.Names(), "priority,fair", "fair,edf") {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			worst := widestWait(t, 0, true, longest, structs.Queue{Path: structs.QueueRoot, Order: order, Preempt: structs.PreemptOrder, MaxWait: bound})
			if worst > bound+3*longest {
				t.Errorf("a wide job waited %v", worst)
			}
		})
	}
}

// widestWait returns the longest wait of a wide job among narrow ones.
func widestWait(t *testing.T, seed uint64, limits bool, longest time.Duration, root structs.Queue) time.Duration {
	rng := rand.New(rand.NewPCG(seed, 99))
	var jobs []*Job
	add := func(name string, at, run time.Duration, gpus int64, priority int) {
		j := gpuJob(name, at, run, gpus)
		j.Job.Priority, j.Job.Preemptible = priority, root.Preempt == structs.PreemptOrder
		if limits {
			j.Job.Runtime.Limit = longest
		}
		jobs = append(jobs, j)
	}
	wide := 0
	for at := time.Duration(0); at < 60*time.Hour; at += time.Duration(rng.Int64N(int64(10 * time.Minute))) {
		add(fmt.Sprintf("narrow%d", len(jobs)), at, 10*time.Minute+time.Duration(rng.Int64N(int64(longest-15*time.Minute))), 1, 50)
		if due := time.Duration(wide) * 12 * time.Hour; at >= due && due < 48*time.Hour {
			add(fmt.Sprintf("wide%d", wide), at, longest/2, 4, 50)
			wide++
		}
	}
	worst := time.Duration(0)
	cfg := Config{Whole: true, Nodes: nodes(t, "2x4"), Policy: policy.Builtin["worst-fit"], Source: &list{jobs: jobs}, Queues: []*structs.Queue{&root}}
	ended := 0
	cfg.Hooks.Ended = func(e *Engine, l *Live) {
		ended++
		if l.Key.ID[:4] == "wide" {
			worst = max(worst, l.Start.Sub(l.Submit))
		}
	}
	if err := NewEngine(cfg).Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if ended != len(jobs) {
		t.Fatalf("%d of %d jobs ended", ended, len(jobs))
	}
	return worst
}

// TestLowPriorityStarts: work of a high priority arrives faster than it can be served, for hours or, where the queue has
// the default bound, for days. Under every order, backfilling, and with and without preemption, a job of a low priority
// starts soon after it has waited for its queue's bound. STARVE_ALL=1 takes every combination.
func TestLowPriorityStarts(t *testing.T) {
	const longest = time.Hour
	type run struct {
		order    structs.Order
		backfill string
		preempt  string
		bound    time.Duration // 0: the default
	}
	all := os.Getenv("STARVE_ALL") != ""
	var runs []run
	for o, order := range append(queue.Names(), "priority,fair", "fair,edf") {
		for b, backfill := range []string{structs.BackfillNone, structs.BackfillGreedy, structs.BackfillEASY, structs.BackfillSJF, structs.BackfillConservative} {
			for k, preempt := range []string{structs.PreemptOrder, structs.PreemptNone} {
				if all || (o+b+k)%2 == 0 {
					runs = append(runs, run{order, backfill, preempt, 4 * time.Hour})
				}
			}
		}
	}
	for _, preempt := range []string{structs.PreemptOrder, structs.PreemptNone} {
		runs = append(runs, run{structs.OrderAdaptive, structs.BackfillSJF, preempt, 0}, run{structs.OrderSRTF, structs.BackfillGreedy, preempt, 0})
	}
	tried, without := 0, 0
	for i, r := range runs {
		root := structs.Queue{Path: structs.QueueRoot, Order: r.order, Backfill: r.backfill, Preempt: r.preempt, MaxWait: r.bound}
		bound := r.bound
		if bound == 0 {
			bound = 24 * time.Hour
		}
		if wait := lowWait(t, bound, longest, root); wait > bound+4*longest {
			t.Errorf("%+v: the job of low priority waited %v", r, wait)
		}
		if r.bound > 0 && (all || i%4 == 0) {
			tried++
			if root.MaxWait = structs.MaxWaitOff; lowWait(t, bound, longest, root) > bound+4*longest {
				without++
			}
		}
	}
	if without < tried/4 {
		t.Errorf("without a bound the job waits longer in %d of %d runs only: they prove nothing about it", without, tried)
	}
	t.Logf("%d runs; without a bound the job waits longer in %d of %d", len(runs), without, tried)
}

// lowWait returns how long a job of a low priority waits in a stream of others.
func lowWait(t *testing.T, bound, longest time.Duration, root structs.Queue) time.Duration {
	rng := rand.New(rand.NewPCG(7, 98))
	var jobs []*Job
	add := func(name string, at, run time.Duration, gpus int64, priority int) {
		j := gpuJob(name, at, run, gpus)
		j.Job.Priority, j.Job.Preemptible, j.Job.Runtime.Limit = priority, root.Preempt == structs.PreemptOrder, longest
		j.Job.Submitter.Name = fmt.Sprint("user", len(jobs)%3)
		jobs = append(jobs, j)
	}
	for at := time.Duration(0); at < bound+6*longest; at += time.Duration(rng.Int64N(int64(20 * time.Minute))) {
		add(fmt.Sprintf("high%d", len(jobs)), at, 20*time.Minute+time.Duration(rng.Int64N(int64(longest-20*time.Minute))), 1+rng.Int64N(2), 70)
		if len(jobs) == 9 {
			add("low", at, longest/2, 2, 30)
		}
	}
	wait := time.Duration(-1)
	cfg := Config{Whole: true, Nodes: nodes(t, "1x4"), Policy: policy.Builtin["binpack"], Source: &list{jobs: jobs}, Queues: []*structs.Queue{&root}}
	cfg.Hooks.Ended = func(e *Engine, l *Live) {
		if l.Key.ID == "low" {
			wait = l.Start.Sub(l.Submit)
		}
	}
	if err := NewEngine(cfg).Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if wait < 0 {
		t.Fatal("the job of low priority did not end")
	}
	return wait
}
