package queue

import (
	"math/bits"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
)

// Lifetimes counts how long work ran, by width: an order learns from it when run times are unknown. Run times fall into
// bins that double. It is a plain value; its owner reports every end to it.
//
// For work that has run for some time it gives the Gittins index: the most completions per second that running it for
// some time longer can be expected to give. That is the optimal order of one machine for known distributions (Gittins
// 1979; Aalto, Ayesta and Righter 2009). A bin's chance of an end is estimated from the work that reached it, including
// work that still runs, so that long work counts before it has ended (Kaplan and Meier 1958).
//
// A rule of thumb replaces missing data: of work that has run for t, half ends before 2t (Laplace's rule starts at one
// half, and bins double). A width's own history is weighted against that of all widths.
type Lifetimes struct {
	all    life
	widths [widthBins]life
}

const (
	binFirst  = 10 * time.Minute // end of the first bin: ten times the assumed cost of a restart, so that taking turns costs a tenth at most
	bins      = 23               // the last one begins after 80 years
	widthBins = 24               // by powers of two
	priorOwn  = 4                // the history of all widths counts like this many ends of the own width
)

// life counts, for each bin, the work that reached its end or ended in it, and the work that ended.
type life struct{ reached, ended [bins]int64 }

func widthOf(units int64) int { return min(bits.Len64(uint64(max(units, 1)))-1, widthBins-1) }

func binOf(ran time.Duration) int {
	n := 0
	for t := binFirst; ran >= t && n < bins-1; t *= 2 {
		n++
	}
	return n
}

// binEnd returns when a bin ends, in seconds.
func binEnd(n int) int64 { return int64(binFirst/time.Second) << n }

// Ended adds work of so many units that has ended after it ran for so long.
func (l *Lifetimes) Ended(units int64, ran time.Duration) {
	n := binOf(ran)
	for _, x := range []*life{&l.all, &l.widths[widthOf(units)]} {
		x.pass(n)
		x.reached[n]++
		x.ended[n]++
	}
}

// pass counts work that reached bin n.
func (x *life) pass(n int) {
	for k := range n {
		x.reached[k]++
	}
}

// indices are the Gittins indices of work of each width in each bin, in completions per 1e12 seconds.
type indices [widthBins][bins]int64

// with returns the indices, including the work that has not ended.
func (l *Lifetimes) with(contenders []contend.Contender) *indices {
	var now Lifetimes
	if l != nil {
		now = *l
	}
	var have [widthBins]bool
	for i := range contenders {
		v := &contenders[i]
		n, w := binOf(v.Ran), widthOf(v.Units())
		now.all.pass(n)
		now.widths[w].pass(n)
		have[w] = true
	}
	out := new(indices)
	for w := range out {
		if have[w] {
			now.index(w, &out[w])
		}
	}
	return out
}

func (l *Lifetimes) index(w int, out *[bins]int64) {
	var chance [bins]int64 // of ending in the bin, in units of 1e-9
	for n := range chance {
		of := nano * (l.all.ended[n] + 1) / (l.all.reached[n] + 2)
		chance[n] = (nano*l.widths[w].ended[n] + priorOwn*of) / (l.widths[w].reached[n] + priorOwn)
	}
	for from := range out {
		var ends, takes int64 // expected ends in units of 1e-9, and the seconds that they take in the same units
		alive := int64(nano)
		begin := int64(0)
		if from > 0 {
			begin = binEnd(from - 1)
		}
		for n := from; n < bins; n++ {
			width := binEnd(n) - begin
			begin = binEnd(n)
			dies := ratio(alive, nano, chance[n])
			ends += dies
			takes += width/2*dies + width*(alive-dies) // ends lie in the middle of a bin
			alive -= dies
			if takes >= 1<<61 {
				break
			}
			out[from] = max(out[from], ratio(ends, takes, perSecond))
		}
	}
}

// perSecond is one completion per second.
const perSecond = 1_000_000_000_000
