package reconcile

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Descriptions of allocations that the server stops or marks. Nomad's clients show these texts.
const (
	descNotNeeded    = "alloc not needed due to job update"
	descStopped      = "alloc is stopped because its job was stopped"
	descMigrating    = "alloc is being migrated"
	descLost         = "alloc is lost since its node is down"
	descUnknown      = "alloc is unknown since its node is disconnected"
	descDestructive  = "alloc is being updated due to job update"
	descRescheduled  = "alloc was rescheduled because it failed"
	descNodeMismatch = "alloc not needed as its node no longer matches the job"
	descDuplicate    = "alloc not needed as another one has its name"
	descMaxRun       = structs.DescMaxRun
)

// Limits and windows of rescheduling.
const (
	FollowupWindow     = 5 * time.Second  // delayed reschedules this close together share an evaluation
	reschedulesKept    = 20               // most events that an allocation carries
	systemRetryDelay   = 30 * time.Second // before a failed system allocation is started again, without a policy
	rollingWaitDefault = 30 * time.Second // between batches of a rolling update of a system job that names no stagger, and between looks at other updates at most
	rollingWaitMin     = time.Second      // between looks at allocations of an update that do not run yet
)

// where is the state of an allocation's node.
type where uint8

const (
	nodeFine where = iota
	nodeLost
	nodeAway   // disconnected, may come back
	nodeSilent // down or disconnected, and the allocation's tasks may still run there
)

func (r *reconciler) where(a *structs.Allocation) where {
	n := r.view.Node(a.NodeID)
	switch {
	case n == nil:
		return nodeLost
	case n.InTouch():
		return nodeFine
	case r.now < a.SilentUntil(n):
		return nodeSilent
	case n.Status == structs.NodeDown:
		return nodeLost
	}
	return nodeAway
}

// StopOf returns the stop of an allocation with a description.
func StopOf(a *structs.Allocation, desc string) structs.PlanStop {
	return structs.PlanStop{ID: a.ID, Desc: desc, Desired: structs.DesiredStop}
}

func lostOf(a *structs.Allocation) structs.PlanStop {
	return structs.PlanStop{ID: a.ID, Desc: descLost, Desired: structs.DesiredStop, Client: structs.ClientLost}
}

// stopAll stops what is not ending yet.
func (r *reconciler) stopAll(g *GroupPlan, as []*structs.Allocation, desc string) {
	for _, a := range as {
		switch {
		case a.ClientTerminal():
		case r.where(a) == nodeLost:
			g.Stops = append(g.Stops, lostOf(a))
			g.Counts.Stop++
		case !a.ServerTerminal():
			g.Stops = append(g.Stops, StopOf(a, desc))
			g.Counts.Stop++
		}
		if r.where(a) == nodeSilent {
			r.hold(g, a)
		}
	}
}

// slot is one name index and what fills it.
type slot struct {
	a    *structs.Allocation
	kind slotKind
	want Want
}

type slotKind uint8

const (
	slotLive    slotKind = iota // runs, or is about to
	slotDone                    // ended for good and counts (batch success, failed for the last time)
	slotWaiting                 // failed, will be replaced later; or disconnected and not replaced
	slotReplace                 // to be replaced now
)

func (s *slot) index() int { return s.a.NameIndex }

// sticky returns the node whose disk a replacement prefers; zero for none.
func (r *reconciler) sticky(tg *structs.Group, a *structs.Allocation) structs.NodeID {
	if tg.Disk.Sticky {
		return a.NodeID
	}
	return structs.NodeID{}
}

func lostAfter(tg *structs.Group) time.Duration {
	if tg.Disconnect != nil && tg.Disconnect.LostAfter > 0 {
		return tg.Disconnect.LostAfter
	}
	if tg.MaxClientDisc != nil {
		return *tg.MaxClientDisc
	}
	return 0
}

// overtime reports whether an allocation has run for longer than its group may. If not, it schedules an evaluation for
// when it will have.
func (r *reconciler) overtime(g *GroupPlan, a *structs.Allocation) bool {
	limit := r.job.RunLimit(g.Tg)
	if limit <= 0 || a.StartedAt == 0 {
		return false
	}
	end := a.Began(r.now).Add(limit)
	if r.now >= end {
		return true
	}
	if !a.Suspended() && (a.Lineage().FollowupEval.IsZero() || r.answering(a.Lineage().FollowupEval)) {
		r.Later = append(r.Later, Later{At: end, Trigger: structs.TriggerMaxRun, Desc: "an allocation reaches its wall-clock limit", Group: g.Name,
			Stops: []structs.PlanStop{{ID: a.ID}}})
	}
	return false
}

// answering reports whether the decision answers this evaluation.
func (r *reconciler) answering(id structs.EvalID) bool {
	return slices.ContainsFunc(r.evals, func(e *structs.Evaluation) bool { return e.ID == id })
}

// track gives a want the history of attempts, and makes it avoid the nodes where they failed.
func (r *reconciler) track(w *Want, tg *structs.Group, a *structs.Allocation, delay time.Duration) {
	w.Resched = append(slices.Clone(a.Lineage().Reschedules), structs.RescheduleEvent{Time: r.now, PrevAlloc: a.ID, PrevNode: a.NodeID, Delay: delay})
	if n := len(w.Resched); n > reschedulesKept {
		w.Resched = w.Resched[n-reschedulesKept:]
	}
	for _, e := range w.Resched {
		if !slices.Contains(w.Avoid, e.PrevNode) {
			w.Avoid = append(w.Avoid, e.PrevNode)
		}
	}
	if !tg.Disk.Sticky {
		w.Prefer = structs.NodeID{}
	}
}

// NextReschedule returns when a failed allocation may be replaced under a policy, and the delay. may is false when the
// policy allows no more attempts.
func NextReschedule(p *structs.Reschedule, a *structs.Allocation) (when structs.LogTime, delay time.Duration, may bool) {
	end := a.FinishedAt
	if end == 0 {
		end = a.ModifyTime
	}
	if !p.Unlimited {
		if p.Attempts <= 0 || p.Interval <= 0 {
			return 0, 0, false
		}
		tried := 0
		for _, e := range a.Lineage().Reschedules {
			if e.Time > end.Add(-p.Interval) {
				tried++
			}
		}
		if tried >= p.Attempts {
			return 0, 0, false
		}
	}
	delay = nextDelay(p, a.Lineage().Reschedules, end)
	return end.Add(delay), delay, true
}

// nextDelay returns a delay that grows from attempt to attempt by the policy's function up to the limit. Work that ran
// for longer than the limit before it failed starts again from the first delay.
func nextDelay(p *structs.Reschedule, past []structs.RescheduleEvent, end structs.LogTime) time.Duration {
	n := len(past)
	if n == 0 || p.DelayFunction == "" || p.DelayFunction == structs.DelayConstant {
		return p.Delay
	}
	last := past[n-1]
	d := last.Delay
	switch p.DelayFunction {
	case structs.DelayExponential:
		d = max(last.Delay, p.Delay)
		if last.Delay >= p.Delay {
			d = 2 * last.Delay
		}
	case structs.DelayFibonacci:
		switch {
		case last.Delay < p.Delay:
			d = p.Delay
		case n >= 2 && past[n-2].Delay < last.Delay || n >= 2 && past[n-2].Delay == p.Delay && last.Delay == p.Delay:
			d = last.Delay + past[n-2].Delay
		}
	}
	if p.MaxDelay > 0 && d >= p.MaxDelay {
		d = p.MaxDelay
		if end.Sub(last.Time) > d {
			return p.Delay
		}
	}
	return max(d, 0)
}

// older reports whether an allocation is of another version (or an earlier registration) of the job.
func (r *reconciler) older(a *structs.Allocation) bool { return OlderThan(a, r.job) }

// sameArray reports whether an allocation is of an earlier version of the same array, whose ends still count.
func (r *reconciler) sameArray(a *structs.Allocation) bool {
	return r.job.Array != nil && (a.Job == nil || a.Job.CreateIndex == r.job.CreateIndex)
}

// inPlace reports whether an allocation can adopt the new version without a restart, where it is.
func (r *reconciler) inPlace(g *GroupPlan, a *structs.Allocation) bool {
	if a.Job == nil || a.Job.CreateIndex != r.job.CreateIndex {
		return false
	}
	m := r.changed[a.Job]
	if m == nil {
		m = make(map[structs.GroupName]bool)
		if r.changed == nil {
			r.changed = make(map[*structs.Job]map[structs.GroupName]bool)
		}
		r.changed[a.Job] = m
	}
	destroy, known := m[g.Name]
	if !known {
		destroy = Destructive(a.Job, r.job, g.Name)
		m[g.Name] = destroy
	}
	if destroy {
		return false
	}
	n := r.view.Node(a.NodeID)
	return n != nil && g.Ask.MayStay(n)
}

// pin returns the node that an allocation of a system job must stay on; zero for other jobs.
func (r *reconciler) pin(a *structs.Allocation) structs.NodeID {
	if r.job.Type == structs.JobSystem || r.job.Type == structs.JobSysBatch {
		return a.NodeID
	}
	return structs.NodeID{}
}
