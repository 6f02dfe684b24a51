package decide

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// This file estimates the start of work that waits for something other than capacity on nodes; passes estimate the
// rest. The estimate is when the obstacle may be gone: when running work is expected to end, or else when its limit
// ends it.

// Of estimates the start of a workload whose newest reports are groups. It returns a time, or 0 if it is unknown, and a
// description, which is "" if the reports say more.
func (l *StartEstimates) Of(j *structs.Job, w *structs.Workload, groups []*structs.GroupReport) (structs.LogTime, string) {
	g := scheduler.GateOf(j, w, l.now, otherJobs{l.snap})
	if g.Why != nil {
		switch g.Why.Code {
		case structs.ReasonHeld:
			if w != nil && w.Suspended != 0 {
				return 0, "when it is resumed (muster job resume " + j.ID + ")"
			}
			return 0, "when it is released (muster job release " + j.ID + ")"
		case structs.ReasonBeginTime:
			return max(j.Begin, w.NotBefore), "not before its time"
		case structs.ReasonDependency:
			return afterOthers(l.snap, j, l.now)
		}
		return 0, ""
	}
	for _, r := range groups {
		if r.Placed < r.Wanted && len(r.Refusals) > 0 && r.Refusals[0].Code == structs.ReasonQuota {
			return l.next(j, w, r.Group, &r.Refusals[0])
		}
	}
	return 0, ""
}

// RunsLonger describes the start of work whose estimate has passed.
const RunsLonger = "what it waits for runs longer than predicted"

// Reserved estimates the start of a workload to which a pass has given an estimate: the begin of its reservation, which
// passes keep up to date. Once that has passed, it is when work may be preempted that began too recently, else it is
// corrected like the predictions on which it rests, until a pass makes another. reports returns the workload's newest
// reports.
func (l *StartEstimates) Reserved(w *structs.Workload, reports func() []*structs.GroupReport) (structs.LogTime, string) {
	at := w.StartEst
	if r := l.snap.Reservation(structs.ReservationID(structs.JobKey{Namespace: w.Namespace, ID: w.JobID})); r != nil {
		at = r.Start
	}
	if at > l.now {
		return at, ""
	}
	if young, text := l.whenMayPreempt(reports()); young > 0 {
		return young, text
	}
	if at = model.Corrected(at, l.now); at == model.Never {
		at = 0
	}
	return at, RunsLonger
}

// whenMayPreempt returns when the first work may be preempted that began too recently, by the reports of the workload
// that would preempt it; 0 and "" if they name none.
func (l *StartEstimates) whenMayPreempt(groups []*structs.GroupReport) (structs.LogTime, string) {
	for _, r := range groups {
		for i := range r.Refusals {
			o := &r.Refusals[i].Obstacle
			if o.Dimension != structs.DimensionPreemptYoung {
				continue
			}
			at, err := time.Parse(time.RFC3339, o.Detail)
			if t := structs.LogTimeOf(at); err == nil && t > l.now {
				return t, "when " + o.Subject + " may be preempted"
			}
		}
	}
	return 0, ""
}

// afterOthers returns when the jobs that a job depends on should meet its conditions; 0 if that is unknown for one of
// them, and "" if one can never meet them.
func afterOthers(snap *state.Snapshot, j *structs.Job, now structs.LogTime) (at structs.LogTime, text string) {
	var names []string
	known := true
	for i := range j.Depends {
		one := *j
		one.Hold, one.Begin, one.Depends = false, 0, j.Depends[i:i+1]
		d := one.Depends[0]
		d.Group, d.AtLeast = "", 0
		one.Depends = []structs.Dependency{d}
		gate := scheduler.GateOf(&one, nil, now, otherJobs{snap})
		if gate.Never != "" && j.Depends[i].Group == "" {
			return 0, "" // it does not start after anything; the reason says so
		}
		if gate.Never != "" || gate.Why == nil {
			continue
		}
		k := d.On(j)
		word := " ends"
		var when structs.LogTime
		switch d.When {
		case structs.WhenStarted:
			word = " starts"
			if w := snap.Workload(k); w != nil {
				when = w.StartEst
			}
		case structs.WhenCheckpointed:
			word = " has a checkpoint"
		default:
			when = endOfJob(snap, k, now)
		}
		names = append(names, k.ID+word)
		known = known && when > 0 && j.Depends[i].Group == ""
		at = max(at, when)
	}
	if !known {
		at = 0
	}
	return at, "after " + strings.Join(names, ", ")
}

// endOfJob returns when the last running allocation of a job ends; 0 if that is unknown or part of the job has not
// started.
func endOfJob(snap *state.Snapshot, k structs.JobKey, now structs.LogTime) (last structs.LogTime) {
	if w := snap.Workload(k); w != nil && w.Waiting > 0 {
		return 0
	}
	for _, a := range snap.AllocsByJob(k) {
		if !structs.Holds(a) {
			continue
		}
		end := endOfAlloc(a, now)
		if end == 0 {
			return 0
		}
		last = max(last, end)
	}
	return last
}

// endOfAlloc returns when an allocation is expected to end; 0 if that is unknown.
func endOfAlloc(a *structs.Allocation, now structs.LogTime) structs.LogTime {
	if a.Job == nil || a.Job.Type != structs.JobBatch && a.Job.Type != structs.JobSysBatch {
		return 0
	}
	began := cmp.Or(a.Began(now), now)
	if e := began.Add(cmp.Or(a.Expect, a.Job.Runtime.Expected)); e > now {
		return e
	}
	if g := a.Job.Group(a.Group); g != nil && a.Job.RunLimit(g) > 0 {
		return max(began.Add(a.Job.RunLimit(g)), now+1)
	}
	return 0
}

// amountIn returns the part of an amount in a limit's dimension.
func amountIn(a structs.Amount, what structs.Dimension) int64 {
	for _, p := range a.Parts() {
		if p.Dimension == what {
			return p.Value
		}
	}
	return 0
}

// limitedOf returns the part of an allocation that counts under a limit.
func limitedOf(a *structs.Allocation, limit *structs.Obstacle) int64 {
	if limit.Dimension == structs.DimensionGPUModel {
		return structs.MilliOf(structs.ModelsOf(a), limit.Detail)
	}
	return amountIn(structs.AmountOf(a), limit.Dimension)
}

// modelLimit returns the limit of a model in a list.
func modelLimit(limits []structs.ModelAmount, words string) int64 {
	for _, l := range limits {
		if l.Model == words {
			return l.Milli
		}
	}
	return 0
}

// StartEstimates estimates when waiting work may start, on one state. For work that a limit holds back (a hard limit of
// a queue or quota, or a cap on running jobs), Of must be called in the order of the line. It serves each limit in that
// order: running work releases its part when it is expected to end, and so does work that was served before. It ignores
// free capacity on nodes and lets no job pass another, so a start may come earlier or later than estimated.
type StartEstimates struct {
	snap   *state.Snapshot
	region string
	now    structs.LogTime
	expect func(*structs.Job, *structs.Workload) time.Duration // of waiting work; 0: unknown
	by     map[structs.Obstacle]*limitRoom
}

// limitRoom is what is free under one limit, and when more becomes free.
type limitRoom struct {
	most  int64 // the limit itself; 0: there is none any more
	room  int64
	freed []freedAt // by time
	last  structs.LogTime
	asked int // workloads served
}

type freedAt struct {
	at     structs.LogTime
	amount int64
}

// limitLineMax bounds the workloads behind one limit that get an estimate.
const limitLineMax = 1000

// StartEstimates returns estimates on a state.
func (s *Service) StartEstimates(snap *state.Snapshot, now structs.LogTime) *StartEstimates {
	return &StartEstimates{snap: snap, region: s.env.Region, now: now, by: map[structs.Obstacle]*limitRoom{}, expect: func(j *structs.Job, w *structs.Workload) time.Duration {
		load := contend.Workload{Key: j.Key(), Job: j, Queue: w}
		s.predict(snap, &load)
		if e := cmp.Or(j.Runtime.Expected, load.Expect); e > 0 || len(j.Groups) == 0 {
			return e
		}
		return j.RunLimit(j.Groups[0])
	}}
}

// next returns the start of the next workload in line that refusal r holds back; 0 if it is unknown.
func (l *StartEstimates) next(j *structs.Job, w *structs.Workload, group structs.GroupName, r *structs.Refusal) (structs.LogTime, string) {
	if r.Dimension == structs.DimensionGPUHours {
		return 0, "when a new period of the budget of " + r.Limit() + " begins, at " + r.Detail
	}
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
		what := r.Dimension
		if what == structs.DimensionGPUModel {
			what = structs.DimensionGPU
		}
		one := amountIn(structs.GroupAmount(tg), what)
		need, all = one, amountIn(WaitingAsk(j, w), what)
		if n := tg.Least(); n > 0 {
			need = one * int64(n+tg.Standbys())
		}
	}
	if room.most > 0 && need > room.most && !slices.ContainsFunc(tg.Tasks, (*structs.Task).AsksEither) {
		return 0, "when " + r.Limit() + " is raised: this asks for more than all of it"
	}
	at := room.serve(max(l.now, room.last), need)
	if at == 0 {
		return 0, text
	}
	room.take(at, max(need, all), l.expect(j, w))
	return at, text
}

// serve returns the first time from which need is free, not before from; 0 if that is unknown.
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

// take takes an amount from a time on, for as long as its holder is expected to run; 0: for good.
func (r *limitRoom) take(at structs.LogTime, amount int64, expect time.Duration) {
	r.room -= amount
	r.last = at
	if expect > 0 {
		f := freedAt{at.Add(expect), amount}
		i, _ := slices.BinarySearchFunc(r.freed, f, func(a, b freedAt) int { return cmp.Compare(a.at, b.at) })
		r.freed = slices.Insert(r.freed, i, f)
	}
}

// roomOf returns what is left under a limit, and when the work that uses it should end. It does not count but, the job
// that asks.
func (l *StartEstimates) roomOf(limit structs.Obstacle, but structs.JobKey) *limitRoom {
	isQueue, name := limit.Holder.Kind == structs.HolderQueue, limit.Holder.Name
	ofJobs, user := limit.Dimension == structs.DimensionRunningJobs, limit.User()
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
			if n := limitedOf(a, &limit); n > 0 {
				add(endOfAlloc(a, l.now), n)
			}
			continue
		}
		if k := a.JobKey(); !held[k] && k != but {
			held[k] = true
			jobs++
			add(endOfJob(l.snap, k, l.now), 1)
		}
	}
	slices.SortStableFunc(out.freed, func(a, b freedAt) int { return cmp.Compare(a.at, b.at) })
	taken := out.room
	switch {
	case isQueue:
		q := l.snap.QueueByPath(structs.QueuePath(name))
		switch {
		case q == nil:
		case ofJobs && user != "":
			out.room += q.RunningUserMax
		case ofJobs:
			out.room += q.RunningMax
		case limit.Dimension == structs.DimensionGPUModel && user != "":
			out.room += modelLimit(q.UserLimitModels, limit.Detail)
		case limit.Dimension == structs.DimensionGPUModel:
			out.room += modelLimit(q.LimitModels, limit.Detail)
		case user != "" && q.UserLimit != nil:
			out.room += amountIn(*q.UserLimit, limit.Dimension)
		case q.Most() != nil:
			out.room += amountIn(*q.Most(), limit.Dimension)
		}
	default:
		if spec := l.snap.Quota(name); spec != nil {
			if lim := spec.Limit(l.region); lim != nil && limit.Dimension == structs.DimensionGPUModel {
				out.room += modelLimit(lim.HardModels, limit.Detail)
			} else if lim != nil {
				out.room += amountIn(lim.Hard, limit.Dimension)
			}
		}
	}
	out.most = out.room - taken
	return out
}
