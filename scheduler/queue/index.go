package queue

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Index chooses whom to run so that the most work ends per second. What a rival is worth is his rate of completion: one by
// the time that he has left where that is known, else the Gittins index of what has run for as long (Lifetimes). The
// choice is the set of rivals that is worth the most and for whom there is room.
//
// Naive: go by worth per GPU (which is SRSF: the shortest remaining area first) and skip whom there is no room for. Then one
// narrow job of little remaining area keeps a wide one from running, next to GPUs that nobody uses; the set that is worth
// most leaves the narrow one out.
//
// Three things are added, none of which has a free parameter:
//
// Nobody starves. A rival who is in the system for more than twice as long as he would be if everybody took turns
// (his own run time by the load) is worth more in proportion to how much longer it is. So who is overtaken by ever new
// shorter work comes to be served.
//
// The last one does not run alone. A rival whose remaining time is more than all the work that waits, and is to be expected
// to come meanwhile, takes with all GPUs, determines when everything will be done, and goes first. As much is expected
// to come in that time as has come in the same time up to now and is here still.
//
// Whoever does not run is taken to need a minute more than he has left: what stopping another and starting him costs.
type Index struct {
	Lives *Lifetimes // nil: nothing has ended yet
}

const (
	restart   = time.Minute
	stretch   = 2       // times the time that taking turns would take: from there on waiting counts
	worthMax  = 1 << 52 // a sum of 1,024 does not overflow
	chooseMax = 512     // units over which sets are compared; those in front of them are taken as they come
	never     = time.Hour * 24 * 365 * 80
)

// Choose finds the set. It is exact for room of up to chooseMax units; of more, the rivals worth most per unit are taken
// until so many are left.
func (x Index) Choose(r *contend.Competition) ([]int, structs.LogTime) {
	n := len(r.Contenders)
	room := int64(0)
	for _, u := range r.Room {
		room += u
	}
	worth, first := x.rate(r, room)
	order := make([]int, n)
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
	for _, i := range out { // who runs on without an end in sight is worth less from the next bin on
		v := &r.Contenders[i]
		if k := binOf(v.Ran); v.Left == 0 && k < bins-1 {
			if at := r.Now.Add(time.Duration(binEnd(k))*time.Second - v.Ran); wake == 0 || at < wake {
				wake = at
			}
		}
	}
	return out, wake
}

// Who goes first whatever he is worth.
const (
	kept   = iota // may not be stopped
	longer        // determines when everything will be done
	others
)

// rate tells what each rival is worth, and who goes first whatever he is.
func (x Index) rate(r *contend.Competition, room int64) (worth []int64, first []int) {
	n := len(r.Contenders)
	worth, first = make([]int64, n), make([]int, n)
	left := make([]int64, n) // microseconds
	var lives *indices
	asked := int64(0)
	for i := range r.Contenders {
		v := &r.Contenders[i]
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
	// Areas in unit-seconds: what is left, and (by submission) what the work took or takes in all.
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
		case v.Fixed:
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

// best gives the set of rivals that is worth most and asks for no more than left units. rest is by worth per unit, and so
// of one width by worth: of each width only as many as there is room for can be in it.
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

// seated gives those of the set whom there is room for on the nodes, the widest first, and then of the others whoever
// fits beside them.
func (x Index) seated(r *contend.Competition, order []int, in []bool) []int {
	room := slices.Clone(r.Room)
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
