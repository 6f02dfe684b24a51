package histories

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// After is a cluster after a pass, counted from the allocations that the pass saw, those of plans in flight, and its own.
type After struct {
	Rooms    []Room
	Uses     Uses                                 // with what waits for places that others still hold
	Reserved map[structs.JobKey]structs.QueuePath // jobs that hold a reservation, with their queues
	Held     bool                                 // an operator has reserved something
	Ready    bool                                 // all nodes are ready
}

// Room is what a node has left.
type Room struct {
	Node *structs.Node
	Used structs.Vector
	GPUs int64 // that are free as a whole
	Owed bool  // an allocation waits for what others still hold

	total structs.Vector
}

// NewAfter returns the cluster after a pass that stops nothing.
func NewAfter(in *scheduler.Input, plan *scheduler.Plan) *After {
	x := &After{Uses: Uses{}, Reserved: map[structs.JobKey]structs.QueuePath{}, Ready: true}
	placed := map[structs.NodeID][]*model.Held{}
	for _, pe := range plan.Entries {
		for i := range pe.Parts {
			for k := range pe.Parts[i].Places {
				if node, h, ok := model.HeldOfPlace(pe, &pe.Parts[i].Places[k]); ok {
					placed[node] = append(placed[node], h)
				}
			}
		}
	}
	jobs := map[structs.JobKey][]*structs.Allocation{}
	as := map[structs.JobKey]*structs.Job{}
	for _, c := range in.View.Chunks {
		for i, n := range c.Nodes {
			hs := slices.Collect(c.Hold[i].All())
			for _, h := range in.Flight.On(n.ID) {
				if !c.Hold[i].Has(h.Held.ID) {
					hs = append(hs, h.Held)
				}
			}
			hs = append(hs, placed[n.ID]...)
			x.Ready = x.Ready && n.Ready()
			_, total, _ := in.View.Usage(n.ID)
			x.room(n, total, hs, func(a *structs.Allocation) {
				if a.Job != nil {
					jobs[a.Job.Key()], as[a.Job.Key()] = append(jobs[a.Job.Key()], a), a.Job
				}
			})
		}
	}
	for k, allocs := range jobs { // into maps, so the order does not matter
		x.Uses.Add(as[k], allocs)
	}
	x.reservations(in, plan)
	return x
}

// room adds a node with what is held on it.
func (x *After) room(n *structs.Node, total structs.Vector, hs []*model.Held, each func(*structs.Allocation)) {
	r := Room{Node: n, total: total}
	var allocs []*structs.Allocation
	used := map[string]bool{} // GPUs
	for _, h := range hs {
		a := &structs.Allocation{ID: h.ID, Job: h.Work.Job, Group: h.Work.Group, Resources: h.Need, Client: structs.ClientRunning}
		if h.Rare != nil {
			a.Grants, a.WaitsOn = h.Rare.Grants, h.Rare.Waits
		}
		for i := range a.Grants {
			used[a.Grants[i].Instance] = true
		}
		r.Owed = r.Owed || slices.ContainsFunc(hs, func(o *model.Held) bool { return slices.Contains(a.WaitsOn, o.ID) })
		allocs = append(allocs, a)
		each(a)
	}
	r.Used = structs.Usage(allocs)
	for i := range n.Resources.Devices {
		for k := range n.Resources.Devices[i].Instances {
			if d := &n.Resources.Devices[i].Instances[k]; d.Healthy && !used[d.ID] {
				r.GPUs++
			}
		}
	}
	x.Rooms = append(x.Rooms, r)
}

// reservations notes who holds reservations.
func (x *After) reservations(in *scheduler.Input, plan *scheduler.Plan) {
	for _, r := range in.Reserved {
		if r.JobID == "" {
			x.Held = true
			continue
		}
		x.reserve(r)
	}
	for _, pe := range plan.Entries {
		if r := pe.Reservation; r != nil && r.Start == 0 {
			delete(x.Reserved, structs.JobKey{Namespace: pe.Namespace, ID: pe.JobID})
		} else if r != nil {
			x.reserve(r)
		}
	}
}

func (x *After) reserve(r *structs.Reservation) {
	queue := structs.QueuePath("")
	if len(r.Queues) > 0 {
		queue = r.Queues[0]
	}
	x.Reserved[structs.JobKey{Namespace: r.Namespace, ID: r.JobID}] = queue
}

// mayUse reports whether a group that asks for GPUs may use those of a name.
func mayUse(g *structs.Group, name string) bool {
	r := &g.Tasks[0].Resources
	for i := range r.GPU {
		if !structs.IsModel(name, r.GPU[i].Model) {
			return false
		}
	}
	for i := range r.Devices {
		for _, c := range r.Devices[i].Constraints {
			if c.LTarget == structs.ModelTarget && !regexp.MustCompile(c.RTarget).MatchString(name) {
				return false
			}
		}
	}
	return true
}

// simple reports whether a job asks for whole GPUs for each of its allocations, and nothing else that could be scarce.
func simple(j *structs.Job) bool {
	g := j.Groups[0]
	r := &g.Tasks[0].Resources
	return len(j.Groups) == 1 && g.Gang == nil && g.Elastic == nil && len(j.Depends) == 0 && len(r.GPU)+len(r.Devices) == 1 && (len(r.GPU) == 0 || !r.GPU[0].Shared())
}

// closed returns the limit of a model that one more allocation of a job on GPUs of that name would exceed, or "".
func (c *Judge) closed(x *After, j *structs.Job, name string) string {
	add := 1000 * GPUsEach(j.Groups[0])
	for p := range j.QueueName().Lineage() {
		q := c.Queues[p]
		for user, limits := range map[string][]structs.ModelAmount{"": q.LimitModels, j.Submitter.Name: q.UserLimitModels} {
			for _, lim := range limits {
				if structs.IsModel(name, lim.Model) && x.Uses[structs.UseRow{Path: p, User: user}].Of(lim.Model)+add > lim.Milli {
					return fmt.Sprintf("%s of queue %s, user %q", lim.Model, p, user)
				}
			}
		}
	}
	return ""
}

// roomFor returns a node with room for one allocation of a job with whole GPUs, or "".
func (c *Judge) roomFor(x *After, j *structs.Job) string {
	need := GPUsEach(j.Groups[0])
	for i := range x.Rooms {
		r := &x.Rooms[i]
		name := r.Node.Resources.Devices[0].Name
		if need > 0 && (!mayUse(j.Groups[0], name) || c.closed(x, j, name) != "") {
			continue
		}
		if r.Node.Ready() && !r.Owed && r.GPUs >= need && r.Used.Add(structs.GroupVector(j.Groups[0])).Fits(r.total) {
			return r.Node.Name
		}
	}
	return ""
}

// Explained checks that the reasons for which jobs wait are true in the cluster after a pass that stops nothing. waits
// returns the queue in which a job waits after the pass, "" if it does not wait.
func (c *Judge) Explained(x *After, in *scheduler.Input, rep *scheduler.Report, waits func(structs.JobKey) structs.QueuePath) {
	for i := range rep.Workloads {
		r := &rep.Workloads[i]
		w := c.find(in.Pending, r.Key)
		if w == nil || w.Job == nil || !r.Failed {
			continue
		}
		for _, g := range r.Groups {
			if g.Placed < g.Wanted {
				c.explained(x, w, g, waits)
			}
		}
	}
}

// explained checks the reason for which one group waits.
func (c *Judge) explained(x *After, w *contend.Workload, g *structs.GroupReport, waits func(structs.JobKey) structs.QueuePath) {
	j := w.Job
	c.Counts["told "+string(g.Code)]++
	for _, r := range g.Refusals {
		if r.Dimension == structs.DimensionGPUModel && g.Placed == 0 && simple(j) && j.Groups[0].Count == 1 {
			c.Counts["told a limit of a model"]++
			if c.closed(x, j, r.Detail) == "" {
				c.Fail("%s is told %v, and that limit leaves room for it", r.Text(), g.Refusals)
			}
		}
	}
	switch g.Code {
	case structs.ReasonQuota, structs.ReasonResources, structs.ReasonFragmentation:
		if !simple(j) || g.Code == structs.ReasonQuota && g.Refusals[0].Dimension != structs.DimensionGPUModel {
			return
		}
		c.Counts["looked for room"]++
		if n := c.roomFor(x, j); n != "" {
			c.Fail("%s is told %v, and node %s has room for it", w.Key.ID, g.Refusals, n)
		}
	case structs.ReasonReservation:
		if len(x.Reserved) == 0 && !x.Held {
			c.Fail("%s is told %v, and nothing is reserved", w.Key.ID, g.Refusals)
		}
	case structs.ReasonDependency:
		if len(j.Depends) == 0 {
			c.Fail("%s waits for another job, and depends on none", w.Key.ID)
		}
	case structs.ReasonPriority:
		if r := &g.Refusals[0]; r.Dimension == structs.DimensionQueueOrder && waits(structs.JobKey{Namespace: w.Key.Namespace, ID: r.Subject}) != w.QueueName() {
			c.Fail("%s is told that it must not pass %s, which does not wait in its queue", w.Key.ID, r.Subject)
		}
	}
}

// Reserves reports whether work that has waited for max_wait always holds a reservation in this history. Where no end is known, a
// job that is reserved for may keep the next from having an earliest start, as may what an operator has reserved.
func (h *History) Reserves() bool {
	return h.Is["times"] != "unknown" && h.Is["times"] != "learned" && len(h.Reserved) == 0
}

// Late checks that work that found no place and has waited for max_wait holds a reservation, as one of reserve_depth. See
// History.Reserves.
func (c *Judge) Late(x *After, in *scheduler.Input, rep *scheduler.Report) {
	if !x.Ready {
		return
	}
	for i := range rep.Workloads {
		r := &rep.Workloads[i]
		w := c.find(in.Pending, r.Key)
		if w == nil || w.Job == nil || !r.Failed || len(r.Groups) == 0 || !Together(w.Job) || slices.ContainsFunc(w.Allocs, structs.Holds) {
			continue
		}
		q := c.Queues[w.QueueName()]
		since := w.WaitingSince()
		if since == 0 || in.Now.Sub(since) <= q.MaxWait || !slices.Contains([]structs.ReasonCode{structs.ReasonResources, structs.ReasonFragmentation, structs.ReasonGang}, r.Groups[0].Code) || slices.ContainsFunc(r.Groups[0].Refusals, func(r structs.Refusal) bool { return r.Dimension == structs.DimensionGPUModel }) {
			continue
		}
		if _, reserved := x.Reserved[r.Key]; reserved {
			c.Counts["late, and reserved for"]++
			continue
		}
		depth := int64(0) // reservations of the queue
		for _, queue := range x.Reserved {
			if queue == q.Path {
				depth++
			}
		}
		c.Counts["late"]++
		if depth < q.ReserveDepth {
			c.Fail("%s has waited for %v, more than %v, and holds no reservation; %d jobs of its queue do", r.Key.ID, in.Now.Sub(since), q.MaxWait, depth)
		}
	}
}
