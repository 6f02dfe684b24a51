package search

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Work that is lost with a node is done again. A node that was lost lately is expected to be lost again sooner than if it had not been
// (structs.MeanTimeToLoss), so a placement there pays for the GPUs that will be busy, on average, with work that is done again:
//
//	losses an hour that are expected because of past ones x hours of work that a loss costs x GPUs that lose it together
//
// That is in thousandths of a GPU, the unit in which the default policy counts what a placement strands, and it has the same
// weight. So a node that was lost comes after sound ones on which the work fits as well; long work without checkpoints and large
// gangs avoid it even where that strands GPUs, and short work uses it. The term is part of a score, so it never makes a node infeasible.
//
// Naive: multiply by the probability that the node is lost during the run. That ignores how much is lost, and any work that
// is long enough would weigh the same.

const (
	// reliabilityWeight is the weight of the term reliability, which no policy has: that of Fit.
	reliabilityWeight = 30
	// milliScore is the score of a thousandth of a GPU, as in the default policy.
	milliScore = 8
	// runUnknown is how long work without a predicted end or a limit is expected to run. Services count so, too.
	runUnknown = 24 * time.Hour
	// perHours is the time in which losses of a node are counted.
	perHours = 1_000_000
	// Limits that keep products within 64 bits: a loss every 4 seconds, and a million GPU hours for each.
	doubtMax = 1_000_000_000
	costsMax = 1_000_000_000
)

// doubts is what is known of the nodes of a pass that were lost.
type doubts struct {
	list  []doubt // by row
	rows  []int32 // doubt.rate by row; nil: there are none
	known bool    // Doubt was called: what only fills caches does without
}

// doubt is a node that was lost, and so is expected to be lost again.
type doubt struct {
	row  int32
	rate int32 // losses in perHours that are expected because of past ones, to three significant bits
}

// Doubt makes the pass consider how reliable nodes are. typical is the mean time until a node is lost of which nothing
// is known; 0: no loss was measured.
//
// Nodes that were never lost are not looked at. Rates are rounded, so that most nodes that were lost are twins of others.
func (w *Pass) Doubt(now structs.LogTime, typical time.Duration) {
	typical = cmp.Or(typical, structs.ReadyPeriodsAge)
	w.doubts.known = true
	for k, c := range w.View.Chunks {
		for word, set := range c.Faulty {
			for ; set != 0; set &= set - 1 {
				i := 64*word + bits.TrailingZeros64(set)
				if rate := excess(c.Nodes[i], now, typical); rate > 0 {
					w.doubts.list = append(w.doubts.list, doubt{int32(w.View.Starts[k] + i), rate})
				}
			}
		}
	}
	if len(w.doubts.list) == 0 {
		return
	}
	w.doubts.rows = w.Column()
	for _, x := range w.doubts.list {
		w.doubts.rows[x.row] = x.rate
	}
}

// excess returns doubt.rate of a node: what is expected of it less what would be expected if it had not been lost.
func excess(n *structs.Node, now structs.LogTime, typical time.Duration) int32 {
	ready, lost, faults := n.Past(now)
	if lost += faults; lost == 0 {
		return 0
	}
	rate := func(lost int64) int64 {
		return perHours * int64(time.Hour/time.Millisecond) / max(structs.MeanTimeToLoss(ready, lost, typical).Milliseconds(), 1)
	}
	more := min(max(rate(lost)-rate(0), 1), doubtMax)
	if drop := bits.Len64(uint64(more)) - 3; drop > 0 {
		more = more >> drop << drop
	}
	return int32(more)
}

// rateIn returns the rate of a row in a list by row.
func rateIn(list []doubt, row int32) int64 {
	at, found := slices.BinarySearchFunc(list, row, func(x doubt, row int32) int { return int(x.row - row) })
	if !found {
		return 0
	}
	return int64(list[at].rate)
}

// rateOf returns doubt.rate of a row; 0: the node was not lost.
func (d *doubts) rateOf(row int) int64 {
	if d.rows == nil {
		return 0
	}
	return int64(d.rows[row])
}

// costsOf returns what the loss of a node on which one allocation of the ask is placed would cost, in thousandths of GPU
// hours: the time since the last checkpoint, on average half of the interval or of the run, and for work that saves its state, saving and
// loading; times the GPUs of all that lose it together. Work without GPUs counts as if each allocation had one.
func (s *Search) costsOf() int64 {
	g, j := s.Ask.Tg, s.Ask.Job
	run := max(s.Work.Expect, 0)
	if j != nil && run == 0 {
		run = max(j.Runtime.Expected, 0)
	}
	if at := s.Work.AtLimit(s.Work.Began); at > 0 && run == 0 {
		run = max(at.Sub(s.Work.Began), 0)
	}
	lost := cmp.Or(run, runUnknown) / 2
	if c := g.Checkpoint; c != nil {
		if c.Interval > 0 {
			lost = min(lost, c.Interval/2)
		}
		lost += cmp.Or(c.Cost, 2*c.GraceOrDefault())
	}
	milli := milliOf(g)
	if j != nil {
		together := int64(0)
		for _, o := range j.Groups {
			if j.Together(g.Name, o.Name) {
				together += milliOf(o) * int64(max(o.Count, 1))
			}
		}
		milli = max(milli, together)
	}
	const most = costsMax * int64(time.Hour/time.Millisecond)
	ms := max(lost.Milliseconds(), 1)
	if milli > most/ms {
		return costsMax
	}
	return max(ms*milli/int64(time.Hour/time.Millisecond), 1)
}

// milliOf returns the GPUs of an allocation in thousandths.
func milliOf(g *structs.Group) int64 {
	return cmp.Or(structs.GroupAmount(g).GPUMilli, 1000)
}

// sound returns how little work is expected to be lost on a row because its node was lost before: 1,000,000 for a node
// that was not.
func (s *Search) sound(row int) int64 {
	rate := s.w.doubts.rateOf(row)
	if rate == 0 {
		return model.Micro
	}
	if s.extra.costs == 0 {
		s.extra.costs = s.costsOf()
	}
	milli := (rate*s.extra.costs + perHours/milliScore - 1) / (perHours / milliScore) // in milliScore-ths, at least 1
	return model.Micro - min(milli, model.Micro)
}
