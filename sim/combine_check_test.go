package sim

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// checks are what must hold in every history. They count with code of their own: the engine's records of jobs and
// allocations, never what the scheduler derives from them.
type checks struct {
	h *history
	e *Engine
	*histories.Judge
	ended  map[structs.JobKey]bool
	at     structs.LogTime
	passes int                                // at this instant
	trace  func(format string, args ...any)   // nil: passes are not logged
	end    time.Duration                      // the last submission
	work   time.Duration                      // of all jobs, one after the other
	starts []structs.JobKey                   // predicted by Forecast, and still to come
	forced map[structs.NodeID]structs.LogTime // drains whose deadline came while work ran there
	savers savers
}

func (c *checks) begin(h *history) {
	*c = checks{h: h, ended: map[structs.JobKey]bool{}, forced: map[structs.NodeID]structs.LogTime{}, savers: savers{began: map[*run]bool{}}, Judge: histories.NewJudge(h.cfg.Queues, &h.cfg.Scheduler, c.failf)}
	h.cfg.Line = c.line
	h.cfg.Hooks.Passed = c.passed
	h.cfg.Hooks.Ended = c.endedJob
	h.cfg.Hooks.Event = c.event
}

// violation is what ends a history.
type violation struct{ error }

// failf ends the history with its first violation.
func (c *checks) failf(format string, args ...any) {
	panic(violation{fmt.Errorf("at %v: %s", Since(c.e.now), fmt.Sprintf(format, args...))})
}

// run replays the history and returns what is wrong with it.
func (h *history) run(ctx context.Context) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			err = v.error
		default:
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	c := &h.checks
	for _, j := range h.jobs {
		c.end = max(c.end, j.At)
		c.work += max(j.Run, time.Minute) * time.Duration(j.Job.Groups[0].Count)
	}
	c.e = NewEngine(h.cfg)
	err = c.e.Run(ctx)
	c.Counts["drains ended"] += int(c.e.stats.Drained)
	if err == nil && c.e.stats.Left > 0 {
		err = fmt.Errorf("%d jobs are never served: %v", c.e.stats.Left, c.left())
	}
	return err
}

// left lists the jobs in the system.
func (c *checks) left() (out []string) {
	c.e.Jobs(func(l *Live) { out = append(out, fmt.Sprintf("%s (%s)", l.Key.ID, l.reason)) })
	slices.Sort(out)
	return out
}

// event ends a history that continues although all jobs would have been served one after the other. It lets
// elastic work look for more or fewer members when something ended, as a server does.
func (c *checks) event(e *Engine, k Kind, _ *Live) {
	if k == Submitted {
		c.starts = nil // a forecast does not know of it
	}
	c.draining()
	c.saving()
	if Since(e.now) > c.end+4*c.work+48*time.Hour {
		c.failf("jobs are not served: %v", c.left())
	}
	if k != Ended || c.h.is["work"] != "elastic" && c.h.is["work"] != "mixed" {
		return
	}
	for l := e.holders; l != nil; l = l.nextHolder {
		if l.Job.Job.Groups[0].Elastic != nil {
			e.ask(l, structs.TriggerAllocStop)
		}
	}
}

// endedJob checks that a job that ended has done all of its work, however often it moved or started again.
func (c *checks) endedJob(e *Engine, l *Live) {
	c.ended[l.Key] = true
	if ran := l.Ran(e.now); ran < l.Run {
		c.failf("%s ended after running for %v of %v", l.Key.ID, ran, l.Run)
	}
}

// draining checks that nothing is left on a node after the deadline of its drain, or after the saves that begin then: nothing else takes
// time to stop.
func (c *checks) draining() {
	ends := time.Duration(0)
	if c.h.cfg.Notice {
		ends = savingTakes
	}
	for i := range c.e.nodes {
		n := &c.e.nodes[i]
		if d := n.node.Drain; d != nil && d.ForceAt > 0 && c.e.now == d.ForceAt && len(n.list) > 0 && c.forced[n.node.ID] != d.ForceAt {
			c.forced[n.node.ID] = d.ForceAt
			c.Counts["drains with work at their deadline"]++
		}
		switch d := n.node.Drain; {
		case d == nil || d.ForceAt == 0 || c.e.now <= d.ForceAt.Add(ends):
		case len(n.list) > 0:
			c.failf("%s of %s runs on node %s, which had to be empty at %v", n.list[0].alloc.ID.Short(), n.list[0].live.Key.ID, n.node.Name, Since(d.ForceAt))
		default:
			c.failf("node %s has been empty since %v, and drains", n.node.Name, Since(d.ForceAt))
		}
	}
}

// others answers what dependencies ask.
type others struct{ c *checks }

func (o others) JobByKey(k structs.JobKey) *structs.Job {
	l := o.c.e.live[k]
	switch {
	case l == nil && o.c.ended[k]:
		return &structs.Job{Namespace: k.Namespace, ID: k.ID, Type: structs.JobBatch, Status: structs.JobDead}
	case l == nil:
		return &structs.Job{Namespace: k.Namespace, ID: k.ID, Type: structs.JobBatch, Status: structs.JobPending}
	}
	j := *l.Job.Job
	j.Status = structs.JobPending
	if l.Start != 0 {
		j.Status = structs.JobRunning
	}
	return &j
}

func (o others) AllocsByJob(k structs.JobKey) []*structs.Allocation {
	if l := o.c.e.live[k]; l != nil {
		return l.work.Allocs
	}
	return nil
}

func (others) RostersByJob(structs.JobKey) []*structs.Roster { return nil }
func (o others) LastRecord(k structs.JobKey) *structs.AcctRecord {
	if !o.c.ended[k] {
		return nil
	}
	return &structs.AcctRecord{Namespace: k.Namespace, JobID: k.ID, Type: structs.JobBatch, Start: Epoch, End: o.c.e.now, Exit: structs.ExitSuccess}
}

// line fills in what the engine leaves to servers: gates, and the evictions of the last hour.
func (c *checks) line(in *scheduler.Input) contend.Line {
	for i := range in.Pending {
		w := &in.Pending[i]
		if len(w.Job.Depends) > 0 {
			g := scheduler.GateOf(w.Job, w.Queue, in.Now, others{c})
			w.Gate, w.Until, w.Met = g.Why, g.Until, g.Met
		}
	}
	for path := range c.Evicted {
		in.Evicted = append(in.Evicted, &structs.Preemptions{Queue: path, Recent: c.Evicted[path]})
	}
	slices.SortFunc(in.Evicted, func(a, b *structs.Preemptions) int { return strings.Compare(string(a.Queue), string(b.Queue)) })
	c.See(in)
	c.predictStarts(in)
	c.e.lined.Begin(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	return &c.e.lined
}

// passed checks one pass and the cluster after it.
func (c *checks) passed(e *Engine, in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report) {
	if c.at != e.now {
		c.at, c.passes = e.now, 0
	}
	c.passes++
	if c.trace != nil {
		c.traced(in, plan, rep)
	}
	if most := 8 + 3*len(c.h.jobs); c.passes > most {
		c.failf("more than %d passes", most)
	}
	if e.parts > 0 {
		c.failf("Verify refuses what was decided: %s", e.stats.FirstRefusal)
	}
	c.startsAsPredicted(plan)
	c.Moved(in, plan)
	c.Limits(c.uses())
	stops := c.Preempted(in, plan)
	c.whole()
	c.stopped()
	if stops == 0 {
		c.after(in, plan, rep)
		if c.h.cfg.Whole {
			c.InOrder(in, plan, rep)
		}
	}
	c.Counts["passes"]++
}

// after checks the reasons that a pass gives and what it reserves. A pass on only the nodes that freed resources says nothing of the others; servers
// make no such passes. What the judge counts is compared with the records of the engine.
func (c *checks) after(in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report) {
	if in.View.Rows < len(c.e.nodes) {
		return
	}
	x := histories.NewAfter(in, plan)
	for i := range x.Rooms {
		r := &x.Rooms[i]
		n := slices.IndexFunc(c.e.nodes, func(n nodeState) bool { return n.node.ID == r.Node.ID })
		if s := &c.e.nodes[n]; r.GPUs != s.free || r.Used != s.used {
			c.failf("node %s has %d free GPUs and %v in use after the pass, and %d and %v by the engine", r.Node.Name, r.GPUs, r.Used, s.free, s.used)
		}
	}
	c.Explained(x, in, rep, func(k structs.JobKey) structs.QueuePath {
		if l := c.e.live[k]; l != nil && l.wanting() {
			return l.work.QueueName()
		}
		return ""
	})
	if c.h.Reserves() {
		c.Late(x, in, rep)
	}
}

// whole checks that no all_at_once job runs in part after a pass.
func (c *checks) whole() {
	c.e.Jobs(func(l *Live) {
		if !l.Job.Job.IsJoint() {
			return
		}
		on, off := "", ""
		for k := range l.units {
			u := &l.units[k]
			name := string(l.Job.Job.Groups[u.group].Name)
			if u.done || slices.ContainsFunc(u.runs, func(r *run) bool { return !r.alloc.ServerTerminal() }) {
				on = name
			} else {
				off = name
			}
		}
		switch {
		case on != "" && off != "":
			c.failf("group %s of all_at_once job %s runs, and group %s does not", on, l.Key.ID, off)
		case on != "":
			c.Counts["all_at_once jobs seen to run"]++
		}
	})
}

// traced logs a pass.
func (c *checks) traced(in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report) {
	c.trace("%v: %d pending, %d running", Since(in.Now), len(in.Pending), len(in.Running))
	for i := range in.Pending {
		w := &in.Pending[i]
		c.trace("   %s waits since %v, expected %v, preempted %d, %d evaluations", w.Key.ID, Since(w.WaitingSince()), w.Expect, w.Queue.Preempted, len(w.Evals))
	}
	for _, pe := range plan.Entries {
		for _, part := range pe.Parts {
			for _, s := range part.Stops {
				c.trace("   %s stops %s (%s %s): %s", pe.JobID, s.ID.Short(), s.Desired, s.Client, s.Desc)
			}
			for _, p := range part.Places {
				c.trace("   %s places %d on %s", pe.JobID, p.Index, pe.Nodes[p.Node].ID.Short())
			}
		}
	}
	for _, r := range rep.Workloads {
		for _, g := range r.Groups {
			if g.Placed < g.Wanted {
				c.trace("   %s lacks %d of %d: %v", r.Key.ID, g.Wanted-g.Placed, g.Wanted, g.Refusals)
			}
		}
	}
}

// uses counts what all queues and their users hold.
func (c *checks) uses() histories.Uses {
	held := histories.Uses{}
	for l := c.e.holders; l != nil; l = l.nextHolder {
		held.Add(l.Job.Job, c.settled(l.work.Allocs))
	}
	return held
}
