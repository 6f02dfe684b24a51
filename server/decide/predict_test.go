package decide

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// TestPredictionsFollowFromState: what a leader has learned step by step from the log always equals what a new one
// learns from the state, also after windows moved, and after jobs and arrays were purged, submitted again and
// collected.
func TestPredictionsFollowFromState(t *testing.T) {
	compared, moved, kept := 0, 0, 0
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := newSteps(false)
		m.learns, m.learned.chunk = true, 3
		for i := range 3 {
			m.write(t, &structs.NodeRegisterCommand{Node: testNode(i)})
			m.write(t, &structs.NodeStatusCommand{ID: testNode(i).ID, Status: structs.NodeReady})
		}
		runs := map[string]time.Duration{}
		compare := func(at string) {
			t.Helper()
			live, next := &m.learned, &predictor{chunk: 3}
			next.load(m.fsm.Snapshot())
			if live.errors != next.errors || live.from != next.from || !maps.Equal(live.records, next.records) || live.by.Turnover() != next.by.Turnover() {
				t.Fatalf("seed %d, %s: the leader has %+v from %d of %v, a new one %+v from %d of %v", seed, at, live.errors, live.from, live.records, next.errors, next.from, next.records)
			}
			for _, user := range []string{"", "a", "b"} {
				for _, size := range []int64{100, 200} {
					w := predict.Work{User: user, Queue: "default", Name: "job-", Size: size, Limit: 10 * time.Hour}
					if x, y := live.by.Predict(&w), next.by.Predict(&w); x != y {
						t.Fatalf("seed %d, %s: the leader predicts %+v, a new one %+v", seed, at, x, y)
					}
				}
			}
			if compared++; live.from > 0 {
				moved++
			}
			if live.errors.N > 0 {
				kept++
			}
		}
		for k := range 40 {
			id := fmt.Sprint("job-", rng.IntN(9))
			switch rng.IntN(6) {
			case 0:
				if m.fsm.Snapshot().JobByKey(structs.JobKey{Namespace: "default", ID: id}) != nil {
					m.write(t, &structs.JobDeregisterCommand{Namespace: "default", JobID: id, Purge: true})
				}
			case 1:
				m.collect(t)
			default:
				runs[id] = time.Duration(1+rng.IntN(60)) * time.Minute
				m.write(t, &structs.JobRegisterCommand{Eval: true, Job: testJob(id, 1, func(j *structs.Job) {
					j.Type, j.Runtime.Limit, j.Submitter.Name = structs.JobBatch, 10*time.Hour, []string{"a", "b"}[rng.IntN(2)]
					j.Groups[0].Reschedule = structs.Reschedule{}
					if rng.IntN(4) == 0 {
						j.Array = &structs.Array{Count: 1 + rng.IntN(4)}
					}
				})})
			}
			m.settle(t)
			m.work(t, time.Duration(rng.IntN(40))*time.Minute, runs)
			compare(fmt.Sprint("step ", k))
		}
		for snap := m.fsm.Snapshot(); snap.AcctCount() > 3; snap = m.fsm.Snapshot() {
			m.write(t, &structs.AcctCollectCommand{Keep: int64(snap.AcctCount() - 2)})
			compare("collected")
		}
	}
	t.Logf("%d comparisons, %d with a window that had moved, %d with predictions", compared, moved, kept)
	if moved == 0 || kept == 0 {
		t.Error("too little happened")
	}
}

// The parts of a preempted run count as one run.
func TestRanOf(t *testing.T) {
	for _, c := range []struct {
		r    structs.AcctRecord
		want time.Duration
	}{
		{structs.AcctRecord{Longest: time.Hour, GPUSeconds: 99999, Asked: structs.Amount{GPUMilli: 4000}}, time.Hour},
		{structs.AcctRecord{Longest: time.Hour, Preemptions: 1, GPUSeconds: 4 * 5400, Asked: structs.Amount{GPUMilli: 4000}}, 90 * time.Minute},
		{structs.AcctRecord{Longest: time.Hour, Requeues: 1, CPUSeconds: 5400, Asked: structs.Amount{CPU: 1000}}, 90 * time.Minute},
		{structs.AcctRecord{Longest: time.Hour, Preemptions: 1}, time.Hour},
	} {
		if got := ranOf(&c.r); got != c.want {
			t.Errorf("%+v ran for %v, want %v", c.r, got, c.want)
		}
	}
}
