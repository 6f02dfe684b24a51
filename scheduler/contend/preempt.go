package contend

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Preemption (D19). What found no place may take that of running work, by the rule of its queue: of work of lower
// priority, of work in queues that borrowed what others are guaranteed, or of work that can wait while its own deadline
// cannot. Only work that says that it may be preempted, or that can save its state, is preempted, unless the operator
// allows more for a kind of job. The victims are those that lose least. Their stops are in the very part that places the
// preemptor, which waits on them and owns the claim: whoever cancels it gives up the claim, and no third one slips in.
//
// No loops at fixed time and usage: by each rule the preemptor is out of reach of its victims' rules. Priorities are
// strictly ordered. Whoever reclaims stays within its guarantee, and takes only what exceeds the guarantee of others. Work
// that has no time left is no victim of a deadline.

// What is assumed where queues and work do not say.
const (
	preemptDelta   = 10 // of priority, where only the operator's switch allows preemption: Nomad's
	graceUnknown   = 30 * time.Second
	deadlineMargin = time.Minute // before the last moment, for victims to stop
)

// Preemption is what a pass knows of work that may give way, and has told to stop.
type Preemption struct {
	NoFit   search.NoFit // preemptions that found no victims
	w       *search.Pass
	now     structs.LogTime
	rules   *Rules
	limits  *Limits
	evicted Evictions
	gangs   map[gangKey][]*model.Held // live members of gangs and elastic groups, by name index
	taken   map[structs.AllocID]bool
	made    map[structs.QueuePath]int64          // evicted jobs, by the preemptor's queue
	gone    map[structs.QueuePath]structs.Amount // of what queues hold, by path: told to stop by this pass
}

// NewPreemption begins the preemptions of a pass. limits may be nil.
func NewPreemption(e *Env, limits *Limits) *Preemption {
	return &Preemption{w: e.W, now: e.Now, rules: e.Rules, limits: limits, evicted: e.Evicted,
		taken: make(map[structs.AllocID]bool), made: make(map[structs.QueuePath]int64), gone: make(map[structs.QueuePath]structs.Amount)}
}

type gangKey struct {
	job   structs.JobKey
	group string
}

// PreemptRule is how a job may preempt.
type PreemptRule struct {
	Name  string // of structs.Preempt...; "": not at all
	Queue structs.QueuePath
	any   bool  // the operator's switch: also work that does not say that it may be preempted
	rate  int64 // evicted jobs an hour; 0: no limit
	delta int64 // by how much the job's priority must be higher
}

// ruleOf is the rule for a job: that of its queue, else what the operator's switch for its type allows.
func (p *Preemption) ruleOf(j *structs.Job) PreemptRule {
	q := p.rules.Of(j.QueueName())
	r := PreemptRule{Queue: j.QueueName(), Name: q.Preempt, rate: q.PreemptRate, delta: max(q.PreemptDelta, 1)}
	switch r.Name {
	case structs.PreemptPriority, structs.PreemptReclaim, structs.PreemptDeadline:
		return r
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
	Load    *Workload
	Rule    PreemptRule
	RetryAt structs.LogTime // when more work may be preempted; 0: not known
	Looked  int             // nodes whose victims were weighed
	asks    structs.Amount  // all that it wants now, at most; only for reclaiming
}

// For begins the preemptions of a workload. asks is the most that all it wants is charged.
func (p *Preemption) For(load *Workload, asks structs.Amount) *Preemptor {
	return &Preemptor{Preemption: p, Load: load, Rule: p.ruleOf(load.Job), asks: asks}
}

// retry asks for a decision at a time, unless one comes earlier.
func (p *Preemptor) retry(at structs.LogTime) {
	if p.RetryAt == 0 || at < p.RetryAt {
		p.RetryAt = at
	}
}

// TooEarly refuses while the workload has not waited for as long as its queue demands before others make room for it
// (Queue.PreemptAfter). From then on it preempts by no rule in this decision.
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

// Urgent reports whether the job would miss its deadline if it waited, and will meet it if it starts now. One that has
// time left asks for a decision when it has none.
func (p *Preemptor) Urgent() bool {
	j := p.Load.Job
	if j.Deadline == 0 {
		return false
	}
	last := j.Deadline.Add(-p.Load.Expected())
	if p.now > last {
		return false // it misses it anyway
	}
	if at := last.Add(-deadlineMargin); p.now < at {
		p.retry(at)
		return false
	}
	return true
}

// members lists the live members of the gang or elastic group that work belongs to, by name index; nil for neither.
func (p *Preemption) members(h *model.Held) []*model.Held {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || g.Gang == nil && g.Elastic == nil {
		return nil
	}
	if p.gangs == nil {
		p.gangs = make(map[gangKey][]*model.Held)
		for _, c := range p.w.View.Chunks {
			for i := range c.IDs {
				for x := range c.Hold[i].All() {
					if x.Work.Job == nil || x.Work.Ending {
						continue
					}
					if g := x.Work.Job.Group(x.Work.Group); g != nil && (g.Gang != nil || g.Elastic != nil) && !g.IsStandby(x.Work.Index) {
						k := gangKey{x.Work.Job.Key(), x.Work.Group}
						p.gangs[k] = append(p.gangs[k], x)
					}
				}
			}
		}
		for _, list := range p.gangs { // the order of the keys does not matter
			slices.SortFunc(list, func(a, b *model.Held) int {
				return cmp.Or(cmp.Compare(a.Work.Index, b.Work.Index), model.CompareID(a.ID, b.ID))
			})
		}
	}
	var out []*model.Held
	for _, x := range p.gangs[gangKey{h.Work.Job.Key(), h.Work.Group}] {
		if !p.taken[x.ID] {
			out = append(out, x)
		}
	}
	return out
}

// take notes that work is told to go.
func (p *Preemption) take(h *model.Held) {
	p.taken[h.ID] = true
	p.credit(h, 1)
}

func (p *Preemption) credit(h *model.Held, n int64) {
	for path := range h.Work.Job.QueueName().Lineage() {
		p.gone[path] = p.gone[path].Add(h.Amount().Times(n))
	}
}
