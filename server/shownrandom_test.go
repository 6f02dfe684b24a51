package server

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestShownMeanwhile: `muster queue` and `job why` answer under orders by shares while jobs of all kinds are submitted, decided,
// preempted, stopped and removed. The race detector sees whether predicting changes what decisions use.
// MUSTER_SHOWN_SEED repeats one seed.
func TestShownMeanwhile(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	seeds := []uint64{0, 1, 2, 3}
	if testing.Short() { // under the race detector
		seeds = seeds[1:2]
	}
	if s := os.Getenv("MUSTER_SHOWN_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{n}
	}
	listed := 0
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { listed += shownMeanwhile(t, seed) })
		})
	}
	if t.Logf("%d waiting jobs listed", listed); listed < 50*len(seeds) {
		t.Error("that proves nothing")
	}
}

func shownMeanwhile(t *testing.T, seed uint64) (listed int) {
	s := testServer(t, nil)
	f := newGPUFleet(t, s, 6)
	f.set(func() { f.kill = 40 * time.Second })
	rng := rand.New(rand.NewPCG(seed, 23))
	order := []structs.Order{structs.OrderFair, structs.OrderWeighted, "priority,fair", "fair,sjf"}[seed%4]
	preempt := []string{structs.PreemptDefault, structs.PreemptNone}[rng.IntN(2)]
	mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot, Order: order, Preempt: preempt}, {Path: "a"}, {Path: "b", Weight: 3}}})
	var done sync.WaitGroup
	var mu sync.Mutex
	stop := make(chan struct{})
	for k := range 2 {
		done.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(9+4*k) * time.Second):
				}
				items := call(t, s, methods.QueueList, rpc.Header{Namespace: "*"}, &methods.ListRequest{}).Items
				if len(items) > 0 {
					_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.JobWhy, rpc.Header{Namespace: "default"}, &methods.JobGetRequest{JobID: items[n%len(items)].Workload.JobID})
					if err != nil && structs.CodeOf(err) == structs.CodeInternal {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
				mu.Lock()
				listed += len(items)
				mu.Unlock()
			}
		})
	}
	for range 50 {
		id := fmt.Sprint("job-", rng.IntN(40))
		if rng.IntN(4) == 0 {
			s.replica.Propose(replica.LaneUser, structs.Command{Body: &structs.JobDeregisterCommand{Namespace: "default", JobID: id, Purge: rng.IntN(2) == 0}}).Wait(t.Context())
		} else {
			runs := time.Duration(1+rng.IntN(1<<rng.IntN(5))) * time.Minute
			f.set(func() { f.runs[id] = runs })
			by := []string{"ann", "bob", "cid"}[rng.IntN(3)]
			job := passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue, j.Groups[0].Reschedule = structs.JobBatch, []structs.QueuePath{"", "a", "b"}[rng.IntN(3)], structs.Reschedule{}
				j.Preemptible, j.Priority = rng.IntN(2) == 0, 10*(1+rng.IntN(9))
				if rng.IntN(4) > 0 {
					j.Runtime.Expected = runs
				}
				if rng.IntN(3) == 0 {
					j.Runtime.Limit = 2 * runs
				}
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: int64(1 + rng.IntN(3))}}
				switch rng.IntN(6) {
				case 0:
					j.Array = &structs.Array{Count: 6, Concurrency: 2}
				case 1:
					j.Type, j.Groups[0].Count = structs.JobService, 2
				case 2:
					j.Groups[0].Count, j.Groups[0].Gang = 2, &structs.Gang{Min: 1}
				}
			})
			s.replica.Propose(replica.LaneUser, structs.Command{By: structs.Submitter{Name: by}, Body: &structs.JobRegisterCommand{Job: job, Eval: true}}).Wait(t.Context())
		}
		time.Sleep(time.Duration(rng.IntN(40)) * time.Second)
	}
	close(stop)
	done.Wait()
	return listed
}
