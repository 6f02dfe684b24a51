package duty

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/structs"
)

// Drains moves work off nodes at the pace that its jobs allow. What was asked of an allocation is in the state
// (Transition.Migrate), so a new leader continues where the old one stopped.
//
//	service: at most migrate.max_parallel of a group below its count at a time, over all draining nodes; a replacement
//	         counts from when it is healthy (migrate.health_check, see proven)
//	batch, sysbatch: left to finish, unless none of its tasks has started
//	system: last, when nothing else is left (never with ignore_system_jobs)
//	deadline passed, or force: everything at once
//	work that saves its state in turns (package checkpoint): so early that all of it has had its turn by the deadline
//	nothing left that is not client-terminal: the drain is complete (I7)
type Drains struct {
	nodeWatch
	urged map[structs.NodeID]structs.LogTime // when a node's allocations were last asked again; draining nodes only
}

// drainUrge is the time between two requests to move allocations past a node's deadline.
const drainUrge = 5 * time.Second

// NewDrains returns the duty. Call Load first.
func NewDrains() *Drains {
	return &Drains{nodeWatch: nodeWatch{wanted: func(n *structs.Node) bool { return n.Drain != nil }}}
}

// Load implements Duty.
func (d *Drains) Load(snap *state.Snapshot, now structs.LogTime) {
	d.load(snap, now)
	d.urged = map[structs.NodeID]structs.LogTime{}
}

// Feed implements Duty.
func (d *Drains) Feed(_ *state.Snapshot, delta *structs.Delta, now structs.LogTime) {
	d.feed(delta, now)
}

// Due implements Duty.
func (d *Drains) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	if !d.due(now) {
		return nil, d.look
	}
	act := drainStep(snap, d.nodes, now)
	migrate := act.migrate
	maps.DeleteFunc(d.urged, func(id structs.NodeID, _ structs.LogTime) bool { return act.urge[id] == nil })
	for _, id := range d.nodes { // in order
		if ids := act.urge[id]; ids != nil && (d.urged[id] == 0 || now.Sub(d.urged[id]) >= drainUrge) {
			migrate = append(migrate, ids...)
			d.urged[id] = now
		}
	}
	cmds = slices.Concat(
		transitions("drain", structs.TriggerNodeDrain, migrate, structs.Transition{Migrate: true}),
		transitions("drain", structs.TriggerNodeDrain, act.leave, structs.Transition{Migrate: true, Leave: true}))
	for _, id := range act.complete {
		cmds = append(cmds, Command{Subject: "node " + id.String(), Done: "node drain complete",
			Command: structs.Command{By: structs.Submitter{Name: "drain"}, Body: &structs.NodeDrainCommand{ID: id, Complete: true,
				Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Node drain complete"}}}})
	}
	d.look = act.next
	switch {
	case len(cmds) > 0:
		d.look = earlier(d.look, now.Add(lookPause)) // check the result soon
	case len(act.urge) > 0:
		d.look = earlier(d.look, now.Add(drainUrge))
	}
	return cmds, d.look
}

// drainAction is what to do about the draining nodes.
type drainAction struct {
	migrate  []structs.AllocID                    // in order of node, then id
	leave    []structs.AllocID                    // like migrate, but even if no node has room for them: their turn to save their state has come
	urge     map[structs.NodeID][]structs.AllocID // asked to move before the deadline and still running here
	complete []structs.NodeID
	next     structs.LogTime // when time alone changes the answer; 0: never
}

// drainStep decides about the draining nodes, given in order of ID.
func drainStep(snap *state.Snapshot, nodes []structs.NodeID, now structs.LogTime) drainAction {
	act := drainAction{urge: map[structs.NodeID][]structs.AllocID{}}
	groups := map[groupKey]*groupRoom{}
	leave := checkpoint.LeaveTimes(snap, nodes, now)
	for _, id := range nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Drain == nil {
			continue
		}
		force := n.Drain.Deadline < 0 || n.Drain.ForceAt > 0 && now >= n.Drain.ForceAt
		if !force {
			act.next = earlier(act.next, n.Drain.ForceAt)
		}
		var system []*structs.Allocation
		left := 0 // allocations that keep the drain from completing
		for _, a := range snap.AllocsByNode(id) {
			if a.ClientTerminal() {
				continue
			}
			typ := a.JobType()
			switch {
			case typ == structs.JobSystem:
				if !n.Drain.IgnoreSystemJobs {
					system = append(system, a)
				}
				continue
			case typ == structs.JobSysBatch && n.Drain.IgnoreSystemJobs:
				continue
			}
			left++
			at := leave[a.ID]
			if at > now {
				act.next = earlier(act.next, at)
			}
			switch {
			case a.ServerTerminal(), a.Transition.Leave && !force:
			case at > 0 && at <= now:
				act.leave = append(act.leave, a.ID)
			case a.Transition.Migrate:
				if force { // it found no other place before; the scheduler must look again
					act.urge[id] = append(act.urge[id], a.ID)
				}
			case force:
				act.migrate = append(act.migrate, a.ID)
			case a.Client == structs.ClientPending, typ == structs.JobService && a.Client != structs.ClientRunning:
				act.migrate = append(act.migrate, a.ID) // it is not running, so moving it costs nothing
			case typ != structs.JobService: // left to finish
			default:
				room := roomOf(snap, groups, a, now)
				if room.take() {
					act.migrate = append(act.migrate, a.ID)
				} else {
					act.next = earlier(act.next, room.next)
				}
			}
		}
		if left > 0 && !force {
			continue
		}
		for _, a := range system {
			if !a.Transition.Migrate && !a.ServerTerminal() {
				act.migrate = append(act.migrate, a.ID)
			}
		}
		if left+len(system) == 0 {
			act.complete = append(act.complete, id)
		}
	}
	return act
}

type groupKey struct {
	job   structs.JobKey
	group structs.GroupName
}

// groupRoom is the number of running allocations of a group that may be moved now.
type groupRoom struct {
	left int
	next structs.LogTime // when time alone may raise left; 0: never
}

func (r *groupRoom) take() bool {
	r.left--
	return r.left >= 0
}

// roomOf counts the healthy allocations of a group that are not asked to move, once for each group and look. Those
// above count - max_parallel may be moved.
func roomOf(snap *state.Snapshot, groups map[groupKey]*groupRoom, a *structs.Allocation, now structs.LogTime) *groupRoom {
	key := groupKey{a.JobKey(), a.Group}
	if r := groups[key]; r != nil {
		return r
	}
	r := &groupRoom{}
	groups[key] = r
	job := snap.JobByKey(a.JobKey())
	if job == nil {
		job = a.Job
	}
	var g *structs.Group
	if job != nil {
		g = job.Group(a.Group)
	}
	if g == nil || job.Stop {
		r.left = 1 << 30 // the job is over or has no such group: any may go
		return r
	}
	parallel := 1
	if g.Migrate != nil && g.Migrate.MaxParallel > 0 {
		parallel = g.Migrate.MaxParallel
	}
	healthy := 0
	for _, o := range snap.AllocsByJob(a.JobKey()) {
		if o.Group != a.Group || o.ClientTerminal() || o.Desired != structs.DesiredRun || o.Transition.Migrate {
			continue
		}
		ok, at := proven(o, g.Migrate, now)
		if ok {
			healthy++
		} else {
			r.next = earlier(r.next, at)
		}
	}
	r.left = healthy - max(g.Count-parallel, 0)
	return r
}

// proven reports whether an allocation counts as healthy for its group in a drain. It counts when it has been healthy
// for min_healthy_time, by the checks of its services or by its tasks' states. It also counts after healthy_deadline,
// because an allocation that never becomes healthy must not hold a drain up for ever. next is when time alone may
// change the answer; 0 is never.
func proven(a *structs.Allocation, m *structs.Migrate, now structs.LogTime) (ok bool, next structs.LogTime) {
	if m == nil || a.Client == structs.ClientUnknown { // out of touch: its replacement counts, or it does once it is back
		return a.Client == structs.ClientRunning, 0
	}
	if m.HealthyDeadline > 0 {
		if next = a.CreateTime.Add(m.HealthyDeadline); now >= next {
			return true, 0
		}
	}
	if a.Client != structs.ClientRunning {
		return false, next
	}
	since := a.SteadySince()
	if since > 0 && m.HealthCheck == structs.HealthByChecks && a.Job != nil && a.Job.Group(a.Group).Checked() {
		since = a.HealthySince
	}
	if since == 0 {
		return false, next
	}
	at := since.Add(m.MinHealthyTime)
	if now >= at {
		return true, 0
	}
	return false, earlier(next, at)
}
