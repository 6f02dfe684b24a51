package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// lemons is thirty days of a cluster of 16 nodes with 8 GPUs each, about two thirds in use: jobs of 1 to 8 GPUs without checkpoints
// that run up to two days, nodes that are lost once in three months, and three that are lost every day.
func lemons(seed uint64) (jobs []*Job, events []NodeEvent) {
	d := draws{state: seed}
	const days = 30
	for at, i := time.Duration(0), 0; at < days*24*time.Hour; i++ {
		jobs = append(jobs, gpuJob(fmt.Sprint("j", i), at, time.Duration(1+d.intn(48))*time.Hour, int64(1+d.intn(8))))
		jobs[i].Job.Runtime.Expected, jobs[i].Size = jobs[i].Run, jobs[i].Job.Groups[0].Tasks[0].Resources.GPU[0].Count
		at += d.exponential(75 * time.Minute)
	}
	for i := range 16 {
		mean := 90 * 24 * time.Hour
		if i%6 == 1 {
			mean = 24 * time.Hour
		}
		for at := d.exponential(mean); at < days*24*time.Hour; at += d.exponential(mean) {
			events = append(events, NodeEvent{At: at, Node: i, What: EventDown})
			at += 30 * time.Minute
			events = append(events, NodeEvent{At: at, Node: i, What: EventUp})
		}
	}
	slices.SortStableFunc(events, func(a, b NodeEvent) int { return int(a.At - b.At) })
	return jobs, events
}

// TestReliabilityLosesLess: with the default configuration less work is lost with nodes than when their reliability does
// not count, and work waits no longer for it. docs/scheduling.md has the figures.
func TestReliabilityLosesLess(t *testing.T) {
	const first, runs = 20261128, 5
	var lost, wait [2]float64
	for seed := uint64(first); seed < first+runs; seed++ {
		for off := range 2 {
			rules, err := RulesFor("default")
			if err != nil {
				t.Fatal(err)
			}
			jobs, events := lemons(seed)
			nothing := func(*Live, time.Duration) time.Duration { return 0 }
			cfg := Config{Nodes: nodes(t, "16x8"), Source: &list{jobs: jobs}, Events: events, Seed: seed, Kept: nothing}
			if err := rules.Apply(&cfg); err != nil {
				t.Fatal(err)
			}
			if off == 1 {
				cfg.Scheduler.Weights.Reliability = structs.WeightOff
			}
			e := NewEngine(cfg)
			if err := e.Run(context.Background()); err != nil {
				t.Fatal(err)
			}
			s := e.Stats()
			if s.Done != int64(len(jobs)) {
				t.Fatalf("seed %d: %d of %d jobs are done", seed, s.Done, len(jobs))
			}
			lost[off] += s.LostWork / 3600
			wait[off] += s.Wait.Mean() / 3600 / runs
			t.Logf("seed %d, off %d: %d jobs, %d losses of nodes, %d allocations and %.0f GPU hours lost, wait %.2f h", seed, off, s.Done, s.NodeFailures, s.Lost, s.LostWork/3600, s.Wait.Mean()/3600)
		}
	}
	t.Logf("GPU hours lost: %.0f, %.0f when reliability does not count; mean wait %.2f h, %.2f h", lost[0], lost[1], wait[0], wait[1])
	if lost[0] > lost[1]*0.8 || wait[0] > wait[1]*1.05 {
		t.Error("that is hardly better, or work waits longer")
	}
}
