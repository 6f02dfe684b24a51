package predict

import (
	"math/bits"
	"time"
)

// Similar predicts from the user's last ended work: each counts the more, the newer and the more alike it is. What all
// users together teach is one sample more, which decides for users who are new.
//
// The numbers in it are not tuned. A quarter of the weight goes with every newer piece of work, so that the last few
// dominate (people run the same thing again and again, until they change it) and 20 are as good as all; what differs in
// queue, size or limit is half as good a witness, and what has another name, with which people say what they run, a
// quarter. On logs of parallel machines other factors, twice or
// half as large, predict about as well.
type Similar struct {
	user users[history]
	all  average
	hold turnover
}

const (
	kept        = 20             // pieces of work remembered per user
	full        = int64(1) << 20 // weight of a witness that is alike in everything
	noticedMs   = 10_000         // nobody minds waiting for less: the threshold of the bounded slowdown
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

// NewSimilar gives one that knows nothing yet.
func NewSimilar() *Similar { return &Similar{} }

// Name is "similar".
func (*Similar) Name() string { return "similar" }

// Version counts what ended of the user's.
func (s *Similar) Version(user string) uint64 {
	if h := s.user.get(user); h != nil {
		return h.n + 1
	}
	return 1
}

// Predict weighs the user's last work.
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

// Ended notes a run time.
func (s *Similar) Ended(w *Work, ran time.Duration) {
	ms := max(1, ran.Milliseconds())
	h := s.user.at(w.User)
	h.ring[h.next] = sample{ms: ms, size: w.Size, limit: w.Limit.Milliseconds(), name: hash(w.Name), queue: hash(w.Queue)}
	h.next = (h.next + 1) % kept
	h.n++
	s.all.add(w, ms)
	s.hold.add(w.Size, ms)
}

// Turnover is how long what is held now will be held yet, in the mean: half the run time, weighted by what work holds
// in time. It is the time within which capacity changes hands, the natural unit of waiting. 0 when nothing ended yet.
func (s *Similar) Turnover() time.Duration { return time.Duration(s.hold.ms/2) * time.Millisecond }

// average is what all users together teach: run times, and their share of what was asked for.
type average struct {
	n                int64
	ms, inv          int64 // means of run times and of inverse run times
	asked            int64
	share, inflation int64 // means of run time / request, and of request / run time, in 1/2^20
}

// averageOver is how many ended pieces of work the means of all users go back, about.
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

// of tells what the average says of a piece of work: its run time and inverse run time.
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
	area int64 // size x run time that the mean stands for, with what is old fading out
}

// fadeOver is over how many ended pieces of work the turnover fades, about.
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

// Cost is how dear it is to let work go first, in 1/1024 of a doubling: its mean run time over what a second of waiting
// costs it. People measure waiting by how long their work takes (the slowdown), so a second costs the mean of the inverse
// run times; by the rule of Smith (1956) the sum is least when the cheapest goes first.
func Cost(meanMs, meanInverse int64) int64 {
	return Log(meanMs) + Log(inverseUnit) - Log(meanInverse)
}

// CostOf is the cost of work that will run for so many milliseconds, not otherwise.
func CostOf(ms int64) int64 { return Cost(ms, inverseUnit/max(ms, noticedMs)) }

// hash tells names apart (FNV-1a). A collision makes two pieces of work look a little more alike.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mulDiv is a*b/c of numbers that are not negative, c not 0 and the result below 2^63.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, 1<<63-1))
}

// mulShift is a*b>>n of numbers that are not negative.
func mulShift(a, b int64, n uint) int64 { return mulDiv(a, b, 1<<n) }

// mulCap is a*b, at most 2^60.
func mulCap(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > 1<<60 {
		return 1 << 60
	}
	return int64(lo)
}
