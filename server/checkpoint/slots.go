// Package checkpoint decides which allocations may save their state now.
//
// A drain or a preemption may end a thousand allocations at once, and each saves its state first: more than the storage
// can take. Where an operator has set a limit (for the cluster, a node pool, or a named storage), they take turns. An
// agent asks for its allocation's turn before it asks the task to save, and the task keeps running until then.
//
// Turns follow from the state and the time alone, so every server gives the same answer. All allocations that were
// asked to end and will save their state form one line, ordered by the time when they were asked (Allocation.Asked),
// then by job, group and ID. Members of a gang, and of all groups of a joint job, that were asked together are one unit,
// because they save together or not at all. A unit has its turn when, under each limit that applies to it, it fits together with the units before it that
// have neither saved nor ended, or there are none. The units before it only become fewer, so a turn is never taken
// back, not even by a server that lags behind, unless a limit shrinks: what is configured, or what was measured of a storage
// (bandwidth.go). The first unit in line always has its turn, so the line moves.
//
//	drain deadline passed, drain forced:  no waiting
//	waited for CheckpointWaitMax:         no waiting
//	node out of touch:                    not in line, because its work cannot be observed
package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// turnOverhead is the time of a turn beyond the grace: the task must end, and the next agent must learn of its turn.
const turnOverhead = 10 * time.Second

// Limit bounds how many allocations save at the same time.
type Limit struct {
	Where string // for messages: "storage lustre1"
	Most  int64
}

// Need is what a unit takes of a limit.
type Need struct {
	Limit
	Allocs int64
}

// Unit is a set of allocations that save together.
type Unit struct {
	Limits []Need
	Allocs int64

	Now    bool  // it has its turn
	Before int64 // allocations ahead in the line of the limit that delays it
	By     Limit // that limit

	asked structs.LogTime
	job   structs.JobKey
	group structs.GroupName // "" for a joint job
	id    structs.AllocID   // zero for a gang and for a joint job
	grace time.Duration
}

func (u *Unit) compare(o *Unit) int {
	return cmp.Or(cmp.Compare(u.asked, o.asked), cmp.Compare(u.job.String(), o.job.String()), cmp.Compare(u.group, o.group), slices.Compare(u.id[:], o.id[:]))
}

// Line is the line of units in one state.
type Line struct {
	Of    map[structs.AllocID]*Unit
	units []*Unit          // in order
	ahead map[string]int64 // allocations in the line of each limit, by Limit.Where

	storages map[string]Storage // those that are configured or were measured
	limited  bool               // by some limit
}

// limitsOf returns the limits for an allocation that ends for a cause; none if it saves no state.
func (l *Line) limitsOf(snap Cluster, cfg *structs.SchedulerConfig, a *structs.Allocation, cause string) []Limit {
	if a.Job == nil || a.Client != structs.ClientRunning {
		return nil
	}
	g := a.Job.Group(a.Group)
	if g == nil || g.Checkpoint == nil || !g.Checkpoint.Heeds(cause) {
		return nil
	}
	return l.limitsOn(snap, cfg, a, g.Checkpoint)
}

// limitsOn returns the limits for an allocation that saves its state as a checkpoint block says.
func (l *Line) limitsOn(snap Cluster, cfg *structs.SchedulerConfig, a *structs.Allocation, c *structs.Checkpoint) []Limit {
	if !l.limited {
		return nil
	}
	var out []Limit
	if most := l.storages[c.Storage].Limit; most > 0 {
		out = append(out, Limit{whereStorage(c.Storage), most})
	}
	if n := snap.NodeByID(a.NodeID); n != nil {
		if p := snap.Pool(n.Pool); p != nil && p.MaxCheckpoints > 0 {
			out = append(out, Limit{"node pool " + string(p.Name), p.MaxCheckpoints})
		}
	}
	if cfg.MaxCheckpoints > 0 {
		out = append(out, Limit{"the cluster", cfg.MaxCheckpoints})
	}
	return out
}

// isLimited reports whether any limit is configured or was measured.
func (l *Line) isLimited(snap Cluster) bool {
	if snap.SchedulerConfig().MaxCheckpoints > 0 {
		return true
	}
	for _, x := range l.storages {
		if x.Limit > 0 {
			return true
		}
	}
	for p := range snap.Pools() {
		if p.MaxCheckpoints > 0 {
			return true
		}
	}
	return false
}

// NewLine returns the line of a state. It is empty if there is no limit.
func NewLine(snap Cluster) *Line {
	cfg := snap.SchedulerConfig()
	l := &Line{Of: map[structs.AllocID]*Unit{}, ahead: map[string]int64{}, storages: measure(snap)}
	if l.limited = l.isLimited(snap); !l.limited {
		return l
	}
	gangs := map[gangKey]*Unit{}
	for a := range snap.Allocs() {
		if !a.ServerTerminal() || a.ClientTerminal() || a.Saved != nil && a.Saved.Time > a.Lineage().Asked {
			continue
		}
		limits := l.limitsOf(snap, cfg, a, a.EndCause())
		if len(limits) == 0 {
			continue
		}
		l.Of[a.ID] = join(gangs, &l.units, a, a.Lineage().Asked, limits)
	}
	slices.SortFunc(l.units, (*Unit).compare)
	for _, u := range l.units {
		u.Now = true
		for _, need := range u.Limits {
			if n := l.ahead[need.Where]; n > 0 && n+need.Allocs > need.Most {
				if u.Now || n > u.Before {
					u.Before, u.By = n, need.Limit
				}
				u.Now = false
			}
		}
		for _, need := range u.Limits {
			l.ahead[need.Where] += need.Allocs
		}
	}
	return l
}

type gangKey struct {
	job   structs.JobKey
	group structs.GroupName
	asked structs.LogTime
}

// join adds an allocation to its unit, and makes the unit if there is none.
func join(gangs map[gangKey]*Unit, units *[]*Unit, a *structs.Allocation, asked structs.LogTime, limits []Limit) *Unit {
	g := a.Job.Group(a.Group)
	k := gangKey{a.JobKey(), a.Group, asked}
	if g.Joint {
		k.group = ""
	}
	u := gangs[k]
	if u == nil {
		u = &Unit{asked: asked, job: k.job, group: k.group, id: a.ID}
		if g.Gang != nil || g.Joint {
			u.id = structs.AllocID{}
			gangs[k] = u
		}
		*units = append(*units, u)
	}
	u.Allocs++
	u.grace = max(u.grace, g.Checkpoint.GraceOrDefault())
	for _, limit := range limits {
		at := slices.IndexFunc(u.Limits, func(n Need) bool { return n.Where == limit.Where })
		if at < 0 {
			at = len(u.Limits)
			u.Limits = append(u.Limits, Need{Limit: limit})
		}
		u.Limits[at].Allocs++
	}
	return u
}

// Turn returns nil if it is an allocation's turn. Otherwise it returns the unit that waits, and after what time the
// agent should ask again.
func (l *Line) Turn(snap Cluster, a *structs.Allocation, now structs.LogTime) (u *Unit, again time.Duration) {
	u = l.Of[a.ID]
	if u == nil || u.Now || now.Sub(a.Lineage().Asked) >= structs.CheckpointWaitMax {
		return nil, 0
	}
	if n := snap.NodeByID(a.NodeID); n != nil && n.Drain != nil && (n.Drain.Deadline < 0 || n.Drain.ForceAt > 0 && now >= n.Drain.ForceAt) {
		return nil, 0
	}
	again = time.Duration(u.Before) * time.Second / time.Duration(max(4*u.By.Most, 1)) // further back in the line, ask less often
	return u, min(max(again, 500*time.Millisecond), 10*time.Second)
}

// LeaveTimes returns when work on draining nodes must be asked to end, so that all of it has had its turn to save its
// state by its node's deadline. Work without a limit is left out. The estimate puts everything in line already, and all
// work with an earlier deadline, first, and assumes that each uses its whole grace.
func LeaveTimes(snap Cluster, nodes []structs.NodeID, now structs.LogTime) map[structs.AllocID]structs.LogTime {
	var line *Line
	cfg := snap.SchedulerConfig()
	var units []*Unit // here asked is the deadline
	gangs := map[gangKey]*Unit{}
	of := map[structs.AllocID]*Unit{}
	for _, id := range nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Drain == nil || n.Drain.ForceAt <= now {
			continue
		}
		for _, a := range snap.AllocsByNode(id) {
			typ := a.JobType()
			if a.Terminal() || typ == structs.JobSystem || typ == structs.JobSysBatch && n.Drain.IgnoreSystemJobs {
				continue
			}
			if g := a.Job.Group(a.Group); g == nil || g.Checkpoint == nil {
				continue
			}
			if line == nil {
				line = NewLine(snap)
			}
			if limits := line.limitsOf(snap, cfg, a, structs.CauseDrain); len(limits) > 0 {
				of[a.ID] = join(gangs, &units, a, n.Drain.ForceAt, limits)
			}
		}
	}
	if len(units) == 0 {
		return nil
	}
	slices.SortFunc(units, (*Unit).compare)
	lead := leadTimes(line, units)
	out := make(map[structs.AllocID]structs.LogTime, len(of))
	for id, u := range of {
		out[id] = u.asked.Add(-lead[u.asked])
	}
	return out
}

// leadTimes returns how long before each deadline its units must be asked to end, if line goes first.
func leadTimes(line *Line, units []*Unit) map[structs.LogTime]time.Duration {
	type load struct {
		rounds, in int64 // full rounds, and allocations in the next one
		grace      time.Duration
	}
	loads := map[string]*load{}
	for _, u := range line.units {
		for _, l := range u.Limits {
			if loads[l.Where] == nil {
				loads[l.Where] = &load{in: line.ahead[l.Where] % l.Most, rounds: line.ahead[l.Where] / l.Most}
			}
			loads[l.Where].grace = max(loads[l.Where].grace, u.grace)
		}
	}
	lead := map[structs.LogTime]time.Duration{} // by deadline
	for _, u := range units {
		for _, l := range u.Limits {
			x := loads[l.Where]
			if x == nil {
				x = &load{}
				loads[l.Where] = x
			}
			if x.in > 0 && x.in+l.Allocs > l.Most {
				x.rounds, x.in = x.rounds+1, 0
			}
			x.in += l.Allocs
			x.grace = max(x.grace, u.grace)
			lead[u.asked] = max(lead[u.asked], time.Duration(x.rounds+1)*(x.grace+turnOverhead))
		}
	}
	return lead
}

// CheckLimits returns an error if the limits of a configuration are invalid.
func CheckLimits(c *structs.SchedulerConfig) error {
	if c.MaxCheckpoints < 0 {
		return structs.Errorf(structs.CodeInvalid, "MaxCheckpoints is %d; want a number from 1, or 0 for no limit", c.MaxCheckpoints)
	}
	const most = 256
	if len(c.CheckpointStorage) > most {
		return structs.Errorf(structs.CodeInvalid, "CheckpointStorage names %d storages; at most %d are kept", len(c.CheckpointStorage), most)
	}
	for _, name := range slices.Sorted(maps.Keys(c.CheckpointStorage)) {
		if n := c.CheckpointStorage[name]; name == "" || len(name) > structs.CheckpointStorageMax || n < 1 {
			return structs.Errorf(structs.CodeInvalid, "CheckpointStorage: %s; want a name of 1 to %d bytes and a number from 1", fmt.Sprintf("%.140q = %d", name, n), structs.CheckpointStorageMax)
		}
	}
	return nil
}
