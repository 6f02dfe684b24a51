package contend

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Workload is one job to decide about, with all that is known of it.
type Workload struct {
	Key     structs.JobKey
	Job     *structs.Job          // nil: purged
	Evals   []*structs.Evaluation // pending ones, oldest first; the last one decides, the others are canceled
	Blocked *structs.Evaluation   // its blocked evaluation, or nil; decides when Evals is empty
	Queue   *structs.Workload     // its queue entry, or nil before the first decision
	Allocs  []*structs.Allocation // of the job, ended ones included, Allocation.Job linked; any order
	Expect  time.Duration         // predicted run time of an allocation; 0: unknown
	Gate    *structs.Refusal      // what keeps it from starting other than nodes (on hold, too early, a dependency, a cap), or nil
	Until   structs.LogTime       // with Gate: when to look again; 0: when something happens
	Met     bool                  // the jobs that it depends on have reached what it waits for
	Ended   *structs.ArrayState   // of an array: the indices that ended and were collected; nil for none
	Rosters []*structs.Roster     // of its gangs, by group
	Cost    int64                 // what it costs to let it go first (predict.Estimate); 0: unknown
	Least   *Least                // LeastOf(Job), kept by callers that decide about it often; nil: unknown
	Ran     time.Duration         // how long it has run, in all its runs; 0: computed from Queue.Attained and Allocs
}

// QueueName returns the queue of the workload.
func (w *Workload) QueueName() structs.QueuePath {
	switch {
	case w.Job != nil:
		return w.Job.QueueName()
	case w.Queue != nil && w.Queue.Queue != "":
		return w.Queue.Queue
	}
	return structs.QueueDefault
}

// Submitted returns the index at which the job entered the queue; 0 if it is unknown.
func (w *Workload) Submitted() structs.Index {
	switch {
	case w.Queue != nil:
		return w.Queue.SubmitIndex
	case w.Job != nil:
		return w.Job.CreateIndex
	}
	return 0
}

// Priority returns the job's priority, as a user may have changed it while it waits.
func (w *Workload) Priority() int {
	switch {
	case w.Queue != nil:
		return w.Queue.Priority
	case w.Job != nil:
		return w.Job.Priority
	}
	return 0
}

// User returns the submitter that the workload is charged to; "": unknown.
func (w *Workload) User() string {
	if w.Job == nil {
		return ""
	}
	return w.Job.Submitter.Name
}

// Asks returns what the whole workload asks for: all allocations of all its groups.
func (w *Workload) Asks() structs.Amount {
	if w.Least != nil {
		return w.Least.asks
	}
	return asksOf(w.Job)
}

func asksOf(j *structs.Job) (sum structs.Amount) {
	if j != nil {
		for _, g := range j.Groups {
			sum = sum.Add(structs.GroupAmount(g).Times(int64(max(g.Count, 1))))
		}
	}
	return sum
}

// WaitingSince returns since when a workload that holds nothing has waited: its submission, or the end of what it last
// held, but not before the begin time of its job. It is 0 when the workload holds something.
func (w *Workload) WaitingSince() structs.LogTime {
	var since structs.LogTime
	switch {
	case w.Queue != nil:
		since = max(w.Queue.SubmitTime, w.Queue.NotBefore)
	case w.Job != nil:
		since = w.Job.SubmitTime
	}
	if w.Job != nil {
		since = max(since, w.Job.Begin)
	}
	for _, a := range w.Allocs {
		if structs.Holds(a) {
			return 0
		}
		since = max(since, cmp.Or(a.FinishedAt, a.ModifyTime))
	}
	return since
}

// late reports whether the workload has waited for longer than a bound.
func (w *Workload) late(now structs.LogTime, bound time.Duration) bool {
	since := w.WaitingSince()
	return since > 0 && now.Sub(since) > bound
}

// Served returns how long the workload has run, in all its runs.
func (w *Workload) Served(now structs.LogTime) time.Duration {
	if w.Ran > 0 {
		return w.Ran
	}
	var sum time.Duration
	if w.Queue != nil {
		sum = time.Duration(w.Queue.Attained) * time.Second / time.Duration(max(w.Units(), 1))
	}
	return sum + w.live(now)
}

// Progress returns how much of its run time the workload need not run again: what it has run so far, but only in its
// present run if it saves nothing.
func (w *Workload) Progress(now structs.LogTime) time.Duration {
	if w.Job == nil || w.Job.Saves() {
		return w.Served(now)
	}
	return w.live(now)
}

// worth returns what it is worth that the workload starts now on so many thousandths of GPUs, in GPU seconds: its work,
// times the difference of the priorities to those that give way. Where it has a higher priority, that is at least a
// minute's work: a prediction of a few seconds, perhaps from other work, does not make an urgent job wait.
func (w *Workload) worth(gpuMilli int64, diff int) int64 {
	work := w.Expected()
	if diff > 0 {
		work = max(work, worthLeast)
	}
	return gpuMilli * int64(work/time.Second) / 1000 * int64(max(1, diff))
}

// worthLeast is the least run time that counts for work of a higher priority. A stop and a start cost about as much.
const worthLeast = time.Minute

// live returns how long the workload has run in its present run.
func (w *Workload) live(now structs.LogTime) (ran time.Duration) {
	for _, a := range w.Allocs {
		if structs.Holds(a) && a.StartedAt > 0 {
			ran = max(ran, now.Sub(a.StartedAt))
		}
	}
	return ran
}

// Units returns how many GPUs the workload asks for, parts of GPUs added up; 1 for work without any.
func (w *Workload) Units() int64 { return max(1, (w.Asks().GPUMilli+999)/1000) }

// Least is the least that any placement of a job needs, and what the whole job asks for. It is immutable, and computed
// once for callers that need it often.
type Least struct {
	asks    structs.Amount
	need    structs.Vector
	devices int64
	plain   bool // a service or batch job that only wants new allocations
}

// LeastOf computes the Least of a job.
func LeastOf(j *structs.Job) *Least {
	l := &Least{asks: asksOf(j), plain: j != nil && j.Placeable() && (j.Type == structs.JobBatch || j.Type == structs.JobService)}
	if !l.plain {
		return l
	}
	for n, g := range j.Groups {
		v := structs.GroupVector(g)
		var devices int64
		for _, t := range g.Tasks {
			for i := range t.Resources.Devices {
				devices += max(t.Resources.Devices[i].Count, 1)
			}
			least := int64(0)
			for i := range t.Resources.GPU {
				r := &t.Resources.GPU[i]
				ask := max(r.Count, 1)
				if r.Shared() {
					ask = 0
				}
				if i == 0 || ask < least {
					least = ask
				}
			}
			devices += least
		}
		if g.Count == 0 { // none of it is wanted
			l.plain = false
		}
		if n == 0 {
			l.need, l.devices = v, devices
			continue
		}
		l.need = structs.Vector{CPU: min(l.need.CPU, v.CPU), Cores: min(l.need.Cores, v.Cores), MemoryMiB: min(l.need.MemoryMiB, v.MemoryMiB), DiskMiB: min(l.need.DiskMiB, v.DiskMiB)}
		l.devices = min(l.devices, devices)
	}
	return l
}

// exceeds reports whether the least exceeds some free amount.
func (l *Least) exceeds(free *structs.Vector) bool {
	n := &l.need
	return n.CPU > free.CPU && n.CPU > 0 || n.MemoryMiB > free.MemoryMiB && n.MemoryMiB > 0 ||
		n.DiskMiB > free.DiskMiB && n.DiskMiB > 0 || n.Cores > free.Cores && n.Cores > 0
}

// short reports whether the least exceeds some free amount or the free devices.
func (l *Least) short(s *model.FreeBlock) bool { return l.devices > s.Devices || l.exceeds(&s.Free) }

// Runs reports whether the workload holds anything.
func (w *Workload) Runs() bool { return slices.ContainsFunc(w.Allocs, structs.Holds) }

// expectUnknown is how long work is assumed to run if nothing else is known.
const expectUnknown = time.Hour

// Expected returns how long the workload will run: as its job states, as predicted, or up to its limit.
func (w *Workload) Expected() time.Duration {
	return cmp.Or(max(w.Job.Runtime.Expected, 0), max(w.Expect, 0), max(w.Job.Runtime.Limit, 0), expectUnknown)
}

// WorkOf returns the work of an allocation of a group that is placed now.
func (w *Workload) WorkOf(g *structs.Group, now structs.LogTime) model.HeldWork {
	return model.HeldWork{Job: w.Job, Group: g.Name, Began: now, Expect: w.Expect, Yields: g.Elastic != nil, Shy: model.KeepsAway(w.Job, g.Name)}
}

// EndOf returns when an allocation of a group that is placed now is expected to end.
func (w *Workload) EndOf(g *structs.Group, now structs.LogTime) structs.LogTime {
	if w.Job != nil {
		work := model.HeldWork{Job: w.Job, Group: g.Name, Began: now, Expect: w.Expect}
		if at := work.Ends(now); at > 0 {
			return at
		}
	}
	return model.Never
}

// Alloc returns an allocation of the workload, or nil.
func (w *Workload) Alloc(id structs.AllocID) *structs.Allocation {
	for _, a := range w.Allocs {
		if a.ID == id {
			return a
		}
	}
	return nil
}

// AllocOf returns what is held for the workload as an allocation, with the fields that charges depend on.
func (w *Workload) AllocOf(h *model.Held) *structs.Allocation {
	a := h.Alloc()
	a.Job, a.Namespace, a.JobID = w.Job, w.Key.Namespace, w.Key.ID
	return a
}
