package structs

import (
	"slices"
	"time"
)

// Gang makes the allocations of a group start together or not at all (D21).
type Gang struct {
	Min       int           // members without which none starts; 0: all of Count
	Timeout   time.Duration // from the plan until all of Min run; 0: 10 min
	OnFailure string        // GangRestartAll (also ""), GangContinue
	Standby   int           // places that the gang holds beyond its members', for members that are lost
}

// What happens to a gang that loses a member (Gang.OnFailure).
const (
	GangRestartAll = "restart_all" // every member stops and the gang starts again with a new epoch
	GangContinue   = "continue"    // it continues while at least Min are left; below that it starts again
)

// GangTimeoutDefault is how long a gang may take until its minimum runs.
const GangTimeoutDefault = 10 * time.Minute

// Least returns how many members must be placed together.
func (g *Gang) Least(count int) int {
	if g.Min <= 0 || g.Min > count {
		return count
	}
	return g.Min
}

// Elastic lets the number of allocations move between Min and Max; it begins at Group.Count. The group grows into
// capacity that no other work waits for, and shrinks before any work is preempted. Zero value: not elastic.
type Elastic struct {
	Min, Max int
}

// Topology says where the members of a gang should be.
type Topology struct {
	Inside string // level within an allocation: "nvlink" (one island), "numa", "" for any
	Across string // level over allocations: "node" (one node), "leaf" or "rack" or any node meta key; "": the levels of the cluster; TopologyAny
	Mode   string // TopologyPreferred (also "") or TopologyRequired
}

// TopologyAny as Topology.Across places a gang without regard to the levels of the cluster.
const TopologyAny = "any"

// How strict a topology is.
const (
	TopologyPreferred = "preferred"
	TopologyRequired  = "required"
)

// Launch says how the tasks of a gang are started.
type Launch struct {
	Mode   string   // "node" (also ""): one launcher per allocation; "rank": Ranks copies
	Ranks  int      // processes per allocation; 0: one per GPU
	Compat []string // "torchrun", "slurm", "mpi": the launchers for which variables are set
	Port   int      // rendezvous port; 0: a free one
	GPUs   string   // in rank mode: LaunchGPUsOwn (also ""), LaunchGPUsAll
}

// What the ranks of a member see of its GPUs (Launch.GPUs).
const (
	LaunchGPUsOwn = "own" // each rank its own
	LaunchGPUsAll = "all" // every rank sees all of them; programs choose by LOCAL_RANK
)

// GPUsByRank reports whether every rank sees only its own GPUs.
func (l *Launch) GPUsByRank() bool { return l.InRanks() && l.GPUs != LaunchGPUsAll }

// Modes of Launch.
const (
	LaunchNode = "node" // one launcher per allocation, which starts the ranks itself
	LaunchRank = "rank" // the agent starts the ranks
)

// InRanks reports whether the agent starts the ranks of the group's main tasks.
func (l *Launch) InRanks() bool { return l != nil && l.Mode == LaunchRank }

// RanksOf returns the number of ranks of a member: as many as the launch block says, else one per GPU, and at least
// one.
func (l *Launch) RanksOf(gpus int64) int {
	if l != nil && l.Ranks > 0 {
		return l.Ranks
	}
	return max(1, int(gpus))
}

// Roster lists the members of a gang in rank order. It is written in the log entry that places the gang, and changes
// with every change of members.
type Roster struct {
	Namespace   string
	JobID       string
	Group       GroupName
	Epoch       uint64 // counts from 1; incremented when the members change
	Members     []RosterMember
	Port        int     // rendezvous port that the first member's agent reserved for this epoch; 0 until then
	Deadline    LogTime // until which the minimum must run; 0 once it does
	Restarts    int64   // how often the gang ended to be started again, whether or not it was; see StartedAgain
	Reason      string  // of the last change: "placed", "member_lost", "grown", "shrunk", "preempted", ...
	AvoidNodes  []NodeID
	CreateIndex Index
	ModifyIndex Index
	Suspects    []NodeID        // subset of AvoidNodes: nodes where members failed since the last start, without the loss of a node
	Resizes     GangResizes     `since:"2"` // of an elastic gang
	Checkpoint  *GangCheckpoint `since:"2"` // nil: no member has reported one yet
}

// GangResizes counts how often an elastic gang continued with more or with fewer members. Each of them restarted all.
type GangResizes struct {
	Grown, Shrunk int64
	At            LogTime // of the last one; 0: none
	From, To      int     // number of members before and after the last one
}

// Total returns how often the gang was resized.
func (g *GangResizes) Total() int64 { return g.Grown + g.Shrunk }

// CountResize counts a resize if the gang continued with another number of members than it had. It reports whether it
// did. was is nil for a gang that is new. A gang that starts again is not resized.
func (r *Roster) CountResize(was *Roster, at LogTime) bool {
	if was == nil || len(was.Members) == 0 || len(r.Members) == 0 || len(was.Members) == len(r.Members) {
		return false
	}
	if len(r.Members) > len(was.Members) {
		r.Resizes.Grown++
	} else {
		r.Resizes.Shrunk++
	}
	r.Resizes.At, r.Resizes.From, r.Resizes.To = at, len(was.Members), len(r.Members)
	return true
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

// RosterKey is the key of a roster.
type RosterKey struct {
	Job   JobKey
	Group GroupName
}

// rosterAvoidMax limits the nodes that a roster remembers as bad; the oldest are dropped first.
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

// Key returns the roster's key.
func (r *Roster) Key() RosterKey {
	return RosterKey{Job: JobKey{Namespace: r.Namespace, ID: r.JobID}, Group: r.Group}
}

// StartedAgain returns how often the gang was started again. Its last end does not count until something is placed.
func (r *Roster) StartedAgain() int64 {
	if len(r.Members) == 0 {
		return max(0, r.Restarts-1)
	}
	return r.Restarts
}

// Rank returns the node rank of an allocation, or -1 if it is not a member.
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

// IsGang reports whether the group's allocations are placed, end and start again together: it has a gang block, or is a
// joint group.
func (g *Group) IsGang() bool { return g != nil && (g.Gang != nil || g.Joint) }

// Continues reports whether the gang continues without a member that fails while at least its minimum is left.
func (g *Group) Continues() bool { return g.Gang != nil && g.Gang.OnFailure == GangContinue }

// Standbys returns how many standbys the group holds.
func (g *Group) Standbys() int {
	if g.Gang == nil {
		return 0
	}
	return g.Gang.Standby
}

// Least returns how many allocations of the group must be placed together; 0 for a group that is not a gang. An elastic
// gang without its own minimum uses that of its elastic block.
func (g *Group) Least() int {
	switch {
	case !g.IsGang():
		return 0
	case (g.Gang == nil || g.Gang.Min <= 0) && g.Elastic != nil && g.Elastic.Min > 0:
		return min(g.Elastic.Min, g.Count)
	case g.Gang == nil:
		return g.Count
	}
	return g.Gang.Least(g.Count)
}

// Join marks the groups of an all_at_once job that run as one: all groups of a batch job, and in a service job those with
// a gang block, since the allocations of other groups of a service are replaced one by one. A joint group is a gang, also
// without a gang block, and when a joint group is ended to be started again, all of them are (Rosters.Settle). A single
// group is marked only if that makes a gang of it.
func (j *Job) Join() {
	var joint []int
	if j.AllAtOnce && j.Array == nil && (j.Type == JobBatch || j.Type == JobService) {
		for i, g := range j.Groups {
			if g != nil && (j.Type == JobBatch || g.Gang != nil) {
				joint = append(joint, i)
			}
		}
	}
	if len(joint) == 1 {
		if g := j.Groups[joint[0]]; g.Gang != nil || g.Most() < 2 {
			joint = nil
		}
	}
	var groups []*Group
	for i, g := range j.Groups {
		if is := slices.Contains(joint, i); g != nil && g.Joint != is {
			if groups == nil {
				groups = slices.Clone(j.Groups)
			}
			own := *g
			own.Joint = is
			groups[i] = &own
		}
	}
	if groups != nil {
		j.Groups = groups
	}
}

// Together reports whether the allocations of two groups are placed, end and start again as one: they are of the same
// gang, or both groups are joint.
func (j *Job) Together(a, b GroupName) bool {
	g := j.Group(a)
	if a == b {
		return g.IsGang()
	}
	h := j.Group(b)
	return g != nil && h != nil && g.Joint && h.Joint
}

// IsJoint reports whether some group of the job is joint.
func (j *Job) IsJoint() bool {
	return j != nil && slices.ContainsFunc(j.Groups, func(g *Group) bool { return g != nil && g.Joint })
}

// IsStandby reports whether a name index is a standby place of the gang: it holds the resources of a member, starts
// nothing, is not on the roster and does not count as a member.
func (g *Group) IsStandby(index int) bool {
	return g != nil && g.Gang != nil && g.Gang.Standby > 0 && index >= g.Most()
}

// IsStandby reports whether the allocation is a standby of a gang, by the job version that it was placed for.
func (a *Allocation) IsStandby() bool {
	if a.Job == nil {
		return false
	}
	return a.Job.Group(a.Group).IsStandby(a.NameIndex)
}

// Most returns the largest number of members of the group.
func (g *Group) Most() int {
	if g.Elastic != nil {
		return max(g.Count, g.Elastic.Max)
	}
	return g.Count
}

// Fewest returns how many allocations the group may shrink to before it counts as short: its Count unless it is
// elastic.
func (g *Group) Fewest() int {
	if g.Elastic != nil {
		return min(g.Count, max(g.Elastic.Min, g.Least(), 0))
	}
	return g.Count
}

// GangDeadline returns when a gang that was placed at a time must run; 0 for a joint group without a gang block, whose
// allocations do not wait for each other.
func (g *Group) GangDeadline(at LogTime) LogTime {
	switch {
	case g.Gang == nil:
		return 0
	case g.Gang.Timeout > 0:
		return at.Add(g.Gang.Timeout)
	}
	return at.Add(GangTimeoutDefault)
}

// Suspended reports whether a member is suspended. A gang's time to assemble does not pass meanwhile. find returns an
// allocation or nil.
func (r *Roster) Suspended(find func(AllocID) *Allocation) bool {
	for _, m := range r.Members {
		if a := find(m.Alloc); a != nil && !a.Terminal() && a.Suspended() {
			return true
		}
	}
	return false
}

// Settle updates a roster after changes of its members. It is the only rule of what happens to a gang that loses
// members; Apply uses it at every index, and simulations do. (That a gang cannot form again because a member has ended
// well depends on its port, which only Apply knows: tx.unformed in package fsm.) tg is the group in the current job,
// nil when the job no longer runs. batch means that members end for good when they succeed. find returns an allocation
// or nil.
//
//	all there                         nothing changes, but the deadline is lifted once the minimum runs
//	one asked to stop or to give way  it is removed, and the epoch grows
//	one failed or lost                the same, if the gang continues without it; its node is remembered (see Blame)
//	below the minimum, or restart_all the roster is emptied and all remaining members stop: stop lists them
//
// It returns the roster to write, or nil for none.
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
		case a == nil: // collected: it had succeeded
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
	if !tg.IsGang() {
		if len(stay) == 0 {
			n.Deadline = 0 // of a job that was stopped while its gang assembled
		}
		return &n, nil
	}
	if len(stay) >= tg.Least() && (!failed || tg.Continues()) {
		return &n, nil
	}
	return n.dissolve(find)
}

// Blame records the loss of members' nodes. When a node is lost, members on other nodes fail first, because their peer
// no longer answers, and servers miss the node only when its TTL has expired. So Blame clears the nodes where members
// failed since the last start.
func (r *Roster) Blame(lost ...NodeID) *Roster {
	n := *r
	n.AvoidNodes = slices.DeleteFunc(slices.Clone(r.AvoidNodes), func(o NodeID) bool { return slices.Contains(r.Suspects, o) })
	n.AvoidNodes, n.Suspects = avoidToo(n.AvoidNodes, lost), nil
	return &n
}

// Dissolve empties the roster of a gang that has to start again, and lists the members that must stop. Nodes of members
// that do not run are remembered as bad.
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

// End is Dissolve without blame, for the roster of a joint group: another group of its job was ended.
func (r *Roster) End(reason string, find func(AllocID) *Allocation) (*Roster, []AllocID) {
	n := *r
	n.Reason = reason
	n.Epoch++
	n.Port = 0
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

// avoidToo appends nodes to a list of bad ones, without duplicates, the newest last.
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
