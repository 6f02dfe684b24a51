// Package suggest finds what would have to change for a workload to start now. It makes decisions (package scheduler)
// with one change after the other to the input of a pass, and does not depend on how decisions are made.
package suggest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Advice lists what would have to change for one workload to start now.
type Advice struct {
	Starts  bool            // the next pass starts it without a change
	Never   string          // why it would not even fit on an empty cluster of healthy nodes; "" if it would
	Changes []Change        // each of them alone would start it, the smallest first; at most 3
	Tries   int             // number of decisions made
	Start   structs.LogTime // when it is expected to start without a change; 0: unknown
	Holders *Holders        // work that would make room if it were preemptible; nil: none would
}

// Change is one change that would start a workload, checked by a decision.
type Change struct {
	Kind  string          // a Change... constant
	Text  string          // for users: "40 GiB of GPU memory instead of 80 GiB"
	Cost  int64           // how large it is, in thousandths of what is asked for; orders the changes
	Job   *structs.Job    // the job as it would have to be; nil: unchanged
	Nodes []*structs.Node // nodes that would have to join, or to change
	Lifts bool            // a limit, hold or condition of the queue would have to be lifted
}

// Kinds of a Change.
const (
	ChangeAmount     = "amount"     // the job asks for less of something
	ChangeCount      = "count"      // the job asks for fewer allocations
	ChangeConstraint = "constraint" // the job leaves out a condition
	ChangeLimit      = "limit"      // a limit, hold or condition of the queue is lifted
	ChangeNode       = "node"       // a node joins or comes back
	ChangeTime       = "time"       // the job has a shorter run time limit
)

// Limits of the search for changes.
const (
	changesKept   = 3
	suggestTries  = 64
	suggestLooks  = 2_000_000 // nodes looked at, over all tries
	suggestNodes  = 4         // nodes of a kind that are tried, one by one
	nodesAddedMax = 64
)

// adviser looks for changes. It checks each candidate with Schedule on the input, with that change and nothing else.
type adviser struct {
	in    scheduler.Input
	p     search.Policy
	load  contend.Workload
	tries int
	looks int
	too   string // what else has to be lifted with every change, or ""
	out   []Change
}

// Find returns what would start a workload now: it decides about the workload alone on the input (Pending and Line are
// ignored), then with one change after the other, within the limits above. There may be changes that it does not find.
//
// Naive: take the change from the refusals ("short by 40 GiB: ask for 40 GiB less"). But the node with the most free
// memory may be refused for its GPUs, and what one allocation lacks says nothing about sixteen. So a refusal only
// determines what to try first.
func Find(in scheduler.Input, p search.Policy, load contend.Workload) Advice {
	a := &adviser{in: in, p: p, load: load}
	a.in.Line, a.in.Running, a.in.Steps = nil, nil, 0
	if load.Job == nil || !load.Job.Placeable() {
		return Advice{}
	}
	if len(load.Evals) == 0 && load.Blocked == nil {
		a.load.Evals = []*structs.Evaluation{{ID: structs.DeriveID[structs.EvalID](structs.Seed{}, "suggest", load.Key.String(), 0),
			Namespace: load.Key.Namespace, JobID: load.Key.ID, Type: load.Job.Type, Status: structs.EvalPending, JobSpecIndex: load.Job.SpecIndex}}
	}
	now := a.in
	now.EstimateFor = load.Key
	rep, ok := a.decide(&now, a.load)
	if ok {
		return Advice{Starts: true, Tries: a.tries}
	}
	adv := Advice{Start: rep.Start, Never: a.never(), Holders: a.holders()}
	a.lift(rep)
	for _, g := range rep.Groups {
		if slices.ContainsFunc(g.Refusals, func(r structs.Refusal) bool {
			return r.Dimension == structs.DimensionGrowth && (r.CuredBy == structs.EventTime || r.Count > 0)
		}) {
			return adv // it runs, and was resized or would lose more than it gains
		}
		if g.Placed < g.Wanted || g.Code != structs.ReasonNone {
			a.group(g)
		}
	}
	a.nodes(rep)
	slices.SortStableFunc(a.out, func(x, y Change) int {
		return cmp.Or(cmp.Compare(x.Cost, y.Cost), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Text, y.Text))
	})
	a.out = slices.CompactFunc(a.out, func(x, y Change) bool { return x.Text == y.Text })
	adv.Changes, adv.Tries = a.out[:min(len(a.out), changesKept)], a.tries
	return adv
}

// decide is one try. It reports whether everything that the workload wants was placed.
func (a *adviser) decide(in *scheduler.Input, load contend.Workload) (scheduler.WorkloadReport, bool) {
	a.tries++
	what := *in
	what.Pending = []contend.Workload{load}
	_, rep := scheduler.Schedule(what, a.p)
	a.looks += rep.Steps
	if len(rep.Workloads) != 1 {
		return scheduler.WorkloadReport{Key: load.Key}, false
	}
	w := rep.Workloads[0]
	return w, !w.Failed && w.Refused == ""
}

func (a *adviser) spent() bool { return a.tries >= suggestTries || a.looks >= suggestLooks }

// job tries an edited copy of the job.
func (a *adviser) job(edit func(*structs.Job)) (*structs.Job, bool) {
	if a.spent() {
		return nil, false
	}
	j := copyJob(a.load.Job)
	edit(j)
	if len(a.load.Allocs) > 0 {
		j.Version++ // running allocations are updated or replaced
	}
	load := a.load
	load.Job = j
	_, ok := a.decide(&a.in, load)
	return j, ok
}

func (a *adviser) found(c Change) {
	if a.too != "" {
		c.Text, c.Cost, c.Lifts = a.too+", and "+c.Text, c.Cost+100, true
	}
	a.out = append(a.out, c)
}

// copyJob copies what an edit may change.
func copyJob(j *structs.Job) *structs.Job {
	c := *j
	c.Constraints = slices.Clone(j.Constraints)
	c.Groups = slices.Clone(j.Groups)
	for i, g := range c.Groups {
		ng := *g
		ng.Constraints = slices.Clone(g.Constraints)
		ng.Tasks = slices.Clone(g.Tasks)
		for k, t := range ng.Tasks {
			nt := *t
			nt.Constraints = slices.Clone(t.Constraints)
			nt.Resources.Devices = slices.Clone(t.Resources.Devices)
			nt.Resources.GPU = slices.Clone(t.Resources.GPU)
			ng.Tasks[k] = &nt
		}
		c.Groups[i] = &ng
	}
	return &c
}

// never tries the job on the cluster without any work, with every node ready and every device healthy.
func (a *adviser) never() string {
	var nodes []*structs.Node
	a.in.View.EachNode(func(n *structs.Node) bool {
		nodes = append(nodes, restored(n))
		return true
	})
	var pools []*structs.NodePool
	names := make([]structs.PoolName, 0, len(a.in.View.Pools))
	for name := range a.in.View.Pools {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		pools = append(pools, a.in.View.Pools[name])
	}
	in := scheduler.Input{View: model.NewView(a.in.View.Index(), nodes, nil, pools), Config: a.in.Config, Now: a.in.Now, Seed: a.in.Seed}
	load := a.load
	load.Allocs, load.Gate, load.Rosters = nil, nil, nil
	rep, ok := a.decide(&in, load)
	if ok {
		return ""
	}
	turns := false
	for _, g := range rep.Groups {
		if g.Placed >= g.Wanted && g.Code == structs.ReasonNone {
			continue
		}
		if g.Placed > 0 && inTurns(a.load.Job, g.Group) {
			turns = true
			continue
		}
		text := fmt.Sprintf("group %q: the whole cluster, empty, has room for %d of %d", g.Group, g.Placed, g.Wanted)
		if g.Placed == 0 {
			text = fmt.Sprintf("group %q: no node of the pool has what it asks for, even when empty", g.Group)
			if g.Wanted > 1 && g.Code == structs.ReasonGang {
				text = fmt.Sprintf("group %q: its gang does not fit even on an empty cluster", g.Group)
			}
		}
		return text + shortfallsText(g.Refusals)
	}
	if turns {
		return ""
	}
	return rep.Refused
}

// shortfallsNamed limits the reasons in Advice.Never.
const shortfallsNamed = 3

// shortfallsText names what excludes nodes, the commonest first, each with the number of nodes.
func shortfallsText(refusals []structs.Refusal) (text string) {
	named := 0
	for i := range refusals {
		r := &refusals[i]
		if r.Unit == structs.UnitMembers { // it says how many found no place, and the next one what they lack
			text += "; " + refusalText(r)
			continue
		}
		if named > 0 && r.Nodes == 0 {
			continue
		}
		if named == shortfallsNamed {
			break
		}
		text += "; " + refusalText(r)
		named++
	}
	return text
}

// inTurns reports whether a group needs no room for all its allocations at once: those of a batch job end and make room
// for the others, unless they start together.
func inTurns(j *structs.Job, name structs.GroupName) bool {
	tg := j.Group(name)
	return tg != nil && tg.Gang == nil && !j.AllAtOnce && j.Type == structs.JobBatch
}

// refusalText returns a refusal in a few words.
func refusalText(r *structs.Refusal) string {
	switch {
	case r.Unit == structs.UnitMembers:
		return r.Text() // "1 of 2 members found"
	case r.Short > 0 && r.Nodes > 0:
		return fmt.Sprintf("%s is short by %s on the best of %d", r.Text(), r.ShortText(), r.Nodes)
	case r.Short > 0:
		return fmt.Sprintf("%s is short by %s", r.Text(), r.ShortText())
	case r.Nodes > 0:
		return r.TextOn(r.Nodes)
	}
	return r.Text()
}

// restored returns a node as it would be if it were ready and healthy.
func restored(n *structs.Node) *structs.Node {
	c := *n
	c.Status, c.Eligibility, c.Drain = structs.NodeReady, structs.NodeEligible, nil
	for i := range n.Resources.Devices {
		if slices.ContainsFunc(n.Resources.Devices[i].Instances, func(d structs.DeviceInstance) bool { return !d.Healthy }) {
			c.Resources.Devices = slices.Clone(c.Resources.Devices)
			g := &c.Resources.Devices[i]
			g.Instances = slices.Clone(g.Instances)
			for k := range g.Instances {
				g.Instances[k].Healthy = true
			}
		}
	}
	drivers := make(map[string]*structs.DriverInfo, len(n.Drivers))
	for name, d := range n.Drivers {
		x := *d
		x.Healthy = x.Detected
		drivers[name] = &x
	}
	c.Drivers = drivers
	return &c
}

// lift tries without what no node can change: the gate, the limits of queues and tenants, what is reserved for others.
func (a *adviser) lift(rep scheduler.WorkloadReport) {
	why := a.load.Gate
	for _, g := range rep.Groups {
		for i := range g.Refusals {
			r := &g.Refusals[i]
			if r.Dimension == structs.DimensionOwnReservation || r.Dimension == structs.DimensionGrowth {
				continue // its own reservation; or it runs, and was resized
			}
			switch r.Code {
			case structs.ReasonReservation, structs.ReasonQuota, structs.ReasonRateLimit, structs.ReasonDependency, structs.ReasonBeginTime, structs.ReasonHeld:
				if why == nil {
					why = r
				}
			}
		}
	}
	if why == nil {
		return
	}
	in, load := a.in, a.load
	text, cost := liftText(why, load.Key), int64(100)
	switch why.Code {
	case structs.ReasonQuota:
		if why == load.Gate {
			load.Gate = nil
		} else {
			in.Queues, text = a.raise(rep, why)
		}
	case structs.ReasonRateLimit:
		in.Evicted = nil
		in.Queues = changed(in.Queues, func(q *structs.Queue) { q.PreemptRate = 0 }, nil)
	case structs.ReasonReservation:
		in.Reserved = nil
	default:
		load.Gate = nil
	}
	if _, ok := a.decide(&in, load); !ok {
		a.in, a.load, a.too = in, load, text // what else is missing only shows without it
		return
	}
	if why.Code == structs.ReasonReservation {
		a.shorter()
	}
	a.found(Change{Kind: ChangeLimit, Text: text, Cost: cost, Lifts: true})
}

// raise raises the limits that bind, each by what is missing for everything that the workload wants, and returns by how
// much. More than one may bind: that of a queue, of its parent, and of the namespace.
func (a *adviser) raise(rep scheduler.WorkloadReport, why *structs.Refusal) (*contend.QueueTable, string) {
	in, text := a.in, ""
	for range raisedMax {
		var miss int64
		for _, g := range rep.Groups {
			if len(g.Refusals) > 0 && g.Refusals[0].Code == structs.ReasonQuota {
				why, miss = &g.Refusals[0], g.Wanted-g.Placed
				break
			}
		}
		r := *why
		if miss > 1 {
			r.Short += (miss - 1) * a.each(&r)
		}
		if text != "" {
			text += ", and "
		}
		text += liftText(&r, a.load.Key)
		in.Queues = raised(in.Queues, &r)
		if rep, _ = a.decide(&in, a.load); len(rep.Groups) == 0 || !slices.ContainsFunc(rep.Groups, func(g *structs.GroupReport) bool { return g.Code == structs.ReasonQuota }) {
			break
		}
	}
	return in.Queues, text
}

// raisedMax is the highest number of limits that are raised for one workload.
const raisedMax = 8

// each returns what one allocation of the workload uses of the amount that a limit names, in the unit of the refusal.
func (a *adviser) each(r *structs.Refusal) int64 {
	sizes := contend.GPUSizesOf(a.in.View)
	most := int64(0)
	for _, g := range a.load.Job.Groups {
		for _, p := range sizes.Estimate(g).Parts() {
			if p.Dimension == r.Dimension || p.Dimension == structs.DimensionGPU && r.Dimension == structs.DimensionGPUModel {
				if r.Unit == structs.UnitGPUs {
					p.Value /= 1000
				}
				most = max(most, p.Value)
			}
		}
	}
	return most
}

// raised returns the table with the limit that a refusal names raised by what is missing.
func raised(t *contend.QueueTable, r *structs.Refusal) *contend.QueueTable {
	by := r.Short
	if r.Unit == structs.UnitGPUs {
		by *= 1000
	}
	more := func(l *structs.Amount) {
		for _, c := range []struct {
			what structs.Dimension
			at   *int64
		}{{structs.DimensionGPU, &l.GPUMilli}, {structs.DimensionGPUMemory, &l.GPUMemoryMiB}, {structs.DimensionCPU, &l.CPU}, {structs.DimensionMemory, &l.MemoryMiB}} {
			if c.what == r.Dimension && *c.at != structs.AmountNoLimit {
				*c.at += by
			}
		}
	}
	moreOf := func(limits []structs.ModelAmount) []structs.ModelAmount {
		out := slices.Clone(limits)
		for i := range out {
			if out[i].Model == r.Detail {
				out[i].Milli += by
			}
		}
		return out
	}
	return changed(t, func(q *structs.Queue) {
		switch {
		case r.Holder != contend.QueueHolder(q.Path):
		case r.Dimension == structs.DimensionGPUModel && r.Subject != "":
			q.UserLimitModels = moreOf(q.UserLimitModels)
		case r.Dimension == structs.DimensionGPUModel:
			q.LimitModels = moreOf(q.LimitModels)
		case r.Dimension == structs.DimensionRunningJobs && r.Subject != "":
			q.RunningUserMax += by
		case r.Dimension == structs.DimensionRunningJobs:
			q.RunningMax += by
		case r.Dimension == structs.DimensionGPUMinutes && r.Subject != "":
			q.GPUMinutesUserMax += by
		case r.Dimension == structs.DimensionGPUMinutes:
			q.GPUMinutesMax += by
		case r.Dimension == structs.DimensionGPUHours && r.Subject != "":
			q.GPUHoursUserMax += by
		case r.Dimension == structs.DimensionGPUHours:
			q.GPUHoursMax += by
		case r.User() != "" && q.UserLimit != nil:
			l := *q.UserLimit
			more(&l)
			q.UserLimit = &l
		case q.Most() != nil:
			l := *q.Most()
			more(&l)
			q.Limit, q.Borrow = &l, nil
		}
	}, func(tn *contend.Tenant) {
		switch {
		case r.Holder.Kind != structs.HolderQuota || r.Holder.Name != tn.Quota:
		case r.Dimension == structs.DimensionGPUModel:
			tn.HardModels = moreOf(tn.HardModels)
		default:
			more(&tn.Hard)
		}
	})
}

// changed returns the table with every queue and tenant edited; either edit may be nil.
func changed(t *contend.QueueTable, edit func(*structs.Queue), tenant func(*contend.Tenant)) *contend.QueueTable {
	if t == nil {
		return nil
	}
	c := *t
	if c.Queues = slices.Clone(t.Queues); edit != nil {
		for i, q := range c.Queues {
			x := *q
			edit(&x)
			c.Queues[i] = &x
		}
	}
	if c.Tenants = slices.Clone(t.Tenants); tenant != nil {
		for i := range c.Tenants {
			tenant(&c.Tenants[i])
		}
	}
	return &c
}

// liftText returns what would have to be lifted, for users.
func liftText(r *structs.Refusal, k structs.JobKey) string {
	switch r.Code {
	case structs.ReasonQuota:
		switch {
		case r.Short <= 0:
			return "a higher limit of " + r.Text()
		case r.Dimension == structs.DimensionRunningJobs || r.Dimension == structs.DimensionGPUMinutes || r.Dimension == structs.DimensionGPUHours:
			return fmt.Sprintf("%d more %s in the cap of %s", r.Short, r.What(), r.Limit())
		case r.Dimension == structs.DimensionGPUModel:
			return fmt.Sprintf("%s more of model %s in the limit of %s", r.ShortText(), r.Detail, r.Limit())
		case r.Dimension == structs.DimensionGPU:
			return fmt.Sprintf("%d more %s in the limit of %s", r.Short, r.Unit.Of(r.Short), r.Limit())
		}
		return fmt.Sprintf("%s more of %s in the limit of %s", r.ShortText(), r.What(), r.Limit())
	case structs.ReasonBeginTime:
		return "an earlier begin time (" + r.Text() + ")"
	case structs.ReasonDependency:
		return "without the dependency: " + r.Text()
	case structs.ReasonRateLimit:
		return "a higher preempt_rate (" + r.Text() + ")"
	case structs.ReasonReservation:
		return "without what is reserved for others (" + r.Text() + ")"
	case structs.ReasonPriority:
		return "a place ahead: " + r.Text()
	case structs.ReasonHeld:
		if r.Dimension == structs.DimensionSuspended {
			return "resumed (muster job resume " + k.ID + ")"
		}
		return "released (muster job release " + k.ID + ")"
	}
	return r.Text()
}

// shorter tries a run time limit that ends before the reservations of others begin.
func (a *adviser) shorter() {
	ends := []structs.LogTime{}
	for _, r := range a.in.Reserved {
		if r.Start > a.in.Now && !slices.Contains(ends, r.Start) {
			ends = append(ends, r.Start)
		}
	}
	slices.Sort(ends)
	slices.Reverse(ends)
	for _, at := range ends[:min(len(ends), suggestNodes)] {
		limit := at.Sub(a.in.Now)
		limit = (limit - limit/10).Truncate(time.Second) // the user will apply the advice some time later
		if limit <= 0 {
			continue
		}
		expect := a.load.Expect
		a.load.Expect = min(expect, limit) // the prediction was made for the old limit
		j, ok := a.job(func(j *structs.Job) {
			j.Runtime.Limit, j.Runtime.Expected = limit, min(j.Runtime.Expected, limit)
			for _, g := range j.Groups {
				g.MaxRunDuration = min(g.MaxRunDuration, limit)
			}
		})
		a.load.Expect = expect
		if ok {
			a.found(Change{Kind: ChangeTime, Text: fmt.Sprintf("a run time limit of %s", limit), Cost: 90, Job: j})
			return
		}
	}
}
