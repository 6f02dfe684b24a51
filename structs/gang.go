package structs

import (
	"slices"
	"time"
)

// Gang makes the allocations of a group start together or not at all (D21).
type Gang struct {
	Min       int           // members without which nothing starts; 0: all of Count
	Timeout   time.Duration // from the plan until all of Min run; 0: 10 min
	OnFailure string        // GangRestartAll (also ""), GangContinue
	Spares    int           // places beyond the members' that the gang holds, for members that are lost
}

// What happens to a gang that loses a member.
const (
	GangRestartAll = "restart_all" // every member stops and the gang starts again with a new epoch
	GangContinue   = "continue"    // it goes on while at least Min are left; below that it starts again
)

// GangTimeoutDefault is how long a gang may take until its minimum runs.
const GangTimeoutDefault = 10 * time.Minute

// Least is how many members must be placed together.
func (g *Gang) Least(count int) int {
	if g.Min <= 0 || g.Min > count {
		return count
	}
	return g.Min
}

// Elastic lets the number of allocations move between Min and Max (Group.Count is where it begins): growth goes into
// capacity that nobody waits for, shrinking comes before anybody is preempted. Zero value: not elastic.
type Elastic struct {
	Min, Max int
}

// Topology is where the members of a gang should lie.
type Topology struct {
	Inside string // level within an allocation: "nvlink" (one island), "numa", "" for any
	Across string // level over allocations: "node" (one node), "leaf" or "rack" or any node meta key; "" for any
	Mode   string // TopologyPreferred (also "") or TopologyRequired
}

// How strict a topology is.
const (
	TopologyPreferred = "preferred"
	TopologyRequired  = "required"
)

// Launch says how the tasks of a gang are started.
type Launch struct {
	Mode   string   // "node" (also ""): one launcher an allocation; "rank": Ranks copies
	Ranks  int      // processes an allocation; 0: one for each GPU
	Compat []string // "torchrun", "slurm", "mpi": for whose launchers variables are set
	Port   int      // rendezvous port; 0: a free one
	GPUs   string   // in rank mode: LaunchGPUsOwn (also ""), LaunchGPUsAll
}

// What the ranks of a member see of its GPUs.
const (
	LaunchGPUsOwn = "own" // each rank its own
	LaunchGPUsAll = "all" // every rank all of them; programs choose by LOCAL_RANK
)

// GPUsByRank reports whether every rank sees its own GPUs alone.
func (l *Launch) GPUsByRank() bool { return l.InRanks() && l.GPUs != LaunchGPUsAll }

// Modes of Launch.
const (
	LaunchNode = "node" // one launcher an allocation, which starts the ranks itself
	LaunchRank = "rank" // the agent starts the ranks
)

// InRanks reports whether the agent starts the ranks of the group's main tasks.
func (l *Launch) InRanks() bool { return l != nil && l.Mode == LaunchRank }

// RanksOf is how many ranks a member has: as many as the launch says, else one for each GPU, and at least one.
func (l *Launch) RanksOf(gpus int64) int {
	if l != nil && l.Ranks > 0 {
		return l.Ranks
	}
	return max(1, int(gpus))
}

// Roster is who is in a gang, in rank order: written in the log entry that places it, changed with every change of
// members.
type Roster struct {
	Namespace   string
	JobID       string
	Group       string
	Epoch       uint64 // counts from 1; bumped when the members change
	Members     []RosterMember
	Port        int     // rendezvous port on the first member's node, as its agent reserved it for this epoch; 0 until then
	Deadline    LogTime // until which the minimum must run; 0 once it does
	Restarts    int64   // times that the gang ended to be started again, whether or not it was; see StartedAgain
	Reason      string  // of the last change: "placed", "member_lost", "grown", "shrunk", "preempted", ...
	AvoidNodes  []NodeID
	CreateIndex Index
	ModifyIndex Index
	Suspects    []NodeID // of AvoidNodes: where members failed since the gang started last, without a node being lost
}

// RosterMember is one member; its place in Roster.Members is its node rank.
type RosterMember struct {
	Alloc   AllocID
	Node    NodeID
	Name    string // of the node
	Address string // of the node
	GPUs    int64
	Index   int // name index
}

// RosterKey names a roster.
type RosterKey struct {
	Job   JobKey
	Group string
}

// rosterAvoidMax bounds the nodes that a roster remembers as bad; the oldest are forgotten first.
const rosterAvoidMax = 32

// Reasons of a change of a roster.
const (
	RosterPlaced    = "placed"
	RosterGrown     = "grown"
	RosterLost      = "member_lost"
	RosterPreempted = "preempted"
	RosterShrunk    = "shrunk"
	RosterTimeout   = "assembly_timeout"
)

// Key names the roster.
func (r *Roster) Key() RosterKey {
	return RosterKey{Job: JobKey{Namespace: r.Namespace, ID: r.JobID}, Group: r.Group}
}

// StartedAgain is how often the gang was started again: what it ended with last does not count as long as nothing was placed since.
func (r *Roster) StartedAgain() int64 {
	if len(r.Members) == 0 {
		return max(0, r.Restarts-1)
	}
	return r.Restarts
}

// Rank is the node rank of an allocation, or -1 when it is no member.
func (r *Roster) Rank(id AllocID) int {
	for i := range r.Members {
		if r.Members[i].Alloc == id {
			return i
		}
	}
	return -1
}

// Less orders keys by job, then group.
func (k RosterKey) Less(o RosterKey) bool {
	if k.Job != o.Job {
		return k.Job.Less(o.Job)
	}
	return k.Group < o.Group
}

// Least is how many allocations of the group must be placed together; 0 for a group that is no gang. The minimum of an
// elastic gang that names none is that of its elasticity.
func (g *Group) Least() int {
	switch {
	case g.Gang == nil:
		return 0
	case g.Gang.Min <= 0 && g.Elastic != nil && g.Elastic.Min > 0:
		return min(g.Elastic.Min, g.Count)
	}
	return g.Gang.Least(g.Count)
}

// IsSpare reports whether the allocations of the group with a name index are spares of its gang: they hold what a member
// holds and start nothing, and are neither on its roster nor counted as members.
func (g *Group) IsSpare(index int) bool {
	return g != nil && g.Gang != nil && g.Gang.Spares > 0 && index >= g.Most()
}

// IsSpare reports whether an allocation is a spare of a gang, by the version of the job that it was placed for.
func (a *Allocation) IsSpare() bool {
	if a.Job == nil {
		return false
	}
	return a.Job.Group(a.Group).IsSpare(a.NameIndex)
}

// Most is how many members the group may grow to.
func (g *Group) Most() int {
	if g.Elastic != nil {
		return max(g.Count, g.Elastic.Max)
	}
	return g.Count
}

// Fewest is how many allocations the group may shrink to before it is hurt: its Count unless it is elastic.
func (g *Group) Fewest() int {
	if g.Elastic != nil {
		return min(g.Count, max(g.Elastic.Min, g.Least(), 0))
	}
	return g.Count
}

// GangDeadline is when a gang placed at a time must run.
func (g *Gang) GangDeadline(at LogTime) LogTime {
	if g.Timeout > 0 {
		return at.Add(g.Timeout)
	}
	return at.Add(GangTimeoutDefault)
}

// Suspended reports whether a member is suspended; find gives an allocation or nil. A gang's time to assemble does not pass
// meanwhile.
func (r *Roster) Suspended(find func(AllocID) *Allocation) bool {
	for _, m := range r.Members {
		if a := find(m.Alloc); a != nil && !a.Terminal() && a.Suspended() {
			return true
		}
	}
	return false
}

// Settle brings a roster in line with what became of its members: the one rule of what happens to a gang that loses
// some, used by Apply at every index and by simulations. tg is the group as the job has it now, nil when the job does
// not run any more; batch says that members end for good when they succeed; find gives an allocation or nil.
//
//	all there                         nothing changes, but the deadline is lifted once the minimum runs
//	one told to stop or to give way   it is struck off, and the epoch grows
//	one failed or lost                the same, if the gang goes on without it; its node is remembered (see Blame)
//	below the minimum, or restart_all the roster is emptied and every member that is left stops: stop lists them
//
// It gives the roster to write, or nil for none.
func (r *Roster) Settle(tg *Group, batch bool, find func(AllocID) *Allocation) (next *Roster, stop []AllocID) {
	if len(r.Members) == 0 {
		return nil, nil
	}
	var stay []RosterMember
	var bad, lost []NodeID
	running, failed, evicted := 0, false, false
	for _, m := range r.Members {
		a := find(m.Alloc)
		switch {
		case a == nil: // collected: it had ended well
			stay = append(stay, m)
			running++
		case a.Client == ClientComplete && batch && !a.ServerTerminal():
			stay = append(stay, m)
			running++
		case a.Desired == DesiredEvict:
			evicted = true
		case a.ServerTerminal() && a.Client != ClientLost:
		case a.Client == ClientLost:
			failed = true
			lost = append(lost, m.Node)
		case a.ClientTerminal():
			failed = true
			bad = append(bad, m.Node)
		default:
			stay = append(stay, m)
			if a.Client == ClientRunning {
				running++
			}
		}
	}
	if len(stay) == len(r.Members) {
		if r.Deadline == 0 || tg == nil || running < tg.Least() {
			return nil, nil
		}
		n := *r
		n.Deadline = 0
		return &n, nil
	}
	n := *r
	n.Members, n.Reason = stay, RosterShrunk
	n.Epoch++
	n.Port = 0
	switch {
	case len(lost) > 0:
		b := r.Blame(lost...)
		n.Reason, n.AvoidNodes, n.Suspects = RosterLost, b.AvoidNodes, nil
	case failed:
		n.Reason, n.AvoidNodes = RosterLost, avoidToo(r.AvoidNodes, bad)
		n.Suspects = slices.Clone(r.Suspects)
		for _, o := range bad {
			if !slices.Contains(r.AvoidNodes, o) {
				n.Suspects = avoidToo(n.Suspects, []NodeID{o})
			}
		}
	case evicted:
		n.Reason = RosterPreempted
	}
	if tg == nil || tg.Gang == nil {
		return &n, nil
	}
	if len(stay) >= tg.Least() && (!failed || tg.Gang.OnFailure == GangContinue) {
		return &n, nil
	}
	return n.dissolve(find)
}

// Blame notes that nodes of members were lost. A lost node takes its members' peers along: their tasks fail first, because
// nobody answers them, and servers miss the node only when its time is over. So what failed since the gang started last
// is not held against the nodes where it failed.
func (r *Roster) Blame(lost ...NodeID) *Roster {
	n := *r
	n.AvoidNodes = slices.DeleteFunc(slices.Clone(r.AvoidNodes), func(o NodeID) bool { return slices.Contains(r.Suspects, o) })
	n.AvoidNodes, n.Suspects = avoidToo(n.AvoidNodes, lost), nil
	return &n
}

// Dissolve empties the roster of a gang that has to start again, for a reason, and lists the members that must stop.
// Nodes of members that do not run are remembered as bad.
func (r *Roster) Dissolve(reason string, find func(AllocID) *Allocation) (*Roster, []AllocID) {
	n := *r
	n.Reason = reason
	n.Epoch++
	n.Port = 0
	var bad []NodeID
	for _, m := range r.Members {
		if a := find(m.Alloc); a != nil && a.Client == ClientPending {
			bad = append(bad, m.Node)
		}
	}
	n.AvoidNodes = avoidToo(r.AvoidNodes, bad)
	return n.dissolve(find)
}

func (r *Roster) dissolve(find func(AllocID) *Allocation) (*Roster, []AllocID) {
	var stop []AllocID
	for _, m := range r.Members {
		if a := find(m.Alloc); a != nil && !a.Terminal() {
			stop = append(stop, m.Alloc)
		}
	}
	r.Members, r.Deadline = nil, 0
	r.Restarts++
	return r, stop
}

// avoidToo adds nodes to a list of bad ones, each once, the newest last.
func avoidToo(have, more []NodeID) []NodeID {
	out := slices.Clone(have)
	for _, n := range more {
		out = append(slices.DeleteFunc(out, func(o NodeID) bool { return o == n }), n)
	}
	if len(out) > rosterAvoidMax {
		out = out[len(out)-rosterAvoidMax:]
	}
	return out
}

// Preemptions are those made on behalf of one queue: what its rate limit counts, and its history.
type Preemptions struct {
	Queue       QueuePath
	Recent      []LogTime // of the last hour, oldest first, one an evicted job; at most PreemptionsKept
	Total       int64     // jobs evicted since ever
	ModifyIndex Index
}

// PreemptionsKept bounds Preemptions.Recent.
const PreemptionsKept = 1000

// Within counts the preemptions of the hour before now.
func (p *Preemptions) Within(now LogTime) int64 {
	n := int64(0)
	for _, t := range p.Recent {
		if t > now.Add(-time.Hour) {
			n++
		}
	}
	return n
}
