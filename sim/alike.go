package sim

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Where everything that waits is in every pass (Config.Whole), most of it is there only to be refused. On a machine that is
// one node, jobs of which the same is known are refused or placed in the order of their submission: of those at most so
// many can be placed as there is room for, and the first ones that are not are the only ones to be promised anything. The
// rest need not be in the pass; a property compares both.
//
// Naive: all of them in every pass. A user's thousand like jobs then cost 100 us at every event.

// kin is jobs that wait and differ in nothing but when they were submitted and what was foretold of them then.
type kin struct {
	key   kinKey
	lanes []*lane // by what was foretold; oldest first
}

type kinKey struct {
	shape    *shape
	queue    string
	priority int
	limit    time.Duration
	expect   time.Duration // where it does not come from work
	work     predict.Work  // what predictions go by
}

// foretold is a prediction, with the version of the past that it is from.
type foretold struct {
	expect  time.Duration
	cost    int64
	version uint64
}

// foreteller is a predictor whose predictions for like jobs are alike.
type foreteller interface {
	Work(l *Live) predict.Work
	Version(l *Live) uint64 // of what would be foretold now
	Told(l *Live) uint64    // of what was
	Refresh(l *Live)
	Tell(l *Live, version uint64)
}

// seesAlike reports whether passes may leave out all but the first of jobs that are alike, and sets how many they take
// beyond those that there is room for: as many as may be promised something.
func (e *Engine) seesAlike() bool {
	c := &e.cfg
	if !c.Whole || !c.Fleeting || len(c.Nodes) != 1 || c.Line != nil || c.Chooser != nil || c.Drop {
		return false
	}
	switch c.Predict.(type) {
	case nil, truth, foreteller:
	default:
		return false
	}
	e.depth = 1
	for _, q := range append([]*structs.Queue{{Path: structs.QueueDefault}}, c.Queues...) {
		set := e.usage.table.Settings(q.Path, &c.Scheduler)
		switch queue.Named(set.Order).(type) {
		case queue.FCFS, queue.SJF, queue.Adaptive: // of jobs alike, who came first is first
		default:
			return false
		}
		if set.Backfill == structs.BackfillConservative {
			e.depth = max(e.depth, set.ReserveDepth)
		}
	}
	return true
}

// insertAlike puts a job among those that wait and are alike.
func (e *Engine) insertAlike(l *Live) {
	key := kinKey{shape: l.shape, queue: l.Job.Job.Queue, priority: l.bucket, limit: limitOf(l.Job.Job)}
	told := foretold{expect: l.work.Expect, cost: l.work.Cost}
	if f, ok := e.cfg.Predict.(foreteller); ok {
		key.work, told.version = f.Work(l), f.Told(l)
	} else {
		key.expect = l.work.Expect
	}
	k := e.kins[key]
	if k == nil {
		k = &kin{key: key}
		e.kins[key] = k
		l.shape.kins = append(l.shape.kins, k)
	}
	var ln *lane
	if n := len(k.lanes); n > 0 && k.lanes[n-1].foretold == told && k.lanes[n-1].precedes(l) {
		ln = k.lanes[n-1]
	} else {
		ln = &lane{priority: l.bucket, kin: k, foretold: told}
		k.lanes = append(k.lanes, ln)
	}
	e.waits(l.shape)
	ln.n++
	l.home, l.lane, l.pos = l.shape, ln, len(ln.jobs)
	ln.jobs = append(ln.jobs, l)
}

// precedes reports whether all of a lane were submitted before a job.
func (ln *lane) precedes(l *Live) bool {
	n := len(ln.jobs)
	for n > ln.first && ln.jobs[n-1] == nil {
		n--
	}
	return n == ln.first || ln.jobs[n-1].work.Queue.SubmitIndex < l.work.Queue.SubmitIndex
}

// forget takes a lane that became empty from its kin.
func (e *Engine) forget(ln *lane) {
	k := ln.kin
	k.lanes = slices.DeleteFunc(k.lanes, func(x *lane) bool { return x == ln })
	if len(k.lanes) > 0 {
		return
	}
	delete(e.kins, k.key)
	s := k.key.shape
	s.kins = slices.DeleteFunc(s.kins, func(x *kin) bool { return x == k })
}

// takeAlike takes the first of each kind of jobs of a shape.
func (e *Engine) takeAlike(s *shape) {
	most := e.depth + e.roomInView(s)
	if e.preemptible > 0 { // others may make room
		most = 1 << 30
	}
	for _, k := range s.kins {
		e.foretell(k)
		for _, ln := range k.lanes {
			left := most
			for i := ln.first; i < len(ln.jobs) && left > 0; i++ {
				l := ln.jobs[i]
				if l == nil {
					continue
				}
				left--
				if !l.listed {
					l.listed = true
					e.picked = append(e.picked, l)
				}
			}
		}
	}
}

// roomInView is how many allocations of a shape the only node may have room for, as decisions see it.
func (e *Engine) roomInView(s *shape) int64 {
	used, total, ok := e.view.Usage(e.nodes[0].node.ID)
	room := int64(1) << 30
	if !ok {
		return room
	}
	for _, c := range [...][2]int64{{s.need.CPU, total.CPU - used.CPU}, {s.need.Cores, total.Cores - used.Cores}, {s.need.MemoryMiB, total.MemoryMiB - used.MemoryMiB}, {s.need.DiskMiB, total.DiskMiB - used.DiskMiB}} {
		if c[0] > 0 {
			room = min(room, max(0, c[1]/c[0]))
		}
	}
	return room
}

// foretell brings what is foretold of jobs that are alike up to what is known, once for all of them.
func (e *Engine) foretell(k *kin) {
	f, ok := e.cfg.Predict.(foreteller)
	if !ok {
		return
	}
	var first *lane // of those that were told of an older past; they are before the others
	kept := k.lanes[:0]
	for _, ln := range k.lanes {
		version := f.Version(ln.head())
		switch {
		case ln.version == version:
			kept = append(kept, ln)
		case first == nil:
			first = ln
			l := ln.head()
			f.Refresh(l)
			ln.foretold = foretold{l.work.Expect, l.work.Cost, version}
			kept = append(kept, ln)
		default: // the same is foretold now
			ln.foretold = first.foretold
			if !first.precedes(ln.head()) { // it came back
				kept = append(kept, ln)
				continue
			}
			first.join(ln)
		}
	}
	clear(k.lanes[len(kept):])
	k.lanes = kept
}

// head is the first of a lane.
func (ln *lane) head() *Live { return ln.jobs[ln.first] }

// join takes over the jobs of another lane, which are behind its own.
func (ln *lane) join(other *lane) {
	for _, l := range other.jobs[other.first:] {
		if l != nil {
			l.lane, l.pos = ln, len(ln.jobs)
			ln.jobs = append(ln.jobs, l)
			ln.n++
		}
	}
}

// told lets a job that is in a pass know what is foretold of its lane.
func (e *Engine) told(l *Live) {
	t := &l.lane.foretold
	l.work.Expect, l.work.Cost = t.expect, t.cost
	if f, ok := e.cfg.Predict.(foreteller); ok {
		f.Tell(l, t.version)
	}
}
