package structs

import "time"

// Ordering policies of a queue (Queue.Order), implemented in scheduler/queue.
const (
	OrderFCFS     = "fcfs"          // first come, first served within a priority
	OrderSJF      = "sjf"           // shortest expected run time first
	OrderEDF      = "edf"           // earliest deadline first
	OrderPriority = "priority"      // priority that waiting raises
	OrderFair     = "fair"          // least dominant share, with decayed usage, first
	OrderWeighted = "weighted-fair" // least virtual time first
	OrderMLFQ     = "mlfq"          // least attained service first, in discrete levels
	OrderSRTF     = "srtf"          // shortest remaining time first
	OrderSRSF     = "srsf"          // shortest remaining time by GPUs first
	OrderLottery  = "lottery"       // drawn by weight from the pass's seed
	OrderAdaptive = "adaptive"      // the default: see scheduler/queue
)

// Rules of preemption of a queue (Queue.Preempt).
const (
	PreemptNone     = "none"
	PreemptPriority = "priority" // work of higher priority takes the place of lower
	PreemptReclaim  = "reclaim"  // only what others borrowed beyond their guarantee is taken back
	PreemptDeadline = "deadline" // work that would miss its deadline takes the place of work that would not
	PreemptOrder    = "order"    // running work competes with pending work in the queue's order
)

// Kinds of backfilling (Queue.Backfill).
const (
	BackfillNone         = "none"         // nobody passes a blocked workload that could run on what he would take
	BackfillGreedy       = "greedy"       // whatever fits starts; nothing is reserved before the starvation bound
	BackfillEASY         = "easy"         // the first blocked workload gets a reservation
	BackfillSJF          = "easy-sjf"     // as easy, those behind it tried by expected run time
	BackfillConservative = "conservative" // every one of the first Queue.ReserveDepth blocked workloads gets one
)

// Queue is a node of the tree that shares the cluster out. A Queue in the store is immutable. Settings that are left at
// their zero value are the parent's; those of the root have the defaults that the comments tell.
type Queue struct {
	Path        QueuePath // "research/nlp"; parts of letters, digits, - and _; the parent must exist
	Description string

	Weight      int64            // share of the parent's resources against its siblings; 0 means 1
	UserWeights map[string]int64 // of submitters against each other, under fair and weighted-fair; 1 for who is not named; nil: the parent's
	Billing     *Billing         // weights of what its work holds, for the shares of fair and weighted-fair; nil: the parent's, which has none by default: dominant shares
	Guarantee   *Amount          // what the queue gets back from borrowers when it asks for it; nil: nothing; components may be 0
	Limit       *Amount          // what the queue may hold at most, AmountNoLimit where there is none; nil: no limit
	SoftLimit   *Amount          // beyond it the queue is served only when nobody below his own asks; nil: none

	Order        string        // how its own workloads and children are ordered, several names with commas one after another; default: the cluster's (SchedulerConfig.Order)
	Preempt      string        // how its workloads may preempt; default: order, which concerns only work that may be preempted
	Backfill     string        // how blocked workloads of the queue are passed; default: the cluster's
	ReserveDepth int64         // blocked workloads with a reservation under conservative; default 10
	MaxWait      time.Duration // starvation bound: after it the head gets a reservation whatever Backfill says; default 24 h
	HalfLife     time.Duration // of usage, for fair and weighted-fair; default 24 h
	Aging        time.Duration // waiting that raises priority by one under the order priority; default 10 min
	AgingMax     int64         // the most that waiting adds to a priority under the order priority; 0: no ceiling
	// BackfillWindow is how far ahead capacity is promised to blocked workloads: one that could start only later has no
	// promise yet, until it has waited for MaxWait. 0: any time.
	BackfillWindow time.Duration
	// BackfillMaxJobs is how many jobs of the queue a pass tries behind the first one that found no room; the others wait for
	// the next pass, and are told so. 0: all.
	BackfillMaxJobs int64

	// Caps; 0 means none.
	RunningMax         int64 // jobs with an allocation that holds, in the queue
	SubmittedMax       int64 // jobs that are not dead, in the queue; more are refused at submission
	RunningUserMax     int64 // the same for each submitter
	SubmittedUserMax   int64
	GPUMinutesMax      int64 // GPU-minutes that the running jobs of the queue may still use by their limits
	GPUMinutesUserMax  int64
	PreemptGrace       time.Duration // the most that work of this queue may claim for saving its state; default: what it asks for
	PreemptMinRuntime  time.Duration // work that runs for less is not preempted; default 1 min
	PreemptMax         int64         // preemptions of one job, after which it is left alone; default 10
	PreemptRate        int64         // preemptions an hour on behalf of this queue; 0: no limit
	PreemptAfter       time.Duration // its work makes others give way only after it has waited so long; 0: at once
	PreemptDelta       int64         // by how much a priority must be higher than a victim's, under PreemptPriority; default 1, and 10 where only the operator's switch allows it
	AllowedUsers       []string      // submitters who may use the queue; empty: all
	Meta               map[string]string
	CreateIndex, Epoch Index // Epoch is the last change: plans that were decided by older settings are refused (D6)
	ModifyIndex        Index
}

// QueueUsage is what a queue has used, in the closed form of D11: at time t the decayed usage is
// Used*2^-((t-At)/half-life) + what Rate gathers meanwhile. It changes only when an allocation starts or stops holding.
type QueueUsage struct {
	Path        QueuePath
	User        string // "" for the queue as a whole, else of one submitter in it
	Held        Amount // what its allocations hold now, over the whole subtree; see Charge
	Jobs        int64  // jobs of the subtree with an allocation that holds
	Allocs      int64
	Used        Amount // amount-seconds, decayed to At
	Total       Amount // amount-seconds since ever, without decay, up to At
	At          LogTime
	ModifyIndex Index
	Ending      int64  // of Held: thousandths of GPUs of allocations that have a wall-clock limit
	Ends        int64  // sum over those of thousandths x the second (Unix) at which they reach it
	Credit      Amount // amount-seconds that count as used under weighted-fair: who asked for nothing does not save up
}

// Reservation is capacity promised for a time: to a blocked workload by a pass (D20), or by an operator.
type Reservation struct {
	ID          string // "job/NAMESPACE/ID" of a blocked workload's, else the operator's name
	Domain      string // node pool
	Namespace   string // of the blocked workload
	JobID       string // of the blocked workload; "" for an operator's
	Start       LogTime
	End         LogTime            // 0: open end
	Basis       string             // ReserveLimit, ReservePredicted or ReserveGuessed: what the ends of running work were taken from; "" for an operator's
	Places      []ReservationPlace // nodes with what will be held on each
	Nodes       []NodeID           // operator's: whole nodes
	Amount      *Amount            // operator's: an amount anywhere in the domain; nil for nodes
	Users       []string           // operator's: who may use it
	Queues      []QueuePath        // operator's: whose work may use it, subtrees included; a blocked workload's: its own
	Maintenance bool               // operator's: nobody may; the nodes drain at Start
	Description string
	CreateIndex Index
	ModifyIndex Index
}

// ReservationPlace is what one allocation of a blocked workload will hold.
type ReservationPlace struct {
	Node   NodeID
	Group  string
	Need   Vector
	Grants []Grant
}

// What the basis of a reservation was.
const (
	ReserveLimit     = "limit"
	ReservePredicted = "predicted"
	ReserveGuessed   = "guessed" // some of the work says nothing of its end: it is taken to run on for as long as it has run
)

// ReservationID is the id of a blocked workload's reservation.
func ReservationID(k JobKey) string { return "job/" + k.Namespace + "/" + k.ID }
