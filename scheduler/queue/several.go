package queue

import (
	"math"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Several combines orders: ties of the first are ordered by the second, and so on ("priority,fair"). A priority that is
// not the last counts whole points, or waiting would leave no ties.
//
// The numbers of the keys are concatenated, so that comparing costs what it costs with one order.
type Several struct {
	name  structs.Order
	parts []Order
}

// SeveralShares are Several with a Sharer: queues and submitters that are equal in the orders before it take turns. The
// orders after it order the work of one submitter.
type SeveralShares struct {
	Several
	share Sharer
	at    int // its place
}

// named returns the order of a list of names; nil when one is unknown.
func named(list structs.Order) Order {
	names := list.Names()
	s := Several{name: list}
	at, share := -1, Sharer(nil)
	for i, n := range names {
		o := Builtin[n]
		if o == nil {
			return nil
		}
		if x, ok := o.(Sharer); ok && share == nil {
			at, share = i, x
		}
		s.parts = append(s.parts, o)
	}
	if share != nil {
		return SeveralShares{s, share, at}
	}
	return s
}

// Name is the list, with commas.
func (s Several) Name() structs.Order { return s.name }

// Key concatenates the keys of the parts.
func (s Several) Key(w *contend.Workload, at *Scene) Key { return s.key(w, at, len(s.parts)) }

func (s Several) key(w *contend.Workload, at *Scene, parts int) (out Key) {
	n := 0
	for i, o := range s.parts[:parts] {
		_, turns := o.(Sharer)
		if turns && i+1 < len(s.parts) {
			continue // the parts after it order the work of one submitter
		}
		k := o.Key(w, at)
		if o.Name() == structs.OrderPriority && i+1 < len(s.parts) {
			k[0] = -(-k[0] / 1000)
		}
		n += copy(out[n:], k[:o.Name().Width()])
	}
	return out
}

// Terms are those of the parts, each once.
func (s Several) Terms(w *contend.Workload, at *Scene) (out []structs.ScoreTerm) {
	seen := map[string]bool{}
	for _, o := range s.parts {
		for _, t := range o.Terms(w, at) {
			if !seen[t.Name] {
				seen[t.Name] = true
				out = append(out, t)
			}
		}
	}
	return out
}

// Wake returns the earliest time at which the key of a part changes; 0 for never.
func (s Several) Wake(v *contend.Contender, now structs.LogTime) structs.LogTime {
	least := structs.LogTime(math.MaxInt64)
	for _, o := range s.parts {
		if x, ok := o.(interface {
			Wake(v *contend.Contender, now structs.LogTime) structs.LogTime
		}); ok {
			if t := x.Wake(v, now); t > 0 {
				least = min(least, t)
			}
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

// Share is that of the Sharer.
func (s SeveralShares) Share(e *Entity, at *Scene) int64 { return s.share.Share(e, at) }

// First is the key of the parts before the Sharer.
func (s SeveralShares) First(w *contend.Workload, at *Scene) Key { return s.key(w, at, s.at) }

// lists reports whether an order is a list of names that are all known.
func lists(order structs.Order) bool { return order.List() && named(order) != nil }
