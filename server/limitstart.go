package server

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// limitStarts estimates when work may start that a limit holds back: a hard limit of a queue or quota, or a cap on running
// jobs. It is asked in the order of the line, and serves each limit in that order: what runs under it gives back when it is
// expected to end, and whoever is served gives back when he is expected to have ended. Room on nodes is not looked at, and
// nobody passes; so a start may come earlier or later than told.
type limitStarts struct {
	snap   *state.Snapshot
	region string
	now    structs.LogTime
	expect func(*structs.Job, *structs.Workload) time.Duration // of waiting work; 0: not known
	by     map[structs.Obstacle]*limitRoom
}

// limitRoom is what is free under one limit, and what becomes free when.
type limitRoom struct {
	room  int64
	freed []freedAt // by time
	last  structs.LogTime
	asked int // workloads served
}

type freedAt struct {
	at     structs.LogTime
	amount int64
}

// limitLineMax is how many workloads behind one limit are told an estimate.
const limitLineMax = 1000

func (s *Server) limitStarts(snap *state.Snapshot, now structs.LogTime) *limitStarts {
	return &limitStarts{snap: snap, region: s.cfg.Region, now: now, by: map[structs.Obstacle]*limitRoom{}, expect: func(j *structs.Job, w *structs.Workload) time.Duration {
		load := scheduler.Workload{Key: j.Key(), Job: j, Queue: w}
		s.decide.foretold.tell(&load)
		if e := cmp.Or(j.Runtime.Expected, load.Expect); e > 0 || len(j.Groups) == 0 {
			return e
		}
		return j.RunLimit(j.Groups[0])
	}}
}

// next is the start of the next in line, held back by what a report of one of its groups says; 0 when it is not known.
func (l *limitStarts) next(j *structs.Job, w *structs.Workload, group string, r *structs.Refusal) (structs.LogTime, string) {
	if r.Dimension == structs.DimensionGPUMinutes || r.Holder.Kind != structs.HolderQueue && r.Holder.Kind != structs.HolderQuota {
		return 0, ""
	}
	room := l.by[r.Obstacle]
	if room == nil {
		room = l.roomOf(r.Obstacle, j.Key())
		l.by[r.Obstacle] = room
	}
	text := "after others of " + r.Limit() + " have ended"
	tg := j.Group(group)
	if room.asked++; room.asked > limitLineMax || tg == nil {
		return 0, text
	}
	need, all := int64(1), int64(1)
	if r.Dimension != structs.DimensionRunningJobs {
		one := amountIn(structs.GroupAmount(tg), r.Dimension)
		need, all = one, amountIn(waitingAsk(j, w), r.Dimension)
		if n := tg.Least(); n > 0 {
			need = one * int64(n+tg.Gang.Spares)
		}
	}
	at := room.serve(max(l.now, room.last), need)
	if at == 0 {
		return 0, text
	}
	room.take(at, max(need, all), l.expect(j, w))
	return at, text
}

// serve is the first time, not before from, at which so much is free; 0 when nothing tells.
func (r *limitRoom) serve(from structs.LogTime, need int64) structs.LogTime {
	free := r.room
	for _, f := range r.freed {
		if f.at > from && free >= need {
			return from
		}
		free += f.amount
		from = max(from, f.at)
	}
	if free >= need {
		return from
	}
	return 0
}

// take lets somebody have an amount from a time on, for as long as he is expected to run; 0: for good.
func (r *limitRoom) take(at structs.LogTime, amount int64, expect time.Duration) {
	r.room -= amount
	r.last = at
	if expect > 0 {
		f := freedAt{at.Add(expect), amount}
		i, _ := slices.BinarySearchFunc(r.freed, f, func(a, b freedAt) int { return cmp.Compare(a.at, b.at) })
		r.freed = slices.Insert(r.freed, i, f)
	}
}

// roomOf is what is left of a limit, and when those who hold of it are expected to end. but is not counted: it asks.
func (l *limitStarts) roomOf(limit structs.Obstacle, but structs.JobKey) *limitRoom {
	isQueue, name := limit.Holder.Kind == structs.HolderQueue, limit.Holder.Name
	ofJobs, user := limit.Dimension == structs.DimensionRunningJobs, limit.Subject
	out := &limitRoom{}
	var jobs int64
	held := map[structs.JobKey]bool{}
	add := func(end structs.LogTime, n int64) {
		out.room -= n
		if end > 0 {
			out.freed = append(out.freed, freedAt{end, n})
		}
	}
	for a := range l.snap.Allocs() {
		if !structs.Holds(a) || a.Job == nil || user != "" && a.Job.Submitter.Name != user {
			continue
		}
		q := a.Job.QueueName()
		if isQueue && !structs.QueuePath(name).Contains(q) {
			continue
		}
		if !isQueue {
			if n := l.snap.Namespace(a.Namespace); n == nil || n.Quota != name {
				continue
			}
		}
		if !ofJobs {
			add(endOfAlloc(a, l.now), amountIn(structs.AmountOf(a), limit.Dimension))
			continue
		}
		if k := a.JobKey(); !held[k] && k != but {
			held[k] = true
			jobs++
			add(endOfJob(l.snap, k, l.now), 1)
		}
	}
	slices.SortStableFunc(out.freed, func(a, b freedAt) int { return cmp.Compare(a.at, b.at) })
	switch {
	case isQueue:
		q := l.snap.QueueByPath(structs.QueuePath(name))
		switch {
		case q == nil:
		case ofJobs && user != "":
			out.room += q.RunningUserMax
		case ofJobs:
			out.room += q.RunningMax
		case q.Limit != nil:
			out.room += amountIn(*q.Limit, limit.Dimension)
		}
	default:
		if spec := l.snap.Quota(name); spec != nil {
			if lim := spec.Limit(l.region); lim != nil {
				out.room += amountIn(lim.Hard, limit.Dimension)
			}
		}
	}
	return out
}
