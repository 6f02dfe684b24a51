package scheduler

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// AppendPlan appends bytes that are equal for equal plans, in every process.
func AppendPlan(b []byte, p Plan) []byte { return pack.Append(b, &p) }

// dumpVersion changes when dumps of older builds can no longer be read.
const dumpVersion = 2

// dump is an Input as plain data.
type dump struct {
	Version  int
	Index    structs.Index
	Nodes    []*structs.Node
	Held     []dumpHeld
	Pools    []*structs.NodePool
	Pending  []dumpWorkload
	Flight   []dumpFlight
	Jobs     []*structs.Job // the jobs of allocations
	Config   structs.SchedulerConfig
	Now      structs.LogTime
	Seed     uint64
	Cursor   structs.NodeID
	Steps    int
	Places   int
	Mix      *model.Mix
	Policy   string
	Reserved []*structs.Reservation
	Queues   *contend.QueueTable
	Waits    bool
	Power    bool
	Evicted  []*structs.Preemptions
	History  []dumpPast // by node
	Running  []dumpWorkload
	Competes bool   // there was a chooser
	Chooser  []byte // what it remembers, if anything

	OldEvents bool
	OldLimits bool
	Typical   time.Duration

	Freed []model.Freed
	Gangs []contend.GangTimes
}

// dumpHeld is what one allocation holds: all that a decision sees of allocations of other jobs.
type dumpHeld struct {
	ID     structs.AllocID
	Node   structs.NodeID
	Need   structs.Vector
	Waits  []structs.AllocID
	Ports  []structs.PortGrant
	Cores  []int64
	Grants []structs.Grant
	Job    int // 1 + place in dump.Jobs, 0 for none
	Group  structs.GroupName
	Began  structs.LogTime
	Placed structs.LogTime
	Still  structs.LogTime
	Expect time.Duration
	Ending bool
	Index  int
	Times  int64
	Saved  structs.LogTime
	Took   time.Duration
}

type dumpPast struct {
	Node structs.NodeID
	Past search.Past
}

type dumpFlight struct {
	ID    uint64
	Job   structs.JobKey
	Stops []structs.AllocID
	Held  []dumpHeld
}

type dumpWorkload struct {
	Key     structs.JobKey
	Job     *structs.Job
	Evals   []*structs.Evaluation
	Blocked *structs.Evaluation
	Queue   *structs.Workload
	Rosters []*structs.Roster
	Allocs  []*structs.Allocation
	Expect  time.Duration
	Gate    *structs.Refusal
	JobOf   []int // per allocation: 1 + place in dump.Jobs, 0 for none
	Until   structs.LogTime
	Met     bool
	Ended   *structs.ArrayState
	Cost    int64
	Ran     time.Duration
}

func dumpOf(node structs.NodeID, h *model.Held, job int) dumpHeld {
	w := &h.Work
	d := dumpHeld{ID: h.ID, Node: node, Need: h.Need, Job: job, Group: w.Group, Began: w.Began, Placed: w.Placed, Still: w.Frozen, Expect: w.Expect, Ending: w.Ending, Index: w.Index, Times: w.Times, Saved: w.Saved, Took: w.Took}
	if r := h.Rare; r != nil {
		d.Waits, d.Ports, d.Cores, d.Grants = r.Waits, r.Ports, r.Cores, r.Grants
	}
	return d
}

func (d *dumpHeld) held(jobs []*structs.Job) *model.Held {
	h := &model.Held{ID: d.ID, Need: d.Need, Work: model.HeldWork{Job: d.job(jobs), Group: d.Group, Began: d.Began, Placed: d.Placed, Frozen: d.Still, Expect: d.Expect, Ending: d.Ending, Index: d.Index, Times: d.Times, Saved: d.Saved, Took: d.Took,
		Yields: model.Elastic(d.job(jobs), d.Group), Shy: model.KeepsAway(d.job(jobs), d.Group)}}
	if len(d.Waits)+len(d.Ports)+len(d.Cores)+len(d.Grants) > 0 {
		h.Rare = &model.HeldRare{Waits: d.Waits, Ports: d.Ports, Cores: d.Cores, Grants: d.Grants}
	}
	return h
}

func (d *dumpHeld) job(jobs []*structs.Job) *structs.Job {
	if d.Job < 1 || d.Job > len(jobs) {
		return nil
	}
	return jobs[d.Job-1]
}

// Dump writes an Input and the name of its policy as canonical bytes that Load reads back, so that a decision of a live
// server can be repeated elsewhere. Node secrets are left out.
func Dump(in Input, policy string) ([]byte, error) {
	d := dump{Version: dumpVersion, Index: in.View.Index(), Config: in.Config, Now: in.Now, Seed: in.Seed, Cursor: in.Cursor, Steps: in.Steps, Places: in.Places, Mix: in.Mix, Policy: policy,
		Reserved: in.Reserved, Queues: in.Queues, Waits: in.Waits, Power: in.Power, OldEvents: in.OldEvents, OldLimits: in.OldLimits, Evicted: in.Evicted, Freed: in.Freed, Gangs: in.GangTimes, Typical: in.Typical}
	for id, p := range in.History {
		d.History = append(d.History, dumpPast{id, p})
	}
	slices.SortFunc(d.History, func(a, b dumpPast) int { return model.CompareID(a.Node, b.Node) })
	jobs := make(map[*structs.Job]int)
	jobOf := func(j *structs.Job) int {
		if j == nil {
			return 0
		}
		if jobs[j] == 0 {
			d.Jobs = append(d.Jobs, j)
			jobs[j] = len(d.Jobs)
		}
		return jobs[j]
	}
	for _, c := range in.View.Chunks {
		for i, n := range c.Nodes {
			if !n.SecretID.IsZero() {
				bare := *n
				bare.SecretID = structs.SecretID{}
				n = &bare
			}
			d.Nodes = append(d.Nodes, n)
			for h := range c.Hold[i].All() {
				d.Held = append(d.Held, dumpOf(n.ID, h, jobOf(h.Work.Job)))
			}
		}
	}
	for _, name := range model.SortedKeys(in.View.Pools) {
		d.Pools = append(d.Pools, in.View.Pools[name])
	}
	for _, p := range in.Flight.Plans {
		f := dumpFlight{ID: p.Id, Job: p.Job, Stops: p.Stops}
		for _, node := range p.Nodes {
			for _, h := range in.Flight.On(node) {
				if h.Plan == p.Id && !slices.ContainsFunc(f.Held, func(x dumpHeld) bool { return x.ID == h.Held.ID }) {
					f.Held = append(f.Held, dumpOf(node, h.Held, jobOf(h.Held.Work.Job)))
				}
			}
		}
		d.Flight = append(d.Flight, f)
	}
	workloads := func(ws []contend.Workload) (out []dumpWorkload) {
		for i := range ws {
			w := &ws[i]
			x := dumpWorkload{Key: w.Key, Job: w.Job, Evals: w.Evals, Blocked: w.Blocked, Queue: w.Queue, Rosters: w.Rosters, Allocs: w.Allocs, Expect: w.Expect,
				Gate: w.Gate, Until: w.Until, Met: w.Met, Ended: w.Ended, Cost: w.Cost, Ran: w.Ran}
			for _, a := range w.Allocs {
				x.JobOf = append(x.JobOf, jobOf(a.Job))
			}
			out = append(out, x)
		}
		return out
	}
	d.Pending, d.Running, d.Competes = workloads(in.Pending), workloads(in.Running), in.Chooser != nil
	if c, ok := in.Chooser.(contend.StatefulChooser); ok {
		d.Chooser = c.State()
	}
	return pack.Append(nil, &d), nil
}

// Load reads what Dump wrote, but without a Chooser. If the dumped Input had none, the loaded one gives the same plan.
// Otherwise use queue.Load.
func Load(b []byte) (in Input, policy string, err error) {
	return LoadWith(b, func([]byte) (contend.Chooser, error) { return nil, nil })
}

// LoadWith reads what Dump wrote. If running work competed, chooser restores the Chooser from its State. The Input
// gives the same plan as the one that was dumped.
func LoadWith(b []byte, chooser func(state []byte) (contend.Chooser, error)) (in Input, policy string, err error) {
	var d dump
	if err := pack.Decode(b, &d); err != nil {
		return in, "", structs.Errorf(structs.CodeInvalid, "not a dump of a scheduler input: %v", err)
	}
	if d.Version != dumpVersion {
		return in, "", structs.Errorf(structs.CodeInvalid, "the dump has version %d, this build reads version %d", d.Version, dumpVersion)
	}
	var allocs []*structs.Allocation
	for i := range d.Held {
		h := &d.Held[i]
		allocs = append(allocs, &structs.Allocation{ID: h.ID, NodeID: h.Node, Resources: h.Need, WaitsOn: h.Waits, Ports: h.Ports, Cores: h.Cores, Grants: h.Grants,
			Client: structs.ClientRunning, Desired: structs.DesiredRun, Job: h.job(d.Jobs), Group: h.Group, CreateTime: h.Placed, StartedAt: h.Began, Expect: h.Expect, NameIndex: h.Index, Line: &structs.Lineage{Preempted: h.Times}})
		if h.Still != 0 {
			allocs[len(allocs)-1].Suspension = &structs.Suspension{Since: h.Still}
		}
		if h.Saved != 0 {
			allocs[len(allocs)-1].Saved = &structs.Saved{Time: h.Saved, Took: h.Took}
		}
		if h.Ending {
			allocs[len(allocs)-1].Desired = structs.DesiredStop
		}
	}
	in = Input{View: model.NewView(d.Index, d.Nodes, allocs, d.Pools), Config: d.Config, Now: d.Now, Seed: d.Seed, Cursor: d.Cursor, Steps: d.Steps, Places: d.Places, Mix: d.Mix,
		Reserved: d.Reserved, Queues: d.Queues, Waits: d.Waits, Power: d.Power, OldEvents: d.OldEvents, OldLimits: d.OldLimits, Evicted: d.Evicted, Freed: d.Freed, GangTimes: d.Gangs, Typical: d.Typical}
	for i := range d.History {
		if in.History == nil {
			in.History = make(map[structs.NodeID]search.Past, len(d.History))
		}
		in.History[d.History[i].Node] = d.History[i].Past
	}
	for i := range d.Flight {
		p := &d.Flight[i]
		hs := make([]model.HeldOn, len(p.Held))
		for k := range p.Held {
			hs[k] = model.HeldOn{Node: p.Held[k].Node, Held: p.Held[k].held(d.Jobs)}
		}
		in.Flight = in.Flight.Restore(p.ID, p.Job, p.Stops, hs)
	}
	in.Pending, in.Running = d.workloads(d.Pending), d.workloads(d.Running)
	if d.Competes {
		if in.Chooser, err = chooser(d.Chooser); err != nil {
			return in, "", structs.Errorf(structs.CodeInvalid, "not a dump of a scheduler input: %v", err)
		}
	}
	return in, d.Policy, nil
}

func (d *dump) workloads(list []dumpWorkload) (out []contend.Workload) {
	for i := range list {
		x := &list[i]
		for k, a := range x.Allocs {
			if k < len(x.JobOf) && x.JobOf[k] > 0 && x.JobOf[k] <= len(d.Jobs) {
				a.Job = d.Jobs[x.JobOf[k]-1]
			}
		}
		w := contend.Workload{Key: x.Key, Job: x.Job, Evals: x.Evals, Blocked: x.Blocked, Queue: x.Queue, Rosters: x.Rosters, Allocs: x.Allocs, Expect: x.Expect,
			Gate: x.Gate, Until: x.Until, Met: x.Met, Ended: x.Ended, Cost: x.Cost, Ran: x.Ran}
		if w.Job != nil {
			w.Least = contend.LeastOf(w.Job) // as servers do, so that what they refuse without a decision has no report here either
		}
		out = append(out, w)
	}
	return out
}
