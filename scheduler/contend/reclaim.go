package contend

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// mayReclaim reports whether the job may take back what running work holds. Let top be the lowest queue above both
// queues. Then the job's queue, or one between it and top, must be guaranteed what the job asks for in addition to all
// that it holds. And without the work, the work's queue and each between it and top must still hold what they are
// guaranteed.
func (p *Preemptor) mayReclaim(h *model.Held) bool {
	mine, theirs := p.Load.Job.QueueName(), h.Work.Job.QueueName()
	top := commonQueue(mine, theirs)
	if p.limits == nil || theirs == top { // nothing is guaranteed, or theirs is above mine
		return false
	}
	ask := p.asks
	owed := false
	for path := range mine.Lineage() {
		if path == top || owed {
			break
		}
		q := p.rules.Queues.Queue(path)
		if q == nil || q.Guarantee == nil {
			continue
		}
		holds, _ := p.limits.Held(structs.UseRow{Path: path})
		owed = guaranteed(holds.Add(ask), *q.Guarantee, ask)
	}
	if !owed {
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
		holds = holds.Sub(p.gone[path]).Sub(h.Amount())
		left := contested(holds, ask)
		for i, g := range contested(*q.Guarantee, ask) {
			if left[i] < g {
				return false
			}
		}
	}
	return true
}

// guaranteed reports whether an amount that includes an ask is within a guarantee. A guarantee gives no claim if it
// covers nothing that the ask is about.
func guaranteed(after, guarantee, ask structs.Amount) bool {
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
