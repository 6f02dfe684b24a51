package checkpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Work with an interval saves its state while it runs. Jobs that started together would all do so at the same instant, and
// their storage would be idle for the rest of the interval. Their saves take turns under the same limits, and since the
// next one is due an interval after the last, they stay apart from then on.
//
// A unit is due when the interval has passed since its newest checkpoint, else since its start. Units that are due form a
// line, and the first of them that fit into what the units that must end leave of each limit have their turn. A unit whose
// turn has lasted for its grace holds no one up any longer, though it stays in its place; it is due again an interval after its
// turn began. Until its turn it stays in its place, however long that takes. Naive: a unit is due again with each interval. Where
// more work saves than the storage serves in an interval, units would go back to the end of the line before their turn, some
// always, and others while they save, so that one more would begin.
//
// When a turn began is not in the state. Naive: when the unit was due, or when those before it were over. But those that
// have saved are no longer in the line, so the turn of the next one would seem to have begun long ago, to be over at once, and one
// more would save at the same time. A place became free when the save before ended, so the turns of the first units began no
// later than the newest saves of other units ended, one each. Turns that began earlier only seem to last longer.

// Due is a unit that saves its state at an interval.
type Due struct {
	Unit
	At    structs.LogTime // when it was due, or is
	start structs.LogTime // when its turn begins; 0: not while those that must end save their state, or it is not due

	last     structs.LogTime // its newest checkpoint, or its start
	interval time.Duration
}

// Periodic is the line of units that save their state at an interval, by allocation. Those without a limit are not in it.
type Periodic map[structs.AllocID]*Due

// NewPeriodic returns the line at a time. line is that of the units that must end; they go first.
func NewPeriodic(snap Cluster, line *Line, now structs.LogTime) Periodic {
	out := Periodic{}
	if !line.limited {
		return out
	}
	cfg := snap.SchedulerConfig()
	var units []*Unit
	gangs, dues := map[gangKey]*Unit{}, map[*Unit]*Due{}
	ends := map[string][]structs.LogTime{} // of saves, by limit
	for a := range snap.Allocs() {
		g := a.Job.Group(a.Group)
		if g == nil || g.Checkpoint == nil || g.Checkpoint.Interval <= 0 || !g.Checkpoint.Notified() {
			continue
		}
		limits := line.limitsOn(snap, cfg, a, g.Checkpoint)
		if len(limits) == 0 {
			continue
		}
		last := a.WorksSince()
		if a.Saved != nil {
			last = max(last, a.Saved.Time)
			for _, l := range limits {
				ends[l.Where] = append(ends[l.Where], min(a.Saved.Time, now))
			}
		}
		if a.Terminal() || a.Client != structs.ClientRunning || a.Suspended() {
			continue
		}
		u := join(gangs, &units, a, 0, limits)
		d := dues[u]
		if d == nil {
			d = &Due{interval: g.Checkpoint.Interval}
			dues[u] = d
		}
		d.last, d.interval = max(d.last, last), min(d.interval, g.Checkpoint.Interval)
		out[a.ID] = d
	}
	inLine := make([]*Due, 0, len(units))
	for _, u := range units {
		d := dues[u]
		d.Unit = *u
		d.At = d.last.Add(d.interval * max(1, now.Sub(d.last)/d.interval-turnsPast))
		if d.At <= now {
			inLine = append(inLine, d)
		}
	}
	slices.SortFunc(inLine, (*Due).compareDue)
	turns := places{line, ends, map[string][]structs.LogTime{}}
	for i := 0; i < len(inLine); i++ {
		d := inLine[i]
		turns.give(d)
		if next := d.again(); next != 0 && next <= now { // its turn is over, and no checkpoint was seen
			d.At = next
			at, _ := slices.BinarySearchFunc(inLine[i+1:], d, (*Due).compareDue)
			inLine = slices.Insert(inLine, i+1+at, d)
		}
	}
	return out
}

// turnsPast limits the intervals without a checkpoint for which turns are followed. A unit that waits longer for its first turn may
// lose its place.
const turnsPast = 16

func (d *Due) compareDue(o *Due) int { return cmp.Or(cmp.Compare(d.At, o.At), d.compare(&o.Unit)) }

// again returns when a unit that writes no checkpoint in its turn is due again, after the turn; 0: it has none.
func (d *Due) again() structs.LogTime {
	if d.start == 0 {
		return 0
	}
	return d.start.Add(max(d.interval, d.grace+turnOverhead))
}

// places says when the places of each limit become free.
type places struct {
	line *Line
	ends map[string][]structs.LogTime // of saves, by limit
	free map[string][]structs.LogTime // by limit, ascending
}

// of returns when the places of a limit become free.
func (p *places) of(l Limit) []structs.LogTime {
	if free, ok := p.free[l.Where]; ok {
		return free
	}
	ends := p.ends[l.Where]
	slices.Sort(ends)
	free := make([]structs.LogTime, max(0, l.Most-p.line.ahead[l.Where]))
	n := min(len(free), len(ends))
	copy(free[len(free)-n:], ends[len(ends)-n:])
	p.free[l.Where] = free
	return free
}

// give gives a unit that is due its turn when all its limits have room. A unit that is larger than a limit needs all of it.
func (p *places) give(d *Due) {
	start := max(d.At, 1)
	for _, l := range d.Limits {
		free, n := p.of(l.Limit), min(l.Allocs, l.Most)
		if n > int64(len(free)) {
			d.By, start = l.Limit, 0
			break
		}
		if at := free[n-1]; at > start {
			d.By, start = l.Limit, at
		}
	}
	if d.start = start; start == 0 {
		return
	}
	end := start.Add(d.grace + turnOverhead)
	for _, l := range d.Limits {
		free := p.free[l.Where][min(l.Allocs, l.Most):]
		for range min(l.Allocs, l.Most) {
			at, _ := slices.BinarySearch(free, end)
			free = slices.Insert(free, at, end)
		}
		p.free[l.Where] = free
	}
}

// Turn returns nil if it is an allocation's turn to save its state, or no limit concerns it. Otherwise it returns the unit
// that waits, and after what time the agent should ask again. at is when its turn began, or when the save is due; 0: unknown.
func (p Periodic) Turn(id structs.AllocID, now structs.LogTime) (wait *Due, at structs.LogTime, again time.Duration) {
	d := p[id]
	switch {
	case d == nil:
		return nil, 0, 0
	case d.At > now:
		again = d.At.Sub(now)
	case d.start == 0:
		again = turnOverhead
	case d.start > now:
		again = d.start.Sub(now)
	case now.Sub(d.start) >= d.interval: // its turn is not quite over
		again = d.again().Sub(now)
	default:
		return nil, d.start, 0
	}
	return d, d.At, min(max(again, 500*time.Millisecond), turnOverhead)
}
