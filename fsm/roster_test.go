package fsm

import (
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// members counts what is meant to run of a gang, what has succeeded included.
func members(s *state.Snapshot, j *structs.Job, tg *structs.Group) (n int) {
	r := s.RosterByKey(structs.RosterKey{Job: j.Key(), Group: tg.Name})
	for _, a := range s.AllocsByJob(j.Key()) {
		switch {
		case a.Group != tg.Name:
		case !a.Terminal():
			n++
		case r != nil && r.Rank(a.ID) >= 0 && a.Client == structs.ClientComplete && j.Type == structs.JobBatch:
			n++
		}
	}
	return n
}

// gangs checks, after every entry, that no gang is there in part (D21) and that rosters tell the truth.
func (r *run) gangs(before, after *state.Snapshot, cmd structs.Command, res structs.Result, d structs.Delta) {
	for j := range after.Jobs("", "") {
		was := before.JobByKey(j.Key())
		for _, tg := range j.Groups {
			if tg.Gang == nil || cmd.Type == structs.CmdCollect || !j.Placeable() || was == nil || was.SpecIndex != j.SpecIndex {
				continue
			}
			n, m := members(before, j, tg), members(after, j, tg)
			r.check(m == 0 || m >= tg.Least() || m >= n && n < tg.Least() && m == n, "gang %s.%s has %d members after command type %d, at least %d are needed; before it had %d",
				j.Key(), tg.Name, m, cmd.Type, tg.Least(), n)
		}
	}
	for ro := range after.Rosters() {
		j := after.JobByKey(structs.JobKey{Namespace: ro.Namespace, ID: ro.JobID})
		r.check(j != nil, "the roster of %s has no job", ro.JobID)
		if cmd.Type == structs.CmdCollect {
			continue
		}
		for _, m := range ro.Members {
			a := after.AllocByID(m.Alloc)
			if a == nil {
				continue // it had ended, and was collected
			}
			r.check(a.Group == ro.Group && !a.ServerTerminal() && (!a.ClientTerminal() || a.Client == structs.ClientComplete), "roster of %s lists %s, which is %s and %s", ro.JobID, m.Alloc, a.Desired, a.Client)
		}
	}
	for _, c := range d.Rosters {
		a, b := c.Before, c.After
		if b == nil {
			continue
		}
		if a == nil {
			r.check(b.Epoch > 0, "a first roster has no epoch")
			r.saw("gang placed")
			continue
		}
		r.check(sameMembers(a.Members, b.Members) || b.Epoch > a.Epoch, "the members of %s changed, its epoch %d did not", b.JobID, b.Epoch)
		switch {
		case b.Restarts > a.Restarts && b.Reason == structs.RosterTimeout:
			r.saw("gang timed out")
		case b.Restarts > a.Restarts:
			r.saw("gang restarted")
		case b.Epoch == a.Epoch && a.Deadline != 0 && b.Deadline == 0:
			r.saw("gang assembled")
		case len(b.Members) > len(a.Members) && len(a.Members) > 0:
			r.saw("gang grown")
		case b.Reason == structs.RosterLost && len(b.Members) > 0:
			r.saw("gang went on")
		}
	}
	plans := res.Plans
	if res.Plan != nil {
		plans = append(plans, res.Plan)
	}
	for _, p := range plans {
		if p != nil && strings.Contains(p.Refused, "of at least") {
			r.saw("partial gang refused")
		}
	}
	for _, c := range d.Workloads {
		if c.Before != nil && c.After != nil {
			if c.After.Preempted > c.Before.Preempted {
				r.check(c.After.SubmitIndex == c.Before.SubmitIndex, "a preempted job lost its place in the queue")
				r.saw("job preempted")
			}
			if c.After.Attained > c.Before.Attained {
				r.saw("service attained")
			}
		}
	}
}
