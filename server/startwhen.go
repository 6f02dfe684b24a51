package server

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// When work may start that waits for something other than room on nodes: passes estimate the start of what only lacks room,
// and never look at nodes for the rest. What is told here is when the thing in its way may be over: for work that runs, when
// it is expected to end, else when its limit ends it.

// startWhen gives the time, 0 where none is known, and words; "" when the reports of the passes say more.
func startWhen(snap *state.Snapshot, j *structs.Job, w *structs.Workload, groups []*structs.GroupReport, now structs.LogTime) (structs.LogTime, string) {
	g := scheduler.GateOf(j, w, now, others{snap})
	if g.Why != nil {
		switch g.Why.Code {
		case structs.ReasonHeld:
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
			return afterQuota(snap, j, &r.Refusals[0], now)
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
	began := cmp.Or(a.StartedAt, now)
	if e := began.Add(cmp.Or(a.Expect, a.Job.Runtime.Expected)); e > now {
		return e
	}
	if g := a.Job.Group(a.Group); g != nil && a.Job.RunLimit(g) > 0 {
		return max(began.Add(a.Job.RunLimit(g)), now+1)
	}
	return 0
}

// afterQuota is when so much of a queue, quota or user will have ended that the limit leaves room.
func afterQuota(snap *state.Snapshot, j *structs.Job, r *structs.Refusal, now structs.LogTime) (structs.LogTime, string) {
	whose, what, _ := strings.Cut(r.Dimension, ": ")
	name, user, byUser := strings.Cut(whose, ", user ")
	path, isQueue := strings.CutPrefix(name, "queue ")
	quota, isQuota := strings.CutPrefix(name, "quota ")
	if !isQueue && !isQuota || r.Unit == "minutes" {
		return 0, ""
	}
	freed := map[structs.LogTime]int64{}
	jobs := map[structs.JobKey]bool{}
	for a := range snap.Allocs() {
		if !structs.Holds(a) || a.Job == nil || a.JobKey() == j.Key() || byUser && a.Job.Submitter.Name != user {
			continue
		}
		q := a.Job.QueueName()
		if isQueue && q != path && !strings.HasPrefix(q, path+"/") && path != structs.QueueRoot {
			continue
		}
		if isQuota {
			if n := snap.Namespace(a.Namespace); n == nil || n.Quota != quota {
				continue
			}
		}
		if r.Unit == "jobs" {
			if k := a.JobKey(); !jobs[k] {
				jobs[k] = true
				if end := endOfJob(snap, k, now); end > 0 {
					freed[end]++
				}
			}
			continue
		}
		if end := endOfAlloc(a, now); end > 0 {
			freed[end] += amountIn(structs.AmountOf(a), r.Unit, what)
		}
	}
	text := "after others of " + whose + " have ended"
	var ends []structs.LogTime
	for end := range freed {
		ends = append(ends, end)
	}
	slices.Sort(ends)
	left := r.Short
	if r.Unit == "GPUs" {
		left *= 1000
	}
	for _, end := range ends {
		if left -= freed[end]; left <= 0 {
			return end, text
		}
	}
	return 0, text
}

// amountIn is the part of an amount that a limit counts.
func amountIn(a structs.Amount, unit, what string) int64 {
	switch {
	case strings.HasPrefix(unit, "GPU"):
		return a.GPUMilli
	case unit == "MHz":
		return a.CPU
	case strings.Contains(what, "gpu"):
		return a.GPUMemoryMiB
	}
	return a.MemoryMiB
}
