package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// TestPreemptionIsWorthItsLoss: 400 preemptible jobs on 8 GPUs that are always full. Where a preemption loses nothing, the
// default rule halves the mean time in the system at least; where it loses all of a run, it is no worse than no
// preemption. No job is preempted more than ten times.
func TestPreemptionIsWorthItsLoss(t *testing.T) {
	for seed := range uint64(2) {
		for _, keeps := range []bool{true, false} {
			none, order := lossRun(t, seed, keeps, structs.PreemptNone), lossRun(t, seed, keeps, "")
			t.Logf("seed %d, keeps everything %v: none %+v, order %+v", seed, keeps, none, order)
			switch {
			case order.most > 10:
				t.Errorf("seed %d: one job was preempted %d times", seed, order.most)
			case 100*order.makespan > 105*none.makespan:
				t.Errorf("seed %d, keeps everything %v: all is done after %v, without preemption after %v", seed, keeps, order.makespan, none.makespan)
			case keeps && 2*order.mean > none.mean:
				t.Errorf("seed %d: the mean is %v, without preemption %v, and nothing is lost", seed, order.mean, none.mean)
			case !keeps && 100*order.mean > 105*none.mean:
				t.Errorf("seed %d: the mean is %v, without preemption %v", seed, order.mean, none.mean)
			}
			if keeps && order.preempted < 100 {
				t.Errorf("seed %d: only %d preemptions: they prove nothing", seed, order.preempted)
			}
		}
	}
}

// lossFigures are the figures of one run.
type lossFigures struct {
	preempted, most int64
	makespan, mean  time.Duration
}

func lossRun(t *testing.T, seed uint64, keeps bool, preempt string) (out lossFigures) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 400))
	var jobs []*Job
	at := time.Duration(0)
	for i := range 400 {
		at += time.Duration(rng.ExpFloat64() * float64(45*time.Minute))
		run := time.Duration(float64(10*time.Minute) * float64(int64(1)<<rng.IntN(8)) * (0.5 + rng.Float64())) // 5 minutes to 32 hours
		j := gpuJob(fmt.Sprint("j", i), at, run, []int64{1, 1, 1, 2, 4}[rng.IntN(5)])
		j.Job.Preemptible, j.Job.Runtime.Expected = true, run
		jobs = append(jobs, j)
	}
	cfg := Config{Nodes: nodes(t, "1x8"), Policy: policy.Builtin["strand"], Source: &list{jobs: jobs}, Predict: NewLearner(predict.NewSimilar()),
		Queues: []*structs.Queue{{Path: structs.QueueRoot, Preempt: preempt}}}
	if !keeps {
		cfg.Kept = func(*Live, time.Duration) time.Duration { return 0 }
	}
	cfg.Hooks.Ended = func(e *Engine, l *Live) {
		out.preempted += l.Preempted
		out.most = max(out.most, l.Preempted)
		out.makespan = max(out.makespan, Since(l.End))
		out.mean += l.End.Sub(l.Submit) / time.Duration(len(jobs))
	}
	if err := NewEngine(cfg).Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPreemptionGoesByTheAgeOfTheCheckpoint: a long job on the only GPU saves every hour, and one of a few minutes arrives.
// Just after a checkpoint little would be lost, and the short one runs first; just before one, it waits. What was done
// since the checkpoint is done again.
func TestPreemptionGoesByTheAgeOfTheCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name     string
		saves    time.Duration
		arrives  time.Duration
		preempts int64
		ends     time.Duration // the long job
	}{
		{"just after a checkpoint", time.Hour, 181 * time.Minute, 1, 10*time.Hour + 7*time.Minute},
		{"just before one", time.Hour, 239 * time.Minute, 0, 10 * time.Hour},
		{"at one", time.Hour, 180 * time.Minute, 1, 10*time.Hour + 6*time.Minute},
		{"it never saves", 0, 181 * time.Minute, 0, 10 * time.Hour},
	} {
		long, short := gpuJob("long", 0, 10*time.Hour, 1), gpuJob("short", c.arrives, 5*time.Minute, 1)
		for _, j := range []*Job{long, short} {
			j.Job.Preemptible, j.Job.Runtime.Expected = j == long, j.Run
		}
		o := Options{Checkpoint: c.saves, RestartCost: time.Minute}
		if c.saves == 0 {
			o.Checkpoint = -1
		}
		cfg := Config{Nodes: nodes(t, "1x1"), Policy: policy.Builtin["strand"], Source: &list{jobs: []*Job{long, short}}, Predict: NewLearner(predict.Limits{}),
			Restart: func(*Live) time.Duration { return o.RestartCost }}
		o.losses(&cfg)
		var ends time.Duration
		cfg.Hooks.Ended = func(_ *Engine, l *Live) {
			if l.Key.ID == "long" {
				ends = Since(l.End)
			}
		}
		e := NewEngine(cfg)
		if err := e.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e.Stats().Preemptions != c.preempts || ends != c.ends {
			t.Errorf("%s: %d preemptions, and the long job ends after %v; want %d and %v", c.name, e.Stats().Preemptions, ends, c.preempts, c.ends)
		}
	}
}

// TestPreemptionIsRetried: a job that may preempt others only once they have run for preempt_min_runtime does so then, although
// nothing else happens at that time.
func TestPreemptionIsRetried(t *testing.T) {
	for _, whole := range []bool{false, true} {
		long, urgent := gpuJob("long", 0, 10*time.Hour, 1), gpuJob("urgent", 10*time.Second, time.Hour, 1)
		long.Job.Preemptible, long.Job.Priority, urgent.Job.Priority = true, 10, 90
		cfg := Config{Whole: whole, Nodes: nodes(t, "1x1"), Policy: policy.Builtin["binpack"], Source: &list{jobs: []*Job{long, urgent}},
			Queues: []*structs.Queue{{Path: structs.QueueRoot, Preempt: structs.PreemptPriority}}}
		start := time.Duration(0)
		cfg.Hooks.Placed = func(e *Engine, l *Live, _ *structs.Allocation) {
			if l.Key.ID == "urgent" {
				start = Since(e.now)
			}
		}
		if err := NewEngine(cfg).Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if start != time.Minute {
			t.Errorf("whole %v: the urgent job is placed after %v, want 1m0s", whole, start)
		}
	}
}
