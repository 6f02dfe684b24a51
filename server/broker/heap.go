package broker

import (
	"cmp"

	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// readyHeap is a heap of a domain's ready jobs, first in queue order on top. Each job knows its position.
type readyHeap struct {
	jobs []*job
}

func (h *readyHeap) less(a, b *job) bool {
	if c := queue.Compare(a.workload, b.workload); c != 0 {
		return c < 0
	}
	return a.key.Less(b.key)
}

func (h *readyHeap) push(j *job) {
	h.jobs = append(h.jobs, j)
	j.pos = len(h.jobs) - 1
	h.up(j.pos)
}

func (h *readyHeap) remove(i int) *job {
	j, last := h.jobs[i], len(h.jobs)-1
	h.swap(i, last)
	h.jobs[last] = nil
	h.jobs = h.jobs[:last]
	j.pos = -1
	if i < last {
		h.fix(i)
	}
	return j
}

// fix restores the heap after the place of the job at i in the order changed.
func (h *readyHeap) fix(i int) {
	h.up(i)
	h.down(i)
}

func (h *readyHeap) swap(i, k int) {
	h.jobs[i], h.jobs[k] = h.jobs[k], h.jobs[i]
	h.jobs[i].pos, h.jobs[k].pos = i, k
}

func (h *readyHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(h.jobs[i], h.jobs[p]) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *readyHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h.jobs) {
			return
		}
		if c+1 < len(h.jobs) && h.less(h.jobs[c+1], h.jobs[c]) {
			c++
		}
		if !h.less(h.jobs[c], h.jobs[i]) {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// timer wakes one evaluation (eval set), one backed-off job (job set) or a domain (woken set). Timers with the same
// time are ordered by the index at which the evaluation was created, then by ID, so that every server pops them in the
// same order.
type timer struct {
	at    structs.LogTime
	index structs.Index
	eval  structs.EvalID
	job   *job
	woken *domain // for WakeAt; eval and job are not set
	pos   int
}

func (t *timer) less(o *timer) bool {
	if c := cmp.Compare(t.at, o.at); c != 0 {
		return c < 0
	}
	if c := cmp.Compare(t.index, o.index); c != 0 {
		return c < 0
	}
	if t.job != nil && o.job != nil {
		return t.job.key.Less(o.job.key)
	}
	if (t.job == nil) != (o.job == nil) {
		return t.job == nil
	}
	if t.woken != nil && o.woken != nil {
		return t.woken.name < o.woken.name
	}
	if (t.woken == nil) != (o.woken == nil) {
		return t.woken == nil
	}
	return string(t.eval[:]) < string(o.eval[:])
}

// timers is a heap, earliest first.
type timers struct{ heap []*timer }

func (h *timers) add(t *timer) *timer {
	h.heap = append(h.heap, t)
	t.pos = len(h.heap) - 1
	h.up(t.pos)
	return t
}

func (h *timers) remove(t *timer) {
	i, last := t.pos, len(h.heap)-1
	if i < 0 || i > last || h.heap[i] != t {
		return
	}
	h.swap(i, last)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	t.pos = -1
	if i < last {
		h.up(i)
		h.down(i)
	}
}

func (h *timers) swap(i, k int) {
	h.heap[i], h.heap[k] = h.heap[k], h.heap[i]
	h.heap[i].pos, h.heap[k].pos = i, k
}

func (h *timers) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.heap[i].less(h.heap[p]) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h.heap) {
			return
		}
		if c+1 < len(h.heap) && h.heap[c+1].less(h.heap[c]) {
			c++
		}
		if !h.heap[c].less(h.heap[i]) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
