package decide

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// predictor predicts the run time of batch work from ended work: jobs by their accounting records, so that the parts of
// a preempted run count as one, and array indices individually. It follows from replicated state alone, so a new leader
// makes the same predictions as the one before.
//
// Naive: the leader learns from each end while it leads, and a new one starts with a fixed number of the newest
// records. Then the old leader's means include older work than the new one's, and records that have been collected.
// Instead there is one window, which follows from the state. It starts at the second-newest record whose hash is a
// multiple of predictorChunk, and holds everything kept since, in log order. So it moves once in some thousand ends.
// Only then, or if something in it is deleted or changes its meaning, is everything learned again; other ends are added
// one by one.
type predictor struct {
	mu      sync.Mutex
	by      *predict.Similar
	errors  predict.Errors
	chunk   uint64                 // 0: predictorChunk
	from    structs.Index          // log index at which the window begins
	records map[structs.JobKey]int // accounting records in the window
}

// predictorChunk is the mean number of ended jobs between moves of the window, which holds one to two chunks.
const predictorChunk = 8192

// endedWork is a piece of work that ended by itself.
type endedWork struct {
	work        predict.Work
	ran, expect time.Duration
	at          structs.Index // log index of the end
	name        string        // of the record or allocation; last tie-break
}

func byEnd(a, b endedWork) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) }

// marks reports whether a window may begin at a record.
func (f *predictor) marks(r *structs.AcctRecord) bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%d", r.Namespace, r.JobID, r.CreateIndex)
	return h.Sum64()%cmp.Or(f.chunk, predictorChunk) == 0
}

// load learns from a state.
func (f *predictor) load(snap *state.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.learn(snap)
}

func (f *predictor) learn(snap *state.Snapshot) {
	f.by, f.errors, f.from, f.records = predict.NewSimilar(), predict.Errors{}, 0, map[structs.JobKey]int{}
	marks := 0
	for r := range snap.AcctBack() {
		if f.marks(r) {
			if marks++; marks == 2 {
				f.from = r.CreateIndex
				break
			}
		}
	}
	var ended []endedWork
	for r := range snap.AcctBack() {
		if r.CreateIndex < f.from {
			break
		}
		f.records[r.Key()]++
		if e, ok := recordEnded(r, snap); ok {
			ended = append(ended, e)
		}
	}
	for a := range snap.Allocs() {
		if e, ok := f.indexEnded(a); ok {
			ended = append(ended, e)
		}
	}
	f.ended(ended)
}

// feed learns from a batch of the log; snap is the state after it.
func (f *predictor) feed(d *structs.Delta, snap *state.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil || d.Restored {
		f.learn(snap)
		return
	}
	again := false
	var ended []endedWork
	for i := range d.Allocs {
		c := &d.Allocs[i]
		_, before := f.indexEnded(c.Before)
		e, after := f.indexEnded(c.After)
		if again = again || before && !after; after && !before {
			ended = append(ended, e)
		}
	}
	for i := range d.Jobs { // a record's use depends on whether its job, while registered, is an array
		c := &d.Jobs[i]
		before, after := c.Before != nil && c.Before.Array != nil, c.After != nil && c.After.Array != nil
		if before != after {
			if c.Before != nil {
				again = again || f.records[c.Before.Key()] > 0
			} else {
				again = again || f.records[c.After.Key()] > 0
			}
		}
	}
	for i := range d.Acct {
		switch c := &d.Acct[i]; {
		case c.After == nil:
			again = again || c.Before != nil && c.Before.CreateIndex >= f.from
		case c.Before == nil && f.marks(c.After):
			again = true
		case c.Before == nil:
			f.records[c.After.Key()]++
			if e, ok := recordEnded(c.After, snap); ok {
				ended = append(ended, e)
			}
		}
	}
	if again {
		f.learn(snap)
		return
	}
	f.ended(ended)
}

// ranOf returns how long a job's work ran, summed over its runs.
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

// recordEnded returns the work of an accounting record, if the job is a batch job without an array and ended by itself.
func recordEnded(r *structs.AcctRecord, snap *state.Snapshot) (endedWork, bool) {
	if r.Start == 0 || r.Type != structs.JobBatch && r.Type != structs.JobSysBatch || r.Exit != structs.ExitSuccess && r.Exit != structs.ExitFailed {
		return endedWork{}, false
	}
	if j := snap.JobByKey(r.Key()); j != nil && j.Array != nil {
		return endedWork{}, false
	}
	w := predict.Work{User: r.User, Queue: string(r.Queue), Expected: r.Expected, Name: kindOf(cmp.Or(r.Name, r.JobID)), Limit: r.Limit, Size: sizeOf(r.Asked)}
	return endedWork{w, ranOf(r), r.Predicted, r.CreateIndex, r.Namespace + "/" + r.JobID}, true
}

// indexEnded returns the work of an ended allocation of an array, if it is in the window. a may be nil.
func (f *predictor) indexEnded(a *structs.Allocation) (endedWork, bool) {
	if a == nil || a.Job == nil || a.Job.Array == nil || a.StartedAt == 0 || a.FinishedAt < a.StartedAt || a.ClientIndex < f.from {
		return endedWork{}, false
	}
	if a.Client != structs.ClientComplete && a.Client != structs.ClientFailed || a.ServerTerminal() {
		return endedWork{}, false
	}
	return endedWork{workOf(a.Job), a.Ran(), a.Expect, a.ClientIndex, a.ID.String()}, true
}

// ended learns from ended work, in log order.
func (f *predictor) ended(all []endedWork) {
	slices.SortFunc(all, byEnd)
	for i := range all {
		e := &all[i]
		if e.expect > 0 {
			f.errors.Add(e.expect, e.ran)
		} else {
			f.errors.Unknown++
		}
		f.by.Ended(&e.work, e.ran)
	}
}

// kindOf returns a name without digits, so that train-17 and train-18 are of one kind.
func kindOf(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, name)
}

// sizeOf returns the size of work: its GPUs, or its CPU if it asks for none.
func sizeOf(a structs.Amount) int64 {
	if a.GPUMilli == 0 {
		return max(a.CPU, 1)
	}
	return a.GPUMilli
}

// workOf returns what is known about a job before it runs.
func workOf(j *structs.Job) predict.Work {
	w := predict.Work{User: j.Submitter.Name, Queue: string(j.QueueName()), Expected: j.Runtime.Expected, Name: kindOf(cmp.Or(j.Name, j.ID))}
	var sum structs.Amount
	for _, g := range j.Groups {
		w.Limit = max(w.Limit, j.RunLimit(g))
		sum = sum.Add(structs.GroupAmount(g).Times(int64(max(g.Count, 1))))
	}
	w.Size = sizeOf(sum)
	return w
}

// predict sets a workload's expected run time and cost, and the least it can run with.
func (f *predictor) predict(w *contend.Workload) {
	if w.Job == nil {
		return
	}
	w.Least = contend.LeastOf(w.Job)
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

// predict sets a workload's expected run time and cost, and the least it can run with. Work of a queue that counts on
// limits alone (structs.EndsLimit) has no expected run time.
func (s *Service) predict(snap *state.Snapshot, w *contend.Workload) {
	s.predictor.predict(w)
	if w.Expect == 0 {
		return
	}
	for p := range w.QueueName().Lineage() {
		if q := snap.QueueByPath(p); q != nil && q.Ends != "" {
			if q.Ends == structs.EndsLimit {
				w.Expect = 0
			}
			return
		}
	}
}

// turnover returns the mean time until held resources are released; 0 before anything has ended.
func (f *predictor) turnover() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		return 0
	}
	return f.by.Turnover()
}

// right returns the errors of past predictions.
func (f *predictor) right() predict.Errors {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errors
}
