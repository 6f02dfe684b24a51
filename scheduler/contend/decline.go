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
	var can []stoppedTogether // what goes after the workload, but for its age and its loss
	for _, run := range r.runs {
		if run == nil || run.gone || run.fixed && run.young == 0 || !cs.goesAfter(r, i, run) {
			continue
		}
		if !run.parts {
			can = append(can, stoppedTogether{run, run.holds, run.lost})
			continue
		}
		for k := range run.holds {
			can = append(can, stoppedTogether{run, run.holds[k : k+1], run.holds[k].lost})
		}
	}
	if len(can) == 0 {
		return nil
	}
	room := roomFor{Contender: v, units: slices.Clone(r.Room)}
	for _, n := range room.units {
		room.places += room.on(n)
	}
	for _, run := range r.runs {
		if run != nil && !run.gone {
			room.take(run.holds, 1)
		}
	}
	slices.SortStableFunc(can, func(a, b stoppedTogether) int {
		return cmp.Or(cmp.Compare(a.run.young, b.run.young), cmp.Compare(a.lost, b.lost))
	})
	n := 0
	for ; n < len(can) && room.places < v.Count; n++ {
		room.take(can[n].holds, -1)
	}
	if n == 0 || room.places < v.Count {
		return nil
	}
	var jobs []structs.JobKey
	var until structs.LogTime
	var lost, gain int64
	how := map[structs.JobKey]saving{}
	named := map[*contenderRun]bool{}
	for k, x := range slices.Backward(can[:n]) {
		if room.take(x.holds, 1); k < n-1 && room.places >= v.Count {
			continue // its room is not needed
		}
		room.take(x.holds, -1)
		until, lost = max(until, x.run.young), lost+x.lost
		if named[x.run] {
			continue
		}
		named[x.run] = true
		if g := r.gain(v.Load, v.Units(), v.Load.Priority()-x.run.load.Priority()); len(jobs) == 0 || g < gain {
			gain = g // as for all victims together: see takeover.allowed
		}
		how[x.run.load.Key] = x.run.saving
		jobs = append(jobs, x.run.load.Key)
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

// stoppedTogether is a run, or one part of a run, with what it holds and what stopping it costs.
type stoppedTogether struct {
	run   *contenderRun
	holds []heldUnits
	lost  int64
}

// roomFor is the room on the nodes of a contest, with how many places of a contender it is.
type roomFor struct {
	*Contender
	units  []int64 // by place in Competition.Room; may be less than 0
	places int64
}

// on returns how many places so many units of a node are.
func (r *roomFor) on(units int64) int64 {
	if r.Each <= 0 {
		return 0
	}
	return max(0, units) / r.Each
}

// take takes the room that is held, or with -1 gives it back.
func (r *roomFor) take(holds []heldUnits, n int64) {
	for _, h := range holds {
		r.places -= r.on(r.units[h.at])
		r.units[h.at] -= n * h.units
		r.places += r.on(r.units[h.at])
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
