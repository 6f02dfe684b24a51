package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// A drain or a preemption may end a thousand allocations at once, and each saves its state before: more than the storage
// takes. Where an operator has set a limit (of the cluster, of a node pool, of a storage by its name) they go one after the
// other: an agent asks for its allocation's turn before it tells the task, and the work goes on until then.
//
// Whose turn it is follows from the state and the time alone, so that every server and every leader says the same. All
// that was told to end and is to save its state stands in one line, by the time when it was told (Allocation.Asked), then
// by job, group and ID. Members of a gang that were told together are one unit, because they save together or not at all.
// A unit has its turn when, under each limit that it falls under, those before it that have not saved or ended leave room
// for it, or there are none. Whoever is before a unit only gets fewer, so a turn once given is never taken back, also not
// by a server that is behind. The first in line always has its turn, so the line moves.
//
//	drain deadline passed, drain forced:  no waiting
//	waited for CheckpointWaitMax:         no waiting
//	node out of touch:                    not in line: nobody knows what it does

// saveBookAge is how long a line is used although the state has changed since: being behind is safe.
const saveBookAge = 200 * time.Millisecond

// saveOverhead is what a turn takes beside the grace: to end the task, and for the next one to hear of it.
const saveOverhead = 10 * time.Second

// saveLimit is one limit on saving.
type saveLimit struct {
	where string // for a person: "storage lustre1"
	most  int64
}

// saveUnit is what saves together.
type saveUnit struct {
	asked  structs.LogTime
	job    structs.JobKey
	group  string
	id     structs.AllocID // zero for a gang
	limits []saveLimit
	allocs int64
	grace  time.Duration

	now    bool
	before int64     // in the line of the limit that holds it up
	by     saveLimit // that limit
}

func (u *saveUnit) compare(o *saveUnit) int {
	return cmp.Or(cmp.Compare(u.asked, o.asked), cmp.Compare(u.job.String(), o.job.String()), cmp.Compare(u.group, o.group), slices.Compare(u.id[:], o.id[:]))
}

// saveBook is the line.
type saveBook struct {
	units []*saveUnit
	of    map[structs.AllocID]*saveUnit
	ahead map[string]int64 // allocations in the line of each limit, by its name
}

// saveLimits gives the limits that an allocation falls under when it saves its state for a cause; none when it does not.
func saveLimits(snap *state.Snapshot, cfg *structs.SchedulerConfig, a *structs.Allocation, cause string) []saveLimit {
	if a.Job == nil || a.Client != structs.ClientRunning {
		return nil
	}
	g := a.Job.Group(a.Group)
	if g == nil || g.Checkpoint == nil || !g.Checkpoint.Heeds(cause) {
		return nil
	}
	var out []saveLimit
	if most := cfg.CheckpointStorage[g.Checkpoint.Storage]; g.Checkpoint.Storage != "" && most > 0 {
		out = append(out, saveLimit{"storage " + g.Checkpoint.Storage, most})
	}
	if n := snap.NodeByID(a.NodeID); n != nil {
		if p := snap.Pool(n.Pool); p != nil && p.MaxCheckpoints > 0 {
			out = append(out, saveLimit{"node pool " + p.Name, p.MaxCheckpoints})
		}
	}
	if cfg.MaxCheckpoints > 0 {
		out = append(out, saveLimit{"the cluster", cfg.MaxCheckpoints})
	}
	return out
}

// limitsSaving reports whether there is any limit.
func limitsSaving(snap *state.Snapshot, cfg *structs.SchedulerConfig) bool {
	if cfg.MaxCheckpoints > 0 || len(cfg.CheckpointStorage) > 0 {
		return true
	}
	for p := range snap.Pools() {
		if p.MaxCheckpoints > 0 {
			return true
		}
	}
	return false
}

// saveLine makes the line of a state.
func saveLine(snap *state.Snapshot) *saveBook {
	b := &saveBook{of: map[structs.AllocID]*saveUnit{}, ahead: map[string]int64{}}
	cfg := schedulerConfig(snap)
	if !limitsSaving(snap, cfg) {
		return b
	}
	gangs := map[saveKey]*saveUnit{}
	for a := range snap.Allocs() {
		if !a.ServerTerminal() || a.ClientTerminal() || a.Saved != nil && a.Saved.Time > a.Asked {
			continue
		}
		limits := saveLimits(snap, cfg, a, a.EndCause())
		if len(limits) == 0 {
			continue
		}
		b.of[a.ID] = joinUnit(gangs, &b.units, a, a.Asked, limits)
	}
	slices.SortFunc(b.units, (*saveUnit).compare)
	for _, u := range b.units {
		u.now = true
		for _, l := range u.limits {
			if n := b.ahead[l.where]; n > 0 && n+u.allocs > l.most {
				if u.now || n > u.before {
					u.before, u.by = n, l
				}
				u.now = false
			}
		}
		for _, l := range u.limits {
			b.ahead[l.where] += u.allocs
		}
	}
	return b
}

type saveKey struct {
	job   structs.JobKey
	group string
	asked structs.LogTime
}

// joinUnit puts an allocation into its unit, which is made when it is the first.
func joinUnit(gangs map[saveKey]*saveUnit, units *[]*saveUnit, a *structs.Allocation, asked structs.LogTime, limits []saveLimit) *saveUnit {
	g := a.Job.Group(a.Group)
	grace := g.Checkpoint.GraceOrDefault()
	k := saveKey{a.JobKey(), a.Group, asked}
	if u := gangs[k]; u != nil {
		u.allocs++
		u.grace = max(u.grace, grace)
		return u
	}
	u := &saveUnit{asked: asked, job: k.job, group: k.group, id: a.ID, limits: limits, allocs: 1, grace: grace}
	if g.Gang != nil {
		u.id = structs.AllocID{}
		gangs[k] = u
	}
	*units = append(*units, u)
	return u
}

// turn says whether it is an allocation's turn.
func (b *saveBook) turn(snap *state.Snapshot, a *structs.Allocation, now structs.LogTime) *methods.SaveTurn {
	u := b.of[a.ID]
	if u == nil || u.now || now.Sub(a.Asked) >= structs.CheckpointWaitMax {
		return &methods.SaveTurn{Now: true}
	}
	if n := snap.NodeByID(a.NodeID); n != nil && n.Drain != nil && (n.Drain.Deadline < 0 || n.Drain.ForceAt > 0 && now >= n.Drain.ForceAt) {
		return &methods.SaveTurn{Now: true}
	}
	again := time.Duration(u.before) * time.Second / time.Duration(max(4*u.by.most, 1)) // the further back, the less often
	return &methods.SaveTurn{Before: u.before, Limit: u.by.most, Where: u.by.where, Again: min(max(again, 500*time.Millisecond), 10*time.Second)}
}

// saveBooks keeps the newest line.
type saveBooks struct {
	mu   sync.Mutex
	snap *state.Snapshot
	at   time.Time
	book *saveBook
}

// line gives the line and the state that it is of.
func (b *saveBooks) line(snap *state.Snapshot, now time.Time) (*state.Snapshot, *saveBook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.book == nil || b.snap != snap && now.Sub(b.at) >= saveBookAge {
		b.snap, b.at, b.book = snap, now, saveLine(snap)
	}
	return b.snap, b.book
}

func (s *Server) nodeSaveTurn(_ context.Context, _ *rpc.Call, req *methods.NodeSaveTurnRequest) (*methods.SaveTurn, error) {
	snap, book := s.saves.line(s.Published().Snapshot, time.Now())
	a := snap.AllocByID(req.AllocID)
	if a != nil && a.NodeID != req.NodeID {
		return nil, structs.Errorf(structs.CodeDenied, "allocation %s is not of node %s", req.AllocID.Short(), req.NodeID)
	}
	if a == nil || !a.ServerTerminal() { // this server is behind
		return &methods.SaveTurn{Again: 2 * saveBookAge}, nil
	}
	return book.turn(snap, a, s.logNow()), nil
}

// savingFor counts what is in line of a job, and of what its allocations wait for to end; nil for nothing that waits.
func (s *Server) savingFor(snap *state.Snapshot, k structs.JobKey) *methods.Saving {
	if !limitsSaving(snap, schedulerConfig(snap)) {
		return nil
	}
	snap, book := s.saves.line(snap, time.Now())
	ids := map[structs.AllocID]bool{}
	for _, a := range snap.AllocsByJob(k) {
		if a.ClientTerminal() {
			continue
		}
		ids[a.ID] = true
		for _, id := range a.WaitsOn {
			ids[id] = true
		}
	}
	out := &methods.Saving{}
	held := map[saveLimit]int64{}
	for id := range ids {
		switch u := book.of[id]; {
		case u == nil:
		case u.now:
			out.Now++
		default:
			out.Waiting++
			held[u.by]++
		}
	}
	if out.Waiting == 0 {
		return nil
	}
	most := slices.MaxFunc(slices.Collect(maps.Keys(held)), func(a, b saveLimit) int {
		return cmp.Or(cmp.Compare(held[a], held[b]), cmp.Compare(b.where, a.where))
	})
	out.Where, out.Limit = most.where, most.most
	return out
}

// leaveTimes says when work on draining nodes has to be told to go, so that all of it has had its turn to save its state by
// the deadline of its node. What falls under no limit is not among it. All that has an earlier deadline goes before, and all
// that is in line already; each is taken to need as long as it may (its grace).
func leaveTimes(snap *state.Snapshot, nodes []structs.NodeID, now structs.LogTime) map[structs.AllocID]structs.LogTime {
	cfg := schedulerConfig(snap)
	if !limitsSaving(snap, cfg) {
		return nil
	}
	var units []*saveUnit // asked is the deadline
	gangs := map[saveKey]*saveUnit{}
	of := map[structs.AllocID]*saveUnit{}
	for _, id := range nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Drain == nil || n.Drain.ForceAt <= now {
			continue
		}
		for _, a := range snap.AllocsByNode(id) {
			kind := jobType(a)
			if a.Terminal() || kind == structs.JobSystem || kind == structs.JobSysBatch && n.Drain.IgnoreSystemJobs {
				continue
			}
			if limits := saveLimits(snap, cfg, a, structs.CauseDrain); len(limits) > 0 {
				of[a.ID] = joinUnit(gangs, &units, a, n.Drain.ForceAt, limits)
			}
		}
	}
	if len(units) == 0 {
		return nil
	}
	slices.SortFunc(units, (*saveUnit).compare)
	type load struct {
		rounds, in int64 // rounds that are full, and allocations in the next one
		grace      time.Duration
	}
	lines := map[string]*load{}
	inLine := saveLine(snap)
	for _, u := range inLine.units {
		for _, l := range u.limits {
			if lines[l.where] == nil {
				lines[l.where] = &load{in: inLine.ahead[l.where] % l.most, rounds: inLine.ahead[l.where] / l.most}
			}
			lines[l.where].grace = max(lines[l.where].grace, u.grace)
		}
	}
	lead := map[structs.LogTime]time.Duration{} // by deadline
	for _, u := range units {
		for _, l := range u.limits {
			x := lines[l.where]
			if x == nil {
				x = &load{}
				lines[l.where] = x
			}
			if x.in > 0 && x.in+u.allocs > l.most {
				x.rounds, x.in = x.rounds+1, 0
			}
			x.in += u.allocs
			x.grace = max(x.grace, u.grace)
			lead[u.asked] = max(lead[u.asked], time.Duration(x.rounds+1)*(x.grace+saveOverhead))
		}
	}
	out := make(map[structs.AllocID]structs.LogTime, len(of))
	for id, u := range of {
		out[id] = u.asked.Add(-lead[u.asked])
	}
	return out
}

// checkSaveLimits says what is wrong with the limits on saving.
func checkSaveLimits(c *structs.SchedulerConfig) error {
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
