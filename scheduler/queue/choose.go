package queue

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Choosers decide who of running and pending work should hold places, for each order of a queue: Index under the adaptive
// order, the first in line whom there is room for under any other.
type Choosers struct {
	Lives *Lifetimes // how long work lasted that has ended; nil: nothing known
}

// Choose asks the chooser of the queue's order.
func (c Choosers) Choose(r *contend.Competition) ([]int, structs.LogTime) {
	if r.Queue.Order == structs.OrderAdaptive || !Known(r.Queue.Order) {
		return Index(c).Choose(r)
	}
	return Greedy{Named(r.Queue.Order)}.Choose(r)
}

// Greedy takes rivals by the key of an order and skips whom there is no room for. Room is given node by node, to the
// first one with enough of it: what must be whole may not be put together from pieces.
type Greedy struct{ Order Order }

// Choose goes once through the rivals. Who may not be stopped is in before.
func (g Greedy) Choose(r *contend.Competition) ([]int, structs.LogTime) {
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

func boolFirst(a bool) int {
	if a {
		return -1
	}
	return 1
}

// takeRoom takes room for a rival, each place from the first node that has enough, or takes none.
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

// widest orders rivals so that the widest are seated first: what is left over by them serves narrower ones, not the
// other way round.
func widest(r *contend.Competition, a, b int) int {
	x, y := &r.Contenders[a], &r.Contenders[b]
	return cmp.Or(cmp.Compare(y.Units(), x.Units()), cmp.Compare(y.Each, x.Each))
}
