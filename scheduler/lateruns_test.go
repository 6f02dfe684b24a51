package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// lateHistory is a cluster in which runs outlive their predictions. All jobs ask for half of it or for all of it and are
// predicted to run for about the same time, each a little longer than those before it, so no job can pass another one that
// waits without delaying it.
type lateHistory struct {
	*rand.Rand
	nodes    []*structs.Node
	config   structs.SchedulerConfig
	queues   *contend.QueueTable
	now      structs.LogTime
	expect   time.Duration
	waiting  []contend.Workload
	running  []*structs.Allocation
	ends     map[structs.AllocID]structs.LogTime
	reserved map[string]*structs.Reservation
	first    map[string]structs.Index // submission of each job that has had a reservation and waits
	late     int                      // runs that outlived their predictions
	reserves int
}

func newLateHistory(seed uint64, backfill string) *lateHistory {
	h := &lateHistory{Rand: rand.New(rand.NewPCG(seed, 9)), config: rules(backfill), now: bookNow, ends: map[structs.AllocID]structs.LogTime{},
		reserved: map[string]*structs.Reservation{}, first: map[string]structs.Index{}}
	for i := range 1 + h.IntN(3) {
		h.nodes = append(h.nodes, node(1+i))
	}
	h.expect = time.Duration(16+h.IntN(180)) * time.Minute
	return h
}

// submit adds a job that needs a half of every node, or all of it.
func (h *lateHistory) submit(n int) {
	j := timed(fmt.Sprintf("job%03d", n), len(h.nodes), []int64{2000, 4000}[h.IntN(2)], 0, 50*time.Hour)
	j.AllAtOnce, j.CreateIndex, j.SubmitTime = true, structs.Index(10+n), h.now
	j.Groups[0].Constraints = append(j.Groups[0].Constraints, structs.Constraint{Operand: structs.OperandDistinctHosts, RTarget: "true"})
	w := load(j, n)
	w.Expect = h.expect + time.Duration(n)*time.Second
	h.waiting = append(h.waiting, w)
}

// end ends the runs whose time has come.
func (h *lateHistory) end() {
	kept := h.running[:0]
	for _, a := range h.running {
		if h.ends[a.ID] > h.now {
			kept = append(kept, a)
		}
	}
	h.running = kept
}

// pass decides, applies the plan, and returns an error when a job passed one that had a reservation before it was
// submitted.
func (h *lateHistory) pass(index structs.Index) error {
	in := scheduler.Input{View: model.NewView(index, h.nodes, h.running, nil), Now: h.now, Config: h.config, Queues: h.queues, Pending: h.waiting}
	for _, w := range h.waiting {
		if r := h.reserved[w.Key.ID]; r != nil {
			in.Reserved = append(in.Reserved, r)
		}
	}
	in.Line = queue.NewLine(h.queues, in.Config, in.Pending, in.Now, 0)
	plan, _ := scheduler.Schedule(in, binpack)
	started := map[string]bool{}
	for _, e := range plan.Entries {
		if r := e.Reservation; r != nil && len(r.Places) > 0 {
			h.reserves++
			h.reserved[e.JobID], h.first[e.JobID] = r, e.Job.CreateIndex
		}
		late := h.IntN(2) == 0
		ran := time.Duration(h.Int64N(int64(h.expect)))
		if late {
			ran = h.expect + time.Duration(h.Int64N(int64(h.expect/2)))
		}
		for _, part := range e.Parts {
			for _, p := range part.Places {
				started[e.JobID] = true
				a := &structs.Allocation{ID: structs.AllocID(id(e.JobID, p.Index)), Namespace: e.Namespace, JobID: e.JobID, Job: e.Job, Group: "g", NodeID: e.Nodes[p.Node].ID,
					Resources: e.Asks[p.Group], Client: structs.ClientRunning, Desired: structs.DesiredRun, CreateTime: h.now, StartedAt: h.now, Expect: p.Expect}
				h.running, h.ends[a.ID] = append(h.running, a), h.now.Add(ran)
			}
		}
		if started[e.JobID] {
			if late {
				h.late++
			}
			delete(h.first, e.JobID)
			delete(h.reserved, e.JobID)
		}
	}
	kept := h.waiting[:0]
	var err error
	for _, w := range h.waiting {
		if !started[w.Key.ID] {
			kept = append(kept, w)
			continue
		}
		for name, at := range h.first {
			if w.Job.CreateIndex > at {
				err = fmt.Errorf("%s starts before %s, which has had a reservation, at %v", w.Key.ID, name, h.now.Sub(bookNow))
			}
		}
	}
	h.waiting = kept
	return err
}

// TestReservedFirstStartsFirst runs random histories in which half of the runs outlive their predictions, by up to half
// of them. What was reserved first starts first. LATE_HISTORIES sets their number, LATE_SEED the first seed.
func TestReservedFirstStartsFirst(t *testing.T) {
	number := func(name string, other int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return other
	}
	seeds, from := number("LATE_HISTORIES", 200), number("LATE_SEED", 1)
	late, reserves := 0, 0
	for seed := from; seed < from+seeds; seed++ {
		h := newLateHistory(uint64(seed), []string{structs.BackfillConservative, structs.BackfillEASY, structs.BackfillSJF}[seed%3])
		if seed%4 == 0 { // other values of the settings around it
			h.queues = &contend.QueueTable{Queues: []*structs.Queue{{Path: structs.QueueRoot, ReserveDepth: int64(1 + h.IntN(4)), MaxWait: 1000 * time.Hour}}}
		}
		jobs := 0
		for step := range 60 {
			h.now = h.now.Add(time.Duration(h.Int64N(int64(h.expect / 3))))
			h.end()
			if h.IntN(3) > 0 && len(h.waiting) < 8 {
				jobs++
				h.submit(jobs)
			}
			if err := h.pass(structs.Index(step + 1)); err != nil {
				t.Errorf("seed %d, step %d, predicted %v: %v", seed, step, h.expect, err)
				break
			}
		}
		late, reserves = late+h.late, reserves+h.reserves
	}
	if late < 2*seeds || reserves < 2*seeds {
		t.Errorf("%d histories with %d late runs and %d reservations prove nothing", seeds, late, reserves)
	}
	t.Logf("seeds %d to %d: %d late runs, %d reservations", from, from+seeds-1, late, reserves)
}
