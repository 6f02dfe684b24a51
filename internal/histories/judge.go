package histories

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Judge checks passes and what the cluster holds after them against the settings of the queues. It counts by itself,
// never with what the scheduler derives.
type Judge struct {
	Queues  map[structs.QueuePath]structs.Queue     // with all settings
	Evicted map[structs.QueuePath][]structs.LogTime // on behalf of each queue
	Held    map[structs.QueuePath]int64             // thousandths of GPUs, after the pass; set by Limits
	Counts  map[string]int                          // of what was checked
	Fail    func(format string, args ...any)        // reports a violation
	Drained bool                                    // a drain takes work off nodes, so that queues may hold less than at the pass
	soon    map[structs.QueuePath]int64             // of work that waits for places that others still hold; set by Limits
	stopped map[structs.AllocID]bool                // by this pass
	own     map[structs.QueuePath]int64             // thousandths of GPUs that this pass takes for jobs of the same queue
	shown   []int                                   // places in the pass's pending work, in the order shown
	draw    structs.Index                           // of the lotteries, in the last pass
	drawn   map[structs.JobKey]int                  // the order then shown
}

// NewJudge returns a Judge of clusters with these settings.
func NewJudge(queues []*structs.Queue, cfg *structs.SchedulerConfig, fail func(format string, args ...any)) *Judge {
	c := &Judge{Queues: map[structs.QueuePath]structs.Queue{}, Evicted: map[structs.QueuePath][]structs.LogTime{}, Held: map[structs.QueuePath]int64{}, soon: map[structs.QueuePath]int64{}, Counts: map[string]int{}, Fail: fail}
	table := contend.QueueTable{Queues: queues}
	for _, q := range queues {
		c.Queues[q.Path] = table.Settings(q.Path, cfg)
	}
	return c
}

// Preempted checks the victims of a pass. It returns how many allocations it stops.
func (c *Judge) Preempted(in *scheduler.Input, plan *scheduler.Plan) (stops int) {
	c.stopped, c.own = map[structs.AllocID]bool{}, map[structs.QueuePath]int64{}
	for _, pe := range plan.Entries {
		for i := range pe.Parts {
			stops += len(pe.Parts[i].Stops)
		}
		c.owned(in, pe)
	}
	for _, pe := range plan.Entries {
		c.preempted(in, pe)
	}
	return stops
}

// owned counts what jobs of a queue take from others of the same queue, and what drains take, which no other queue is to blame for.
func (c *Judge) owned(in *scheduler.Input, pe *structs.PlanEntry) {
	by := c.find(in.Pending, structs.JobKey{Namespace: pe.Namespace, ID: pe.JobID})
	if by == nil {
		return
	}
	for i := range pe.Parts {
		for _, s := range pe.Parts[i].Stops {
			if a := c.alloc(in, s.ID); a != nil && (a.JobKey() != by.Key || a.Transition.Migrate) && a.Job.QueueName() == by.QueueName() {
				c.own[by.QueueName()] += structs.AmountOf(a).GPUMilli
			}
		}
	}
}

// preempted checks the victims of one job's plan.
func (c *Judge) preempted(in *scheduler.Input, pe *structs.PlanEntry) {
	by := c.find(in.Pending, structs.JobKey{Namespace: pe.Namespace, ID: pe.JobID})
	if by == nil {
		return
	}
	q := c.Queues[by.QueueName()]
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
					c.Counts["shrunk"]++
				}
				continue
			}
			if a.ServerTerminal() { // it ends anyway, and its place is counted on
				continue
			}
			v := a.Job
			vq := c.Queues[v.QueueName()]
			was := c.load(in, a.JobKey())
			jobs[a.JobKey()] = true
			ran := in.Now.Sub(a.StartedAt)
			reclaims := strings.Contains(s.Desc, "guaranteed")
			back = back || reclaims
			byShares := strings.Contains(s.Desc, "with a smaller share in queue")
			shares = shares || byShares
			switch { // of a gang, what stops with the member that is taken may leave its queue with less than is guaranteed
			case reclaims && !c.guarantees(by.QueueName()):
				c.Fail("%s gets back what is not guaranteed to its queue", by.Key.ID)
			case reclaims && vq.Guarantee != nil && !c.Drained && !v.Groups[0].IsGang() && c.Held[vq.Path]+c.soon[vq.Path]+c.own[vq.Path] < vq.Guarantee.GPUMilli && structs.AmountOf(a).GPUMilli > 0:
				c.Fail("%s takes from queue %s, which is left with %d thousandths of GPUs of the %d that it is guaranteed", by.Key.ID, vq.Path, c.Held[vq.Path], vq.Guarantee.GPUMilli)
			case byShares && (q.Preempt != structs.PreemptOrder || !c.measuresShares(by.QueueName())):
				c.Fail("%s preempts %s by shares, and no queue above it measures any", by.Key.ID, v.ID)
			case byShares && by.QueueName() == v.QueueName() && by.User() == v.Submitter.Name:
				c.Fail("%s preempts %s of the same user by shares", by.Key.ID, v.ID)
			case !v.MayPreempt():
				c.Fail("%s preempts %s, which is not preemptible", by.Key.ID, v.ID)
			case q.Preempt == structs.PreemptNone:
				c.Fail("%s preempts %s in a queue that never preempts", by.Key.ID, v.ID)
			case !reclaims && v.Priority > by.Priority() && (q.Preempt == structs.PreemptOrder || q.Preempt == structs.PreemptPriority):
				c.Fail("%s with priority %d preempts %s with %d", by.Key.ID, by.Priority(), v.ID, v.Priority)
			case !reclaims && q.Preempt == structs.PreemptPriority && int64(v.Priority)+max(q.PreemptDelta, 1) > int64(by.Priority()):
				c.Fail("%s with priority %d preempts %s with %d, and preempt_priority_delta is %d", by.Key.ID, by.Priority(), v.ID, v.Priority, q.PreemptDelta)
			case in.Now.Sub(a.WorksSince()) < vq.PreemptMinRuntime && a.StartedAt != 0:
				c.Fail("%s preempts %s %v after it started, less than %v", by.Key.ID, v.ID, in.Now.Sub(a.WorksSince()), vq.PreemptMinRuntime)
			case was != nil && Together(v) && was.Queue.Preempted >= vq.PreemptMax:
				c.Fail("%s preempts %s, which was preempted %d times before; preempt_max is %d", by.Key.ID, v.ID, was.Queue.Preempted, vq.PreemptMax)
			case q.PreemptAfter > 0 && by.WaitingSince() != 0 && in.Now.Sub(by.WaitingSince()) < q.PreemptAfter:
				c.Fail("%s preempts %s after waiting %v, less than %v", by.Key.ID, v.ID, in.Now.Sub(by.WaitingSince()), q.PreemptAfter)
			}
			if g := v.Groups[0]; g.Checkpoint != nil {
				ran = g.Checkpoint.Cost
			} else if a.StartedAt == 0 { // nothing has run
				ran = 0
			}
			if c.stopped[s.ID] { // for another job of this pass, which lost it
				continue
			}
			c.stopped[s.ID], top = true, max(top, v.Priority)
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
		c.Counts["reclaims under "+q.Preempt]++
	} else if shares {
		c.Counts["preemptions by shares"]++
	} else {
		c.Counts["preemptions under "+q.Preempt]++
	}
	for range jobs {
		c.Evicted[by.QueueName()] = append(c.Evicted[by.QueueName()], in.Now)
	}
	if !back {
		g := by.Job.Groups[0]
		members := max(int64(g.Count), places)
		work := by.Expected()
		if by.Priority() > top { // a stop and a start cost about as much
			work = max(work, time.Minute)
		}
		gain := time.Duration(members*max(1, GPUsEach(g))) * work * time.Duration(max(1, by.Priority()-top))
		if shares { // by how much the shares differ, at most ten times
			gain = 10 * time.Duration(members*max(1, GPUsEach(g))) * by.Expected()
		}
		if c.Counts["gains"]++; lost > gain {
			c.Fail("%s preempts %v: %v of GPU time is lost, %v is gained", by.Key.ID, jobs, lost, gain)
		}
	}
}

// Together reports whether all allocations of a job are placed and preempted together. Of any other job, each allocation
// counts the preemptions before it was placed.
func Together(j *structs.Job) bool {
	g := j.Groups[0]
	return j.Array == nil && g.Elastic == nil && (g.IsGang() || g.Count == 1)
}

// measuresShares reports whether a queue or one above it has an order that measures shares.
func (c *Judge) measuresShares(path structs.QueuePath) bool {
	for p := range path.Lineage() {
		if o := c.Queues[p].Order; o.Has(structs.OrderFair) || o.Has(structs.OrderWeighted) {
			return true
		}
	}
	return false
}

// guarantees reports whether a queue or one above it is guaranteed anything.
func (c *Judge) guarantees(path structs.QueuePath) bool {
	for p := range path.Lineage() {
		if c.Queues[p].Guarantee != nil {
			return true
		}
	}
	return false
}

// GPUsEach returns how many GPUs each allocation of a group asks for.
func GPUsEach(g *structs.Group) (n int64) {
	r := &g.Tasks[0].Resources
	for i := range r.GPU {
		n += max(1, r.GPU[i].Count)
	}
	for i := range r.Devices { // so a server writes what asks for whole GPUs only
		n += max(1, r.Devices[i].Count)
	}
	return n
}

func (c *Judge) find(ws []contend.Workload, k structs.JobKey) *contend.Workload {
	for i := range ws {
		if ws[i].Key == k {
			return &ws[i]
		}
	}
	return nil
}

// load returns a job as the pass saw it.
func (c *Judge) load(in *scheduler.Input, k structs.JobKey) *contend.Workload {
	if w := c.find(in.Running, k); w != nil {
		return w
	}
	return c.find(in.Pending, k)
}

// alloc returns an allocation as the pass saw it.
func (c *Judge) alloc(in *scheduler.Input, id structs.AllocID) *structs.Allocation {
	for _, ws := range [][]contend.Workload{in.Pending, in.Running} {
		for i := range ws {
			if a := ws[i].Alloc(id); a != nil {
				return a
			}
		}
	}
	return nil
}

// Use is what a queue or one of its users holds.
type Use struct {
	GPUMilli, Jobs int64
	models         map[string]int64 // thousandths of GPUs by name
	soon           int64            // thousandths of GPUs, of what waits for places that others still hold
}

// Uses is what all queues and their users hold. Those of a queue as a whole have no user.
type Uses map[structs.UseRow]*Use

// Add counts a job with its allocations, if any of them holds resources.
func (u Uses) Add(j *structs.Job, allocs []*structs.Allocation) {
	sum, soon, models, holds := int64(0), int64(0), map[string]int64{}, false
	for _, a := range allocs {
		if structs.Holds(a) && (len(a.WaitsOn) == 0 || a.Client == structs.ClientRunning) { // not what waits for places that others still hold
			holds = true
			sum += structs.AmountOf(a).GPUMilli
			for i := range a.Grants {
				models[a.Grants[i].Device] += structs.GrantAmount(&a.Grants[i]).GPUMilli
			}
		} else if structs.Holds(a) {
			soon += structs.AmountOf(a).GPUMilli
		}
	}
	if !holds && soon == 0 {
		return
	}
	for p := range j.QueueName().Lineage() {
		for _, user := range []string{"", j.Submitter.Name} {
			k := structs.UseRow{Path: p, User: user}
			if u[k] == nil {
				u[k] = &Use{models: map[string]int64{}}
			}
			u[k].GPUMilli += sum
			u[k].soon += soon
			if holds {
				u[k].Jobs++
			}
			for m, n := range models {
				u[k].models[m] += n
			}
		}
	}
}

// Of returns what is held of a model.
func (u *Use) Of(words string) (sum int64) {
	if u != nil {
		for name, n := range u.models {
			if structs.IsModel(name, words) {
				sum += n
			}
		}
	}
	return sum
}

// Limits checks the limits and caps of all queues against what they hold.
func (c *Judge) Limits(uses Uses) {
	clear(c.Held)
	clear(c.soon)
	for k, u := range uses {
		if k.User == "" {
			c.Held[k.Path], c.soon[k.Path] = u.GPUMilli, u.soon
		}
		q := c.Queues[k.Path]
		limits := q.LimitModels
		if k.User != "" {
			limits = q.UserLimitModels
		}
		for _, lim := range limits {
			if held := u.Of(lim.Model); held > lim.Milli {
				c.Fail("queue %s, user %q: %d thousandths of GPUs of model %s are held, and the limit is %d", k.Path, k.User, held, lim.Model, lim.Milli)
			} else if held == lim.Milli && held > 0 {
				c.Counts["limits of models reached"]++
			}
		}
		switch {
		case k.User == "" && q.Limit != nil && u.GPUMilli > q.Limit.GPUMilli:
			c.Fail("queue %s holds %d thousandths of GPUs, and its limit is %d", k.Path, u.GPUMilli, q.Limit.GPUMilli)
		case k.User == "" && q.RunningMax > 0 && u.Jobs > q.RunningMax:
			c.Fail("%d jobs of queue %s run, and running_max is %d", u.Jobs, k.Path, q.RunningMax)
		case k.User != "" && q.UserLimit != nil && u.GPUMilli > q.UserLimit.GPUMilli:
			c.Fail("%s holds %d thousandths of GPUs in queue %s, and the limit of each user is %d", k.User, u.GPUMilli, k.Path, q.UserLimit.GPUMilli)
		case k.User != "" && q.RunningUserMax > 0 && u.Jobs > q.RunningUserMax:
			c.Fail("%d jobs of %s run in queue %s, and running_user_max is %d", u.Jobs, k.User, k.Path, q.RunningUserMax)
		}
	}
}

// See keeps the order in which the pending work of a pass is shown. It is called before the pass, which may change what its
// input refers to.
func (c *Judge) See(in *scheduler.Input) {
	turns := queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	shown := scheduler.Shown(in, turns)
	c.shown = c.shown[:0]
	for i := shown.Next(); i >= 0; i = shown.Next() {
		c.shown = append(c.shown, i)
		turns.Taken(i)
	}
}

// Drawn checks that a draw of the lottery holds until work starts: of the waiting work of one user in one queue, what was shown
// first stays first, whichever server leads. What has waited for max_wait comes first at any time. It is called after See.
func (c *Judge) Drawn(in *scheduler.Input) {
	use := in.Queues.Use(structs.QueueRoot, "")
	if use == nil || use.Draw == 0 || c.Queues[structs.QueueRoot].Order != structs.OrderLottery {
		return
	}
	if use.Draw != c.draw {
		c.draw, c.drawn = use.Draw, map[structs.JobKey]int{}
	}
	type owner struct {
		queue structs.QueuePath
		user  string
	}
	last, next := map[owner]*contend.Workload{}, map[structs.JobKey]int{}
	for at, i := range c.shown {
		w := &in.Pending[i]
		of := owner{w.QueueName(), w.User()}
		if w.Job == nil || w.WaitingSince() == 0 || in.Now.Sub(w.WaitingSince()) > c.Queues[of.queue].MaxWait || len(w.Allocs) > 0 {
			continue
		}
		was, seen := c.drawn[w.Key]
		if o := last[of]; o != nil && seen {
			if before, both := c.drawn[o.Key]; both {
				if c.Counts["places in a draw that holds"]++; before > was {
					c.Fail("%s is shown before %s, and was shown after it in the same draw", o.Key.ID, w.Key.ID)
				}
			}
		}
		last[of], next[w.Key] = w, at
	}
	c.drawn = next
}

// InOrder checks that of two jobs that ask for the same, the one that `muster queue` shows first (See) is
// served first. Their priorities may differ, and their submitters where these do not take turns by shares.
func (c *Judge) InOrder(in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report) {
	if len(plan.Deferred) > 0 {
		return
	}
	served := map[structs.JobKey]*scheduler.WorkloadReport{}
	for i := range rep.Workloads {
		served[rep.Workloads[i].Key] = &rep.Workloads[i]
	}
	type twin struct {
		queue structs.QueuePath
		shape string
		run   structs.Runtime
		user  string // where submitters take turns by shares
		pre   bool
		count int
	}
	waits := map[twin]*contend.Workload{}
	for _, i := range c.shown {
		w := &in.Pending[i]
		r := served[w.Key]
		if w.Gate != nil || w.Job.Array != nil || len(w.Allocs) > 0 || w.Job.Groups[0].Elastic != nil || w.Queue.Preempted > 0 || w.Queue.Attained > 0 {
			continue
		}
		k := twin{queue: w.QueueName(), shape: shapeOf(w.Job), run: w.Job.Runtime, pre: w.Job.MayPreempt(), count: w.Job.Groups[0].Count}
		if c.measuresShares(k.queue) || c.Queues[k.queue].Order.Has(structs.OrderLottery) { // what is shown and finds no place counts for the turns of the list, not for those of the pass
			k.user = w.User()
		}
		k.run.Expected += w.Expect
		if first, waiting := waits[k]; waiting && r != nil && !r.Failed && (c.Queues[structs.QueueRoot].Backfill != structs.BackfillSJF || first.Priority() >= w.Priority() && first.Submitted() < w.Submitted()) {
			c.Fail("%s starts before %s, which asks for the same and is shown before it", w.Key.ID, first.Key.ID)
		}
		c.Counts["twins"]++
		if r == nil || r.Failed {
			if code(w, r) == structs.ReasonQuota { // of its user, perhaps, while others may start
				continue
			}
			if _, waiting := waits[k]; !waiting {
				waits[k] = w
			}
		}
	}
}

// code returns the reason for which a workload waits: what the pass says, or where it did not decide about it what an earlier
// one said.
func code(w *contend.Workload, r *scheduler.WorkloadReport) structs.ReasonCode {
	var groups []*structs.GroupReport
	switch {
	case r != nil:
		groups = r.Groups
	case len(w.Evals) == 0 && w.Blocked != nil:
		groups = w.Blocked.FailedGroups
	}
	if len(groups) == 0 {
		return ""
	}
	return groups[0].Code
}

// shapeOf describes what a job asks for.
func shapeOf(j *structs.Job) string {
	g := j.Groups[0]
	r := &g.Tasks[0].Resources
	t := structs.Topology{}
	if g.Topology != nil {
		t = *g.Topology
	}
	return fmt.Sprint(structs.GroupVector(g), r.GPU, r.Devices, g.Gang != nil, g.Least(), t)
}

// Defaults returns the settings of a queue for which none are given.
func Defaults() structs.Queue {
	return (&contend.QueueTable{}).Settings(structs.QueueDefault, structs.DefaultSchedulerConfig())
}
