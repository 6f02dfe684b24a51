package server

import (
	"cmp"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// When work may start that waits for something other than room on nodes: passes estimate the start of what only lacks room,
// and never look at nodes for the rest. What is told here is when the thing in its way may be over: for work that runs, when
// it is expected to end, else when its limit ends it.

// startWhen gives the time, 0 where none is known, and words; "" when the reports of the passes say more.
func startWhen(snap *state.Snapshot, j *structs.Job, w *structs.Workload, groups []*structs.GroupReport, now structs.LogTime, by *limitStarts) (structs.LogTime, string) {
	g := scheduler.GateOf(j, w, now, others{snap})
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
			return afterOthers(snap, j, now)
		}
		return 0, ""
	}
	for _, r := range groups {
		if r.Placed < r.Wanted && len(r.Refusals) > 0 && r.Refusals[0].Code == structs.ReasonQuota {
			return by.next(j, w, r.Group, &r.Refusals[0])
		}
	}
	return 0, ""
}

// afterOthers is when the jobs that a job depends on will have got so far; 0 where one of them, or which of several
// alternatives, is not known.
func afterOthers(snap *state.Snapshot, j *structs.Job, now structs.LogTime) (at structs.LogTime, text string) {
	var names []string
	known := true
	for i := range j.Depends {
		one := *j
		one.Hold, one.Begin, one.Depends = false, 0, j.Depends[i:i+1]
		d := one.Depends[0]
		d.Group, d.AtLeast = "", 0
		one.Depends = []structs.Dependency{d}
		if scheduler.GateOf(&one, nil, now, others{snap}).Why == nil {
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

// endOfJob is when the last of what runs of a job ends; 0 when that is not known, or some of it has yet to start.
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

// endOfAlloc is when an allocation is expected to end; 0 when nobody knows.
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

// amountIn is the part of an amount that a limit counts.
func amountIn(a structs.Amount, what structs.Dimension) int64 {
	for _, p := range a.Parts() {
		if p.Dimension == what {
			return p.Value
		}
	}
	return 0
}
