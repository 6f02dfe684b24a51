package contend

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Eviction is the victims of one preemption, until it is kept or undone.
type Eviction struct {
	p       *Preemptor
	stopped []*model.Held
	has     map[structs.AllocID]bool // the same
	cost    int64                    // GPU seconds that the victims lose
	jobs    []structs.JobKey         // that are evicted
	how     map[structs.JobKey]saving
	top     int     // the highest priority of jobs
	from    []sides // of a preemption by shares: who gives way
	gain    int64
}

// Evict begins a preemption.
func (p *Preemptor) Evict() *Eviction {
	p.eviction = &Eviction{p: p, has: map[structs.AllocID]bool{}, how: map[structs.JobKey]saving{}}
	return p.eviction
}

// Resume continues an eviction after another one was tried and undone.
func (p *Preemptor) Resume(e *Eviction) { p.eviction = e }

// Add adds victims that make room for a placement. It returns the allocations that the placement waits for, and the
// stops of all that go.
func (e *Eviction) Add(vs []Victim, by structs.AllocID) (waits []structs.AllocID, stops []structs.PlanStop) {
	p := e.p
	for _, v := range vs {
		waits = append(waits, v.h.ID)
		for h := range v.stops() {
			st := structs.PlanStop{ID: h.ID, Desc: "preempted by job " + p.Load.Job.ID, Desired: structs.DesiredEvict, Preempt: by}
			if v.shrink {
				st.Desc, st.Desired, st.Cause = "shrunk in favour of job "+p.Load.Job.ID, structs.DesiredStop, structs.CausePreempt
			}
			stops = append(stops, st)
			if v.free || p.taken[h.ID] {
				continue
			}
			p.take(h)
			e.stopped = append(e.stopped, h)
			e.has[h.ID] = true
			if v.shrink {
				continue
			}
			e.cost += p.lost(h)
			k := h.Work.Job.Key()
			if !slices.Contains(e.jobs, k) {
				e.jobs = append(e.jobs, k)
			}
			e.how[k] = max(e.how[k], p.savingOf(h, structs.CausePreempt))
			e.top = max(e.top, h.Work.Job.Priority)
		}
		if !v.free && !v.shrink && p.Rule.Name == preemptShares {
			e.note(&v)
		}
	}
	return waits, stops
}

// Undo keeps all victims running.
func (e *Eviction) Undo() {
	for _, h := range e.stopped {
		delete(e.p.taken, h.ID)
		e.p.moved()
		e.p.credit(h, -1)
		e.p.loses(h, -1)
	}
	e.p.eviction = nil
}

// Loss returns what the victims lose, in GPU seconds, and how many allocations stop.
func (e *Eviction) Loss() (cost int64, stopped int) { return e.cost, len(e.stopped) }

// MilliOf returns the GPUs of so many allocations of a group, in thousandths; without GPUs each counts as one.
func MilliOf(g *structs.Group, n int64) int64 { return n * max(structs.GroupAmount(g).GPUMilli, 1000) }

// Weigh refuses an eviction that costs more than it gains for placements with so many thousandths of GPUs (MilliOf), or
// that exceeds the rate of the queue. nil: it is worth it.
func (e *Eviction) Weigh(milli int64) *structs.Refusal {
	p := e.p
	if e.gain = p.gain(milli, e.top); p.Rule.Name == preemptShares {
		e.gain = p.gain(milli, p.Load.Job.Priority) * e.excess() / 100
	}
	if e.cost > 0 && e.gain <= e.cost {
		return p.rules.tooCostly(e.jobs, e.how, e.cost, e.gain, structs.UnitGPUSeconds)
	}
	queue, n := p.Rule.Queue, int64(len(e.jobs))
	if p.Rule.rate > 0 && n > 0 && p.evicted.Within(queue, p.now)+p.made[queue]+n > p.Rule.rate {
		if at, ok := p.evicted.FreeAt(queue, p.now); ok {
			p.retry(at)
		}
		return &structs.Refusal{Code: structs.ReasonRateLimit, Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptRate, Holder: QueueHolder(queue)}, Short: n, Unit: structs.UnitPerHour, CuredBy: structs.EventTime}
	}
	return nil
}

// Keep makes an eviction final. It returns the number of allocations that it stops, and the reason as their users see
// it.
func (e *Eviction) Keep() (stopped int64, why string) {
	p := e.p
	p.made[p.Rule.Queue] += int64(len(e.jobs))
	switch p.Rule.Name {
	case structs.PreemptReclaim:
		why = fmt.Sprintf(": its queue gets back what it is guaranteed; %d GPU seconds are lost", e.cost)
	case structs.PreemptPriority:
		why = fmt.Sprintf(" (priority %d): %d GPU seconds are lost, worth less than the %d gained", p.Load.Job.Priority, e.cost, e.gain)
	case preemptShares:
		why = e.whyShares() + fmt.Sprintf(": %d GPU seconds are lost, worth less than the %d gained", e.cost, e.gain)
	case structs.PreemptDeadline:
		why = fmt.Sprintf(", which would miss its deadline: %d GPU seconds are lost, worth less than the %d gained", e.cost, e.gain)
	}
	return int64(len(e.stopped)), why
}

// gain returns what a preemption for so many thousandths of GPUs gains, in GPU seconds.
func (p *Preemptor) gain(milli int64, top int) int64 {
	if p.Rule.Name == structs.PreemptReclaim {
		return 1 << 62 // the queue is guaranteed this
	}
	return p.Load.worth(milli, p.Load.Job.Priority-top)
}
