package contend

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Defaults of a queue's settings (structs.Queue).
const (
	reserveDepthDefault = 10
	maxWaitDefault      = 24 * time.Hour
	agingDefault        = 10 * time.Minute
	minRuntimeDefault   = time.Minute
	preemptMaxDefault   = 10
	deltaDefault        = 1 // priority levels
)

// QueueTable is the queues of the cluster as a pass sees them.
type QueueTable struct {
	Queues []*structs.Queue      // by path: parents before children
	Usage  []*structs.QueueUsage // by path, then user
	Total  structs.Amount        // what the cluster has
	Models []structs.GPUCount    // the GPUs of Total by model; nil: unknown
	// Turnover is the mean time until what is held now becomes free, as learned (predict.Similar); 0: unknown.
	Turnover time.Duration
	Tenants  []Tenant // namespaces with a quota, by name
	// HalfLife is that of queues for which none is set; 0: structs.HalfLifeDefault.
	HalfLife time.Duration
}

func (t *QueueTable) halfLife() time.Duration {
	if t == nil {
		return structs.HalfLifeDefault
	}
	return cmp.Or(t.HalfLife, structs.HalfLifeDefault)
}

// Draw returns the seed of the lotteries: that of the draw in force, which holds until work starts; or the given one where
// none is kept.
func (t *QueueTable) Draw(seed uint64) uint64 {
	if root := t.Use(structs.QueueRoot, ""); root != nil && root.Draw != 0 {
		return uint64(root.Draw)
	}
	return seed
}

// Tenant is a namespace with a quota.
type Tenant struct {
	Namespace string
	Quota     string
	Hard      structs.Amount  // of all namespaces with this quota together
	Soft      *structs.Amount // nil: none
	// Limits by GPU model, in addition to Hard and Soft.
	HardModels, SoftModels []structs.ModelAmount
}

// Queue returns the queue of a path. It returns nil when there is none; the path then has the settings of its nearest
// ancestor.
func (t *QueueTable) Queue(path structs.QueuePath) *structs.Queue {
	if t == nil {
		return nil
	}
	if i, found := slices.BinarySearchFunc(t.Queues, path, func(q *structs.Queue, p structs.QueuePath) int { return cmp.Compare(q.Path, p) }); found {
		return t.Queues[i]
	}
	return nil
}

// Use returns what a queue (user "") or a submitter in it holds and has used; nil for nothing.
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

// Settings returns the settings of the queue of a path, with everything that is inherited or has a default filled in.
// Limits, guarantees, caps and weights are not inherited. The path need not exist.
func (t *QueueTable) Settings(path structs.QueuePath, cfg *structs.SchedulerConfig) structs.Queue {
	out := t.Configured(path)
	out.Weight = max(out.Weight, 1)
	inherit(&out, &structs.Queue{
		Order: cmp.Or(cfg.Order, structs.OrderDefault), Preempt: structs.PreemptDefault, Backfill: cmp.Or(cfg.Backfill, structs.BackfillDefault),
		Ends: structs.EndsPredicted, ReserveDepth: reserveDepthDefault, MaxWait: maxWaitDefault, HalfLife: t.halfLife(), Aging: agingDefault,
		PreemptMinRuntime: minRuntimeDefault, PreemptMax: preemptMaxDefault,
	})
	return out
}

// Configured returns the settings of the queue of a path with everything that is inherited, without defaults.
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

// inherit fills the settings that q does not have with those of p.
func inherit(q, p *structs.Queue) {
	if q.UserWeights == nil {
		q.UserWeights = p.UserWeights
	}
	q.Billing = cmp.Or(q.Billing, p.Billing)
	q.Order = cmp.Or(q.Order, p.Order)
	q.Preempt = cmp.Or(q.Preempt, p.Preempt)
	q.Backfill = cmp.Or(q.Backfill, p.Backfill)
	q.ReserveDepth = cmp.Or(q.ReserveDepth, p.ReserveDepth)
	q.Ends = cmp.Or(q.Ends, p.Ends)
	q.UserPriorityDefault = inheritUsers(q.UserPriorityDefault, p.UserPriorityDefault, q.PriorityDefault)
	q.UserPriorityMax = inheritUsers(q.UserPriorityMax, p.UserPriorityMax, q.PriorityMax)
	q.PriorityDefault = cmp.Or(q.PriorityDefault, p.PriorityDefault)
	q.PriorityMax = cmp.Or(q.PriorityMax, p.PriorityMax)
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

// inheritUsers adds the priorities of submitters that the queue above has to a queue's own. A queue with a priority for
// all others inherits none, because it decides about every submitter itself.
func inheritUsers(own, above map[string]int64, others int64) map[string]int64 {
	switch {
	case others != 0 || len(above) == 0:
		return own
	case len(own) == 0:
		return above
	}
	out := maps.Clone(above)
	maps.Copy(out, own)
	return out
}

// Billing returns the billing weights of the queue of a path, set or inherited; nil for none.
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

// Rules are the settings of the queues during one pass. Each queue's are computed once.
type Rules struct {
	Queues *QueueTable
	Config *structs.SchedulerConfig
	// OldEvents: refusals do not name EventSaved, which the format in force does not have.
	OldEvents bool
	// Yields: all running work counts as preemptible, and in queues that preempt by order each job may take the places of
	// work of lower priority in its queue. A what-if of package suggest, in which no work competes.
	Yields bool

	known map[structs.QueuePath]*structs.Queue
	path  structs.QueuePath // the last path asked for
	last  *structs.Queue
}

// Of returns the settings of the queue of a path. They are shared and must not be changed.
func (r *Rules) Of(path structs.QueuePath) *structs.Queue {
	if r.last != nil && r.path == path {
		return r.last
	}
	q := r.known[path]
	if q == nil {
		set := r.Queues.Settings(path, r.Config)
		q = &set
		if r.known == nil {
			r.known = make(map[structs.QueuePath]*structs.Queue)
		}
		r.known[path] = q
	}
	r.path, r.last = path, q
	return q
}

// Evictions are the recent evictions on behalf of each queue, by queue. A queue's PreemptRate limits them per hour.
type Evictions []*structs.Preemptions

// Within counts the jobs evicted on behalf of a queue in the hour before now.
func (e Evictions) Within(queue structs.QueuePath, now structs.LogTime) int64 {
	for _, x := range e {
		if x.Queue == queue {
			return x.Within(now)
		}
	}
	return 0
}

// FreeAt returns when the oldest eviction of the last hour will be an hour old, so that the rate allows another one.
func (e Evictions) FreeAt(queue structs.QueuePath, now structs.LogTime) (structs.LogTime, bool) {
	for _, x := range e {
		if x.Queue != queue {
			continue
		}
		for _, t := range x.Recent {
			if at := t.Add(time.Hour); at > now {
				return at, true
			}
		}
	}
	return 0, false
}

// QueueHolder returns a queue as the holder of a limit.
func QueueHolder(path structs.QueuePath) structs.Holder {
	return structs.Holder{Kind: structs.HolderQueue, Name: string(path)}
}
