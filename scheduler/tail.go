package scheduler

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"

	"github.com/muster-sched/muster/structs"
)

// tail is what is held on a node by when it ends, and the pictures of the node as one after the other is over. Promises
// ask for it: each looks at every node, and between two of them few nodes change, so that it stays with the holding.
//
// Naive: collect and sort the ends of everything held for each promise, and build the picture of each node anew for each
// time that is tried. On 1,000 nodes with a backlog that was 85 % of a replay. The pictures of one holding are the same
// ones each time, too, so that what a policy found out about them (memo) serves again.
type tail struct {
	from    structs.LogTime // when it was made
	until   structs.LogTime // to when it holds: the first end, for what outruns its prediction ends at its limit
	ends    []ending        // ascending; of equal ones by id
	rank    []int32         // of each of what is held, its place in ends; never: math.MaxInt32
	devices int64           // that are held and nobody shares
	told    bool            // something was told to stop: its end says less than that
	summed  bool            // amounts may be taken off one by one: nothing waits on another
	left    []atomic.Pointer[occupancy]
}

// ending is something held that makes room at a time.
type ending struct {
	at      structs.LogTime
	need    structs.Vector
	devices int64 // that nobody shares
}

// newTail orders what is held by the ends that when gives; 0 is for never.
func newTail(hold *holding, now structs.LogTime, when func(*held) structs.LogTime) *tail {
	list := hold.list()
	t := &tail{from: now, until: never, summed: hold == nil || hold.waits == 0, ends: make([]ending, 0, len(list)), rank: make([]int32, len(list))}
	order := make([]int32, 0, len(list))
	at := make([]structs.LogTime, len(list))
	for i, e := range list {
		t.told = t.told || e.work.ending
		t.devices += wholeDevices(e)
		t.rank[i] = math.MaxInt32
		if at[i] = when(e); at[i] > 0 {
			order = append(order, int32(i))
		}
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(at[a], at[b]), cmp.Compare(a, b)) })
	for k, i := range order {
		t.rank[i] = int32(k)
		t.ends = append(t.ends, ending{at[i], list[i].need, wholeDevices(list[i])})
	}
	if len(t.ends) > 0 {
		t.until = t.ends[0].at
	}
	t.left = make([]atomic.Pointer[occupancy], len(t.ends))
	return t
}

// tail gives the tail of a row as the promise that is being looked for may count on it; nil for one on which nothing is held.
func (b *books) tail(row int, hold *holding) *tail {
	if hold == nil || len(hold.held) == 0 {
		return nil
	}
	now := b.in.Now
	if b.patient {
		return newTail(hold, now, func(e *held) structs.LogTime { return b.foreseen(row, &e.work) })
	}
	if t := hold.tail.Load(); t != nil && t.from <= now && now <= t.until {
		return t
	}
	t := newTail(hold, now, func(e *held) structs.LogTime { return e.work.foreseen(now) })
	hold.tail.Store(t)
	return t
}

// over is how many have ended by a time.
func (t *tail) over(at structs.LogTime) int {
	if t == nil {
		return 0
	}
	k := 0
	for k < len(t.ends) && t.ends[k].at <= at {
		k++
	}
	return k
}

// after is the picture of a node when the first k of what is held are over.
func (t *tail) after(n *structs.Node, o occupancy, k int) occupancy {
	if k == 0 {
		return o
	}
	if x := t.left[k-1].Load(); x != nil {
		return *x
	}
	list := o.hold.held
	keep := make([]*held, 0, len(list)-k)
	for i, e := range list {
		if t.rank[i] >= int32(k) {
			keep = append(keep, e)
		}
	}
	x := occupancy{hold: &holding{held: keep}}.tally(n)
	t.left[k-1].Store(&x)
	return x
}

// picture is a row as it will be at a time, if everything held ends when it is expected to and nothing else is placed but
// what is promised: also what is promised from later on, for a promise made now shall not delay it.
func (b *books) picture(row int, c *chunk, i int, o occupancy, t *tail, at structs.LogTime) occupancy {
	x := t.after(c.nodes[i], o, t.over(at))
	var keep []*held
	for _, p := range b.rows[row] {
		if p.end == 0 || p.end > at {
			if keep == nil {
				keep = slices.Clone(x.hold.list())
			}
			keep = append(keep, p.held)
		}
	}
	if keep == nil {
		return x
	}
	slices.SortFunc(keep, func(x, y *held) int { return cmpID(x.id, y.id) })
	return occupancy{hold: &holding{held: keep}}.tally(c.nodes[i])
}
