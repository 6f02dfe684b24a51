package server

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// foretell predicts how long batch work will run, from the allocations that ended in replicated state. It lives with the
// leader's passes: a new leader learns again from what the state still remembers.
type foretell struct {
	mu     sync.Mutex
	by     *predict.Similar
	errors predict.Errors
}

// foretellMax is how many ended allocations a new leader learns from at most, the last ones.
const foretellMax = 20_000

// load learns from state.
func (f *foretell) load(allocs func(yield func(*structs.Allocation) bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by, f.errors = predict.NewSimilar(), predict.Errors{}
	var ended []*structs.Allocation
	for a := range allocs {
		if _, ok := ranFor(a); ok {
			ended = append(ended, a)
		}
	}
	slices.SortFunc(ended, func(a, b *structs.Allocation) int {
		return cmp.Or(cmp.Compare(a.FinishedAt, b.FinishedAt), slices.Compare(a.ID[:], b.ID[:]))
	})
	for _, a := range ended[max(0, len(ended)-foretellMax):] {
		f.ended(a)
	}
}

// feed learns from what a batch of the log changed.
func (f *foretell) feed(d *structs.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range d.Allocs {
		if c.After == nil || c.Before != nil && c.Before.ClientTerminal() {
			continue
		}
		if _, ok := ranFor(c.After); ok {
			f.ended(c.After)
		}
	}
}

// ranFor is how long an allocation of batch work ran that came to its own end.
func ranFor(a *structs.Allocation) (time.Duration, bool) {
	if a.Job == nil || a.Job.Type != structs.JobBatch && a.Job.Type != structs.JobSysBatch || a.StartedAt == 0 || a.FinishedAt < a.StartedAt {
		return 0, false
	}
	if a.Client != structs.ClientComplete && a.Client != structs.ClientFailed || a.ServerTerminal() {
		return 0, false
	}
	return a.FinishedAt.Sub(a.StartedAt), true
}

func (f *foretell) ended(a *structs.Allocation) {
	ran, _ := ranFor(a)
	w := workOf(a.Job)
	if a.Expect > 0 {
		f.errors.Add(a.Expect, ran)
	}
	f.by.Ended(&w, ran)
}

// workOf is what is known of a job before it runs.
func workOf(j *structs.Job) predict.Work {
	w := predict.Work{User: j.Submitter.Name, Queue: j.QueueName(), Expected: j.Runtime.Expected}
	w.Name = strings.Map(func(c rune) rune { // train-17 and train-18 are of one kind
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, cmp.Or(j.Name, j.ID))
	var sum structs.Amount
	for _, g := range j.Groups {
		w.Limit = max(w.Limit, j.RunLimit(g))
		sum = sum.Add(structs.GroupAmount(g).Times(int64(max(g.Count, 1))))
	}
	w.Size = max(sum.GPUMilli, 1)
	if sum.GPUMilli == 0 {
		w.Size = max(sum.CPU, 1)
	}
	return w
}

// tell fills in what a decision is told of a workload.
func (f *foretell) tell(w *scheduler.Workload) {
	if w.Job == nil {
		return
	}
	w.Least = scheduler.LeastOf(w.Job)
	if w.Job.Type != structs.JobBatch && w.Job.Type != structs.JobSysBatch {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		return
	}
	work := workOf(w.Job)
	e := f.by.Predict(&work)
	w.Expect, w.Cost = e.Expect, e.Cost
}

// turnover is the mean time until what is held now is given back; 0 before anything ended.
func (f *foretell) turnover() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		return 0
	}
	return f.by.Turnover()
}

// Predictions are the statistics of how right predicted run times were, since this server leads.
func (s *Server) Predictions() predict.Errors {
	f := &s.decide.foretold
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errors
}
