package predict

import (
	"math/bits"
	"time"
)

// Similar predicts from the user's last ended work: a run counts more the newer and the more similar it is. The average
// of all users counts as one more sample, which decides for new users.
//
// Its constants are not tuned. Each newer run takes a quarter of the remaining weight, so that the last few runs
// dominate (users run the same thing again and again, until they change it) and 20 are as good as all. A run with
// another queue, size or limit counts half, and one with another name, by which users say what they run, a quarter. On
// logs of parallel machines other factors, twice or half as large, predict about as well.
type Similar struct {
	user users[history]
	all  average
	hold turnover
}

const (
	kept        = 20             // runs remembered per user
	full        = int64(1) << 20 // weight of a run that is similar in everything
	noticedMs   = 10_000         // shorter waits do not matter: the threshold of the bounded slowdown
	inverseUnit = int64(1e15)    // of inverse run times, per millisecond
)

// history is a user's last ended work, a ring.
type history struct {
	ring [kept]sample
	next int
	n    uint64
}

type sample struct {
	ms, size, limit int64
	name, queue     uint64 // hashes
}

// NewSimilar returns a predictor that has seen no work yet.
func NewSimilar() *Similar { return &Similar{} }

// Name is "similar".
func (*Similar) Name() string { return "similar" }

// Version counts the ended work of the user.
func (s *Similar) Version(user string) uint64 {
	if h := s.user.get(user); h != nil {
		return h.n + 1
	}
	return 1
}

// Predict weights the user's last work.
func (s *Similar) Predict(w *Work) Estimate {
	var ms, weight [kept + 1]int64
	n := 0
	var sum, sumMs, sumInv int64
	limit := w.Limit.Milliseconds()
	add := func(v, inv, wt int64) {
		v = max(v, 1)
		if limit > 0 && v > limit {
			v = limit
		}
		if inv == 0 {
			inv = inverseUnit / max(v, noticedMs)
		}
		sum += wt
		sumMs += wt * v
		sumInv += wt * inv
		at := n
		for ; at > 0 && ms[at-1] > v; at-- {
			ms[at], weight[at] = ms[at-1], weight[at-1]
		}
		ms[at], weight[at] = v, wt
		n++
	}
	if v, inv, ok := s.all.of(w); ok {
		add(v, inv, full)
	}
	if h := s.user.get(w.User); h != nil {
		name, queue := hash(w.Name), hash(w.Queue)
		recent := full
		for k := range int(min(h.n, kept)) {
			x := &h.ring[(h.next-1-k+2*kept)%kept]
			wt := recent
			if x.size != w.Size {
				wt /= 2
			}
			if x.limit != limit {
				wt /= 2
			}
			if x.name != name {
				wt /= 4
			}
			if x.queue != queue {
				wt /= 2
			}
			add(x.ms, 0, max(wt, 1))
			recent -= recent / 4
		}
	}
	if sum == 0 {
		return Estimate{}
	}
	half := int64(0)
	median := ms[n-1]
	for i := range n {
		if half += weight[i]; 2*half >= sum {
			median = ms[i]
			break
		}
	}
	return Estimate{Expect: time.Duration(median) * time.Millisecond, Cost: Cost(sumMs/sum, sumInv/sum)}
}

// Ended records a run time.
func (s *Similar) Ended(w *Work, ran time.Duration) {
	ms := max(1, ran.Milliseconds())
	h := s.user.at(w.User)
	h.ring[h.next] = sample{ms: ms, size: w.Size, limit: w.Limit.Milliseconds(), name: hash(w.Name), queue: hash(w.Queue)}
	h.next = (h.next + 1) % kept
	h.n++
	s.all.add(w, ms)
	s.hold.add(w.Size, ms)
}

// Turnover returns how much longer what is held now will be held, on average: half the run time, weighted by amount and
// time. It is the time within which capacity changes hands, the natural unit of waiting. 0 when nothing has ended yet.
func (s *Similar) Turnover() time.Duration { return time.Duration(s.hold.ms/2) * time.Millisecond }

// average is what is learned from all users together: run times, and their share of what was asked for.
type average struct {
	n                int64
	ms, inv          int64 // means of run times and of inverse run times
	asked            int64
	share, inflation int64 // means of run time / request, and of request / run time, in 1/2^20
}

// averageOver is about how many ended runs the means of all users cover.
const averageOver = 128

func (a *average) add(w *Work, ms int64) {
	a.n++
	step := min(a.n, averageOver)
	a.ms += (ms - a.ms) / step
	a.inv += (inverseUnit/max(ms, noticedMs) - a.inv) / step
	req := w.request()
	if req <= 0 {
		return
	}
	a.asked++
	step = min(a.asked, averageOver)
	a.share += (min(ms, 1<<40)<<20/req - a.share) / step
	a.inflation += (min(max(req, noticedMs), 1<<40)<<20/max(ms, noticedMs) - a.inflation) / step
}

// of returns what the average predicts for a piece of work: its run time and inverse run time.
func (a *average) of(w *Work) (ms, inv int64, ok bool) {
	req := w.request()
	switch {
	case req > 0 && a.asked > 0:
		ms = mulShift(req, a.share, 20)
		inv = mulShift(inverseUnit/max(req, noticedMs), a.inflation, 20)
	case req > 0:
		ms, inv = req, inverseUnit/max(req, noticedMs)
	case a.n > 0:
		ms, inv = a.ms, a.inv
	default:
		return 0, 0, false
	}
	return max(1, ms), min(max(inv, 1), inverseUnit/noticedMs), true
}

// turnover is the mean run time of what is held, weighted by amount and time.
type turnover struct {
	ms   int64
	area int64 // size x run time that the mean covers; old work fades out
}

// fadeOver is about how many ended runs the turnover covers.
const fadeOver = 1024

func (t *turnover) add(size, ms int64) {
	area := mulCap(max(size, 1), ms)
	t.area -= t.area / fadeOver
	if t.area > 1<<61-area {
		t.area = 1<<61 - area
	}
	t.area += area
	// ms += (x - ms) * area / t.area
	if d := ms - t.ms; d >= 0 {
		t.ms += mulDiv(d, area, t.area)
	} else {
		t.ms -= mulDiv(-d, area, t.area)
	}
}

// Cost returns what it costs to let work go first, in 1/1024 of a doubling: its mean run time over what a second of
// waiting costs it. Users measure waiting by how long their work takes (the slowdown), so a second costs the mean of
// the inverse run times; by Smith's rule (1956) the sum is lowest when the cheapest goes first.
func Cost(meanMs, meanInverse int64) int64 {
	return Log(meanMs) + Log(inverseUnit) - Log(meanInverse)
}

// CostOf returns the cost of work that will run for exactly so many milliseconds.
func CostOf(ms int64) int64 { return Cost(ms, inverseUnit/max(ms, noticedMs)) }

// hash distinguishes names (FNV-1a). A collision makes two pieces of work look a little more similar.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mulDiv returns a*b/c for numbers that are not negative, c not 0 and the result below 2^63.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, 1<<63-1))
}

// mulShift returns a*b>>n for numbers that are not negative.
func mulShift(a, b int64, n uint) int64 { return mulDiv(a, b, 1<<n) }

// mulCap returns a*b, at most 2^60.
func mulCap(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > 1<<60 {
		return 1 << 60
	}
	return int64(lo)
}
