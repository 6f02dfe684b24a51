package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Drains move work off nodes at the pace that the jobs allow. What has been asked is in the state (Transition.Migrate),
// so a new leader goes on where the old one stopped. The decision is drainStep, a pure function of state and time; the
// service around it writes what it says and waits for the state to change.
//
//	service: at most migrate.max_parallel of a group below its count at a time, over all draining nodes; what has come
//	         in place of others counts from when it is well (migrate.health_check, proven below)
//	batch, sysbatch: left to finish, unless nothing of it has been started yet
//	system: last, when nothing else is left (never with ignore_system_jobs)
//	deadline passed, or force: everything at once
//	what saves its state in turns (saving.go): so early that all have had their turn by the deadline
//	nothing left that is not client-terminal: the drain is complete (I7)

// Limits of the drain service.
const (
	drainBatch    = 2000                  // allocations in one command: 32 KiB of ids
	drainInterval = 20 * time.Millisecond // between two looks at a busy state
	drainUrge     = 5 * time.Second       // between two reminders that a deadline has passed
)

// drainAction is what a look at the state calls for.
type drainAction struct {
	migrate  []structs.AllocID                    // in order of node, then id
	leave    []structs.AllocID                    // the same, whether or not there is a place for them: they have to save their state in turns (saving.go)
	urge     map[structs.NodeID][]structs.AllocID // asked to move before the deadline, and still wanted where they are
	complete []structs.NodeID
	next     structs.LogTime // when a deadline passes; 0 for none
}

// drainStep decides about the draining nodes, given in order of id.
func drainStep(snap *state.Snapshot, nodes []structs.NodeID, now structs.LogTime) drainAction {
	var act drainAction
	groups := map[groupKey]*groupRoom{}
	leave := leaveTimes(snap, nodes, now)
	for _, id := range nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Drain == nil {
			continue
		}
		force := n.Drain.Deadline < 0 || n.Drain.ForceAt > 0 && now >= n.Drain.ForceAt
		if !force && n.Drain.ForceAt > 0 && (act.next == 0 || n.Drain.ForceAt < act.next) {
			act.next = n.Drain.ForceAt
		}
		var system []*structs.Allocation
		left := 0 // that hold the drain up
		for _, a := range snap.AllocsByNode(id) {
			if a.ClientTerminal() {
				continue
			}
			kind := jobType(a)
			if kind == structs.JobSystem {
				if !n.Drain.IgnoreSystemJobs {
					system = append(system, a)
				}
				continue
			}
			if kind == structs.JobSysBatch && n.Drain.IgnoreSystemJobs {
				continue
			}
			left++
			at := leave[a.ID]
			if at > now && (act.next == 0 || at < act.next) {
				act.next = at
			}
			switch {
			case a.ServerTerminal(), a.Transition.Leave && !force:
			case at > 0 && at <= now:
				act.leave = append(act.leave, a.ID)
			case a.Transition.Migrate:
				if force { // what had no other place keeps its own until now; the scheduler has to look again
					if act.urge == nil {
						act.urge = map[structs.NodeID][]structs.AllocID{}
					}
					act.urge[id] = append(act.urge[id], a.ID)
				}
			case force:
				act.migrate = append(act.migrate, a.ID)
			case a.Client == structs.ClientPending, kind == structs.JobService && a.Client != structs.ClientRunning:
				act.migrate = append(act.migrate, a.ID) // moving it makes nothing worse
			case kind != structs.JobService: // left to finish
			default:
				room := roomOf(snap, groups, a, now)
				if room.take() {
					act.migrate = append(act.migrate, a.ID)
				} else if room.next > 0 && (act.next == 0 || room.next < act.next) {
					act.next = room.next
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

func jobType(a *structs.Allocation) structs.JobType {
	if a.Job == nil {
		return structs.JobService
	}
	return a.Job.Type
}

type groupKey struct {
	job   structs.JobKey
	group string
}

// groupRoom is how many running allocations of a group may be taken away now.
type groupRoom struct {
	left int
	next structs.LogTime // when there may be more without a change of the state; 0: never
}

func (r *groupRoom) take() bool {
	r.left--
	return r.left >= 0
}

// roomOf counts, once per group and look, what is well and is not about to go: so many above count - max_parallel may go.
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
		r.left = 1 << 30 // nothing wants it to stay
		return r
	}
	parallel := 1
	if g.Migrate != nil && g.Migrate.MaxParallel > 0 {
		parallel = g.Migrate.MaxParallel
	}
	well := 0
	for _, o := range snap.AllocsByJob(a.JobKey()) {
		if o.Group != a.Group || o.ClientTerminal() || o.Desired != structs.DesiredRun || o.Transition.Migrate {
			continue
		}
		ok, at := proven(o, g.Migrate, now)
		if ok {
			well++
		} else if at > 0 && (r.next == 0 || at < r.next) {
			r.next = at
		}
	}
	r.left = well - max(g.Count-parallel, 0)
	return r
}

// proven reports whether an allocation counts for its group in a drain: it has been well for min_healthy_time, by the checks
// of its services or by the states of its tasks, or it has had healthy_deadline to become so. One that never becomes well
// must not hold a drain up for ever, so after that it counts as if it were; next is when time alone may change the answer.
func proven(a *structs.Allocation, m *structs.Migrate, now structs.LogTime) (ok bool, next structs.LogTime) {
	if m == nil || a.Client == structs.ClientUnknown { // out of touch: what has come in its place counts, or it will again when it is back
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
	since := steadySince(a)
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
	if next == 0 || at < next {
		next = at
	}
	return false, next
}

// steadySince is when the last of the tasks that run has started; 0 while one has failed or waits to be started again.
func steadySince(a *structs.Allocation) structs.LogTime {
	since := a.StartedAt
	for _, t := range a.TaskStates {
		switch {
		case t.State == "running":
			since = max(since, t.StartedAt)
		case t.State == "dead" && t.Failed, t.State == "pending" && t.Restarts > 0:
			return 0
		}
	}
	return since
}

// runDrains is the service.
func (s *Server) runDrains(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("drains", 256)
	defer s.Unsubscribe(sub)
	draining := drainingNodes(s.Published().Snapshot)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	look := true
	deadline := structs.LogTime(0)          // the next one that passes; 0 for none
	var again time.Time                     // when to look next whatever happens; zero for never
	urged := map[structs.NodeID]time.Time{} // when a node's allocations were last urged; draining nodes only
	for {
		if look && len(draining) > 0 {
			p := s.Published()
			act := drainStep(p.Snapshot, draining, s.logNow())
			deadline, again = act.next, time.Time{}
			maps.DeleteFunc(urged, func(id structs.NodeID, _ time.Time) bool { return act.urge[id] == nil })
			for _, id := range slices.SortedFunc(maps.Keys(act.urge), func(a, b structs.NodeID) int { return slices.Compare(a[:], b[:]) }) {
				if time.Since(urged[id]) >= drainUrge {
					act.migrate = append(act.migrate, act.urge[id]...)
					urged[id] = time.Now()
				}
			}
			wrote, err := s.drain(ctx, &act)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.log.Warn("drain", "error", err)
				again = time.Now().Add(time.Second)
			case wrote:
				again = time.Now().Add(drainInterval) // look at what came of it
			case len(act.urge) > 0:
				again = time.Now().Add(drainUrge)
			}
		}
		look = false
		wait := time.Hour
		if deadline > 0 {
			wait = deadline.Sub(s.logNow())
		}
		if !again.IsZero() {
			wait = min(wait, time.Until(again))
		}
		timer.Reset(max(wait, time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			look = true
		case <-sub.Wake():
			draining, look = nodeNews(sub, draining, drainingNodes, drains)
			if look && len(draining) > 0 && !pause(ctx, drainInterval) { // a busy cluster changes all the time
				return nil
			}
		}
	}
}

func drainingNodes(snap *state.Snapshot) []structs.NodeID {
	var ids []structs.NodeID
	for n := range snap.Nodes() {
		if n.Drain != nil {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

func drains(n *structs.Node) bool { return n != nil && n.Drain != nil }

// nodeNews takes in what was published for a service that watches some nodes: all lists them from scratch, wanted says which
// they are. It tells whether anything that the service looks at may have changed.
func nodeNews(sub *Subscription, ids []structs.NodeID, all func(*state.Snapshot) []structs.NodeID, wanted func(*structs.Node) bool) (_ []structs.NodeID, look bool) {
	for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
		if a.Lost || a.Delta.Restored {
			ids, look = all(a.Snapshot), true
			continue
		}
		for i := range a.Delta.Nodes {
			c := &a.Delta.Nodes[i]
			ids, look = followNode(ids, c, wanted(c.After)), true
		}
		look = look || len(ids) > 0 && len(a.Delta.Allocs) > 0
	}
	return ids, look
}

// followNode keeps a sorted list of nodes: one that changed is in it if it is wanted.
func followNode(ids []structs.NodeID, c *structs.Changed[structs.Node], want bool) []structs.NodeID {
	n := c.After
	if n == nil {
		n = c.Before
	}
	i, have := slices.BinarySearchFunc(ids, n.ID, func(a, b structs.NodeID) int { return slices.Compare(a[:], b[:]) })
	switch {
	case want && !have:
		return slices.Insert(ids, i, n.ID)
	case !want && have:
		return slices.Delete(ids, i, i+1)
	}
	return ids
}

// migrate asks for other places for allocations.
func (s *Server) migrate(ctx context.Context, by string, ids []structs.AllocID, how structs.Transition) error {
	for part := range slices.Chunk(ids, drainBatch) {
		_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: structs.Submitter{Name: by},
			Body: &structs.AllocTransitionCommand{IDs: part, Transition: how, Trigger: structs.TriggerNodeDrain}})
		if err != nil && structs.CodeOf(err) != structs.CodeNotFound {
			return err
		}
	}
	return nil
}

// drain writes what a look decided, and waits for it to be applied, so that the next look sees it.
func (s *Server) drain(ctx context.Context, act *drainAction) (wrote bool, err error) {
	by := structs.Submitter{Name: "drain"}
	wrote = len(act.migrate)+len(act.leave) > 0
	if err := s.migrate(ctx, by.Name, act.migrate, structs.Transition{Migrate: true}); err != nil {
		return true, err
	}
	if err := s.migrate(ctx, by.Name, act.leave, structs.Transition{Migrate: true, Leave: true}); err != nil {
		return true, err
	}
	for _, id := range act.complete {
		_, err = s.ApplyLane(ctx, LanePriority, structs.Command{By: by,
			Body: &structs.NodeDrainCommand{ID: id, Complete: true, Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Node drain complete"}}})
		if err != nil && structs.CodeOf(err) != structs.CodeNotFound {
			return true, err
		}
		s.log.Info("node drain complete", "node", id)
		wrote = true
	}
	return wrote, nil
}
