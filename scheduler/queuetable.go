package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Defaults of a queue's settings (structs.Queue).
const (
	reserveDepthDefault = 10
	maxWaitDefault      = 24 * time.Hour
	halfLifeDefault     = 24 * time.Hour
	agingDefault        = 10 * time.Minute
	minRuntimeDefault   = time.Minute
	preemptMaxDefault   = 10
)

// Queue is the queue of a path, or nil when there is none: it then has every setting from its nearest ancestor.
func (t *QueueTable) Queue(path structs.QueuePath) *structs.Queue {
	if t == nil {
		return nil
	}
	if i, found := slices.BinarySearchFunc(t.Queues, path, func(q *structs.Queue, p structs.QueuePath) int { return cmp.Compare(q.Path, p) }); found {
		return t.Queues[i]
	}
	return nil
}

// Use is what a queue (user "") or a submitter in it holds and has used; nil for nothing.
func (t *QueueTable) Use(path structs.QueuePath, user string) *structs.QueueUsage {
	if t == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(t.Usage, path, func(u *structs.QueueUsage, p structs.QueuePath) int {
		return cmp.Or(cmp.Compare(u.Path, p), cmp.Compare(u.User, user))
	})
	if found {
		return t.Usage[i]
	}
	return nil
}

// Settings are those of the queue of a path with everything that is inherited or has a default filled in. Limits,
// guarantees, caps and weights are each queue's own and not inherited. The path need not exist.
func (t *QueueTable) Settings(path structs.QueuePath, cfg *structs.SchedulerConfig) structs.Queue {
	out := t.Configured(path)
	out.Weight = max(out.Weight, 1)
	inherit(&out, &structs.Queue{
		Order: cmp.Or(cfg.Order, structs.OrderAdaptive), Preempt: structs.PreemptOrder, Backfill: cmp.Or(cfg.Backfill, structs.BackfillSJF),
		ReserveDepth: reserveDepthDefault, MaxWait: maxWaitDefault, HalfLife: halfLifeDefault, Aging: agingDefault,
		PreemptMinRuntime: minRuntimeDefault, PreemptMax: preemptMaxDefault,
	})
	return out
}

// Configured are the settings of the queue of a path with everything that is inherited, without defaults.
func (t *QueueTable) Configured(path structs.QueuePath) structs.Queue {
	out := structs.Queue{Path: path}
	if q := t.Queue(path); q != nil {
		out = *q
	}
	for p := range path.Ancestors() {
		if q := t.Queue(p); q != nil {
			inherit(&out, q)
		}
	}
	return out
}

// inherit fills the settings of q that are not set with those of p.
func inherit(q, p *structs.Queue) {
	if q.UserWeights == nil {
		q.UserWeights = p.UserWeights
	}
	q.Billing = cmp.Or(q.Billing, p.Billing)
	q.Order = cmp.Or(q.Order, p.Order)
	q.Preempt = cmp.Or(q.Preempt, p.Preempt)
	q.Backfill = cmp.Or(q.Backfill, p.Backfill)
	q.ReserveDepth = cmp.Or(q.ReserveDepth, p.ReserveDepth)
	q.MaxWait = cmp.Or(q.MaxWait, p.MaxWait)
	q.HalfLife = cmp.Or(q.HalfLife, p.HalfLife)
	q.Aging = cmp.Or(q.Aging, p.Aging)
	q.PreemptGrace = cmp.Or(q.PreemptGrace, p.PreemptGrace)
	q.PreemptMinRuntime = cmp.Or(q.PreemptMinRuntime, p.PreemptMinRuntime)
	q.PreemptMax = cmp.Or(q.PreemptMax, p.PreemptMax)
	q.PreemptRate = cmp.Or(q.PreemptRate, p.PreemptRate)
	q.PreemptAfter = cmp.Or(q.PreemptAfter, p.PreemptAfter)
	q.PreemptDelta = cmp.Or(q.PreemptDelta, p.PreemptDelta)
	q.AgingMax = cmp.Or(q.AgingMax, p.AgingMax)
	q.BackfillWindow = cmp.Or(q.BackfillWindow, p.BackfillWindow)
	q.BackfillMaxJobs = cmp.Or(q.BackfillMaxJobs, p.BackfillMaxJobs)
}

// Billing are the weights of the queue of a path, its own or inherited; nil for none.
func (t *QueueTable) Billing(path structs.QueuePath) *structs.Billing {
	if t == nil || len(t.Queues) == 0 {
		return nil
	}
	for p := range path.Lineage() {
		if q := t.Queue(p); q != nil && q.Billing != nil {
			return q.Billing
		}
	}
	return nil
}

// QueueName is the queue that the workload is in.
func (w *Workload) QueueName() structs.QueuePath {
	switch {
	case w.Job != nil:
		return w.Job.QueueName()
	case w.Queue != nil && w.Queue.Queue != "":
		return w.Queue.Queue
	}
	return structs.QueueDefault
}

// User is the submitter that the workload is charged to; "" when not known.
func (w *Workload) User() string {
	if w.Job == nil {
		return ""
	}
	return w.Job.Submitter.Name
}

// Asks is what the whole workload asks for: all allocations of all its groups.
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

// WaitingSince is since when a workload waits that holds nothing: its submission, or the end of what it last held, but
// not before the time that it asked for itself. 0 when something of it holds: then it is served.
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
