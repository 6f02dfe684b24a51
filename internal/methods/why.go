package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// States of a gang.
const (
	GangWaiting    = "waiting"    // for nodes
	GangAssembling = "assembling" // has nodes, but fewer members run than its minimum
	GangRunning    = "running"
	GangComplete   = "complete"
	GangEnded      = "ended" // its job was stopped or is complete
)

// What an allocation of a new version lacks before a rolling update continues (UpdateHold.Why).
const (
	HoldStarts   = "starting"   // it does not run yet
	HoldChecks   = "unhealthy"  // it runs, and not all of its checks pass
	HoldSettles  = "settling"   // it is healthy, for less than min_healthy_time
	HoldRestarts = "restarting" // a task of it has failed and waits for its restart
	HoldFailed   = "failed"
)

// What is said of jobs: how far their gangs and updates are, and why they wait.
type (
	// JobGangsResponse has the state of a job's gangs, and the job, whose launch blocks have the ranks per member.
	JobGangsResponse struct {
		Meta
		Job     *structs.Job
		Rosters []*structs.Roster
		States  []GangState
	}
	// GangState is the state of one gang.
	GangState struct {
		Group           structs.GroupName
		State           string // GangWaiting, ...
		Running         int
		Asked, Min, Max int          // number of members
		Status          []GangMember // in the order of the roster's members
		Missing         []GangMissing
		Standby         int                    // standbys that the job asks for
		Standbys        []structs.RosterMember // standbys that the gang has, by name index; they have no rank
		Topology        string                 // how near its members are to each other, as "all 8 in leaf l2, 2 racks"; "": fewer than two, or no levels
	}
	// GangMember is the state of a member.
	GangMember struct {
		Client    structs.ClientStatus
		Desired   structs.DesiredStatus // "" for an allocation that no longer exists
		StartedAt structs.LogTime
		Event     string // newest event of its tasks
		Saved     *structs.Saved
	}
	// GangMissing counts members that should run and do not, and says why.
	GangMissing struct {
		Members  int
		NodeRank int    // of the member if it has a node; -1 for members without one
		Why      string // "": see Report
		Report   *structs.GroupReport
	}
	// JobWhyResponse answers "why is it pending" (D23).
	JobWhyResponse struct {
		Meta
		StartEst  structs.LogTime // when it should start; 0: as Workload says if Starts is "", else unknown
		Starts    string          // that obstacle; "" if it only lacks capacity
		Job       *structs.Job
		Workload  *structs.Workload
		Since     structs.LogTime // when it became pending last; 0: it does not wait
		Position  int64           // 1 is next; 0: not waiting
		QueueLen  int64
		Ahead     []structs.JobKey    // at most 10
		AheadAsk  []structs.Amount    // resources that the waiting allocations of each ask for
		Asks      structs.Amount      // the same for this job
		Terms     []structs.ScoreTerm // the terms of its position in the queue
		Others    []string            // what other queues hold of what it waits for, and whether its queue may take it; nil: nothing
		Advice    *Advice             // nil: it does not wait, or there was no time to search
		Reports   []*structs.GroupReport
		Eval      *structs.Evaluation
		Summary   *Summary
		NodeNames map[string]string            // node id -> name for the nodes in the reports
		Suspended *Suspended                   // nil: nothing of it is suspended
		Saving    *Saving                      // nil: no allocation of the job, or of work it waits for, waits for a turn to save its state
		Refused   string                       // why the namespace refuses launches of a periodic or parameterized job now; "" if it does not
		Topology  map[structs.GroupName]string // how near the members of its gangs are to each other; see GangState.Topology
		Silent    *Silent                      // nil: no allocation of the job is on a silent node that must end it
		Updating  []Updating                   // the groups with a rolling update that has not ended
		Excluded  []ExcludedNode               // if asked for (JobGetRequest.All): the nodes that cannot take an allocation of it now
	}
	// Updating is a rolling update of a group that has not ended: some allocations are of an older version, or those of
	// the newest are not healthy yet.
	Updating struct {
		Group     structs.GroupName
		From, To  uint64          // the newest version that is still to be replaced, and the job's
		Old       int64           // allocations to be replaced
		New       int64           // allocations of the job's version
		Settled   int64           // those of New that have been healthy for min_healthy_time
		AtOnce    int64           // max_parallel
		Since     structs.LogTime // when the last allocation was replaced, or the job submitted
		Next      structs.LogTime // when the job is decided about again; 0: when something changes
		Holds     []UpdateHold    // those of New that are not settled, at most 5
		MoreHolds int64           // beyond these
		Failed    string          // why the update of the job stopped: nothing more is replaced; "": it did not
	}
	// UpdateHold is an allocation of the new version that is not yet healthy for long enough.
	UpdateHold struct {
		ID             structs.AllocID
		Name, NodeName string
		Why            string          // one of the constants Hold*
		Since          structs.LogTime // since when it is so
		Until          structs.LogTime // when it counts as healthy, or is started again; 0: not known
		Restarts       int64           // of its tasks, in place
		ExitCode       int64           // the newest of its tasks that is not 0, if their last events have one
	}
	// ExcludedNode is a node that cannot take an allocation of a group now, and why.
	ExcludedNode struct {
		Group    structs.GroupName
		NodeID   structs.NodeID
		NodeName string
		Why      structs.Refusal
	}
	// Silent counts the allocations of a job that are not replaced yet because their nodes, which fell silent, may still
	// run their tasks (Group.RunsSilent).
	Silent struct {
		Allocs int64
		Nodes  []string        // names, sorted; at most 10
		Until  structs.LogTime // when the first of them is replaced
		Limit  time.Duration   // its stop_on_client_after
	}
	// Suspended counts the suspended allocations of a job.
	Suspended struct {
		Allocs, Frozen int64 // to be suspended; frozen already
		All            bool  // the whole job: nothing more of it is placed
		Since          structs.LogTime
		By, Reason     string // of the last request
	}
	// Saving counts work that waits for its turn to save its state before it ends.
	Saving struct {
		Now, Waiting int64
		Where        string // the limit that most of them wait for
		Limit        int64
	}
	// Advice lists changes that would start a waiting job (suggest.Find).
	Advice struct {
		Starts  bool
		Never   string
		Changes []AdviceChange
		Holders *AdviceHolders // nil: no work would make room if it were preemptible
	}
	// AdviceHolders is work that holds the room of a job only because it is not preemptible (suggest.Holders).
	AdviceHolders struct {
		Allocs, Jobs int64
		Names        []structs.JobKey // of the jobs that the caller may see, at most 5
		Until        structs.LogTime  // when the last of it is expected to end; 0: unknown
	}
	// AdviceChange is one change that would start the job, confirmed by a scheduling decision.
	AdviceChange struct {
		Kind, Text string
		Cost       int64
		Job        *structs.Job // the changed job; nil if something else changes
	}
	// QueueItem is one line of the pending list.
	QueueItem struct {
		StartEst structs.LogTime // when it should start; 0: as Workload says if Starts is "", else unknown
		Starts   string          // that obstacle
		Workload *structs.Workload
		Job      *structs.Job
		Position int64
	}
	// QueueListResponse is the pending list in queue order.
	QueueListResponse struct {
		Meta
		Items []QueueItem
	}
)
