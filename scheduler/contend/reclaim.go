package contend

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// mayReclaim reports whether the job may take back what running work holds. Let top be the lowest queue above both
// queues. Then the job's queue, or one between it and top, must be guaranteed what the job asks for in addition to all
// that it holds. That the work's own guarantee does not keep it is checked by guards.
func (p *Preemptor) mayReclaim(h *model.Held) bool {
	mine, theirs := p.Load.Job.QueueName(), h.Work.Job.QueueName()
	top := commonQueue(mine, theirs)
	if p.limits == nil || theirs == top { // nothing is guaranteed, or theirs is above mine
		return false
	}
	ask := p.Asks
	for path := range mine.Lineage() {
		if path == top {
			break
		}
		q := p.rules.Queues.Queue(path)
		if q == nil || q.Guarantee == nil {
			continue
		}
		holds, _ := p.limits.Held(structs.UseRow{Path: path})
		if covered(holds.Add(ask), *q.Guarantee, ask) {
			return true
		}
	}
	return false
}

// guards reports whether a guarantee keeps running work from the job: without the work, its queue, or one between it and
// the lowest queue above both, would hold less than it is guaranteed.
func (p *Preemptor) guards(h *model.Held) bool {
	theirs := h.Work.Job.QueueName()
	top := commonQueue(p.Load.Job.QueueName(), theirs)
	if p.limits == nil {
		return false
	}
	for path := range theirs.Lineage() {
		if path == top {
			break
		}
		q := p.rules.Queues.Queue(path)
		if q == nil || q.Guarantee == nil {
			continue
		}
		holds, _ := p.limits.Held(structs.UseRow{Path: path})
		left := contested(holds.Sub(p.gone[path]).Sub(h.Amount()), p.Asks)
		for i, g := range contested(*q.Guarantee, p.Asks) {
			if left[i] < g {
				return true
			}
		}
	}
	return false
}

// covered reports whether an amount that includes an ask is within a guarantee. A guarantee gives no claim if it
// covers nothing that the ask is about.
func covered(after, guarantee, ask structs.Amount) bool {
	some := false
	for i, g := range contested(guarantee, ask) {
		if g == 0 || contested(ask, ask)[i] == 0 {
			continue
		}
		if contested(after, ask)[i] > g {
			return false
		}
		some = true
	}
	return some
}

// contested returns the components that a claim is about: GPUs and their memory if the ask is for GPUs, else CPU and
// memory.
func contested(a, ask structs.Amount) [2]int64 {
	if ask.GPUMilli > 0 || ask.GPUMemoryMiB > 0 {
		return [2]int64{a.GPUMilli, a.GPUMemoryMiB}
	}
	return [2]int64{a.CPU, a.MemoryMiB}
}

// commonQueue returns the lowest queue that contains both.
func commonQueue(a, b structs.QueuePath) structs.QueuePath {
	for !a.Contains(b) {
		a = a.Parent()
	}
	return a
}
