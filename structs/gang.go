package structs

import "time"

// Gang makes the allocations of a group start together or not at all (D21).
type Gang struct {
	Min       int           // members without which nothing starts; 0: all of Count
	Timeout   time.Duration // from the plan until all of Min run; 0: 10 min
	OnFailure string        // GangRestartAll (also ""), GangContinue
	Spares    int           // further nodes kept free of new work while the gang runs; 0: none
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

// Launch says how the tasks of a gang are started (DESIGN.md section 7).
type Launch struct {
	Mode   string   // "node" (also ""): one launcher an allocation; "rank": Ranks copies
	Ranks  int      // processes an allocation; 0: one for each GPU
	Compat []string // "torchrun", "slurm"
	Port   int      // rendezvous port; 0: a free one
}

// Checkpoint says how work is told to save its state, and where it does.
type Checkpoint struct {
	Signal  string        // sent at the notice; "" for none
	Command []string      // run in the main task at the notice; nil for none
	URL     string        // POSTed at the notice; "" for none
	To      string        // "launcher" (also "") or "ranks"
	On      []string      // "preempt", "limit", "drain"; empty: all of them
	Before  time.Duration // notice before a limit
	Grace   time.Duration // how long it may take; then kill
	Dir     string
	Cost    time.Duration // what one checkpoint and restart cost; 0: unknown, Grace is assumed
}

// Roster is who is in a gang, in rank order: written in the log entry that places it, changed with every change of
// members.
type Roster struct {
	Namespace   string
	JobID       string
	Group       string
	Epoch       uint64 // counts from 1; bumped when the members change
	Members     []RosterMember
	Port        int     // rendezvous port on the first member's node
	Deadline    LogTime // until which the minimum must run; 0 once it does
	Restarts    int64   // times that the gang was started again
	Reason      string  // of the last change: "placed", "member_lost", "grown", "shrunk", "preempted", ...
	AvoidNodes  []NodeID
	CreateIndex Index
	ModifyIndex Index
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
