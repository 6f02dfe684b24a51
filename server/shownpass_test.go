package server

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/structs"
)

// TestShownListIsServed: without preemptible work, the whole list of `muster queue` is the order in which a pass on the same state
// serves the jobs that it starts, with several queues and users whose shares move while the pass places. MUSTER_SHOWN_SEEDS has
// more than two histories of each order, with -short it is one.
func TestShownListIsServed(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	seeds, orders := 2, append(queue.Names(), "", "priority,fair", "fair,sjf", "priority,lottery")
	if testing.Short() { // under the race detector, which takes a quarter of an hour for the tests of this package
		seeds, orders = 1, []structs.Order{"", structs.OrderFair, "priority,lottery"}
	}
	if n, err := strconv.Atoi(os.Getenv("MUSTER_SHOWN_SEEDS")); err == nil {
		seeds = n
	}
	for _, order := range orders {
		t.Run(cmp.Or(string(order), "fresh"), func(t *testing.T) {
			served, wide := 0, 0
			for seed := range uint64(seeds) {
				synctest.Test(t, func(t *testing.T) {
					n, m := shownList(t, order, seed)
					served, wide = served+n, wide+m
				})
			}
			if t.Logf("%d jobs, %d passes that start several", served, wide); served < 20*seeds || wide < 1 {
				t.Errorf("that proves nothing")
			}
		})
	}
}

func shownList(t *testing.T, order structs.Order, seed uint64) (served, wide int) {
	var s *Server
	var mu sync.Mutex
	s = testServer(t, func(c *Config) {
		c.Testing.Decide.BeforeSchedule = func(in scheduler.Input) {
			mu.Lock()
			defer mu.Unlock()
			if s == nil || s.Published().Snapshot.Index() != in.View.Index() || in.Flight.Len() > 0 {
				return // the list would be of another state
			}
			pub := s.Published()
			ws := decide.Pending(pub.Snapshot)
			if slices.ContainsFunc(ws, func(x *structs.Workload) bool {
				return !slices.ContainsFunc(in.Pending, func(w contend.Workload) bool { return w.Key.ID == x.JobID })
			}) {
				return // some are on their way back from the pass before, at this very instant
			}
			var shown []string
			for _, i := range s.decide.Shown(pub, ws, in.Now, nil) {
				shown = append(shown, ws[i].JobID)
			}
			in.Line = queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
			plan, _ := scheduler.Schedule(in, policy.For(nil, in.Config))
			var starts []string
			for _, e := range plan.Entries {
				for _, part := range e.Parts {
					switch {
					case len(part.Places) == 0:
					case len(part.Places[0].WaitsOn) > 0:
						shown = slices.DeleteFunc(shown, func(id string) bool { return id == e.JobID })
					case slices.Contains(shown, e.JobID): // not one that is decided while it is being registered
						starts = append(starts, e.JobID)
					}
				}
			}
			if len(starts) > len(shown) || !slices.Equal(starts, shown[:len(starts)]) {
				t.Errorf("seed %d: a pass starts %v of the list %v", seed, starts, shown)
			}
			if served += len(starts); len(starts) > 1 {
				wide++
			}
		}
	})
	f := newGPUFleet(t, s, 4)
	rng := rand.New(rand.NewPCG(seed, 19))
	queues := []structs.QueuePath{""}
	if order != "" {
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot, Order: order, Backfill: structs.BackfillEASY}, {Path: "a"}, {Path: "b", Weight: 3}}})
		queues = append(queues, "a", "b")
	}
	for i := range 40 {
		id := fmt.Sprint("job-", i)
		runs, gpus := time.Duration(1+rng.IntN(1<<rng.IntN(6)))*time.Minute, int64(1)
		if i == 0 { // when it ends, a pass starts several
			runs, gpus = 20*time.Minute, 4
		}
		f.set(func() { f.runs[id] = runs })
		mustApplyBy(t, s, []string{"ann", "bob"}[rng.IntN(2)], &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
			j.Type, j.Queue, j.Groups[0].Reschedule = structs.JobBatch, queues[rng.IntN(len(queues))], structs.Reschedule{}
			j.Runtime.Expected, j.Preemptible = runs, i > 0 && seed >= 2 && rng.IntN(2) == 0
			if gpus == 4 {
				j.Priority = 100
			}
			if order == structs.OrderEDF {
				j.Deadline = structs.LogTimeOf(time.Now()).Add(runs * time.Duration(2+rng.IntN(20)))
			}
			j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: gpus}}
		})})
		if gpus == 4 || i > 25 {
			time.Sleep(time.Duration(rng.IntN(100)) * time.Second)
		}
	}
	for range 120 { // until all have ended: no pass starts anything then
		time.Sleep(time.Minute)
		if left := slices.ContainsFunc(slices.Collect(s.Published().Snapshot.Jobs("", "")), func(j *structs.Job) bool { return j.Status != structs.JobDead }); !left {
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return served, wide
}
