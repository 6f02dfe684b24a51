package contend

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// GangTimes is what decisions know of the past of a gang that runs.
type GangTimes struct {
	Job     structs.JobKey
	Group   structs.GroupName
	At      structs.LogTime // when it was last resized, if it is elastic; 0: never
	Tracked bool            // whether Saved is known: otherwise each member's checkpoint counts for itself
	Saved   structs.LogTime // when its newest complete checkpoint was written; 0: there is none
}

// NewGangTimes lists the gangs of rosters of which there is something to know, in the order in which they are searched.
func NewGangTimes(rosters iter.Seq[*structs.Roster]) (list []GangTimes) {
	for r := range rosters {
		if r.Resizes.At > 0 || r.Checkpoint != nil {
			list = append(list, gangTimesOf(r))
		}
	}
	slices.SortFunc(list, func(a, b GangTimes) int { return a.compare(gangKey{b.Job, b.Group}) })
	return list
}

func gangTimesOf(r *structs.Roster) GangTimes {
	t := GangTimes{Job: r.Key().Job, Group: r.Group, At: r.Resizes.At, Tracked: r.Checkpoint != nil}
	if t.Tracked && r.Checkpoint.Newest != nil {
		t.Saved = r.Checkpoint.Newest.Time
	}
	return t
}

// compare orders by job and group.
func (r GangTimes) compare(k gangKey) int {
	return cmp.Or(compareJobs(r.Job, k.job), cmp.Compare(r.Group, k.group))
}

// timesOf returns what is known of a gang.
func (p *Preemption) timesOf(k gangKey) GangTimes {
	if i, found := slices.BinarySearchFunc(p.gangTimes, k, GangTimes.compare); found {
		return p.gangTimes[i]
	}
	return GangTimes{}
}

// Resize compares what a gang that runs loses and gains when it grows, in GPU seconds (without GPUs: seconds of its
// members). Growth restarts all members, so each of them loses what it would lose by a preemption. What it gains is the
// time of the added members until the gang is expected to end at its old size.
type Resize struct {
	Lost, Gain int64
	End        structs.LogTime // when the gang is expected to end at its old size
	unit       structs.Unit
	saves      bool
}

// NewResize compares what the members that run and those added lose and gain. last is when the gang last started or was
// resized: no member loses more than the time since then, and a gang that saves nothing began again then. nil: it is unknown
// when the gang ends, so nothing is compared.
func (p *Preemption) NewResize(load *Workload, running, added []*model.Held, last structs.LogTime) *Resize {
	r := &Resize{unit: structs.UnitSeconds, saves: load.Job.Saves()}
	var first *model.Held
	for _, h := range running {
		if first == nil || h.Work.Began < first.Work.Began {
			first = h
		}
	}
	if first == nil {
		return nil
	}
	if r.End = p.endOf(load, first, last); r.End == 0 {
		return nil
	}
	for _, h := range running {
		x := *h
		x.Work.Began = max(h.Work.Began, last)
		r.Lost += p.lostBy(&x, structs.CauseResize)
	}
	for _, h := range added {
		if h.Amount().GPUMilli > 0 {
			r.unit = structs.UnitGPUSeconds
		}
		r.Gain += gpuSeconds(h, r.End.Sub(p.now))
	}
	return r
}

// endOf returns when a gang is expected to end at its size, by the member that began first; 0 if that is unknown.
func (p *Preemption) endOf(load *Workload, first *model.Held, last structs.LogTime) structs.LogTime {
	w := first.Work
	w.Expect = cmp.Or(w.Expect, load.Expect, load.Job.Runtime.Expected)
	if !load.Job.Saves() {
		w.Began = max(w.Began, last)
	}
	end := w.Ends(p.now)
	if limit := first.Work.AtLimit(p.now); limit > 0 && end > 0 {
		end = min(end, limit)
	}
	return end
}

// Pays reports whether the gang gains more than it loses.
func (r *Resize) Pays() bool { return r.Gain > r.Lost }

// Again returns when to compare again although nothing happened: when the gang should have ended, because it is then
// expected to run for longer.
func (r *Resize) Again(now structs.LogTime) structs.LogTime { return max(r.End, now).Add(time.Minute) }

// Refusals explain why a gang does not grow by members that have a place. A new checkpoint lowers what it loses; more
// room raises what it gains, if there are members without a place.
func (r *Resize) Refusals(members, unplaced int64, oldEvents bool) []structs.Refusal {
	x := structs.Refusal{Code: structs.ReasonPriority, Short: members, Unit: structs.UnitMembers, CuredBy: structs.EventSaved,
		Obstacle: structs.Obstacle{Dimension: structs.DimensionGrowth, Count: r.Lost, Of: r.Gain, Detail: string(r.unit)}}
	switch {
	case !r.saves:
		x.CuredBy = structs.EventTime // see Again
	case oldEvents:
		x.CuredBy = structs.EventNone
	}
	out := []structs.Refusal{x}
	if unplaced > 0 {
		out = append(out, structs.Refusal{Code: structs.ReasonResources, Short: unplaced, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped,
			Obstacle: structs.Obstacle{Dimension: structs.DimensionGrowth}})
	}
	return out
}
