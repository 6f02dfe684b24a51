package sim

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// checks are what must hold in every history. They count with code of their own: the engine's records of jobs and
// allocations, never what the scheduler derives from them.
type checks struct {
	h       *history
	e       *Engine
	queues  map[structs.QueuePath]structs.Queue // with all settings
	ended   map[structs.JobKey]bool
	evicted map[structs.QueuePath][]structs.LogTime // on behalf of each queue
	at      structs.LogTime
	passes  int                         // at this instant
	stopped map[structs.AllocID]bool    // by this pass
	held    map[structs.QueuePath]int64 // thousandths of GPUs, after the pass
	counts  map[string]int
	trace   func(format string, args ...any) // nil: passes are not logged
	end     time.Duration                    // the last submission
	work    time.Duration                    // of all jobs, one after the other
}

func (c *checks) begin(h *history) {
	*c = checks{h: h, queues: map[structs.QueuePath]structs.Queue{}, ended: map[structs.JobKey]bool{}, evicted: map[structs.QueuePath][]structs.LogTime{}, counts: map[string]int{}, stopped: map[structs.AllocID]bool{}, held: map[structs.QueuePath]int64{}}
	table := contend.QueueTable{Queues: h.cfg.Queues}
	for _, q := range h.cfg.Queues {
		c.queues[q.Path] = table.Settings(q.Path, &h.cfg.Scheduler)
	}
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
	for path := range c.evicted {
		in.Evicted = append(in.Evicted, &structs.Preemptions{Queue: path, Recent: c.evicted[path]})
	}
	slices.SortFunc(in.Evicted, func(a, b *structs.Preemptions) int { return strings.Compare(string(a.Queue), string(b.Queue)) })
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
	stops := 0
	clear(c.stopped)
	clear(c.held)
	for k, u := range c.uses() {
		if k.User == "" {
			c.held[k.Path] = u.gpuMilli
		}
	}
	for _, pe := range plan.Entries {
		for i := range pe.Parts {
			stops += len(pe.Parts[i].Stops)
		}
		c.preempted(in, pe)
	}
	c.limits()
	c.whole()
	c.late(in, rep)
	if stops == 0 {
		c.explained(in, rep)
		c.inOrder(in, plan, rep)
	}
	c.counts["passes"]++
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
			c.counts["all_at_once jobs seen to run"]++
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

// preempted checks the victims of one job's plan.
func (c *checks) preempted(in *scheduler.Input, pe *structs.PlanEntry) {
	by := c.find(in.Pending, structs.JobKey{Namespace: pe.Namespace, ID: pe.JobID})
	if by == nil {
		return
	}
	q := c.queues[by.QueueName()]
	jobs := map[structs.JobKey]bool{}
	lost := time.Duration(0) // GPU time
	top, back, shares := 0, false, false
	places := int64(0)
	for i := range pe.Parts {
		places += int64(len(pe.Parts[i].Places))
		for _, s := range pe.Parts[i].Stops {
			a := c.alloc(in, s.ID)
			if a == nil || a.JobKey() == by.Key || s.Desired != structs.DesiredEvict {
				if s.Desired == structs.DesiredStop {
					c.counts["shrunk"]++
				}
				continue
			}
			v := a.Job
			vq := c.queues[v.QueueName()]
			was := c.load(in, a.JobKey())
			jobs[a.JobKey()] = true
			top = max(top, v.Priority)
			ran := in.Now.Sub(a.StartedAt)
			reclaims := strings.Contains(s.Desc, "guaranteed")
			back = back || reclaims
			byShares := strings.Contains(s.Desc, "with a smaller share in queue")
			shares = shares || byShares
			switch { // of a gang, what stops with the member that is taken may leave its queue with less than is guaranteed
			case reclaims && !c.guarantees(by.QueueName()):
				c.failf("%s gets back what is not guaranteed to its queue", by.Key.ID)
			case reclaims && vq.Guarantee != nil && !v.Groups[0].IsGang() && c.held[vq.Path] < vq.Guarantee.GPUMilli && structs.AmountOf(a).GPUMilli > 0:
				c.failf("%s takes from queue %s, which is left with %d thousandths of GPUs of the %d that it is guaranteed", by.Key.ID, vq.Path, c.held[vq.Path], vq.Guarantee.GPUMilli)
			case byShares && (q.Preempt != structs.PreemptOrder || !c.measuresShares(by.QueueName())):
				c.failf("%s preempts %s by shares, and no queue above it measures any", by.Key.ID, v.ID)
			case byShares && by.QueueName() == v.QueueName() && by.User() == v.Submitter.Name:
				c.failf("%s preempts %s of the same user by shares", by.Key.ID, v.ID)
			case !v.MayPreempt():
				c.failf("%s preempts %s, which is not preemptible", by.Key.ID, v.ID)
			case q.Preempt == structs.PreemptNone:
				c.failf("%s preempts %s in a queue that never preempts", by.Key.ID, v.ID)
			case !reclaims && v.Priority > by.Priority() && (q.Preempt == structs.PreemptOrder || q.Preempt == structs.PreemptPriority):
				c.failf("%s with priority %d preempts %s with %d", by.Key.ID, by.Priority(), v.ID, v.Priority)
			case !reclaims && q.Preempt == structs.PreemptPriority && int64(v.Priority)+max(q.PreemptDelta, 1) > int64(by.Priority()):
				c.failf("%s with priority %d preempts %s with %d, and preempt_priority_delta is %d", by.Key.ID, by.Priority(), v.ID, v.Priority, q.PreemptDelta)
			case ran < vq.PreemptMinRuntime && a.StartedAt != 0:
				c.failf("%s preempts %s after %v of running, less than %v", by.Key.ID, v.ID, ran, vq.PreemptMinRuntime)
			case was != nil && c.together(v) && was.Queue.Preempted >= vq.PreemptMax:
				c.failf("%s preempts %s, which was preempted %d times before; preempt_max is %d", by.Key.ID, v.ID, was.Queue.Preempted, vq.PreemptMax)
			case q.PreemptAfter > 0 && by.WaitingSince() != 0 && in.Now.Sub(by.WaitingSince()) < q.PreemptAfter:
				c.failf("%s preempts %s after waiting %v, less than %v", by.Key.ID, v.ID, in.Now.Sub(by.WaitingSince()), q.PreemptAfter)
			}
			if g := v.Groups[0]; g.Checkpoint != nil {
				ran = g.Checkpoint.Cost
			}
			if c.stopped[s.ID] { // for another job of this pass, which lost it
				continue
			}
			c.stopped[s.ID] = true
			milli := structs.AmountOf(a).GPUMilli
			if milli == 0 {
				milli = 1000
			}
			lost += ran * time.Duration(milli) / 1000
		}
	}
	if len(jobs) == 0 {
		return
	}
	if back {
		c.counts["reclaims under "+q.Preempt]++
	} else if shares {
		c.counts["preemptions by shares"]++
	} else {
		c.counts["preemptions under "+q.Preempt]++
	}
	for range jobs {
		c.evicted[by.QueueName()] = append(c.evicted[by.QueueName()], in.Now)
	}
	if !back {
		g := by.Job.Groups[0]
		members := max(int64(g.Count), places)
		gain := time.Duration(members*max(1, c.gpusEach(g))) * by.Expected() * time.Duration(max(1, by.Priority()-top))
		if shares { // by how much the shares differ, at most ten times
			gain = 10 * time.Duration(members*max(1, c.gpusEach(g))) * by.Expected()
		}
		if lost > gain {
			c.failf("%s preempts %v: %v of GPU time is lost, %v is gained", by.Key.ID, jobs, lost, gain)
		}
	}
}

// together reports whether all allocations of a job are placed and preempted together. Of any other job, each allocation
// counts the preemptions before it was placed.
func (c *checks) together(j *structs.Job) bool {
	g := j.Groups[0]
	return j.Array == nil && g.Elastic == nil && (g.IsGang() || g.Count == 1)
}

// measuresShares reports whether a queue or one above it has an order that measures shares.
func (c *checks) measuresShares(path structs.QueuePath) bool {
	for p := range path.Lineage() {
		if o := c.queues[p].Order; o.Has(structs.OrderFair) || o.Has(structs.OrderWeighted) {
			return true
		}
	}
	return false
}

// guarantees reports whether a queue or one above it is guaranteed anything.
func (c *checks) guarantees(path structs.QueuePath) bool {
	for p := range path.Lineage() {
		if c.queues[p].Guarantee != nil {
			return true
		}
	}
	return false
}

func (c *checks) gpusEach(g *structs.Group) (n int64) {
	for _, r := range g.Tasks[0].Resources.GPU {
		n += max(1, r.Count)
	}
	return n
}

func (c *checks) find(ws []contend.Workload, k structs.JobKey) *contend.Workload {
	for i := range ws {
		if ws[i].Key == k {
			return &ws[i]
		}
	}
	return nil
}

// load returns a job as the pass saw it.
func (c *checks) load(in *scheduler.Input, k structs.JobKey) *contend.Workload {
	if w := c.find(in.Running, k); w != nil {
		return w
	}
	return c.find(in.Pending, k)
}

// alloc returns an allocation as the pass saw it.
func (c *checks) alloc(in *scheduler.Input, id structs.AllocID) *structs.Allocation {
	for _, ws := range [][]contend.Workload{in.Pending, in.Running} {
		for i := range ws {
			if a := ws[i].Alloc(id); a != nil {
				return a
			}
		}
	}
	return nil
}

// use is what a queue or one of its users holds.
type use struct {
	gpuMilli, jobs int64
	models         map[string]int64 // thousandths of GPUs by name
}

// uses counts what all queues and their users hold.
func (c *checks) uses() map[structs.UseRow]*use {
	held := map[structs.UseRow]*use{}
	at := func(p structs.QueuePath, user string) *use {
		k := structs.UseRow{Path: p, User: user}
		if held[k] == nil {
			held[k] = &use{models: map[string]int64{}}
		}
		return held[k]
	}
	for l := c.e.holders; l != nil; l = l.nextHolder {
		sum, models := int64(0), map[string]int64{}
		for _, a := range l.work.Allocs {
			if structs.Holds(a) {
				sum += structs.AmountOf(a).GPUMilli
				for i := range a.Grants {
					models[a.Grants[i].Device] += structs.GrantAmount(&a.Grants[i]).GPUMilli
				}
			}
		}
		for p := range l.Job.Job.QueueName().Lineage() {
			for _, user := range []string{"", l.Job.Job.Submitter.Name} {
				u := at(p, user)
				u.gpuMilli += sum
				u.jobs++
				for m, n := range models {
					u.models[m] += n
				}
			}
		}
	}
	return held
}

// of returns what is held of a model.
func (u *use) of(words string) (sum int64) {
	if u != nil {
		for name, n := range u.models {
			if structs.IsModel(name, words) {
				sum += n
			}
		}
	}
	return sum
}

// closed returns the limit of a model that one more allocation of a job on GPUs of that name would exceed, or "".
func (c *checks) closed(j *structs.Job, name string) string {
	held, add := c.uses(), 1000*c.gpusEach(j.Groups[0])
	for p := range j.QueueName().Lineage() {
		q := c.queues[p]
		for user, limits := range map[string][]structs.ModelAmount{"": q.LimitModels, j.Submitter.Name: q.UserLimitModels} {
			for _, lim := range limits {
				if structs.IsModel(name, lim.Model) && held[structs.UseRow{Path: p, User: user}].of(lim.Model)+add > lim.Milli {
					return fmt.Sprintf("%s of queue %s, user %q", lim.Model, p, user)
				}
			}
		}
	}
	return ""
}

// limits checks the limits and caps of all queues.
func (c *checks) limits() {
	for k, u := range c.uses() {
		q := c.queues[k.Path]
		limits := q.LimitModels
		if k.User != "" {
			limits = q.UserLimitModels
		}
		for _, lim := range limits {
			if held := u.of(lim.Model); held > lim.Milli {
				c.failf("queue %s, user %q: %d thousandths of GPUs of model %s are held, and the limit is %d", k.Path, k.User, held, lim.Model, lim.Milli)
			} else if held == lim.Milli && held > 0 {
				c.counts["limits of models reached"]++
			}
		}
		switch {
		case k.User == "" && q.Limit != nil && u.gpuMilli > q.Limit.GPUMilli:
			c.failf("queue %s holds %d thousandths of GPUs, and its limit is %d", k.Path, u.gpuMilli, q.Limit.GPUMilli)
		case k.User == "" && q.RunningMax > 0 && u.jobs > q.RunningMax:
			c.failf("%d jobs of queue %s run, and running_max is %d", u.jobs, k.Path, q.RunningMax)
		case k.User != "" && q.UserLimit != nil && u.gpuMilli > q.UserLimit.GPUMilli:
			c.failf("%s holds %d thousandths of GPUs in queue %s, and the limit of each user is %d", k.User, u.gpuMilli, k.Path, q.UserLimit.GPUMilli)
		case k.User != "" && q.RunningUserMax > 0 && u.jobs > q.RunningUserMax:
			c.failf("%d jobs of %s run in queue %s, and running_user_max is %d", u.jobs, k.User, k.Path, q.RunningUserMax)
		}
	}
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
			c.counts["told "+string(g.Code)]++
			for _, r := range g.Refusals {
				if r.Dimension == structs.DimensionGPUModel && g.Placed == 0 && c.simple(l.Job.Job) && l.Job.Job.Groups[0].Count == 1 {
					c.counts["told a limit of a model"]++
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
		if l == nil || !r.Failed || l.tied || l.holds > 0 || !c.together(l.Job.Job) {
			continue
		}
		q := c.queues[l.work.QueueName()]
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
		c.counts["late"]++
		if tied < q.ReserveDepth && !slices.ContainsFunc(c.e.nodes, func(n nodeState) bool { return !n.node.Ready() }) {
			c.failf("%s has waited for %v, more than %v, and holds no reservation; %d jobs of its queue do", r.Key.ID, in.Now.Sub(since), q.MaxWait, tied)
		}
	}
}

// roomFor returns a node with room for one allocation of a job with whole GPUs, or "".
func (c *checks) roomFor(j *structs.Job) string {
	need := c.gpusEach(j.Groups[0])
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

// inOrder checks that of two jobs that ask for the same, the one that `muster queue` shows first is served first.
func (c *checks) inOrder(in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report) {
	if !c.h.cfg.Whole || len(plan.Deferred) > 0 {
		return
	}
	shown := queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	served := map[structs.JobKey]*scheduler.WorkloadReport{}
	for i := range rep.Workloads {
		served[rep.Workloads[i].Key] = &rep.Workloads[i]
	}
	type twin struct {
		queue structs.QueuePath
		shape shapeKey
		run   structs.Runtime
		user  string
		pre   bool
		prio  int
		count int
	}
	waits := map[twin]*contend.Workload{}
	for i := shown.Next(); i >= 0; i = shown.Next() {
		w := &in.Pending[i]
		shown.Taken(i)
		r := served[w.Key]
		if w.Gate != nil || w.Job.Array != nil || len(w.Allocs) > 0 || w.Job.Groups[0].Elastic != nil || w.Queue.Preempted > 0 || w.Queue.Attained > 0 {
			continue
		}
		k := twin{w.QueueName(), shapeOf(w.Job), w.Job.Runtime, w.User(), w.Job.MayPreempt(), w.Priority(), w.Job.Groups[0].Count}
		k.run.Expected += w.Expect
		if first, waiting := waits[k]; waiting && r != nil && !r.Failed && (c.h.is["backfill"] != structs.BackfillSJF || first.Submitted() < w.Submitted()) {
			c.failf("%s starts before %s, which asks for the same and is shown before it", w.Key.ID, first.Key.ID)
		}
		c.counts["twins"]++
		if r == nil || r.Failed {
			if r != nil && len(r.Groups) > 0 && r.Groups[0].Code == structs.ReasonQuota {
				continue
			}
			if _, waiting := waits[k]; !waiting {
				waits[k] = w
			}
		}
	}
}
