// Package drain decides what leaves draining nodes, and when. The leader's duty (package duty) and the simulator ask it.
package drain

import (
	"time"

	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/structs"
)

// Cluster is what drains follow from: a state (state.Snapshot), or the cluster of the simulator.
type Cluster interface {
	checkpoint.Cluster
	JobByKey(key structs.JobKey) *structs.Job
}

// Decider decides about draining nodes. What was asked of an allocation is in the cluster (Transition.Migrate), so a new
// Decider continues where an old one stopped.
//
//	service: at most migrate.max_parallel of a group below its count at a time, over all draining nodes; a replacement
//	         counts from when it is healthy (migrate.health_check, see proven)
//	batch, sysbatch: left to finish, unless none of its tasks has started
//	system: last, when nothing else is left (never with ignore_system_jobs)
//	deadline passed, or force: everything at once
//	work that saves its state in turns (package checkpoint): so early that all of it has had its turn by the deadline
//	nothing left that is not client-terminal: the drain is complete (I7)
type Decider struct {
	urged map[structs.NodeID]structs.LogTime // when a node's allocations were last asked again; draining nodes only
}

// Action is what to do about the draining nodes.
type Action struct {
	Migrate  []structs.AllocID // in order of node, then id
	Leave    []structs.AllocID // like Migrate, but even if no node has room for them: their turn to save their state has come
	Complete []structs.NodeID  // drains that are complete
	Next     structs.LogTime   // when time alone may change the answer; 0: never
}

// urge is the time between two requests to move allocations past a node's deadline.
const urge = 5 * time.Second

// Decide decides about the draining nodes, given in order of ID. It assumes that what it asks for is done.
func (d *Decider) Decide(c Cluster, nodes []structs.NodeID, now structs.LogTime) Action {
	act, again := step(c, nodes, now)
	urged := make(map[structs.NodeID]structs.LogTime, len(again))
	for _, id := range nodes { // in order
		ids := again[id]
		if ids == nil {
			continue
		}
		if urged[id] = d.urged[id]; urged[id] == 0 || now.Sub(urged[id]) >= urge {
			act.Migrate = append(act.Migrate, ids...)
			urged[id] = now
		}
	}
	if d.urged = urged; len(urged) > 0 {
		act.Next = earlier(act.Next, now.Add(urge))
	}
	return act
}

// maintenanceWithin limits how long work may take to leave a node under maintenance.
const maintenanceWithin = time.Hour

// Maintenance returns the time that work has to leave the nodes of a maintenance.
func Maintenance(r *structs.Reservation) time.Duration {
	return max(min(maintenanceWithin, r.End.Sub(r.Start)/2), time.Second)
}

// earlier returns the earlier of two times, where 0 is never.
func earlier(a, b structs.LogTime) structs.LogTime {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// step decides about the draining nodes. again are the allocations, by node, that were asked to move before the deadline and still run.
func step(c Cluster, nodes []structs.NodeID, now structs.LogTime) (act Action, again map[structs.NodeID][]structs.AllocID) {
	again = map[structs.NodeID][]structs.AllocID{}
	groups := map[groupKey]*groupRoom{}
	leave := checkpoint.LeaveTimes(c, nodes, now)
	for _, id := range nodes {
		n := c.NodeByID(id)
		if n == nil || n.Drain == nil {
			continue
		}
		force := n.Drain.Deadline < 0 || n.Drain.ForceAt > 0 && now >= n.Drain.ForceAt
		if !force {
			act.Next = earlier(act.Next, n.Drain.ForceAt)
		}
		var system []*structs.Allocation
		left := 0 // allocations that keep the drain from completing
		for _, a := range c.AllocsByNode(id) {
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
				act.Next = earlier(act.Next, at)
			}
			switch {
			case a.ServerTerminal(), a.Transition.Leave && !force:
			case at > 0 && at <= now:
				act.Leave = append(act.Leave, a.ID)
			case a.Transition.Migrate:
				if force { // it found no other place before; the scheduler must look again
					again[id] = append(again[id], a.ID)
				}
			case force:
				act.Migrate = append(act.Migrate, a.ID)
			case a.Client == structs.ClientPending, typ == structs.JobService && a.Client != structs.ClientRunning:
				act.Migrate = append(act.Migrate, a.ID) // it is not running, so moving it costs nothing
			case typ != structs.JobService: // left to finish
			default:
				room := roomOf(c, groups, a, now)
				if room.take() {
					act.Migrate = append(act.Migrate, a.ID)
				} else {
					act.Next = earlier(act.Next, room.next)
				}
			}
		}
		if left > 0 && !force {
			continue
		}
		for _, a := range system {
			if !a.Transition.Migrate && !a.ServerTerminal() {
				act.Migrate = append(act.Migrate, a.ID)
			}
		}
		if left+len(system) == 0 {
			act.Complete = append(act.Complete, id)
		}
	}
	return act, again
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
func roomOf(c Cluster, groups map[groupKey]*groupRoom, a *structs.Allocation, now structs.LogTime) *groupRoom {
	key := groupKey{a.JobKey(), a.Group}
	if r := groups[key]; r != nil {
		return r
	}
	r := &groupRoom{}
	groups[key] = r
	job := c.JobByKey(a.JobKey())
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
	for _, o := range c.AllocsByJob(a.JobKey()) {
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
