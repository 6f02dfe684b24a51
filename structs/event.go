package structs

// EventKind is an event that can unblock work with a refusal.
type EventKind string

// The events that unblock work.
const (
	EventNone          EventKind = ""
	EventAllocStopped  EventKind = "alloc-stopped"  // resources were released
	EventNodeJoined    EventKind = "node-joined"    // a node became ready or changed its attributes
	EventNodeEligible  EventKind = "node-eligible"  // eligibility or drain ended
	EventDeviceHealthy EventKind = "device-healthy" // a device came back
	EventDriverHealthy EventKind = "driver-healthy" // a driver came back
	EventJobChanged    EventKind = "job-changed"    // the job itself changed
	EventConfigChanged EventKind = "config-changed" // queue, pool or scheduler configuration changed
	EventTime          EventKind = "time"           // a clock condition
	EventQueueUsage    EventKind = "queue-usage"    // a queue or tenant holds less, or may hold more
	EventJobEnded      EventKind = "job-ended"      // a job that others depend on progressed or ended
	EventSaved         EventKind = "saved"          // running work wrote a checkpoint, so that it would lose less
	EventAllocPlaced   EventKind = "alloc-placed"   // an allocation that others refer to (Peer) was placed, or runs another version
)

// Since returns the format that stored events of this kind need, or 0: package pack asks for it. A server that does not know
// a kind stores it, but does not unblock by it.
func (k EventKind) Since() uint64 {
	if k == EventSaved {
		return 2
	}
	return 0
}

// Changed is one object before and after a command; nil means absent.
type Changed[T any] struct {
	Before, After *T
}

// Either is the object after the change, or the one before it if it was deleted.
func (c Changed[T]) Either() *T {
	if c.After != nil {
		return c.After
	}
	return c.Before
}

// Delta is everything one applied batch changed, in the order of the log. The FSM returns it; the server advances the
// view with it, wakes pollers, and feeds the broker and the event stream. Objects in it are immutable.
type Delta struct {
	Index      Index   // of the last entry in the batch
	Time       LogTime // of the last entry in the batch
	Nodes      []Changed[Node]
	Jobs       []Changed[Job]
	Allocs     []Changed[Allocation]
	Evals      []Changed[Evaluation]
	Workloads  []Changed[Workload]
	Pools      []Changed[NodePool]
	Namespaces []Changed[Namespace]
	Policies   []Changed[ACLPolicy]
	Tokens     []Changed[ACLToken]
	Roles      []Changed[ACLRole]
	Launches   []Changed[PeriodicLaunch]
	Scaling    []Changed[ScalingEvents]
	Queues     []Changed[Queue]
	QueueUse   []Changed[QueueUsage]
	Quotas     []Changed[QuotaSpec]
	Reserved   []Changed[Reservation]
	Rosters    []Changed[Roster]
	Preempted  []Changed[Preemptions]
	Acct       []Changed[AcctRecord]
	Variables  []Changed[Variable] // sealed
	Services   []Changed[ServiceRegistration]
	Config     bool            // scheduler, autopilot or cluster configuration changed
	Restored   bool            // the whole state was replaced: rebuild everything
	Causes     map[Index]Cause // the entry at each index, for the event stream
}

// Cause is the command of a log entry and who sent it.
type Cause struct {
	Type CommandType
	By   Submitter
}
