package scheduler

import (
	"slices"
	"strconv"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// env is what the decisions of a pass share.
type env struct {
	in           *Input
	w            *search.Pass
	noFit        *search.NoFit
	reservations *contend.Reservations
	pre          *contend.Preemption // nil: no work is preempted
	limits       *contend.Limits     // nil: there are no limits
	setAside     *contend.SetAside   // nil: no amounts are set aside
	contests     *contend.Contests   // nil: running work does not compete

	// closed is what groups do without where limits are nil: see decision.closedModels.
	closed map[structs.GroupName][]match.Closed
}

// decision is the work on one workload of a pass.
type decision struct {
	env
	load      *contend.Workload
	policy    search.Policy
	eval      *structs.Evaluation // the one that the decision answers
	start     structs.NodeID      // Cursor when the decision began
	cursor    structs.NodeID
	steps     int
	work      *reconcile.Work
	groups    []*groupWork
	placed    placements
	misses    map[structs.GroupName]int64 // per group: wants without a place
	reserved  *structs.Reservation        // what the pass reserves for the workload, or nil
	charges   contend.Charges             // for what is placed, by the rows of limits
	amount    contend.PlacedAmount        // what is placed, for amounts set aside
	counted   structs.Amount              // of what is placed: what preemption by shares counts already
	growsAt   structs.LogTime             // when a gang that was resized recently, or whose room became free recently, may grow; 0: none waits for that
	overBound bool                        // not tried: see contend.Reservations.OverBound
	entries   []*structs.PlanEntry

	movesGroups []*structs.Group // see movesAlong
	movesKnown  bool

	report WorkloadReport
}

// placement is a want with the place that was found for it.
type placement struct {
	contend.Place
	g     *groupWork
	want  *reconcile.Want
	alone bool // not part of a gang's minimum
}

func newPlacement(g *groupWork, w *reconcile.Want, at search.Placement) placement {
	return placement{g: g, want: w, Place: contend.Place{Group: g.Tg, At: at}}
}

// placements implements contend.Placed.
type placements []placement

func (p *placements) Len() int { return len(*p) }

func (p *placements) Held(i int) *model.Held { return (*p)[i].At.Held }

// add adds a placement. A policy that rotates continues after its node.
func (d *decision) add(p placement) {
	d.placed = append(d.placed, p)
	d.cursor = p.At.Node.ID
}

func newDecision(e env, load *contend.Workload, p search.Policy, cursor structs.NodeID) *decision {
	if forJob := p.Capabilities().ForJob; forJob != nil {
		p = forJob(load.Job)
	}
	d := &decision{env: e, load: load, policy: p, start: cursor, cursor: cursor, misses: make(map[structs.GroupName]int64)}
	d.report.Key = load.Key
	d.eval = load.Blocked
	if n := len(load.Evals); n > 0 {
		d.eval = load.Evals[n-1]
	}
	if d.eval != nil {
		d.report.EvalID = d.eval.ID
	}
	return d
}

// done releases the memory of the decision for reuse, once its entries are made.
func (d *decision) done() {
	d.closeSearches()
	if len(d.placed) > 0 || d.reserved != nil {
		return // their wants may still be referenced
	}
	for _, g := range d.groups {
		if g.Gang {
			reconcile.KeepWants(g.Wants)
			g.Wants = nil
		}
	}
}

// noFitKey returns the key of a group in the no-fit cache, or "". While something is reserved, the group's possible
// places also depend on how long it will run.
func (d *decision) noFitKey(g *groupWork) string {
	if !g.noFitKeyed {
		g.noFitKey, g.noFitKeyed = g.feasibilityKey(d.load.Job), true
	}
	key := g.noFitKey
	if key != "" && d.w.AnyShy() {
		return "" // which jobs keep away from each other depends on their names
	}
	if key != "" && d.limits.ByModel() {
		key += d.limits.Rooms(d.load, d.charges.CountModels(d.load, &d.placed))
	}
	if key == "" || !d.reservations.Keeps() && d.setAside == nil {
		return key
	}
	if len(d.reservations.Windows) > 0 || d.setAside != nil {
		return "" // and on the job's queue and user
	}
	return key + strconv.FormatInt(int64(d.load.EndOf(g.Tg, d.in.Now)), 36)
}

// feasibilityKey is equal for groups that are feasible on the same nodes. It is "" for a group whose search depends on
// where its job's allocations are.
func (g *groupWork) feasibilityKey(job *structs.Job) string {
	a := g.Ask
	if a.DistinctHostsJob || a.DistinctHostsGroup || len(a.Distinct) > 0 || len(model.PeersOf(a.Job, a.Tg)) > 0 ||
		slices.ContainsFunc(g.Wants, func(w reconcile.Want) bool { return w.MayWait || !w.Pinned.IsZero() }) {
		return ""
	}
	type taskKey struct {
		Driver      string
		Constraints []structs.Constraint
		Cores       int64
		Devices     []structs.DeviceRequest
		GPU         []structs.GPURequest
		RDMA        bool
		NUMA        *structs.NUMA
	}
	if g.Gang && (a.Shares && len(g.Staying) > 0 || len(g.ban(job)) > 0) {
		return ""
	}
	members := 1
	if t := g.Tg.Topology; t != nil && t.Across != "" && len(g.Staying) > 0 && (g.Gang || t.Mode == structs.TopologyRequired) {
		return "" // where it may go depends on where it is
	}
	if g.Gang {
		members = len(g.Wants)
	}
	if b := a.PlainKey(members); b != nil {
		return string(b)
	}
	key := struct {
		Members     int
		Topology    *structs.Topology
		Pool        structs.PoolName
		Datacenters []string
		Need        structs.Vector
		Job, Group  []structs.Constraint
		Networks    []structs.Network
		Volumes     []structs.VolumeRequest
		Tasks       []taskKey
		Tolerations []structs.Toleration
	}{members, g.Tg.Topology, job.NodePool, job.Datacenters, a.Need, job.Constraints, g.Tg.Constraints, g.Tg.Networks, g.Tg.Volumes, nil, job.Tolerations}
	for _, t := range g.Tg.Tasks {
		key.Tasks = append(key.Tasks, taskKey{t.Driver, t.Constraints, t.Resources.Cores, t.Resources.Devices, t.Resources.GPU, t.Resources.RDMA, t.Resources.NUMA})
	}
	return string(pack.Append(nil, &key))
}

// weightsFor returns the configured weights for a job: its own, then its pool's, then the cluster's.
func weightsFor(in *Input, j *structs.Job) structs.ScoreWeights {
	w := in.Config.Weights
	if j == nil {
		return w
	}
	pool := j.NodePool
	if pool == "" {
		pool = structs.NodePoolDefault
	}
	if p := in.View.Pool(pool); p != nil {
		w = w.Over(p.Weights)
	}
	return w.Over(j.Weights)
}

// continueStarts schedules the next decision about groups of which more is to be started, if all that was wanted now was
// placed. Otherwise the rest waits, too.
func (d *decision) continueStarts() {
	for _, g := range d.groups {
		later := reconcile.Later{At: d.in.Now, Trigger: structs.TriggerQueued, Desc: "further allocations may start", Group: g.Name}
		if d.load.Job != nil && d.load.Job.Array != nil {
			later.Trigger, later.Desc = structs.TriggerArray, "further indices of an array may start"
		}
		switch {
		case g.More == 0:
		case d.misses[g.Name] > 0:
			d.misses[g.Name] += g.More
			g.Missed = g.More
		case !g.Capped:
			d.work.Later = append(d.work.Later, later)
		}
	}
}

// home returns the place of a level with members of the group that stay, or -1.
func (g *groupWork) home(w *search.Pass, l *model.Level) int32 {
	for _, a := range g.Staying {
		if row := w.View.Row(a.NodeID); row >= 0 && !slices.ContainsFunc(g.Wants, func(x reconcile.Want) bool { return x.Prev == a }) {
			return l.Place(row)
		}
	}
	return -1
}

// ban lists nodes that the group must not use.
func (g *groupWork) ban(job *structs.Job) []structs.NodeID {
	if g.Roster == nil || job.Requeue == nil || !job.Requeue.AvoidFailedNodes {
		return nil
	}
	return g.Roster.AvoidNodes
}

// gangReport adds to a report what a gang lacks.
func (d *decision) gangReport(g *groupWork, r *structs.GroupReport) {
	if g.deferredExpansion > 0 && g.resize != nil {
		r.Code, r.Refusals = structs.ReasonPriority, g.resize.Refusals(g.deferredExpansion, g.unplacedExpansion, d.in.OldEvents)
		return
	}
	if g.deferredExpansion+g.unplacedExpansion > 0 && r.Placed+g.deferredExpansion+g.unplacedExpansion+g.standbysMissing >= r.Wanted {
		x := structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionGrowth}, Short: g.deferredExpansion + g.unplacedExpansion, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped}
		if g.deferredExpansion > 0 {
			x.Code, x.CuredBy = structs.ReasonPriority, structs.EventNone // others come first; any event may end the wait
			r.Refusals = nil
			if g.growsAt > 0 {
				x.Code, x.CuredBy, x.Detail = structs.ReasonBeginTime, structs.EventTime, clock(g.growsAt)
			}
		}
		r.Code, r.Refusals = x.Code, append([]structs.Refusal{x}, r.Refusals...)
		return
	}
	if g.standbysMissing > 0 && r.Placed+g.standbysMissing >= r.Wanted {
		x := structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionStandbys}, Short: g.standbysMissing, Unit: structs.UnitStandbys, CuredBy: structs.EventAllocStopped}
		r.Code, r.Refusals = x.Code, append([]structs.Refusal{x}, r.Refusals...)
		return
	}
	need := int64(len(g.Wants))
	if r.Placed >= r.Wanted || need == 0 || g.search == nil || g.search.GivenBack != "" || !g.Gang && g.search.Short == "" {
		return
	}
	if need == 1 && (g.Tg.Gang == nil || g.Tg.Count == 1 && g.Tg.Standbys() == 0) && g.search.Short == "" {
		return // the only allocation of a joint group, or a gang of one
	}
	s, what := g.search, structs.DimensionMembers
	if slices.ContainsFunc(g.Wants, func(w reconcile.Want) bool { return w.Standby }) {
		what = structs.DimensionMembersStandbys
	}
	x := structs.Refusal{Code: structs.ReasonGang, Obstacle: structs.Obstacle{Dimension: what, Count: min(s.Found, need), Of: need}, Short: need - s.Found, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped}
	if s.Short != "" {
		x.Code = structs.ReasonTopology
		x.Detail = s.Short
		if s.Short != model.LevelNode {
			x.Subject = s.ShortAt
		}
	}
	switch r.Code {
	case structs.ReasonConstraint, structs.ReasonDriver, structs.ReasonDeviceUnhealthy, structs.ReasonNodeIneligible, structs.ReasonTopology:
		if s.Found == 0 && s.Short == "" {
			return // no member finds a place, so the gang does not just lack some members
		}
	}
	r.Code = x.Code
	r.Refusals = append([]structs.Refusal{x}, r.Refusals...)
}

// placedAmount returns what the decision has placed, less what it replaces.
func (d *decision) placedAmount() structs.Amount {
	var sum structs.Amount
	var bill *structs.Billing
	if len(d.placed) > 0 {
		bill = d.in.Queues.Billing(d.load.QueueName())
	}
	for i := range d.placed {
		pl := &d.placed[i]
		sum = sum.Add(pl.At.Held.Amount())
		if bill != nil {
			sum.Billed += bill.Of(pl.At.Held.Alloc())
		}
		if pl.want.Prev != nil && structs.Holds(pl.want.Prev) {
			sum = sum.Sub(structs.AmountOf(pl.want.Prev))
			sum.Billed -= bill.Of(pl.want.Prev)
		}
	}
	return sum
}
