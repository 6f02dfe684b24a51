package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestJainOfShares: three users want more than the cluster has for a whole day, one of them with twelve times as many jobs
// as another. Under orders by shares they get nearly equal GPU hours: Jain's index of them is above 0.9, and below
// without such an order, so the work proves something.
func TestJainOfShares(t *testing.T) {
	const day = 24 * time.Hour
	for order, fair := range map[structs.Order]bool{structs.OrderFair: true, structs.OrderWeighted: true, structs.OrderFCFS: false} {
		for _, preemptible := range []bool{false, true} {
			var jobs []*Job
			for _, u := range []struct {
				name  string
				every time.Duration
				run   time.Duration
				gpus  int64
			}{{"many", 5 * time.Minute, 50 * time.Minute, 1}, {"wide", 50 * time.Minute, 75 * time.Minute, 2}, {"long", time.Hour, 3 * time.Hour, 1}} {
				for at := time.Duration(0); at < day; at += u.every {
					j := gpuJob(fmt.Sprintf("%s-%d", u.name, at/time.Second), at, u.run, u.gpus)
					j.Size, j.Job.Submitter.Name, j.Job.Preemptible, j.Job.Runtime.Limit = u.gpus, u.name, preemptible, u.run
					jobs = append(jobs, j)
				}
			}
			slices.SortStableFunc(jobs, func(a, b *Job) int { return int(a.At - b.At) })
			hours := map[string]float64{}
			cfg := Config{Whole: true, Nodes: nodes(t, "1x6"), Policy: policy.Builtin[structs.AlgorithmDefault], Source: &list{jobs: jobs},
				Queues: []*structs.Queue{{Path: structs.QueueRoot, Order: order}}}
			cfg.Hooks.Ended = func(e *Engine, l *Live) {
				if l.At+l.End.Sub(l.Submit) < day {
					hours[l.Job.Job.Submitter.Name] += l.Run.Hours() * float64(l.Size)
				}
			}
			if err := NewEngine(cfg).Run(context.Background()); err != nil {
				t.Fatal(err)
			}
			sum, squares := 0.0, 0.0
			for _, h := range hours {
				sum, squares = sum+h, squares+h*h
			}
			index := sum * sum / (3 * squares)
			t.Logf("%s, preemptible %t: Jain's index %.3f of %v", order, preemptible, index, hours)
			if fair != (index > 0.9) {
				t.Errorf("%s, preemptible %t: Jain's index of the users' GPU hours is %.3f", order, preemptible, index)
			}
		}
	}
}
