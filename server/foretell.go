package server

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// foretell predicts how long batch work will run, from what ended: jobs by their accounting records, so that the parts
// of a run that was preempted count as one, and the indices of arrays each by itself. It lives with the leader's passes:
// a new leader learns again from replicated state, which remembers records for weeks.
type foretell struct {
	mu     sync.Mutex
	by     *predict.Similar
	errors predict.Errors
}

// foretellMax is how many ends a new leader learns from at most, the last ones.
const foretellMax = 20_000

// endedWork is one piece of work that came to its own end.
type endedWork struct {
	work        predict.Work
	ran, expect time.Duration
	at          structs.LogTime
	name        string // of the record or allocation, the last tie-break
}

// load learns from state.
func (f *foretell) load(snap *state.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by, f.errors = predict.NewSimilar(), predict.Errors{}
	var ended []endedWork
	for r := range snap.AcctBack() {
		if e, ok := recordEnded(r, snap); ok {
			ended = append(ended, e)
		}
		if len(ended) == foretellMax {
			break
		}
	}
	for a := range snap.Allocs() {
		if e, ok := indexEnded(a); ok {
			ended = append(ended, e)
		}
	}
	slices.SortFunc(ended, func(a, b endedWork) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
	for i := max(0, len(ended)-foretellMax); i < len(ended); i++ {
		f.ended(&ended[i])
	}
}

// feed learns from what a batch of the log changed; snap is the state after it.
func (f *foretell) feed(d *structs.Delta, snap *state.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range d.Allocs {
		c := &d.Allocs[i]
		if c.After == nil || c.Before != nil && c.Before.ClientTerminal() {
			continue
		}
		if e, ok := indexEnded(c.After); ok {
			f.ended(&e)
		}
	}
	for i := range d.Acct {
		if c := &d.Acct[i]; c.Before == nil && c.After != nil {
			if e, ok := recordEnded(c.After, snap); ok {
				f.ended(&e)
			}
		}
	}
}

// ranOf is how long a job's work ran in all its runs, one after the other.
func ranOf(r *structs.AcctRecord) time.Duration {
	ran := r.Longest
	switch {
	case r.Preemptions+r.Requeues == 0: // it ran once
	case r.Asked.GPUMilli > 0:
		ran = max(ran, time.Duration(r.GPUSeconds*1000/r.Asked.GPUMilli)*time.Second)
	case r.Asked.CPU > 0:
		ran = max(ran, time.Duration(r.CPUSeconds*1000/r.Asked.CPU)*time.Second)
	}
	return ran
}

// recordEnded is what an accounting record teaches: of a batch job that is no array and came to its own end.
func recordEnded(r *structs.AcctRecord, snap *state.Snapshot) (endedWork, bool) {
	if r.Start == 0 || r.Type != structs.JobBatch && r.Type != structs.JobSysBatch || r.Exit != structs.ExitSuccess && r.Exit != structs.ExitFailed {
		return endedWork{}, false
	}
	if j := snap.JobByKey(r.Key()); j != nil && j.Array != nil {
		return endedWork{}, false
	}
	w := predict.Work{User: r.User, Queue: r.Queue, Expected: r.Expected, Name: kindOf(cmp.Or(r.Name, r.JobID)), Limit: r.Limit, Size: sizeOf(r.Asked)}
	return endedWork{w, ranOf(r), r.Predicted, r.End, r.Namespace + "/" + r.JobID}, true
}

// indexEnded is what an ended allocation of an array teaches.
func indexEnded(a *structs.Allocation) (endedWork, bool) {
	if a.Job == nil || a.Job.Array == nil || a.StartedAt == 0 || a.FinishedAt < a.StartedAt {
		return endedWork{}, false
	}
	if a.Client != structs.ClientComplete && a.Client != structs.ClientFailed || a.ServerTerminal() {
		return endedWork{}, false
	}
	return endedWork{workOf(a.Job), a.FinishedAt.Sub(a.StartedAt), a.Expect, a.FinishedAt, a.ID.String()}, true
}

func (f *foretell) ended(e *endedWork) {
	if e.expect > 0 {
		f.errors.Add(e.expect, e.ran)
	}
	f.by.Ended(&e.work, e.ran)
}

// kindOf is the name without digits: train-17 and train-18 are of one kind.
func kindOf(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, name)
}

// sizeOf is how large work is: its GPUs, or its CPU where it asks for none.
func sizeOf(a structs.Amount) int64 {
	if a.GPUMilli == 0 {
		return max(a.CPU, 1)
	}
	return a.GPUMilli
}

// workOf is what is known of a job before it runs.
func workOf(j *structs.Job) predict.Work {
	w := predict.Work{User: j.Submitter.Name, Queue: j.QueueName(), Expected: j.Runtime.Expected, Name: kindOf(cmp.Or(j.Name, j.ID))}
	var sum structs.Amount
	for _, g := range j.Groups {
		w.Limit = max(w.Limit, j.RunLimit(g))
		sum = sum.Add(structs.GroupAmount(g).Times(int64(max(g.Count, 1))))
	}
	w.Size = sizeOf(sum)
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
