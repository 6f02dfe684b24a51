package queue

import (
	"cmp"
	"math"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Choosers decide which running and pending work should hold places, for each order of a queue: Index under the
// adaptive order, Greedy under any other.
type Choosers struct {
	Lives *Lifetimes // how long ended work ran; nil: unknown
}

// Choose calls the chooser of the queue's order. What has waited beyond the queue's bound comes before its choice. It
// claims no room: it takes what is free or what may be stopped for it, and otherwise gets a reservation.
func (c Choosers) Choose(r *contend.Competition) (chosen []int, wake structs.LogTime) {
	adaptive := r.Queue.Order == structs.OrderAdaptive || !Known(r.Queue.Order)
	if adaptive {
		chosen, wake = Index(c).Choose(r)
	} else {
		chosen, wake = Greedy{Named(r.Queue.Order)}.Choose(r)
	}
	late := overdue(r)
	if len(late) == 0 {
		return chosen, wake
	}
	return append(late, slices.DeleteFunc(chosen, func(i int) bool { return slices.Contains(late, i) })...), wake
}

// Rank lists all contenders of a competition in the order in which they would get places that become free one by one, as
// far as that is known now: run times are predictions, waiting counts more later, and work that arrives changes it.
func (c Choosers) Rank(r *contend.Competition) []int {
	rank := Greedy{Named(r.Queue.Order)}.Rank
	if r.Queue.Order == structs.OrderAdaptive || !Known(r.Queue.Order) {
		rank = Index(c).Rank
	}
	late := overdue(r)
	return append(late, slices.DeleteFunc(rank(r), func(i int) bool { return slices.Contains(late, i) })...)
}

// overdue lists the contenders that have waited beyond their queue's bound, the longest wait first. Where the bound only
// lifts their priority, those of the highest priority are left out: among those the order starves none.
func overdue(r *contend.Competition) (late []int) {
	bound, top := boundOf(&r.Queue, r.BoundSet), math.MinInt
	for i := range r.Contenders {
		top = max(top, r.Contenders[i].Load.Priority())
	}
	for i := range r.Contenders {
		w := r.Contenders[i].Load
		if _, first := bound.first(w, r.Now); first || bound.lifted(w, r.Now, top) {
			late = append(late, i)
		}
	}
	slices.SortStableFunc(late, func(a, b int) int {
		return cmp.Compare(r.Contenders[a].Load.WaitingSince(), r.Contenders[b].Load.WaitingSince())
	})
	return late
}

// GoesBefore returns which workload goes before another one by more than its share, under an order that shares:
// workloads of one submitter do, and those that the orders before the shares put in front.
func (c Choosers) GoesBefore(r *contend.Competition) func(a, b *contend.Workload) bool {
	order := Named(r.Queue.Order)
	if _, shares := order.(Sharer); !shares {
		return nil
	}
	at := Scene{Now: r.Now, Queue: r.Queue}
	first, _ := order.(firster)
	return func(a, b *contend.Workload) bool {
		return a.User() == b.User() || first != nil && first.First(a, &at).Less(first.First(b, &at))
	}
}

// Greedy takes contenders by the key of an order and skips those without enough room. Each place takes room on the
// first node with enough of it: a place cannot be put together from pieces of several nodes.
type Greedy struct{ Order Order }

// Choose goes through the contenders once. Those that must not be stopped come first.
func (g Greedy) Choose(r *contend.Competition) ([]int, structs.LogTime) {
	order := g.Rank(r)
	room := slices.Clone(r.Room)
	var out []int
	for _, i := range order {
		if takeRoom(&r.Contenders[i], room) {
			out = append(out, i)
		}
	}
	var wake structs.LogTime
	if w, ok := g.Order.(interface {
		Wake(v *contend.Contender, now structs.LogTime) structs.LogTime
	}); ok {
		for _, i := range out {
			if t := w.Wake(&r.Contenders[i], r.Now); t > r.Now && (wake == 0 || t < wake) {
				wake = t
			}
		}
	}
	return out, wake
}

// Rank lists all contenders in the order in which they get places.
func (g Greedy) Rank(r *contend.Competition) []int {
	at := Scene{Now: r.Now, Queue: r.Queue}
	keys := make([]Key, len(r.Contenders))
	order := make([]int, len(r.Contenders))
	for i := range r.Contenders {
		order[i] = i
		keys[i] = g.Order.Key(r.Contenders[i].Load, &at)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case r.Contenders[a].Fixed != r.Contenders[b].Fixed:
			return boolFirst(r.Contenders[a].Fixed)
		case keys[a].Less(keys[b]):
			return -1
		case keys[b].Less(keys[a]):
			return 1
		}
		return 0
	})
	return order
}

func boolFirst(a bool) int {
	if a {
		return -1
	}
	return 1
}

// takeRoom takes room for a contender, each place on the first node that has enough, or takes none.
func takeRoom(v *contend.Contender, room []int64) bool {
	if v.Each == 0 {
		return true
	}
	left := v.Count
	for n := range room {
		if left == 0 {
			break
		}
		left -= min(left, room[n]/v.Each)
	}
	if left > 0 {
		return false
	}
	left = v.Count
	for n := range room {
		k := min(left, room[n]/v.Each)
		room[n] -= k * v.Each
		left -= k
	}
	return true
}

// widest orders the widest contenders first: what they leave free still fits narrower ones, but not the other way
// round.
func widest(r *contend.Competition, a, b int) int {
	x, y := &r.Contenders[a], &r.Contenders[b]
	return cmp.Or(cmp.Compare(y.Units(), x.Units()), cmp.Compare(y.Each, x.Each))
}
