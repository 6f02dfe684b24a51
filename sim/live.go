package sim

import (
	"fmt"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Job is one job of a trace: what is submitted, and data that only the simulator knows.
type Job struct {
	Job *structs.Job // Groups[0] is the work; SubmitTime and indexes are set by the engine
	At  time.Duration
	Run time.Duration // of each allocation (of a gang: of all members together); negative: never ends
	// Size is the number of units held while the job runs, for the size classes and the utilisation. 0: its GPUs, or 1.
	Size int64
	Ref  int64                 // the format's reference, such as the row of the trace
	Held []*structs.Allocation // running when the simulation begins, by name index; snapshots only
}

// Source returns the jobs of a trace in the order of their submission. The error at the end is io.EOF.
type Source interface {
	Next() (*Job, error)
}

// Live is a job in the system: submitted and not ended. The engine owns the fields; hooks may read them, and change
// them only through methods of Engine.
type Live struct {
	*Job
	Key       structs.JobKey
	Submit    structs.LogTime
	Start     structs.LogTime // first start; 0 before
	End       structs.LogTime // 0 before
	Preempted int64
	Predicted time.Duration // by the predictor at the first decision, 0: none
	Queued    time.Duration // total wait, including that between preemption and resumption

	work                   contend.Workload
	learned                *learned            // of the run's Learner; nil: not predicted yet
	assumed                *structs.Checkpoint // of its groups without a checkpoint block; nil: none
	units                  []unit
	left                   int // units that are not complete
	bucket                 int // priority
	pos                    int // index in its lane; -1 outside
	shape                  *shape
	home                   *shape          // in whose lanes it is
	lane                   *lane           // nil: it is not waiting
	waits                  structs.LogTime // start of the current wait; 0: it is not waiting
	refusedAt              uint64          // the instant of the last refusal
	reason                 structs.ReasonCode
	dirty                  bool            // has an evaluation without an answer
	listed                 bool            // in the pass that is being picked
	tied                   bool            // holds a reservation
	renew                  structs.LogTime // when its reservation is decided again
	again                  structs.LogTime // when it is decided again because more work may be preempted then; 0: never
	attained               int64
	ran                    time.Duration // of the first unit, in completed runs
	holds                  int           // allocations that hold resources
	allocs                 int           // allocations that it asks for
	prevHolder, nextHolder *Live         // in the list of jobs that hold resources
}

// unit is work that progresses together: one allocation, or a whole gang.
type unit struct {
	live    *Live
	group   int
	index   int // name index; -1 for a gang
	need    int // members that must run
	left    time.Duration
	debt    time.Duration   // restart cost still to pay before the work progresses
	since   structs.LogTime // time at which left and debt were computed
	from    structs.LogTime // when it last began to make progress
	on      bool
	done    bool
	began   bool // it has run before
	halted  bool // it was stopped with other groups, and makes no progress while it saves its state
	gen     uint32
	runs    []*run
	started int // of runs
}

// run is an allocation that holds resources.
type run struct {
	live    *Live
	unit    *unit
	alloc   *structs.Allocation
	node    int
	gpus    int64
	units   float64 // of the capacity
	started bool
	waits   int          // number of runs that it waits for
	wanted  []*run       // runs that wait for this one
	less    []lessCharge // while it waits: what it is not charged, because they are
	idle    bool         // it waits, and what is in use counts them

	ending   bool            // it was stopped
	notified bool            // and saves its state before it ends
	waited   bool            // for its turn to save
	saves    structs.LogTime // since when it saves; 0: it does not yet
}

// Left returns the remaining work of the job's units, now: the largest of them.
func (l *Live) Left(now structs.LogTime) time.Duration {
	most := time.Duration(0)
	for i := range l.units {
		most = max(most, l.units[i].leftAt(now))
	}
	return most
}

func (u *unit) leftAt(now structs.LogTime) time.Duration {
	if u.done {
		return 0
	}
	if !u.on {
		return u.left
	}
	return u.left - max(0, now.Sub(u.since)-u.debt)
}

// Running reports whether any of the job's units makes progress.
func (l *Live) Running() bool {
	for i := range l.units {
		if l.units[i].on {
			return true
		}
	}
	return false
}

// Attained returns the GPU-seconds of the job's ended and running allocations; seconds for work without GPUs.
func (l *Live) Attained(now structs.LogTime) int64 {
	sum := l.attained
	for i := range l.units {
		for _, r := range l.units[i].runs {
			if r.started {
				sum += max(r.gpus, 1) * int64(now.Sub(r.alloc.StartedAt)) / int64(time.Second)
			}
		}
	}
	return sum
}

// Ran returns how long the job's first unit has run, over all its runs.
func (l *Live) Ran(now structs.LogTime) time.Duration {
	if u := &l.units[0]; u.on {
		return l.ran + now.Sub(u.from)
	}
	return l.ran
}

// Workload returns the job as the scheduler sees it.
func (l *Live) Workload() *contend.Workload { return &l.work }

// newUnits makes the units of a job: one for each gang, one for each allocation of the other groups.
func (l *Live) newUnits() {
	n := 0
	for _, g := range l.Job.Job.Groups {
		if g.IsGang() {
			n++
		} else {
			n += l.members(g)
		}
	}
	l.units = make([]unit, 0, n)
	for k, g := range l.Job.Job.Groups {
		if g.IsGang() {
			l.units = append(l.units, unit{live: l, group: k, index: -1, need: g.Least(), left: l.Run})
			continue
		}
		for i := range l.members(g) {
			l.units = append(l.units, unit{live: l, group: k, index: i, need: 1, left: l.Run})
		}
	}
	l.left = n
	for _, g := range l.Job.Job.Groups {
		l.allocs += l.members(g)
	}
	if l.Size == 0 {
		l.Size = max(1, gpusAsked(l.Job.Job))
	}
}

// members returns how many allocations of a group do work: one for each index of an array.
func (l *Live) members(g *structs.Group) int {
	if a := l.Job.Job.Array; a != nil {
		return a.Count
	}
	return g.Count
}

// together reports whether two units of a job run as one.
func (l *Live) together(a, b *unit) bool {
	j := l.Job.Job
	return j.Together(j.Groups[a.group].Name, j.Groups[b.group].Name)
}

func (l *Live) unit(group structs.GroupName, index int) *unit {
	at := 0
	for _, g := range l.Job.Job.Groups {
		switch {
		case g.Name != group && g.IsGang():
			at++
		case g.Name != group:
			at += l.members(g)
		case g.IsGang():
			return &l.units[at]
		case index < l.members(g) && at+index < len(l.units):
			return &l.units[at+index]
		default:
			return nil
		}
	}
	return nil
}

// shape is a set of equal requests: when one job with it finds no room, the others find none until room appears.
type shape struct {
	need      structs.Vector
	gpus      int64 // whole GPUs per allocation
	shared    bool  // asks for parts of GPUs
	domain    structs.PoolName
	lanes     []*lane // by priority, high first
	waiting   int
	seq       int           // number of the shape in order of first use
	refusedAt uint64        // the last instant at which a job of this shape was refused for lack of room
	count     int64         // members that must be placed together
	known     structs.Index // of the view for which room was computed
	room      bool
}

type shapeKey struct {
	need   structs.Vector
	gpus   int64
	shared bool
	domain structs.PoolName
	count  int64
	more   string // all other constraints on where it may run
}

func shapeOf(j *structs.Job) shapeKey {
	k := shapeKey{domain: j.NodePool}
	for n, g := range j.Groups {
		v := structs.GroupVector(g)
		gpus := int64(0)
		for _, t := range g.Tasks {
			for i := range t.Resources.Devices {
				gpus += max(t.Resources.Devices[i].Count, 1)
			}
			for i := range t.Resources.GPU {
				r := &t.Resources.GPU[i]
				k.shared = k.shared || r.Shared()
				if i == 0 && !r.Shared() {
					gpus += max(r.Count, 1)
				}
			}
			if len(t.Resources.GPU) > 1 { // alternatives may ask for fewer
				gpus = min(gpus, 1)
			}
		}
		if n == 0 {
			if g.IsGang() {
				k.count = int64(g.Least())
			}
			k.need, k.gpus = v, gpus
			continue
		}
		k.need = structs.Vector{CPU: min(k.need.CPU, v.CPU), Cores: min(k.need.Cores, v.Cores), MemoryMiB: min(k.need.MemoryMiB, v.MemoryMiB), DiskMiB: min(k.need.DiskMiB, v.DiskMiB)}
		k.gpus = min(k.gpus, gpus)
	}
	k.more = narrow(j, k.shared)
	return k
}

// narrow distinguishes jobs with equal amounts but different allowed nodes or GPUs; "" for most.
func narrow(j *structs.Job, shared bool) string {
	free := !shared && len(j.Constraints) == 0 && len(j.Groups) == 1
	for _, g := range j.Groups {
		free = free && len(g.Constraints) == 0 && len(g.Networks) == 0 && len(g.Volumes) == 0 && g.Topology == nil
		for _, t := range g.Tasks {
			free = free && len(t.Constraints) == 0 && len(t.Resources.Devices) == 0 && t.Resources.NUMA == nil && len(t.Resources.GPU) <= 1
			for i := range t.Resources.GPU {
				r := &t.Resources.GPU[i]
				free = free && r.Model == "" && len(r.Constraints) == 0
			}
		}
	}
	if free {
		return ""
	}
	b := fmt.Appendf(nil, "%v", j.Constraints)
	for _, g := range j.Groups {
		b = fmt.Appendf(b, "%d%v%v%v", g.Count, g.Constraints, g.Networks, g.Volumes)
		if g.Topology != nil {
			b = fmt.Appendf(b, "%v", *g.Topology)
		}
		for _, t := range g.Tasks {
			b = fmt.Appendf(b, "%v%v%v", t.Constraints, t.Resources.Devices, t.Resources.GPU)
		}
	}
	return string(b)
}

// gpusAsked returns how many GPUs a job asks for in total; a part of a GPU counts as one.
func gpusAsked(j *structs.Job) (n int64) {
	for _, g := range j.Groups {
		per := int64(0)
		for _, t := range g.Tasks {
			for i := range t.Resources.Devices {
				per += max(t.Resources.Devices[i].Count, 1)
			}
			if len(t.Resources.GPU) > 0 {
				per += max(t.Resources.GPU[0].Count, 1)
			}
		}
		n += per * int64(g.Count)
	}
	return n
}
