package duty

import (
	"cmp"

	"github.com/muster-sched/muster/structs"
)

// Queue orders keys by the time at which they are due. Keys with the same time are ordered by compare, so that every
// server takes them in the same sequence.
type Queue[K comparable] struct {
	compare func(a, b K) int
	heap    []*due[K]
	keys    map[K]*due[K]
}

type due[K comparable] struct {
	key K
	at  structs.LogTime
	pos int // in heap
}

// NewQueue returns an empty queue.
func NewQueue[K comparable](compare func(a, b K) int) *Queue[K] {
	return &Queue[K]{compare: compare, keys: map[K]*due[K]{}}
}

// Clear removes every key.
func (q *Queue[K]) Clear() {
	clear(q.keys)
	q.heap = nil
}

// Set makes a key due at a time. Time 0 removes the key.
func (q *Queue[K]) Set(k K, at structs.LogTime) {
	d := q.keys[k]
	switch {
	case at == 0 && d == nil:
	case at == 0:
		q.remove(d)
	case d == nil:
		d = &due[K]{key: k, at: at, pos: len(q.heap)}
		q.keys[k] = d
		q.heap = append(q.heap, d)
		q.up(d.pos)
	default:
		d.at = at
		q.up(d.pos)
		q.down(d.pos)
	}
}

// At returns when a key is due, or 0 if it is not in the queue.
func (q *Queue[K]) At(k K) structs.LogTime {
	if d := q.keys[k]; d != nil {
		return d.at
	}
	return 0
}

// Next returns when the first key is due, or 0 if the queue is empty.
func (q *Queue[K]) Next() structs.LogTime {
	if len(q.heap) == 0 {
		return 0
	}
	return q.heap[0].at
}

// Take removes and returns the first key if it is due.
func (q *Queue[K]) Take(now structs.LogTime) (k K, at structs.LogTime, ok bool) {
	if len(q.heap) == 0 || q.heap[0].at > now {
		return k, 0, false
	}
	d := q.heap[0]
	q.remove(d)
	return d.key, d.at, true
}

func (q *Queue[K]) remove(d *due[K]) {
	delete(q.keys, d.key)
	i, last := d.pos, len(q.heap)-1
	q.swap(i, last)
	q.heap[last] = nil
	q.heap = q.heap[:last]
	if i < last {
		q.up(i)
		q.down(i)
	}
}

func (q *Queue[K]) less(i, k int) bool {
	a, b := q.heap[i], q.heap[k]
	return a.at < b.at || a.at == b.at && q.compare(a.key, b.key) < 0
}

func (q *Queue[K]) swap(i, k int) {
	q.heap[i], q.heap[k] = q.heap[k], q.heap[i]
	q.heap[i].pos, q.heap[k].pos = i, k
}

func (q *Queue[K]) up(i int) {
	for i > 0 && q.less(i, (i-1)/2) {
		q.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (q *Queue[K]) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(q.heap) {
			return
		}
		if c+1 < len(q.heap) && q.less(c+1, c) {
			c++
		}
		if !q.less(c, i) {
			return
		}
		q.swap(i, c)
		i = c
	}
}

func compareJobs(a, b structs.JobKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ID, b.ID))
}
