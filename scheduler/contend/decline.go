package contend

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// subjectsMax bounds the jobs that a refusal names.
const subjectsMax = 5

// namesOf lists jobs in a refusal, each with why it saves nothing before it is stopped; how may be nil.
func namesOf(jobs []structs.JobKey, how map[structs.JobKey]saving) string {
	var names []string
	for _, k := range jobs[:min(len(jobs), subjectsMax)] {
		name := k.ID
		if why := how[k].text(); why != "" {
			name += " (" + why + ")"
		}
		names = append(names, name)
	}
	if len(jobs) > subjectsMax {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

func compareJobs(a, b structs.JobKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ID, b.ID))
}

// tooCostly refuses a preemption of jobs that lose no less than is gained.
func (r *Rules) tooCostly(jobs []structs.JobKey, how map[structs.JobKey]saving, lost, gain int64, unit structs.Unit) *structs.Refusal {
	return &structs.Refusal{Code: structs.ReasonPriority, Short: lost - gain, Unit: unit, CuredBy: r.onSave(),
		Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptCost, Subject: namesOf(jobs, how), Count: lost, Of: gain, Detail: string(unit)}}
}

// onSave returns the event that a new checkpoint makes.
func (r *Rules) onSave() structs.EventKind {
	if r.OldEvents {
		return structs.EventNone
	}
	return structs.EventSaved
}

// tooRecent refuses a preemption of jobs that began too recently, until a time.
func tooRecent(jobs []structs.JobKey, now, until structs.LogTime) *structs.Refusal {
	return &structs.Refusal{Code: structs.ReasonPriority, Short: int64((until.Sub(now) + time.Second - 1) / time.Second), Unit: structs.UnitSeconds, CuredBy: structs.EventTime,
		Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptYoung, Subject: namesOf(jobs, nil), Detail: until.Time().Format(time.RFC3339)}}
}

// Declined explains why a pending workload that found no place does not take those of running work, although it goes
// before it and has room where that runs: the running work began too recently, or loses no less than is gained. It
// returns nil if there is no such work, or if something else is in the way.
func (cs *Contests) Declined(i int) *structs.Refusal {
	r := cs.Of(i)
	if r == nil {
		return nil
	}
	at := slices.Index(r.pending, i)
	v := &r.Contenders[at]
	var can []*contenderRun // what goes after the workload, but for its age and its loss
	for _, run := range r.runs {
		if run != nil && !run.gone && (!run.fixed || run.young > 0) && cs.goesAfter(r, i, run) {
			can = append(can, run)
		}
	}
	if len(can) == 0 {
		return nil
	}
	room := slices.Clone(r.Room)
	for _, run := range r.runs {
		if run != nil && !run.gone {
			run.takes(room, 1)
		}
	}
	slices.SortStableFunc(can, func(a, b *contenderRun) int {
		return cmp.Or(cmp.Compare(a.young, b.young), cmp.Compare(a.lost, b.lost))
	})
	n := 0
	for ; n < len(can) && !v.fits(room); n++ {
		can[n].takes(room, -1)
	}
	if n == 0 || !v.fits(room) {
		return nil
	}
	var jobs []structs.JobKey
	var until structs.LogTime
	var lost, gain int64
	how := map[structs.JobKey]saving{}
	for k, run := range slices.Backward(can[:n]) {
		if run.takes(room, 1); k < n-1 && v.fits(room) {
			continue // its room is not needed
		}
		run.takes(room, -1)
		if g := r.gain(v.Load, v.Units(), v.Load.Priority()-run.load.Priority()); len(jobs) == 0 || g < gain {
			gain = g // as for all victims together: see takeover.allowed
		}
		how[run.load.Key] = run.saving
		jobs, until, lost = append(jobs, run.load.Key), max(until, run.young), lost+run.lost
	}
	slices.SortFunc(jobs, compareJobs)
	switch {
	case until > cs.env.Now:
		return tooRecent(jobs, cs.env.Now, until)
	case lost >= gain:
		unit := structs.UnitGPUSeconds
		if !r.gpu {
			unit = structs.UnitSeconds
		}
		return cs.env.Rules.tooCostly(jobs, how, lost, gain, unit)
	}
	return nil
}

// goesAfter reports whether running work goes after a pending workload: it has a lower priority, or the chooser put the
// workload before it.
func (cs *Contests) goesAfter(r *Contest, i int, run *contenderRun) bool {
	load := cs.env.Pending[i]
	switch diff := load.Priority() - run.load.Priority(); {
	case r.goesBefore != nil:
		return diff > 0 && r.goesBefore(&load, run.load)
	case diff == 0:
		return cs.front[i] && !run.chosen
	default:
		return diff > 0
	}
}

// takes takes the room of what the work holds, or with -1 gives it back.
func (run *contenderRun) takes(room []int64, n int64) {
	for _, h := range run.holds {
		room[h.at] -= n * h.units
	}
}

// fits reports whether there is room for all places of a contender.
func (r *Contender) fits(room []int64) bool {
	left := r.Count
	for _, n := range room {
		if r.Each > 0 && n > 0 {
			left -= n / r.Each
		}
	}
	return left <= 0
}
