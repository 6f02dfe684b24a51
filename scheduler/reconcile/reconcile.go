package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
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
	DescOutranked    = "alloc is preempted by work that goes before it in its queue"
	descMaxRun       = structs.DescMaxRun
)

// Limits and windows of rescheduling.
const (
	FollowupWindow     = 5 * time.Second  // delayed reschedules this close together share an evaluation
	reschedulesKept    = 20               // most events that an allocation carries
	systemRetryDelay   = 30 * time.Second // before a failed system allocation is started again, without a policy
	rollingWaitDefault = 30 * time.Second // between batches of a rolling update that names no stagger
)

// reconciler compares what a job wants with what it has.
type reconciler struct {
	Work
	view    *model.View
	now     structs.LogTime
	job     *structs.Job // nil: purged
	evals   []*structs.Evaluation
	rosters []*structs.Roster
	force   bool
	ended   *structs.ArrayState
	changed map[*structs.Job]map[string]bool // results of Destructive, by old job and group
	ask     func(*structs.Group) *match.Ask
}

// Run compares what a job wants with what it has, and returns what should change.
func Run(in Input, allocs []*structs.Allocation) *Work {
	r := &reconciler{view: in.View, now: in.Now, job: in.Job, evals: in.Evals, rosters: in.Rosters, ended: in.Ended, ask: in.Ask}
	for _, e := range in.Evals {
		r.force = r.force || e.ForceResch
	}
	r.run(allocs)
	r.from = r
	return &r.Work
}

// run reconciles every group of the job in their order, then every group that only allocations still have, by name.
func (r *reconciler) run(allocs []*structs.Allocation) {
	var byGroup map[string][]*structs.Allocation
	if len(allocs) > 0 {
		byGroup = make(map[string][]*structs.Allocation)
	}
	for _, a := range allocs {
		byGroup[a.Group] = append(byGroup[a.Group], a)
	}
	for _, as := range byGroup {
		slices.SortFunc(as, func(a, b *structs.Allocation) int {
			return cmp.Or(cmp.Compare(a.NameIndex, b.NameIndex), cmp.Compare(a.CreateIndex, b.CreateIndex), model.CompareID(a.ID, b.ID))
		})
	}
	active := r.job != nil && r.job.Placeable()
	if r.job != nil {
		for _, tg := range r.job.Groups {
			g := &GroupPlan{Name: tg.Name, Tg: tg}
			g.Counts.Group = tg.Name
			r.Groups = append(r.Groups, g)
			as := byGroup[tg.Name]
			delete(byGroup, tg.Name)
			switch {
			case !active:
				r.stopAll(g, as, descStopped)
			case r.job.Type == structs.JobSystem || r.job.Type == structs.JobSysBatch:
				g.Ask = r.ask(tg)
				r.system(g, as)
			case r.job.Array != nil:
				g.Ask = r.ask(tg)
				r.array(g, as)
			default:
				g.Ask = r.ask(tg)
				r.service(g, as)
			}
		}
	}
	desc := descNotNeeded
	if !active {
		desc = descStopped
	}
	for _, name := range model.SortedKeys(byGroup) {
		g := &GroupPlan{Name: name}
		g.Counts.Group = name
		r.Groups = append(r.Groups, g)
		r.stopAll(g, byGroup[name], desc)
	}
}

// where is the state of an allocation's node.
type where uint8

const (
	nodeFine where = iota
	nodeLost
	nodeAway // disconnected, may come back
)

func (r *reconciler) where(a *structs.Allocation) where {
	n := r.view.Node(a.NodeID)
	switch {
	case n == nil || n.Status == structs.NodeDown:
		return nodeLost
	case n.Status == structs.NodeDisconnected:
		return nodeAway
	}
	return nodeFine
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

// service reconciles a group of a service or batch job.
func (r *reconciler) service(g *GroupPlan, as []*structs.Allocation) {
	if g.Tg.Gang != nil {
		r.gang(g, as)
		return
	}
	slots := r.slots(g, as)
	slots = r.dedupe(g, slots)
	// Scale down: keep the lowest indices.
	for len(slots) > max(g.Tg.Most(), 0) {
		s := slots[len(slots)-1]
		slots = slots[:len(slots)-1]
		switch s.kind {
		case slotLive:
			g.Stops = append(g.Stops, StopOf(s.a, descNotNeeded))
			g.Counts.Stop++
		case slotReplace:
			if s.want.Stop != nil {
				g.Stops = append(g.Stops, *s.want.Stop)
				g.Counts.Stop++
			}
		}
	}
	taken := make(map[int]bool, len(slots))
	var stale []*structs.Allocation
	unsettled := 0
	update := r.update(g.Tg)
	for _, s := range slots {
		taken[s.index()] = true
		switch s.kind {
		case slotDone, slotWaiting:
			g.Counts.Ignore++
		case slotReplace:
			g.Wants = append(g.Wants, s.want)
		case slotLive:
			g.Staying = append(g.Staying, s.a)
			switch {
			case !r.older(s.a):
				g.Counts.Ignore++
				if r.unsettled(s.a, update) {
					unsettled++
				}
			case r.inPlace(g, s.a):
				g.Updates = append(g.Updates, structs.PlanUpdate{ID: s.a.ID})
				g.Counts.InPlace++
			default:
				stale = append(stale, s.a)
			}
		}
	}
	r.replace(g, stale, unsettled, update)
	next := 0
	for n := len(slots); n < g.Tg.Most(); n++ {
		for taken[next] {
			next++
		}
		taken[next] = true
		g.Counts.Place++
		if n >= g.Tg.Fewest() {
			g.Expansion = append(g.Expansion, Want{Index: next, Prev: g.former[next]})
			continue
		}
		g.Wants = append(g.Wants, Want{Index: next, Prev: g.former[next]})
	}
	slices.SortStableFunc(g.Wants, func(a, b Want) int { return cmp.Compare(a.Index, b.Index) })
}

func (s *slot) index() int { return s.a.NameIndex }

// slots decides for every allocation whether it fills its index, and how.
func (r *reconciler) slots(g *GroupPlan, as []*structs.Allocation) []slot {
	var out []slot
	for _, a := range as {
		if s, fills := r.slotOf(g, a); fills {
			out = append(out, s)
		}
	}
	return out
}

func (r *reconciler) slotOf(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	batch := r.job.Type == structs.JobBatch || r.job.Type == structs.JobSysBatch
	place := r.where(a)
	replace := func(desc string, st structs.PlanStop, must bool) (slot, bool) {
		st.Desc = desc
		return slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a, Stop: &st, StopAnyway: must, Prefer: r.sticky(g.Tg, a)}}, true
	}
	if s, fills, ok := r.requeue(g, a, place); ok {
		return s, fills
	}
	switch {
	case a.ServerTerminal():
		if !a.ClientTerminal() && place == nodeLost {
			g.Stops = append(g.Stops, lostOf(a))
		}
		if batch && a.DesiredDesc == descMaxRun && !r.older(a) {
			return slot{a: a, kind: slotDone}, true
		}
		if batch && a.Desired == structs.DesiredEvict && !a.ClientTerminal() && place == nodeFine {
			return slot{a: a, kind: slotWaiting}, true // it saves its state; then it returns to the queue
		}
		lost := a.Client == structs.ClientLost && a.DesiredDesc == descLost && a.Next.IsZero() && !r.older(a)
		if lost && !r.force && !a.Transition.ForceReschedule && (g.Tg.PreventLostResch || r.giveUp(a, structs.RequeueNodeLost)) {
			return slot{a: a, kind: slotDone}, true
		}
		if batch && (lost || a.Desired == structs.DesiredEvict && a.ClientTerminal() && a.Next.IsZero() && !r.older(a)) {
			if g.former == nil {
				g.former = make(map[int]*structs.Allocation)
			}
			g.former[a.NameIndex] = a
		}
		return slot{}, false

	case a.Client == structs.ClientComplete:
		if batch && (!r.older(a) || r.sameArray(a)) {
			return slot{a: a, kind: slotDone}, true
		}
		return slot{}, false // a service that ended is started again, under its name

	case a.Client == structs.ClientLost:
		if !a.Next.IsZero() {
			return slot{}, false
		}
		return r.lost(g, a)

	case a.Client == structs.ClientFailed:
		return r.failed(g, a)

	case place == nodeLost:
		return r.lost(g, a)

	case place == nodeAway:
		return r.away(g, a)

	case a.Client == structs.ClientUnknown: // its node is back; the agent has not reported on the allocation yet
		return slot{a: a, kind: slotWaiting}, a.Next.IsZero()

	case r.overtime(g, a):
		g.Stops = append(g.Stops, StopOf(a, descMaxRun))
		g.Counts.Stop++
		if batch {
			return slot{a: a, kind: slotDone}, true
		}
		return slot{}, false

	case a.Transition.Migrate:
		g.Counts.Migrate++
		n := r.view.Node(a.NodeID)
		// A drain with time left keeps the old allocation until there is a place for the new one.
		patient := !a.Transition.Leave && n.Drain != nil && n.Drain.Deadline >= 0 && (n.Drain.ForceAt == 0 || r.now < n.Drain.ForceAt)
		s, ok := replace(descMigrating, StopOf(a, ""), !patient)
		s.want.Avoid = []structs.NodeID{a.NodeID}
		s.want.MayWait = n.Ready() // its stop was requested: the new one may take over its place
		return s, ok

	case a.Transition.Reschedule || a.Transition.ForceReschedule:
		s, ok := replace(descRescheduled, StopOf(a, ""), true)
		r.track(&s.want, g.Tg, a, 0)
		g.Counts.Reschedule++
		return s, ok
	}
	return slot{a: a, kind: slotLive}, true
}

// sticky returns the node whose disk a replacement prefers; zero for none.
func (r *reconciler) sticky(tg *structs.Group, a *structs.Allocation) structs.NodeID {
	if tg.Disk.Sticky {
		return a.NodeID
	}
	return structs.NodeID{}
}

// lost marks an allocation as lost and replaces it.
func (r *reconciler) lost(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	st := lostOf(a)
	if a.ClientTerminal() {
		st.Client = "" // it is marked already
	}
	if r.older(a) && r.job.Type == structs.JobBatch && a.ClientTerminal() {
		return slot{}, false
	}
	forced := r.force || a.Transition.ForceReschedule
	if g.Tg.PreventLostResch && !forced {
		if !a.ClientTerminal() {
			g.Stops = append(g.Stops, st)
			g.Counts.Stop++
		}
		return slot{a: a, kind: slotDone}, true
	}
	if !r.older(a) && r.giveUp(a, structs.RequeueNodeLost) {
		if !a.ClientTerminal() {
			g.Stops = append(g.Stops, st)
			g.Counts.Stop++
		}
		return slot{a: a, kind: slotDone}, true
	}
	g.Counts.Place++
	return slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a, Stop: &st, StopAnyway: true, Prefer: r.sticky(g.Tg, a)}}, true
}

// away handles an allocation whose node is disconnected.
func (r *reconciler) away(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	after := lostAfter(g.Tg)
	if after <= 0 || a.Client == structs.ClientPending {
		return r.lost(g, a)
	}
	replace := g.Tg.Disconnect == nil || g.Tg.Disconnect.Replace == nil || *g.Tg.Disconnect.Replace
	if a.Client == structs.ClientUnknown {
		if a.DisconnectedAt != 0 && r.now >= a.DisconnectedAt.Add(after) {
			if !a.Next.IsZero() {
				g.Stops = append(g.Stops, lostOf(a))
				g.Counts.Stop++
				return slot{}, false
			}
			return r.lost(g, a)
		}
		if a.DisconnectedAt != 0 && (a.FollowupEval.IsZero() || r.answering(a.FollowupEval)) {
			// The evaluation was scheduled for lost_after from the decision; the time counts from when that was
			// committed.
			r.Later = append(r.Later, Later{At: a.DisconnectedAt.Add(after), Trigger: structs.TriggerReconnect, Desc: "a disconnected allocation may be lost", Group: g.Name,
				Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
		}
		return slot{a: a, kind: slotWaiting}, a.Next.IsZero()
	}
	g.Counts.Disconnect++
	mark := structs.PlanStop{ID: a.ID, Desc: descUnknown, Client: structs.ClientUnknown}
	r.Later = append(r.Later, Later{At: r.now.Add(after), Trigger: structs.TriggerReconnect, Desc: "a disconnected allocation may be lost", Group: g.Name, Stops: []structs.PlanStop{mark}})
	if !replace {
		return slot{a: a, kind: slotWaiting}, true
	}
	return slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a}}, true
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
	if !a.Suspended() && (a.FollowupEval.IsZero() || r.answering(a.FollowupEval)) {
		r.Later = append(r.Later, Later{At: end, Trigger: structs.TriggerMaxRun, Desc: "an allocation reaches its wall-clock limit", Group: g.Name,
			Stops: []structs.PlanStop{{ID: a.ID}}})
	}
	return false
}

// failed handles an allocation whose tasks failed: it is replaced now, later or never.
func (r *reconciler) failed(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	if !a.Next.IsZero() {
		return slot{}, false
	}
	st := StopOf(a, descRescheduled)
	now := func(delay time.Duration) (slot, bool) {
		s := slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a, Stop: &st, Prefer: r.sticky(g.Tg, a)}}
		r.track(&s.want, g.Tg, a, delay)
		g.Counts.Reschedule++
		return s, true
	}
	if r.older(a) && !r.sameArray(a) {
		if r.job.Type == structs.JobBatch {
			return slot{}, false // the new version starts without past attempts
		}
		return now(0) // the job was changed, which may have fixed the failure
	}
	if r.force || a.Transition.ForceReschedule {
		return now(0)
	}
	when, delay, may := NextReschedule(&g.Tg.Reschedule, a)
	if !may {
		return slot{a: a, kind: slotDone}, true
	}
	due := r.now
	if !a.FollowupEval.IsZero() && r.answering(a.FollowupEval) {
		due = due.Add(FollowupWindow)
	}
	if when <= due {
		return now(delay)
	}
	g.Counts.Delayed++
	if a.FollowupEval.IsZero() || r.answering(a.FollowupEval) {
		r.Later = append(r.Later, Later{At: when, Trigger: structs.TriggerRetryFailed, Desc: "a failed allocation will be rescheduled", Group: g.Name,
			Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
	}
	return slot{a: a, kind: slotWaiting}, true
}

// answering reports whether the decision answers this evaluation.
func (r *reconciler) answering(id structs.EvalID) bool {
	return slices.ContainsFunc(r.evals, func(e *structs.Evaluation) bool { return e.ID == id })
}

// track gives a want the history of attempts, and makes it avoid the nodes where they failed.
func (r *reconciler) track(w *Want, tg *structs.Group, a *structs.Allocation, delay time.Duration) {
	w.Resched = append(slices.Clone(a.Reschedules), structs.RescheduleEvent{Time: r.now, PrevAlloc: a.ID, PrevNode: a.NodeID, Delay: delay})
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
		for _, e := range a.Reschedules {
			if e.Time > end.Add(-p.Interval) {
				tried++
			}
		}
		if tried >= p.Attempts {
			return 0, 0, false
		}
	}
	delay = nextDelay(p, a.Reschedules, end)
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

// dedupe leaves one slot per index: after a disconnection both the original and its replacement may run.
func (r *reconciler) dedupe(g *GroupPlan, slots []slot) []slot {
	var out []slot
	for i := 0; i < len(slots); {
		j := i + 1
		for j < len(slots) && slots[j].index() == slots[i].index() {
			j++
		}
		same := slots[i:j]
		keep := r.keep(g.Tg, same)
		for k := range same {
			s := &same[k]
			switch {
			case k == keep:
				out = append(out, *s)
			case s.kind == slotLive:
				g.Stops = append(g.Stops, StopOf(s.a, descDuplicate))
				g.Counts.Stop++
			case s.kind == slotReplace && s.want.Stop != nil:
				g.Stops = append(g.Stops, *s.want.Stop)
				g.Counts.Stop++
			}
		}
		if len(same) > 1 {
			g.Counts.Reconnect++
		}
		i = j
	}
	return out
}

// keep chooses which of several allocations of one name stays: one that is done, else one that runs, by the group's
// reconcile strategy, else the one that is closest to running.
func (r *reconciler) keep(tg *structs.Group, same []slot) int {
	if len(same) == 1 {
		return 0
	}
	strategy := "best_score"
	if tg.Disconnect != nil && tg.Disconnect.Reconcile != "" {
		strategy = tg.Disconnect.Reconcile
	}
	rank := func(s *slot) int {
		switch {
		case s.kind == slotDone && s.a.Client == structs.ClientComplete:
			return 0
		case s.kind == slotLive && s.a.Client == structs.ClientRunning && !r.older(s.a):
			return 1
		case s.kind == slotLive && !r.older(s.a):
			return 2
		case s.kind == slotLive:
			return 3
		case s.kind == slotWaiting:
			return 4
		case s.kind == slotReplace:
			return 5
		}
		return 6
	}
	best := 0
	for k := 1; k < len(same); k++ {
		a, b := &same[best], &same[k]
		if x, y := rank(a), rank(b); x != y {
			if y < x {
				best = k
			}
			continue
		}
		switch strategy {
		case "keep_replacement":
			best = k // slots of an index are in the order they were made
		case "longest_running":
			if b.a.StartedAt != 0 && (a.a.StartedAt == 0 || b.a.StartedAt < a.a.StartedAt) {
				best = k
			}
		}
	}
	return best
}

// older reports whether an allocation is of another version (or an earlier registration) of the job.
func (r *reconciler) older(a *structs.Allocation) bool {
	return a.JobVersion != r.job.Version || a.Job != nil && a.Job.CreateIndex != r.job.CreateIndex
}

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
		m = make(map[string]bool)
		if r.changed == nil {
			r.changed = make(map[*structs.Job]map[string]bool)
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

func (r *reconciler) update(tg *structs.Group) *structs.Update {
	u := tg.Update
	if u == nil {
		u = r.job.Update
	}
	if u == nil || u.MaxParallel <= 0 || r.job.Type == structs.JobBatch || r.job.Type == structs.JobSysBatch {
		return nil
	}
	return u
}

// unsettled reports whether an allocation of the new version has not run healthily for long enough yet.
func (r *reconciler) unsettled(a *structs.Allocation, u *structs.Update) bool {
	if u == nil {
		return false
	}
	since := a.StartedAt
	if u.HealthCheck == structs.HealthByChecks && a.Job != nil && a.Job.Group(a.Group).Checked() {
		since = a.HealthySince
	}
	return a.Client == structs.ClientPending || since == 0 || r.now < since.Add(u.MinHealthyTime)
}

// replace replaces allocations of an old version, at most max_parallel at a time, and schedules an evaluation for the
// rest. The old one is stopped in the same part that places the new one.
func (r *reconciler) replace(g *GroupPlan, stale []*structs.Allocation, unsettled int, u *structs.Update) {
	limit := len(stale)
	if u != nil {
		limit = min(limit, max(0, u.MaxParallel-unsettled))
	}
	for _, a := range stale[:limit] {
		st := StopOf(a, descDestructive)
		g.Wants = append(g.Wants, Want{Index: a.NameIndex, Prev: a, Stop: &st, MayWait: true, Stays: true, Prefer: r.sticky(g.Tg, a), Pinned: r.pin(a)})
		g.Counts.Destructive++
	}
	g.Counts.Ignore += int64(len(stale) - limit)
	if limit < len(stale) {
		wait := u.Stagger
		if wait <= 0 {
			wait = rollingWaitDefault
		}
		r.Later = append(r.Later, Later{At: r.now.Add(wait), Trigger: structs.TriggerRollingUpdate, Desc: "a rolling update goes on", Group: g.Name})
	}
}

// pin returns the node that an allocation of a system job must stay on; zero for other jobs.
func (r *reconciler) pin(a *structs.Allocation) structs.NodeID {
	if r.job.Type == structs.JobSystem || r.job.Type == structs.JobSysBatch {
		return a.NodeID
	}
	return structs.NodeID{}
}
