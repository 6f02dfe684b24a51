package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// A new leader predicts from state what the old one had learned from the log: from jobs, by their records, and from the
// indices of arrays. What was stopped teaches nothing, and the parts of a run that was interrupted are one run.
func TestForetell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		batch := func(id string, edit func(*structs.Job)) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Runtime.Limit = structs.JobBatch, 10*time.Hour
				j.Groups[0].Reschedule = structs.Reschedule{}
				if edit != nil {
					edit(j)
				}
			})
		}
		dead := func(ids ...string) {
			t.Helper()
			for _, id := range ids {
				waitFor(t, 10*time.Hour, id+" to end", func() bool {
					time.Sleep(time.Minute)
					j := s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id})
					return j == nil || j.Status == structs.JobDead
				})
			}
		}
		f.set(func() {
			for i := range 6 {
				f.runs[fmt.Sprint("train-", i)] = 30 * time.Minute
			}
			f.runs["sweep"] = 7 * time.Minute
		})
		for i := range 6 {
			register(t, s, batch(fmt.Sprint("train-", i), nil))
		}
		register(t, s, batch("train-stopped", nil))
		dead("train-0", "train-5")
		mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: "train-stopped"})
		register(t, s, batch("sweep", func(j *structs.Job) { j.Array = &structs.Array{Count: 5} }))
		began := time.Now()
		dead("sweep", "train-stopped")
		if d := time.Since(began); d > time.Hour {
			t.Errorf("five indices of 7 minutes took %v", d)
		}

		var next predictor
		next.load(s.Published().Snapshot)
		expect := map[string]time.Duration{}
		for name, f := range map[string]*predictor{"the leader": &s.decide.predictor, "the next one": &next} {
			j := batch("train-9", nil)
			w := contend.Workload{Key: j.Key(), Job: j}
			f.tell(&w)
			if w.Expect < 15*time.Minute || w.Expect > 31*time.Minute || w.Cost <= 0 || w.Least == nil {
				t.Errorf("%s expects 30 minutes of work to take %v, cost %d", name, w.Expect, w.Cost)
			}
			expect[name] = w.Expect
			if f.turnover() == 0 {
				t.Errorf("%s knows no turnover", name)
			}
			service := passJob("train-9", 1, nil)
			w = contend.Workload{Key: service.Key(), Job: service}
			if f.tell(&w); w.Expect != 0 {
				t.Errorf("%s expects a service to end after %v", name, w.Expect)
			}
		}
		if expect["the leader"] != expect["the next one"] {
			t.Errorf("the leader expects %v, the next one %v", expect["the leader"], expect["the next one"])
		}
		now, then := s.Predictions(), next.errors
		if now.N != then.N || now.N == 0 {
			t.Errorf("the leader counts %d predictions, the next one %d", now.N, then.N)
		}
	})
}

// TestForetellIsOfState: at any time, what a leader has learned piece by piece from the log is what a new one learns from
// state: after windows moved, and after jobs, arrays among them, were purged, submitted anew and collected.
func TestForetellIsOfState(t *testing.T) {
	compared, moved, kept := 0, 0, 0
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			s := testServer(t, nil)
			f := newFleet(t, one(s), 3)
			live := &s.decide.predictor
			waitFor(t, time.Minute, "the leader to learn", func() bool {
				live.mu.Lock()
				defer live.mu.Unlock()
				return live.by != nil
			})
			live.mu.Lock()
			live.chunk = 3
			live.mu.Unlock()
			live.load(s.Published().Snapshot)
			compare := func(at string) {
				t.Helper()
				synctest.Wait()
				snap := s.Published().Snapshot
				next := &predictor{chunk: 3}
				next.load(snap)
				live.mu.Lock()
				defer live.mu.Unlock()
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
					if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id}) != nil {
						mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: id, Purge: true})
					}
				case 1:
					call(t, s, methods.SystemGC, rpc.Header{}, &methods.EmptyRequest{})
				default:
					f.set(func() { f.runs[id] = time.Duration(1+rng.IntN(60)) * time.Minute })
					register(t, s, passJob(id, 1, func(j *structs.Job) {
						j.Type, j.Runtime.Limit, j.Submitter.Name = structs.JobBatch, 10*time.Hour, []string{"a", "b"}[rng.IntN(2)]
						j.Groups[0].Reschedule = structs.Reschedule{}
						if rng.IntN(4) == 0 {
							j.Array = &structs.Array{Count: 1 + rng.IntN(4)}
						}
					}))
				}
				time.Sleep(time.Duration(rng.IntN(40)) * time.Minute)
				compare(fmt.Sprint("step ", k))
			}
			for snap := s.Published().Snapshot; snap.AcctCount() > 3; snap = s.Published().Snapshot {
				mustApply(t, s, &structs.AcctCollectCommand{Keep: int64(snap.AcctCount() - 2)})
				compare("collected")
			}
		})
	}
	t.Logf("%d comparisons, %d with a window that had moved, %d with predictions", compared, moved, kept)
	if moved == 0 || kept == 0 {
		t.Error("too little happened")
	}
}

// Parts of a run that was preempted are one run.
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
