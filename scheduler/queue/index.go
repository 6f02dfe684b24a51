package queue

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Index chooses the work to run so that, of each priority, the most work ends per second. A contender is worth its rate
// of completion: one divided by its remaining time where that is known, else the Gittins index of work that has run for
// as long (Lifetimes). The choice is the set of contenders that is worth the most and fits.
//
// Naive: go by worth per GPU (which is SRSF: the shortest remaining area first) and skip what does not fit. Then one
// narrow job with a small remaining area keeps a wide one from running, next to idle GPUs; the set that is worth most
// leaves the narrow one out.
//
// Three things are added, none of which has a free parameter:
//
// Nothing starves. A contender that has been in the system for more than twice as long as it would be if all took turns
// (its own run time times the load) is worth more in proportion to the excess. So a contender that is overtaken by ever
// new shorter work is served at last.
//
// The last one does not run alone. A contender whose remaining time is more than all GPUs need for all the work that
// waits or can be expected to arrive meanwhile determines when everything will be done, and goes first. The work
// expected in that time is the work that has arrived in the same time before now and is not done yet.
//
// A contender that does not run is assumed to need a minute more than it has left: the cost of stopping another and
// starting it. What running work would lose beyond that minute is taken from the time it has left, once for itself and
// once for each contender that waits: they all start so much later. Work that would lose more than it has left is kept.
type Index struct {
	Lives *Lifetimes // nil: nothing has ended yet
}

const (
	restart   = time.Minute
	stretch   = 2       // times the time that taking turns would take: beyond it waiting counts
	worthMax  = 1 << 52 // a sum of 1,024 does not overflow
	chooseMax = 512     // units for which sets are compared; contenders beyond it are taken by worth per unit
	never     = time.Hour * 24 * 365 * 80
)

// Choose finds the sets of all priorities, the highest first: a lower priority gets the room that higher ones leave.
// Work that must not be stopped keeps its room at any priority.
func (x Index) Choose(r *contend.Competition) (out []int, wake structs.LogTime) {
	levels := map[int][]int{}
	top := math.MinInt
	for i := range r.Contenders {
		p := r.Contenders[i].Load.Priority()
		levels[p] = append(levels[p], i)
		top = max(top, p)
	}
	room := slices.Clone(r.Room)
	if len(levels) > 1 {
		for i := range r.Contenders {
			if v := &r.Contenders[i]; v.Fixed && v.Load.Priority() < top && takeRoom(v, room) {
				out = append(out, i)
			}
		}
	}
	seated := len(out)
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(levels))) {
		level := *r
		level.Room, level.Contenders = room, nil
		var at []int // in r.Contenders
		for _, i := range levels[p] {
			if !slices.Contains(out[:seated], i) {
				at, level.Contenders = append(at, i), append(level.Contenders, r.Contenders[i])
			}
		}
		set, w := x.choose(&level)
		for _, i := range set {
			out = append(out, at[i])
		}
		if w > 0 && (wake == 0 || w < wake) {
			wake = w
		}
	}
	return out, wake
}

// choose finds the set of one priority and takes its room. It is exact for room of up to chooseMax units. With more
// room, the contenders worth most per unit are taken until so many units are left.
func (x Index) choose(r *contend.Competition) ([]int, structs.LogTime) {
	n := len(r.Contenders)
	room := int64(0)
	for _, u := range r.Room {
		room += u
	}
	worth, first, order := x.sorted(r, room)
	in := make([]bool, n)
	left := room
	rest := order[:0:0]
	for at, i := range order {
		u := r.Contenders[i].Units()
		if u > left {
			continue
		}
		if u == 0 || first[i] < others || left-u >= chooseMax {
			in[i] = true
			left -= u
			continue
		}
		rest = order[at:]
		break
	}
	for _, i := range best(r, rest, worth, left) {
		in[i] = true
	}
	out := x.seated(r, order, in)
	var wake structs.LogTime
	for _, i := range out { // work that runs on without a known end is worth less from the next bin on
		v := &r.Contenders[i]
		if k := binOf(v.Ran); v.Left == 0 && k < bins-1 {
			if at := r.Now.Add(time.Duration(binEnd(k))*time.Second - v.Ran); wake == 0 || at < wake {
				wake = at
			}
		}
	}
	return out, wake
}

// sorted rates the contenders and lists them, the first in front.
func (x Index) sorted(r *contend.Competition, room int64) (worth []int64, first, order []int) {
	worth, first = x.rate(r, room)
	order = make([]int, len(r.Contenders))
	for i := range order {
		order[i] = i
	}
	dense := func(a, b int) int {
		hi1, lo1 := bits.Mul64(uint64(worth[a]), uint64(max(r.Contenders[b].Units(), 1)))
		hi2, lo2 := bits.Mul64(uint64(worth[b]), uint64(max(r.Contenders[a].Units(), 1)))
		return cmp.Or(cmp.Compare(hi2, hi1), cmp.Compare(lo2, lo1), cmp.Compare(a, b))
	}
	slices.SortFunc(order, func(a, b int) int {
		if first[a] != first[b] {
			return cmp.Compare(first[a], first[b])
		}
		return dense(a, b)
	})
	return worth, first, order
}

// Rank lists all contenders in the order in which they would get places that become free one by one.
func (x Index) Rank(r *contend.Competition) (out []int) {
	levels := map[int][]int{}
	room := int64(0)
	for _, u := range r.Room {
		room += u
	}
	for i := range r.Contenders {
		p := r.Contenders[i].Load.Priority()
		levels[p] = append(levels[p], i)
	}
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(levels))) {
		level := *r
		level.Contenders = nil
		for _, i := range levels[p] {
			level.Contenders = append(level.Contenders, r.Contenders[i])
		}
		_, _, order := x.sorted(&level, room)
		for _, k := range order {
			out = append(out, levels[p][k])
		}
	}
	return out
}

// Contenders that go first regardless of their worth.
const (
	kept   = iota // must not be stopped, or loses more than others gain
	longer        // determines when everything will be done
	others
)

// rate returns what each contender is worth, and which go first regardless of it.
func (x Index) rate(r *contend.Competition, room int64) (worth []int64, first []int) {
	n := len(r.Contenders)
	worth, first = make([]int64, n), make([]int, n)
	left := make([]int64, n) // microseconds
	var lives *indices
	asked, waiting := int64(0), int64(0)
	for i := range r.Contenders {
		v := &r.Contenders[i]
		if !v.Holds {
			waiting++
		}
		asked += v.Units()
		if v.Left > 0 {
			left[i] = v.Left.Microseconds()
			continue
		}
		if lives == nil {
			lives = x.Lives.with(r.Contenders)
		}
		k := binOf(v.Ran)
		left[i] = ratio(perSecond, max(lives[widthOf(v.Units())][k], 1), micro)
	}
	// Areas in unit-seconds: what is left, and (by submission) what the work took or takes in total.
	area := func(i int, micros int64) int64 { return saturating(micros/micro+1, r.Contenders[i].Units()) }
	all := int64(0)
	sum := make([]int64, n+1)
	for i := range r.Contenders {
		all = plus(all, area(i, left[i]))
		sum[i+1] = plus(sum[i], area(i, left[i]+r.Contenders[i].Ran.Microseconds()))
	}
	for i := range r.Contenders {
		v := &r.Contenders[i]
		l := left[i]
		if !v.Holds {
			l += restart.Microseconds()
		} else if v.Lost > restart {
			l -= saturating((v.Lost - restart).Microseconds(), 1+waiting)
		}
		w := min(perSecond*micro/max(l, 1), worthMax)
		size := max(left[i]+v.Ran.Microseconds(), 1)
		since := submittedAt(v.Load)
		if age := r.Now.Sub(since).Microseconds(); since > 0 && age > stretch*size {
			s := ratio(age, stretch*size, micro)
			if asked > room {
				s = ratio(s, asked, room)
			}
			if s > micro {
				w = min(ratio(w, micro, s), worthMax)
			}
		}
		worth[i], first[i] = w, others
		switch {
		case v.Fixed || l <= 0:
			first[i] = kept
		case v.Left > 0 && v.Left < never:
			from, _ := slices.BinarySearchFunc(r.Contenders, r.Now.Add(-v.Left), func(o contend.Contender, t structs.LogTime) int {
				if submittedAt(o.Load) <= t {
					return -1
				}
				return 1
			})
			if saturating(left[i]/micro, room) >= plus(all, sum[n]-sum[from]) {
				first[i] = longer
			}
		}
	}
	return worth, first
}

func plus(a, b int64) int64 {
	if a > unknown-b {
		return unknown
	}
	return a + b
}

func submittedAt(w *contend.Workload) structs.LogTime {
	switch {
	case w.Queue != nil:
		return w.Queue.SubmitTime
	case w.Job != nil:
		return w.Job.SubmitTime
	}
	return 0
}

// best returns the set of contenders that is worth most and needs no more than left units. rest is ordered by worth per
// unit, so contenders of one width are ordered by worth: only as many of them as fit can be in the set.
func best(r *contend.Competition, rest []int, worth []int64, left int64) []int {
	if left <= 0 {
		return nil
	}
	used := map[int64]int64{}
	var cand []int
	for _, i := range rest {
		u := r.Contenders[i].Units()
		if used[u]+u <= left {
			used[u] += u
			cand = append(cand, i)
		}
	}
	sums := make([]int64, left+1)
	words := (left + 64) / 64
	took := make([]uint64, int64(len(cand))*words)
	for k, i := range cand {
		u, w := r.Contenders[i].Units(), worth[i]
		row := took[int64(k)*words:]
		for c := left; c >= u; c-- {
			if s := sums[c-u] + w; s > sums[c] {
				sums[c] = s
				row[c/64] |= 1 << (c % 64)
			}
		}
	}
	var out []int
	c := left
	for k := len(cand) - 1; k >= 0; k-- {
		if took[int64(k)*words+c/64]&(1<<(c%64)) != 0 {
			out = append(out, cand[k])
			c -= r.Contenders[cand[k]].Units()
		}
	}
	return out
}

// seated returns the contenders of the set that fit on the nodes, the widest first, and then the others that fit in
// what is left. It takes their room.
func (x Index) seated(r *contend.Competition, order []int, in []bool) []int {
	room := r.Room
	var set, out []int
	for _, i := range order {
		if in[i] {
			set = append(set, i)
		}
	}
	slices.SortStableFunc(set, func(a, b int) int { return cmp.Or(widest(r, a, b)) })
	got := make([]bool, len(in))
	for _, i := range set {
		if takeRoom(&r.Contenders[i], room) {
			out = append(out, i)
			got[i] = true
		}
	}
	for _, i := range order {
		if !got[i] && takeRoom(&r.Contenders[i], room) {
			out = append(out, i)
		}
	}
	return out
}
