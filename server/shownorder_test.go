package server

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// shownOrders are the orders under which the job that is shown first is the next to start; "" is a fresh cluster. With
// several queues, jobs take the places of running work of their queue under srtf and srsf while a job of another queue is shown
// first, and what adaptive chooses depends on the room that a queue competes for. TestShownListIsServed compares whole lists.
var shownOrders = []structs.Order{"", structs.OrderFCFS, structs.OrderEDF, structs.OrderPriority, structs.OrderSJF, structs.OrderMLFQ, structs.OrderLottery, "priority,lottery", structs.OrderFair, structs.OrderWeighted}

// TestShownOrder: of random work for one GPU, partly preemptible, the job that `muster queue` shows first is the next to
// start when the GPU becomes free. With -short one seed and three orders. MUSTER_SHOWN_SEED repeats one seed, MUSTER_SHOWN_ORDER one order ("fresh").
func TestShownOrder(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	seeds, orders := []uint64{1, 2}, shownOrders
	if testing.Short() { // under the race detector
		seeds, orders = seeds[:1], []structs.Order{"", structs.OrderWeighted, structs.OrderLottery}
	}
	if s := os.Getenv("MUSTER_SHOWN_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{n}
	}
	for _, order := range orders {
		name := cmp.Or(string(order), "fresh")
		if only := os.Getenv("MUSTER_SHOWN_ORDER"); only != "" && only != name {
			continue
		}
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { shownOrder(t, order, seed) })
			})
		}
	}
}

func shownOrder(t *testing.T, order structs.Order, seed uint64) {
	s := testServer(t, nil)
	f := newGPUFleet(t, s, 1)
	rng := rand.New(rand.NewPCG(seed, 17))
	queues := []structs.QueuePath{""}
	if order != "" {
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot, Order: order}, {Path: "a"}, {Path: "b", Weight: 3}}})
		queues = append(queues, "a", "b")
	}
	submit := func(id string, preemptible bool, runs time.Duration) {
		// It ends a little before it is expected to: jobs that wait are decided again for the predicted end, and one that is
		// just being decided as the other ends is not in the pass that follows.
		f.set(func() { f.runs[id] = runs - 7*time.Second })
		mustApplyBy(t, s, []string{"ann", "bob"}[rng.IntN(2)], &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
			j.Type, j.Queue, j.Groups[0].Reschedule = structs.JobBatch, queues[rng.IntN(len(queues))], structs.Reschedule{}
			j.Runtime.Expected, j.Preemptible = runs, preemptible
			if rng.IntN(4) == 0 {
				j.Priority = 70
			}
			if order == structs.OrderEDF {
				j.Deadline = structs.LogTimeOf(time.Now()).Add(runs * time.Duration(2+rng.IntN(20)))
			}
			j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
		})})
		time.Sleep(time.Duration(rng.IntN(100)) * time.Second)
	}
	submit("blocker", false, 30*time.Minute)
	some := rng.IntN(100)
	const n = 14
	for i := range n {
		submit("job-"+string(rune('a'+i)), rng.IntN(100) < some, time.Duration(1+rng.IntN(1<<rng.IntN(6)))*time.Minute)
	}
	started, wrong := map[string]bool{"blocker": true}, 0
	var shown []string
	shares, last := order.Has(structs.OrderFair) || order.Has(structs.OrderWeighted), structs.Index(0)
	for tick := 0; len(started) < n+1 && tick < 200_000; tick++ {
		for a := range s.Published().Snapshot.Allocs() {
			if started[a.JobID] {
				continue
			}
			started[a.JobID] = true
			if order.Has(structs.OrderLottery) && len(a.WaitsOn) > 0 {
				continue // it takes the place of work of its submitter, which what is shown before it may not
			}
			if len(shown) > 0 && shown[0] != a.JobID {
				wrong++
				t.Errorf("%s starts, and was shown behind %v (seed %d, %d %% preemptible)", a.JobID, shown[0], seed, some)
			}
		}
		if index := s.Published().Index; shares && index == last { // starts are predicted: the list does not change until something happens
			time.Sleep(2 * time.Second)
			continue
		} else {
			last = index
		}
		var now []string
		for _, it := range call(t, s, methods.QueueList, rpc.Header{Namespace: "*"}, &methods.ListRequest{}).Items {
			if !started[it.Workload.JobID] { // not what was preempted
				now = append(now, it.Workload.JobID)
			}
		}
		fresh := true // nothing was placed since the look at the allocations
		for a := range s.Published().Snapshot.Allocs() {
			fresh = fresh && started[a.JobID]
		}
		if fresh {
			shown = now
		}
		time.Sleep(2 * time.Second)
	}
	if len(started) < n+1 {
		t.Errorf("only %d of %d jobs have started", len(started)-1, n)
	}
}
