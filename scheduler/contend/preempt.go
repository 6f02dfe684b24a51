package contend

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Preemption (D19). A workload that found no place may take the places of running work. What its queue is guaranteed it
// takes from queues that borrowed it, under every rule but none. Beyond that the rule of its queue decides: it takes the
// places of work with lower priority, of work that can wait when its own deadline cannot, or of work whose queue or
// submitter has a larger share. Only work that is marked preemptible, or that can save its state, is preempted, unless
// the operator allows more for a type of job. The victims are those that lose least. Their stops are in the same part
// of the plan that places the preemptor, which waits for them and owns the claim: canceling it gives up the claim, and
// no third workload can take the place.
//
// There are no loops at fixed time and usage, because the victims' rules never reach the preemptor. Priorities are
// strictly ordered. A queue that reclaims stays within its guarantee, and only takes what exceeds the guarantee of
// others; and no rule takes from another queue what that queue holds within its guarantee, counting all that stops in the
// pass. Work with a deadline that has no time left is not a victim.

// Defaults where queues and work set nothing.
const (
	preemptDelta   = 10 // priority levels, where only the operator's switch allows preemption; as in Nomad
	graceUnknown   = 30 * time.Second
	deadlineMargin = time.Minute // before the last possible start, for victims to stop
)

// Preemption is the running work that a pass may preempt, and what it has preempted.
type Preemption struct {
	NoFit     search.NoFit    // preemptions that found no victims
	Wake      structs.LogTime // when shares may have moved enough for another answer; 0: never
	shares    *shares         // nil: no order measures shares
	w         *search.Pass
	now       structs.LogTime
	rules     *Rules
	limits    *Limits
	evicted   Evictions
	gangs     map[gangKey][]*model.Held // live members of gangs and elastic groups, by name index
	taken     map[structs.AllocID]bool
	notes     map[string]*structs.Refusal // why preemptions found no victims, by the key in NoFit
	gangTimes []GangTimes                 // see Env.GangTimes
	flight    model.Overlay
	alive     map[gangKey][]*model.Held            // of gangs, without what this pass stops
	sets      map[gangKey]*stopSet                 // by the first of their groups
	newest    map[gangKey]newest                   // of gangs and elastic groups
	ends      *ends                                // nil: see findEnds
	tails     map[gangKey]*groupTails              // of elastic groups; nil: see tailsOf
	Scanned   int                                  // nodes and members of gangs that were looked at for all preemptions of the pass
	leaving   map[gangKey]bool                     // elastic gangs that a plan in flight resizes; filled with gangs
	made      map[structs.QueuePath]int64          // evicted jobs, by the preemptor's queue
	gone      map[structs.QueuePath]structs.Amount // what queues lose through this pass, by path
}

// NewPreemption begins the preemptions of a pass. limits may be nil.
func NewPreemption(e *Env, limits *Limits) *Preemption {
	p := newPreemption(e, limits)
	p.shares = newShares(e, p)
	return p
}

// newPreemption is NewPreemption without shares: what work would lose does not depend on them.
func newPreemption(e *Env, limits *Limits) *Preemption {
	return &Preemption{gangTimes: e.GangTimes, flight: e.Flight, notes: map[string]*structs.Refusal{}, w: e.W, now: e.Now, rules: e.Rules, limits: limits, evicted: e.Evicted,
		taken: make(map[structs.AllocID]bool), made: make(map[structs.QueuePath]int64), gone: make(map[structs.QueuePath]structs.Amount)}
}

type gangKey struct {
	job   structs.JobKey
	group structs.GroupName
}

// PreemptRule is how a job may preempt.
type PreemptRule struct {
	Name  string // of structs.Preempt...; "": not at all
	Queue structs.QueuePath
	any   bool  // the operator's switch: also work that is not marked preemptible
	near  bool  // only work of the same queue
	rate  int64 // evicted jobs an hour; 0: no limit
	delta int64 // by how much the job's priority must be higher
}

// rulesOf returns the rules for a job, in the order in which they are tried: to reclaim what its queue is guaranteed, then
// that of its queue, else what the operator's switch for its type allows. There is at least one.
func (p *Preemption) rulesOf(j *structs.Job) []PreemptRule {
	own := p.ownRule(j)
	if own.Name == structs.PreemptReclaim || p.rules.Of(j.QueueName()).Preempt == structs.PreemptNone || !p.guaranteed(j.QueueName()) {
		return []PreemptRule{own}
	}
	reclaim := own
	reclaim.Name, reclaim.any = structs.PreemptReclaim, false
	if own.Name == "" {
		return []PreemptRule{reclaim}
	}
	return []PreemptRule{reclaim, own}
}

// guaranteed reports whether a queue, or one above it, has a guarantee.
func (p *Preemption) guaranteed(path structs.QueuePath) bool {
	for at := range path.Lineage() {
		if q := p.rules.Queues.Queue(at); q != nil && q.Guarantee != nil {
			return true
		}
	}
	return false
}

// ownRule returns the rule of a job's queue, else what the operator's switch for its type allows.
func (p *Preemption) ownRule(j *structs.Job) PreemptRule {
	q := p.rules.Of(j.QueueName())
	r := PreemptRule{Queue: j.QueueName(), Name: q.Preempt, rate: q.PreemptRate, delta: max(q.PreemptDelta, deltaDefault)}
	switch r.Name {
	case structs.PreemptPriority, structs.PreemptReclaim, structs.PreemptDeadline:
		return r
	case structs.PreemptOrder:
		if p.rules.Yields {
			r.Name, r.near = structs.PreemptPriority, true
			return r
		}
	}
	r.Name = ""
	c := p.rules.Config
	switch j.Type {
	case structs.JobBatch:
		r.any = c.PreemptBatch
	case structs.JobService:
		r.any = c.PreemptService
	case structs.JobSystem:
		r.any = c.PreemptSystem
	case structs.JobSysBatch:
		r.any = c.PreemptSysBatch
	}
	if r.any {
		r.Name, r.delta = structs.PreemptPriority, cmp.Or(q.PreemptDelta, preemptDelta)
	}
	return r
}

// Preemptor is a workload that looks for others to make room.
type Preemptor struct {
	*Preemption
	Load     *Workload
	Rule     PreemptRule
	RetryAt  structs.LogTime  // when more work may be preempted; 0: unknown
	Looked   int              // nodes that were searched for victims
	young    []structs.JobKey // the work that may be preempted from youngTo on, the earliest of it
	youngTo  structs.LogTime
	slow     structs.JobKey // of the work that would not end in time for the deadline, what ends first
	slowFor  time.Duration  // how long it takes; 0: there is none
	eviction *Eviction      // the last one; nil: undone
	Asks     structs.Amount // an upper bound of what the decision is charged if the preemption succeeds; only for guarantees
	claim    structs.Amount // the same for shares: see SetClaim
}

// For begins the preemptions of a workload, one for each rule that it may use, in the order in which they are tried.
func (p *Preemption) For(load *Workload) (out []*Preemptor) {
	soft := p.limits.OverSoft(load)
	rules := p.rulesOf(load.Job)
	if p.MayClaim(load) {
		r := p.ownRule(load.Job)
		r.Name, r.any = preemptShares, false
		rules = append(rules, r)
	}
	for _, r := range rules {
		if soft && r.Name != structs.PreemptReclaim {
			r.Name = ""
		}
		out = append(out, &Preemptor{Preemption: p, Load: load, Rule: r})
	}
	return out
}

// retry schedules a decision at a time, unless there is an earlier one.
func (p *Preemptor) retry(at structs.LogTime) {
	if p.RetryAt == 0 || at < p.RetryAt {
		p.RetryAt = at
	}
}

// TooRecent refuses a workload for which work could be preempted that began too recently. nil: there is none.
func (p *Preemptor) TooRecent() *structs.Refusal {
	if len(p.young) == 0 {
		return nil
	}
	slices.SortFunc(p.young, compareJobs)
	return tooRecent(slices.Compact(p.young), p.now, p.youngTo)
}

// TooEarly refuses a workload that has not waited as long as its queue requires before others make room for it
// (Queue.PreemptAfter). It then preempts by no rule in this decision.
func (p *Preemptor) TooEarly() *structs.Refusal {
	after := p.rules.Of(p.Load.QueueName()).PreemptAfter
	since := p.Load.WaitingSince()
	if p.Rule.Name == "" || after == 0 || since == 0 || p.now >= since.Add(after) {
		return nil
	}
	at := since.Add(after)
	p.retry(at)
	p.Rule.Name = ""
	return &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptDelay, Holder: QueueHolder(p.Rule.Queue)}, Short: int64((at.Sub(p.now) + time.Second - 1) / time.Second), Unit: structs.UnitSeconds, CuredBy: structs.EventTime}
}

// Urgent reports whether the job would miss its deadline if it waited, and will meet it if it starts now: some work that
// may be preempted has to be notified now to end in time. If there is still time, Urgent schedules a decision for when that
// is over.
func (p *Preemptor) Urgent() bool {
	j := p.Load.Job
	if j.Deadline == 0 {
		return false
	}
	last := p.lastStart()
	if p.now > last {
		return false // it misses its deadline anyway
	}
	if at := last.Add(-deadlineLead(p.longestEnd())); p.now < at {
		p.retry(at)
		return false
	}
	return true
}

// members lists the live members of the gang or elastic group that work belongs to, by name index; nil if it belongs to
// neither.
func (p *Preemption) members(h *model.Held) []*model.Held {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || !g.IsGang() && g.Elastic == nil {
		return nil
	}
	if p.gangs == nil {
		p.gangs, p.leaving = make(map[gangKey][]*model.Held), map[gangKey]bool{}
		p.Scanned += p.w.View.Rows
		for _, c := range p.w.View.Chunks {
			for i := range c.IDs {
				for x := range c.Hold[i].All() {
					if x.Work.Job == nil || x.Work.Ending {
						continue
					}
					if g := x.Work.Job.Group(x.Work.Group); g != nil && (g.IsGang() || g.Elastic != nil) && !g.IsStandby(x.Work.Index) {
						k := gangKey{x.Work.Job.Key(), x.Work.Group}
						p.gangs[k] = append(p.gangs[k], x)
						if g.Elastic != nil && p.flight.Len() > 0 && p.flight.Stopping(x.ID) {
							p.leaving[k] = true
						}
					}
				}
			}
		}
		for _, list := range p.gangs { // the order of the keys does not matter
			slices.SortFunc(list, byIndex)
		}
	}
	return p.live(gangKey{h.Work.Job.Key(), h.Work.Group})
}

// live lists the members of a group that this pass does not stop, once they have been collected.
func (p *Preemption) live(k gangKey) []*model.Held {
	out, known := p.alive[k]
	if known {
		return out
	}
	out = p.gangs[k]
	if slices.ContainsFunc(out, func(x *model.Held) bool { return p.taken[x.ID] }) {
		out = slices.DeleteFunc(slices.Clone(out), func(x *model.Held) bool { return p.taken[x.ID] })
	}
	if p.alive == nil {
		p.alive = map[gangKey][]*model.Held{}
	}
	p.alive[k] = out
	return out
}

// take records that work is preempted.
func (p *Preemption) take(h *model.Held) {
	p.taken[h.ID] = true
	p.moved()
	p.credit(h, 1)
	p.loses(h, 1)
}

// NoVictims keeps why a preemption with a key of NoFit found no victims; nil: there is none that a rule allows.
func (p *Preemption) NoVictims(key string, why *structs.Refusal) { p.notes[key] = why }

// WhyNone returns what NoVictims kept.
func (p *Preemption) WhyNone(key string) *structs.Refusal { return p.notes[key] }

// Takes reports whether an allocation is preempted by this pass.
func (p *Preemption) Takes(id structs.AllocID) bool { return p.taken[id] }

func (p *Preemption) credit(h *model.Held, n int64) {
	for path := range h.Work.Job.QueueName().Lineage() {
		p.gone[path] = p.gone[path].Add(h.Amount().Times(n))
	}
}
