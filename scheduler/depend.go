package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Others is what a gate needs to know about the jobs that a job waits for.
type Others interface {
	// JobByKey returns a registered job, or nil.
	JobByKey(structs.JobKey) *structs.Job
	// AllocsByJob returns a job's allocations, in any order.
	AllocsByJob(structs.JobKey) []*structs.Allocation
	// RostersByJob returns the rosters of a job's gangs.
	RostersByJob(structs.JobKey) []*structs.Roster
	// LastRecord returns the record of the newest end of a job that was removed, or whose allocations were; nil if
	// there is none.
	LastRecord(structs.JobKey) *structs.AcctRecord
}

// Gate is what keeps a job from starting and no node can change: a hold, its begin time, the jobs that it waits for.
type Gate struct {
	Why   *structs.Refusal // nil: nothing
	Until structs.LogTime  // when to look again, because a condition may be over by then; 0: only when something happens
	Never string           // the reason to stop the job because the gate can never open; "" if it may open
	Met   bool             // its dependencies are met; from then on they are not checked any more
}

// GateOf computes the gate of a placeable job. q is its queue entry or nil.
func GateOf(j *structs.Job, q *structs.Workload, now structs.LogTime, others Others) Gate {
	g := Gate{Met: true}
	if len(j.Depends) > 0 && (q == nil || !q.Met) {
		g.depends(j, q, now, others)
	}
	begin := j.Begin
	held, suspended := j.Hold, false
	if q != nil {
		begin, held, suspended = max(begin, q.NotBefore), q.Held, q.Suspended != 0
	}
	// A hold, which only a user ends, takes precedence over the begin time.
	if begin > now {
		g.Why = &structs.Refusal{Code: structs.ReasonBeginTime, Obstacle: structs.Obstacle{Dimension: structs.DimensionBegin, Subject: clock(begin)}, CuredBy: structs.EventTime}
		if g.Until == 0 || begin < g.Until {
			g.Until = begin
		}
	}
	if held {
		g.Why = &structs.Refusal{Code: structs.ReasonHeld, Obstacle: structs.Obstacle{Dimension: structs.DimensionHold}, CuredBy: structs.EventJobChanged}
	}
	if suspended {
		g.Why = &structs.Refusal{Code: structs.ReasonHeld, Obstacle: structs.Obstacle{Dimension: structs.DimensionSuspended}, CuredBy: structs.EventJobChanged}
	}
	return g
}

func clock(t structs.LogTime) string { return t.Time().Format(time.RFC3339) }

// met is the state of a dependency.
type met uint8

const (
	waiting met = iota
	fulfilled
	impossible
)

// depends checks the dependencies: those of one group together, the others each alone.
func (g *Gate) depends(j *structs.Job, q *structs.Workload, now structs.LogTime, others Others) {
	submitted := j.SubmitTime
	if q != nil && q.SubmitTime != 0 {
		submitted = q.SubmitTime
	}
	if submitted == 0 {
		submitted = now // the registration is not committed yet
	}
	type set struct {
		name          string
		need, members int
		ok, never     int
		wait, dead    string // texts of the first member that waits, and of the first that can never be met
		on            string // the first member that is not met
	}
	var sets []*set
	for i := range j.Depends {
		d := &j.Depends[i]
		name := d.Group
		s := (*set)(nil)
		if at := slices.IndexFunc(sets, func(s *set) bool { return name != "" && s.name == name }); at >= 0 {
			s = sets[at]
		} else {
			s = &set{name: name, need: d.AtLeast}
			sets = append(sets, s)
		}
		s.members++
		state, text := judge(d, j, others)
		if state != fulfilled && d.Timeout > 0 {
			switch over := submitted.Add(d.Timeout); {
			case now < over:
				if g.Until == 0 || over < g.Until {
					g.Until = over
				}
			case d.OnTimeout == structs.OnTimeoutRun:
				state = fulfilled
			default:
				state, text = impossible, fmt.Sprintf("%s; it was waited for until %s (%s)", text, clock(over), d.Timeout)
			}
		}
		if state == impossible && d.OnTimeout == structs.OnTimeoutRun {
			state = fulfilled
		}
		switch state {
		case fulfilled:
			s.ok++
		case impossible:
			s.on = cmp.Or(s.on, d.On(j).ID)
			s.never++
			s.dead = cmp.Or(s.dead, text)
		default:
			s.on = cmp.Or(s.on, d.On(j).ID)
			s.wait = cmp.Or(s.wait, text)
		}
	}
	for _, s := range sets {
		need := s.need
		if need <= 0 || need > s.members {
			need = s.members
		}
		if s.ok >= need {
			continue
		}
		g.Met = false
		if s.members-s.never < need && g.Never == "" {
			g.Never = s.dead
		}
		if g.Why == nil {
			text := cmp.Or(s.wait, s.dead)
			if s.members > 1 {
				text = fmt.Sprintf("%d of %d of %q are met, %d are needed; %s", s.ok, s.members, s.name, need, text)
			}
			g.Why = &structs.Refusal{Code: structs.ReasonDependency, Obstacle: structs.Obstacle{Dimension: structs.DimensionDependency, Subject: s.on, Detail: text}, Short: int64(need - s.ok), Unit: structs.UnitJobs, CuredBy: structs.EventJobEnded}
		}
	}
	if g.Never != "" {
		g.Why.Detail = g.Never
	}
	if g.Met {
		g.Until = 0
	}
}

// judge returns the state of a dependency, and the progress of its job in words.
func judge(d *structs.Dependency, of *structs.Job, others Others) (met, string) {
	k := d.On(of)
	name := fmt.Sprintf("job %q", k.ID)
	if k.Namespace != of.Namespace {
		name = fmt.Sprintf("job %q of namespace %q", k.ID, k.Namespace)
	}
	when := d.When
	if when == "" {
		when = structs.WhenSuccess
	}
	s, ended := lookAt(k, others)
	answer := func(ok bool, want string) (met, string) {
		switch {
		case ok:
			return fulfilled, ""
		case ended:
			return impossible, fmt.Sprintf("%s never %s: %s", name, want, s.text)
		case s.stopping && (when == structs.WhenCompleted || when == structs.WhenFailed || d.OnTimeout == structs.OnTimeoutRun):
			return waiting, fmt.Sprintf("%s was stopped; once its work has ended, this counts as met", name)
		case s.stopping:
			return waiting, fmt.Sprintf("%s was stopped before it %s; once its work has ended, this can never be met", name, want)
		}
		return waiting, fmt.Sprintf("%s has not %s yet: %s", name, want, s.text)
	}
	switch when {
	case structs.WhenStarted:
		return answer(s.started, "started")
	case structs.WhenCheckpointed:
		return answer(s.checkpointed, "saved a checkpoint")
	case structs.WhenCompleted:
		return answer(ended, "ended")
	case structs.WhenFailed:
		return answer(ended && !s.success, "failed")
	}
	return answer(ended && s.success, "ended well")
}

// progress is how far a job has come.
type progress struct {
	started, checkpointed, success bool
	stopping                       bool // a user stopped it, and its work has not ended yet
	text                           string
}

func lookAt(k structs.JobKey, others Others) (p progress, ended bool) {
	j := others.JobByKey(k)
	if j == nil {
		r := others.LastRecord(k)
		if r == nil {
			p.text = "it is not registered"
			return p, false
		}
		p.record(r)
		return p, true
	}
	if j.IsPeriodic() || j.IsParameterized() {
		p.text = "it is a template, which itself never runs"
		return p, false
	}
	allocs := others.AllocsByJob(k)
	asOne := map[structs.GroupName]bool{} // gangs: one member's checkpoint is none
	for _, ro := range others.RostersByJob(k) {
		if ro.Checkpoint != nil && ro.Checkpoint.Parts > 0 {
			asOne[ro.Group] = true
			p.checkpointed = p.checkpointed || ro.Checkpoint.Newest != nil
		}
	}
	p.started = j.Status == structs.JobRunning
	failed, last := false, false
	for _, a := range allocs {
		p.started = p.started || a.StartedAt != 0
		p.checkpointed = p.checkpointed || !asOne[a.Group] && a.Checkpointed()
		if !a.ClientTerminal() || !a.Lineage().Next.IsZero() {
			continue
		}
		if a.Desired == structs.DesiredEvict && a.JobVersion == j.Version {
			failed = true // it was preempted and did not return
		} else if a.Client == structs.ClientComplete && (a.JobVersion == j.Version || j.Stop) {
			last = true
		} else if a.Client != structs.ClientComplete && a.JobVersion == j.Version {
			failed = true
		}
	}
	if j.Status != structs.JobDead {
		p.text, p.stopping = "it is "+string(j.Status), j.Stop
		return p, false
	}
	switch r := others.LastRecord(k); {
	case j.Stop && j.StatusDesc != "":
		p.text = "it was stopped, " + j.StatusDesc
	case j.Stop:
		p.text = "it was stopped"
	case failed:
		p.text = "it failed"
		if j.StatusDesc != "" {
			p.text += ": " + j.StatusDesc
		}
	case last:
		p.success, p.text = true, "it ended well"
	case r != nil && r.Submit >= j.SubmitTime:
		p.record(r)
	default: // its allocations were collected, and there is no record of how they ended
		p.started, p.success, p.text = true, true, "it ended"
	}
	return p, true
}

func (p *progress) record(r *structs.AcctRecord) {
	p.started = p.started || r.Start != 0
	p.success = r.Exit == structs.ExitSuccess
	p.text = "it ended: " + r.Exit
}
