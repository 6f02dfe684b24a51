package contend

import (
	"cmp"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// What work loses depends on whether it saves its state when it is stopped. It is expected to where its job has it notified, the
// job does not declare that writing takes longer than the grace, and, once a checkpoint of it was seen, that one was written
// within the grace of a notice.
//
// Naive: all work that can be notified saves its state. Then work whose grace is too short (a queue may shorten it), or that
// is notified only before a drain, is preempted first, and loses everything since its last checkpoint.

// saving says what is expected of work that is stopped.
type saving uint8

const (
	savesNothing  saving = iota // it has no checkpoint block
	savesInTime                 // before it is killed
	savesByItself               // it is never notified
	savesUnasked                // it is not notified for this cause
	savesTooLong                // writing takes longer than its grace
	savesUnproven               // it has saved its state, but not yet when it was notified
)

// savingTexts say why work loses what it has done since its last checkpoint.
var savingTexts = [...]string{
	savesByItself: "saves by itself",
	savesUnasked:  "not asked to save",
	savesTooLong:  "cannot save within its grace",
	savesUnproven: "not yet seen to save in time",
}

// text returns why work loses what it has done since its last checkpoint; "" if it does not, or saves nothing at all.
func (s saving) text() string {
	if int(s) < len(savingTexts) {
		return savingTexts[s]
	}
	return ""
}

// savingOf returns what is expected of work that is stopped for a cause.
func (p *Preemption) savingOf(h *model.Held, cause string) saving {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || g.Checkpoint == nil {
		return savesNothing
	}
	c := g.Checkpoint
	switch {
	case !c.Notified():
		return savesByItself
	case !c.Heeds(cause):
		return savesUnasked
	case c.Cost/2 > c.GraceOrDefault():
		return savesTooLong
	}
	slow := !savedAsked(h)
	if g.SavesAsOne() {
		slow = slow || p.newestOf(h).slow
	}
	if slow {
		return savesUnproven
	}
	return savesInTime
}

// savedAsked reports whether the newest checkpoint of work, if it has any, was written within its grace of a notice.
func savedAsked(h *model.Held) bool {
	g := h.Work.Job.Group(h.Work.Group)
	return h.Work.Saved == 0 || h.Work.Took > 0 && g != nil && g.Checkpoint != nil && h.Work.Took <= g.Checkpoint.GraceOrDefault()
}

// saveOverhead is how long after its save work has ended, and the next one has its turn.
const saveOverhead = 10 * time.Second

// endsIn returns how long work that is preempted now takes to end, at the most that is expected: its shutdown delay, its turn at a
// storage, its save and its kill timeout. A save takes twice as long as the last one, at most its grace.
//
// Limits that follow from measurements of a storage, and those of node pools, are not known here: where turns depend on
// them, it takes longer.
func (p *Preemption) endsIn(h *model.Held) time.Duration {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil {
		return 0
	}
	var delay, kill time.Duration
	for _, t := range g.Tasks {
		delay, kill = max(delay, t.ShutdownDelay), max(kill, cmp.Or(t.KillTimeout, structs.KillTimeoutDefault))
	}
	c := g.Checkpoint
	if c == nil || !c.Heeds(structs.CausePreempt) {
		return delay + kill
	}
	save := c.GraceOrDefault()
	if h.Work.Took > 0 {
		save = min(save, 2*h.Work.Took)
	}
	turns := int64(0)
	for _, l := range p.saveLimits(c) {
		turns = max(turns, p.saves(l.where)/l.most)
	}
	wait := min(time.Duration(turns)*(save+saveOverhead), structs.CheckpointWaitMax)
	return delay + wait + save + kill
}

// saveLimit is a configured limit on saves at a time.
type saveLimit struct {
	where string // a storage; "" for the cluster
	most  int64
}

// saveLimits returns the limits for work with a checkpoint block.
func (p *Preemption) saveLimits(c *structs.Checkpoint) (out []saveLimit) {
	if most := p.rules.Config.MaxCheckpoints; most > 0 {
		out = append(out, saveLimit{"", most})
	}
	if most := p.rules.Config.CheckpointStorage[c.Storage]; most > 0 && c.Storage != "" {
		out = append(out, saveLimit{c.Storage, most})
	}
	return out
}

// saves counts the allocations that end and save their state under a limit, with those that this pass stops.
func (p *Preemption) saves(where string) (n int64) {
	p.findEnds()
	n = p.ends.saving[where]
	for id := range p.taken { // in any order
		if at, ok := p.ends.storage[id]; ok && (where == "" || at == where) {
			n++
		}
	}
	return n
}

// ends is what a pass knows about work that ends, or could.
type ends struct {
	saving  map[string]int64           // allocations that end and save their state, by storage; "": all
	storage map[structs.AllocID]string // of preemptible work that saves its state when it is preempted
	able    []*model.Held              // preemptible work
	longest time.Duration              // that any of it takes to end; valid if known
	known   bool
}

// findEnds looks at all running work once.
func (p *Preemption) findEnds() {
	if p.ends != nil {
		return
	}
	p.ends = &ends{saving: map[string]int64{}, storage: map[structs.AllocID]string{}}
	p.Scanned += p.w.View.Rows
	for _, c := range p.w.View.Chunks {
		for i := range c.IDs {
			for h := range c.Hold[i].All() {
				if h.Work.Job == nil {
					continue
				}
				g := h.Work.Job.Group(h.Work.Group)
				asked := g != nil && g.Checkpoint != nil && g.Checkpoint.Heeds(structs.CausePreempt)
				switch {
				case !h.Work.Ending && h.Work.Job.MayPreempt():
					p.ends.able = append(p.ends.able, h)
					if asked {
						p.ends.storage[h.ID] = g.Checkpoint.Storage
					}
				case h.Work.Ending && asked:
					if p.ends.saving[""]++; g.Checkpoint.Storage != "" {
						p.ends.saving[g.Checkpoint.Storage]++
					}
				}
			}
		}
	}
}

// longestEnd returns how long preemptible work takes to end, the one that takes longest.
func (p *Preemption) longestEnd() time.Duration {
	p.findEnds()
	if !p.ends.known {
		p.ends.known = true
		for _, h := range p.ends.able {
			p.ends.longest = max(p.ends.longest, p.endsIn(h))
		}
	}
	return p.ends.longest
}

// deadlineLead returns how long before the last possible start work is preempted that takes so long to end.
func deadlineLead(ends time.Duration) time.Duration { return max(deadlineMargin, ends+saveOverhead) }

// lateFor reports whether work must not be preempted for a job with a deadline: not yet, because others may end by
// themselves until then, or not any more, because the job would start too late.
func (p *Preemptor) lateFor(h *model.Held) bool {
	last, takes := p.lastStart(), p.endsIn(h)
	if at := last.Add(-deadlineLead(takes)); p.now < at {
		p.retry(at)
		return true
	}
	if p.now.Add(takes) <= last {
		return false
	}
	if p.slowFor == 0 || takes < p.slowFor {
		p.slow, p.slowFor = h.Work.Job.Key(), takes
	}
	return true
}

// TooSlow refuses a workload with a deadline for which work would not end in time. nil: there is none.
func (p *Preemptor) TooSlow() *structs.Refusal {
	if p.slowFor == 0 {
		return nil
	}
	return &structs.Refusal{Code: structs.ReasonPriority, Short: int64((p.now.Add(p.slowFor).Sub(p.lastStart()) + time.Second - 1) / time.Second), Unit: structs.UnitSeconds, CuredBy: p.rules.onSave(),
		Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptSlow, Subject: p.slow.ID, Detail: p.slowFor.String()}}
}

// lastStart returns when a job with a deadline must start at the latest.
func (p *Preemptor) lastStart() structs.LogTime {
	return p.Load.Job.Deadline.Add(-p.Load.Expected())
}
