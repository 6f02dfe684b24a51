package contend

import (
	"slices"

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

// guards reports whether a guarantee keeps running work from the job: without the work and without others that go, its
// queue, or one between it and the lowest queue above both, would hold less than it is guaranteed. Of a gang, one member
// counts and not all that stop with it, because else what a gang holds beyond a guarantee could not be taken back. But
// where the queue loses other work, too, they all count. Of an elastic group that shrinks, the members after the victim always count.
func (p *Preemptor) guards(v *Victim, others []Victim) bool {
	h := v.h
	theirs := h.Work.Job.QueueName()
	top := commonQueue(p.Load.Job.QueueName(), theirs)
	if p.limits == nil || p.eviction != nil && p.eviction.has[h.ID] {
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
		gone := p.gone[path]
		t := total{p: p.Preemption}
		for i := range others {
			if o := &others[i]; !o.free && path.Contains(o.h.Work.Job.QueueName()) {
				t.add(o)
			}
		}
		t.addAfter(v, path)
		p.Scanned += len(t.single)
		before := t.amount()
		gone = gone.Add(before)
		adds := h.Amount()
		if t.has(h) || t.shrinks(h) || slices.Contains(t.single, h) {
			adds = structs.Amount{} // it goes with one of the others
		} else if !p.taken[h.ID] && contested(gone, p.Asks) != [2]int64{} {
			self := p.victim(h)
			t.add(&self)
			adds = t.amount().Sub(before)
		}
		left := contested(holds.Sub(gone).Sub(adds), p.Asks)
		for i, g := range contested(*q.Guarantee, p.Asks) {
			if left[i] < g {
				return true
			}
		}
	}
	return false
}

// guarded is guards for a victim, and by shares also whether its submitter or queue would have less than the workload's.
func (p *Preemptor) guarded(v *Victim, others []Victim) bool {
	if p.Rule.Name == preemptShares && !v.shrink && !p.mayClaim(v.h, others) {
		return true
	}
	return p.guards(v, others)
}

// amount returns what all of it holds.
func (t *total) amount() (sum structs.Amount) {
	for _, x := range t.sets {
		sum = sum.Add(x.held)
	}
	for x := range t.whole() {
		sum = sum.Add(x.held[x.from])
	}
	for h := range t.alone() {
		sum = sum.Add(h.Amount())
	}
	return sum
}

// unguarded returns the victims that guarantees and shares let go together: of those that are sorted by cost, each that may go with
// all before it. Where they do not suffice, cheap ones may keep a large one from going, so the first is left out, and so
// on. nil: no such victims suffice.
func (p *Preemptor) unguarded(vs []Victim, suffice func([]Victim) bool) []Victim {
	if p.limits == nil && p.Rule.Name != preemptShares {
		return vs
	}
	for from := range vs {
		var out []Victim
		for _, v := range vs[from:] {
			if v.free || !p.guarded(&v, out) {
				out = append(out, v)
			}
		}
		if from == 0 && len(out) == len(vs) {
			return vs
		}
		if suffice(out) {
			return out
		}
	}
	return nil
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
