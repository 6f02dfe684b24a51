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
	passes int                              // at this instant
	trace  func(format string, args ...any) // nil: passes are not logged
	end    time.Duration                    // the last submission
	work   time.Duration                    // of all jobs, one after the other
}

func (c *checks) begin(h *history) {
	*c = checks{h: h, ended: map[structs.JobKey]bool{}, Judge: histories.NewJudge(h.cfg.Queues, &h.cfg.Scheduler, c.failf)}
	h.cfg.Line = c.line
	h.cfg.Hooks.Passed = c.passed
	h.cfg.Hooks.Ended = func(_ *Engine, l *Live) { c.ended[l.Key] = true }
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
	for _, r := range h.held {
		c.e.book(r)
		c.e.agenda.add(event{at: r.End, kind: Woken})
	}
	err = c.e.Run(ctx)
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
	c.Limits(c.uses())
	stops := c.Preempted(in, plan)
	c.whole()
	c.late(in, rep)
	if stops == 0 {
		c.explained(in, rep)
		if c.h.cfg.Whole {
			c.InOrder(in, plan, rep)
		}
	}
	c.Counts["passes"]++
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
		held.Add(l.Job.Job, l.work.Allocs)
	}
	return held
}

// closed returns the limit of a model that one more allocation of a job on GPUs of that name would exceed, or "".
func (c *checks) closed(j *structs.Job, name string) string {
	held, add := c.uses(), 1000*histories.GPUsEach(j.Groups[0])
	for p := range j.QueueName().Lineage() {
		q := c.Queues[p]
		for user, limits := range map[string][]structs.ModelAmount{"": q.LimitModels, j.Submitter.Name: q.UserLimitModels} {
			for _, lim := range limits {
				if structs.IsModel(name, lim.Model) && held[structs.UseRow{Path: p, User: user}].Of(lim.Model)+add > lim.Milli {
					return fmt.Sprintf("%s of queue %s, user %q", lim.Model, p, user)
				}
			}
		}
	}
	return ""
}

// simple reports whether a job asks for whole GPUs for each of its allocations, and nothing else that could be scarce.
func (c *checks) simple(j *structs.Job) bool {
	g := j.Groups[0]
	return len(j.Groups) == 1 && g.Gang == nil && g.Elastic == nil && len(j.Depends) == 0 && len(g.Tasks[0].Resources.GPU) == 1 && !g.Tasks[0].Resources.GPU[0].Shared()
}

// explained checks that the reasons for which jobs wait are true in the cluster after the pass. A pass on only the nodes that
// freed resources says nothing of the others; servers make no such passes.
func (c *checks) explained(in *scheduler.Input, rep *scheduler.Report) {
	if in.View.Rows < len(c.e.nodes) {
		return
	}
	for i := range rep.Workloads {
		r := &rep.Workloads[i]
		l := c.e.live[r.Key]
		if l == nil || !r.Failed {
			continue
		}
		for _, g := range r.Groups {
			if g.Placed >= g.Wanted {
				continue
			}
			c.Counts["told "+string(g.Code)]++
			for _, r := range g.Refusals {
				if r.Dimension == structs.DimensionGPUModel && g.Placed == 0 && c.simple(l.Job.Job) && l.Job.Job.Groups[0].Count == 1 {
					c.Counts["told a limit of a model"]++
					if why := c.closed(l.Job.Job, r.Detail); why == "" {
						c.failf("%s is told %v, and that limit leaves room for it", r.Text(), g.Refusals)
					}
				}
			}
			switch g.Code {
			case structs.ReasonQuota:
				if n := ""; c.simple(l.Job.Job) && g.Refusals[0].Dimension == structs.DimensionGPUModel {
					if n = c.roomFor(l.Job.Job); n != "" {
						c.failf("%s is told %v, and node %s has room for it", r.Key.ID, g.Refusals, n)
					}
				}
			case structs.ReasonResources, structs.ReasonFragmentation:
				if n := c.roomFor(l.Job.Job); n != "" && c.simple(l.Job.Job) {
					c.failf("%s is told %v, and node %s has room for it", r.Key.ID, g.Refusals, n)
				}
			case structs.ReasonReservation:
				if len(c.e.reservations) == 0 {
					c.failf("%s is told %v, and nothing is reserved", r.Key.ID, g.Refusals)
				}
			case structs.ReasonDependency:
				if len(l.Job.Job.Depends) == 0 {
					c.failf("%s waits for another job, and depends on none", r.Key.ID)
				}
			case structs.ReasonPriority:
				if s := g.Refusals[0].Subject; g.Refusals[0].Dimension == structs.DimensionQueueOrder {
					if o := c.e.live[structs.JobKey{Namespace: r.Key.Namespace, ID: s}]; o == nil || !o.wanting() || o.work.QueueName() != l.work.QueueName() {
						c.failf("%s is told that it must not pass %s, which does not wait in its queue", r.Key.ID, s)
					}
				}
			}
		}
	}
}

// late checks that work that found no place and has waited for max_wait holds a reservation, as one of reserve_depth.
// Where no end is known, a job that is reserved for may keep the next from having an earliest start, as may what an
// operator has reserved.
func (c *checks) late(in *scheduler.Input, rep *scheduler.Report) {
	if t := c.h.is["times"]; t == "unknown" || t == "learned" || len(c.h.held) > 0 {
		return
	}
	for i := range rep.Workloads {
		r := &rep.Workloads[i]
		l := c.e.live[r.Key]
		if l == nil || !r.Failed || l.tied || l.holds > 0 || !histories.Together(l.Job.Job) {
			continue
		}
		q := c.Queues[l.work.QueueName()]
		since := l.work.WaitingSince()
		if since == 0 || in.Now.Sub(since) <= q.MaxWait || !slices.Contains([]structs.ReasonCode{structs.ReasonResources, structs.ReasonFragmentation, structs.ReasonGang}, r.Groups[0].Code) || slices.ContainsFunc(r.Groups[0].Refusals, func(r structs.Refusal) bool { return r.Dimension == structs.DimensionGPUModel }) {
			continue
		}
		tied := int64(0)
		for _, o := range c.e.reserved {
			if o.work.QueueName() == q.Path {
				tied++
			}
		}
		c.Counts["late"]++
		if tied < q.ReserveDepth && !slices.ContainsFunc(c.e.nodes, func(n nodeState) bool { return !n.node.Ready() }) {
			c.failf("%s has waited for %v, more than %v, and holds no reservation; %d jobs of its queue do", r.Key.ID, in.Now.Sub(since), q.MaxWait, tied)
		}
	}
}

// roomFor returns a node with room for one allocation of a job with whole GPUs, or "".
func (c *checks) roomFor(j *structs.Job) string {
	need := histories.GPUsEach(j.Groups[0])
	for i := range c.e.nodes {
		n := &c.e.nodes[i]
		name := n.node.Resources.Devices[0].Name
		if rs := j.Groups[0].Tasks[0].Resources.GPU; len(rs) > 0 && (!structs.IsModel(name, rs[0].Model) || c.closed(j, name) != "") {
			continue
		}
		if n.node.Ready() && n.free >= need && n.used.Add(structs.GroupVector(j.Groups[0])).Fits(n.total) {
			return n.node.Name
		}
	}
	return ""
}
