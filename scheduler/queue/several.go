package queue

import (
	"math"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Several orders one after another: what the first does not tell apart, the second does, and so on ("priority,fair"). A
// priority that is not the last counts whole points, or waiting would leave nothing equal.
//
// Numbers of keys are put behind each other, so that comparing costs what it costs with one order.
type Several struct {
	name  structs.Order
	parts []Order
}

// SeveralShares are Several of which one lets queues and submitters take turns: among what the orders before it hold
// equal. Those behind it order the work of one submitter.
type SeveralShares struct {
	Several
	share Sharer
	at    int // its place
}

// named makes the order of a list of names; nil when one is unknown.
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

// Key is the keys of the parts behind each other.
func (s Several) Key(w *contend.Workload, at *Scene) Key { return s.key(w, at, len(s.parts)) }

func (s Several) key(w *contend.Workload, at *Scene, parts int) (out Key) {
	n := 0
	for i, o := range s.parts[:parts] {
		_, turns := o.(Sharer)
		if turns && i+1 < len(s.parts) {
			continue // those behind it say how the work of one submitter is ordered
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

// Wake is the earliest time at which a part wants another look; 0 for never.
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

// Share is that of the part that lets others take turns.
func (s SeveralShares) Share(e *Entity, at *Scene) int64 { return s.share.Share(e, at) }

// First is what comes before shares: the key of the parts in front.
func (s SeveralShares) First(w *contend.Workload, at *Scene) Key { return s.key(w, at, s.at) }

// lists reports whether an order is a list of names that are all known.
func lists(order structs.Order) bool { return order.List() && named(order) != nil }
