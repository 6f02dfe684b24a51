package sim

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds of event. At equal times Saved comes first, then the kinds of Config.First in that order, then the rest in this order.
const (
	Submitted Kind = iota // a job arrives
	Ended                 // work is complete
	Expired               // work ran longer than predicted
	Killed                // a victim's grace period has ended
	Woken                 // a time that a job or pass waits for has come
	NodeDown
	NodeUp
	Operated // an operator's event of a node or reservation takes effect
	Saved    // running work wrote a checkpoint; no pass follows
	kinds
)

func (k Kind) String() string {
	return [...]string{"submitted", "ended", "expired", "killed", "woken", "node down", "node up", "operated", "saved"}[k]
}

// Epoch is the log time at which virtual time starts.
const Epoch structs.LogTime = 1_000_000_000_000_000_000

// Since returns the virtual time since the start of the simulation.
func Since(t structs.LogTime) time.Duration { return t.Sub(Epoch) }

type event struct {
	at   structs.LogTime
	kind Kind
	seq  uint64 // of equal times and kinds, the first created comes first
	unit *unit  // Ended, Expired, Saved
	run  *run   // Killed
	node int    // NodeDown, NodeUp
	do   func() // Operated; Woken: may be nil
	gen  uint32 // of the unit when the event was created; a newer generation makes the event invalid
}

// agenda is the list of future events: a heap by time, kind and sequence.
type agenda struct {
	heap []event
	rank [kinds]uint8
	seq  uint64
}

func (a *agenda) before(x, y *event) bool {
	switch {
	case x.at != y.at:
		return x.at < y.at
	case x.kind != y.kind:
		return a.rank[x.kind] < a.rank[y.kind]
	}
	return x.seq < y.seq
}

func (a *agenda) add(e event) {
	a.seq++
	e.seq = a.seq
	a.heap = append(a.heap, e)
	h := a.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.before(&h[i], &h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (a *agenda) peek() *event {
	if len(a.heap) == 0 {
		return nil
	}
	return &a.heap[0]
}

func (a *agenda) take() event {
	h := a.heap
	top := h[0]
	n := len(h) - 1
	h[0] = h[n]
	h[n] = event{}
	h = h[:n]
	a.heap = h
	for i := 0; ; {
		k := 2*i + 1
		if k >= n {
			break
		}
		if k+1 < n && a.before(&h[k+1], &h[k]) {
			k++
		}
		if !a.before(&h[k], &h[i]) {
			break
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
	return top
}

// setRank gives Saved, after which there is no pass, and then the kinds of first the lowest ranks.
func (a *agenda) setRank(first []Kind) {
	next := uint8(0)
	var done [kinds]bool
	for _, k := range append([]Kind{Saved}, first...) {
		if !done[k] {
			a.rank[k], done[k] = next, true
			next++
		}
	}
	for k := range a.rank {
		if !done[k] {
			a.rank[k] = next
			next++
		}
	}
}
