package structs

import (
	"math"
	"time"
)

// Order is the order of a queue's work: a name, or several separated by commas, of which each decides between what the
// ones before it hold equal. Package scheduler/queue implements them.
type Order string

const (
	OrderFCFS     Order = "fcfs"          // first come, first served within a priority
	OrderSJF      Order = "sjf"           // shortest expected run time first
	OrderEDF      Order = "edf"           // earliest deadline first
	OrderPriority Order = "priority"      // priority that grows with waiting
	OrderFair     Order = "fair"          // least dominant share, with decayed usage, first
	OrderWeighted Order = "weighted-fair" // least virtual time first
	OrderMLFQ     Order = "mlfq"          // least attained service first, in discrete levels
	OrderSRTF     Order = "srtf"          // shortest remaining time first
	OrderSRSF     Order = "srsf"          // shortest remaining time by GPUs first
	OrderLottery  Order = "lottery"       // drawn by weight; a draw holds until work starts (QueueUsage.Draw)
	OrderAdaptive Order = "adaptive"      // the default: see scheduler/queue
)

// Values of Queue.Preempt.
const (
	PreemptNone     = "none"
	PreemptPriority = "priority" // work of higher priority takes the place of lower
	PreemptReclaim  = "reclaim"  // only what others borrowed is taken back, which every rule but none does
	PreemptDeadline = "deadline" // work that would miss its deadline takes the place of work that would not
	PreemptOrder    = "order"    // running work competes with pending work in the queue's order, and by shares where it measures them
)

// Values of Queue.Backfill.
const (
	BackfillNone         = "none"         // later workloads never use resources that a blocked one could run on
	BackfillGreedy       = "greedy"       // anything that fits starts; nothing is reserved before the starvation bound
	BackfillEASY         = "easy"         // the first blocked workload gets a reservation
	BackfillSJF          = "easy-sjf"     // as easy, with the later workloads tried by expected run time
	BackfillConservative = "conservative" // each of the first Queue.ReserveDepth blocked workloads gets one
)

// Values of Queue.Ends.
const (
	EndsPredicted = "predicted" // predictions of run times, and limits where there are none
	EndsLimit     = "limit"     // limits alone
)

// Defaults of queues whose ancestors set nothing, where the cluster's configuration sets nothing either.
const (
	OrderDefault    = OrderAdaptive
	BackfillDefault = BackfillSJF
	PreemptDefault  = PreemptOrder
	HalfLifeDefault = 7 * 24 * time.Hour
	HalfLifeDay     = 24 * time.Hour // HalfLifeDefault in a cluster of format 1
)

// Queue is a node of the tree that shares the cluster out. A Queue in the store is immutable. Settings with their zero
// value are inherited from the parent; those of the root have the defaults in the comments.
type Queue struct {
	Path        QueuePath // "research/nlp"; parts of letters, digits, - and _; the parent must exist
	Description string

	Weight      int64            // share of the parent's resources against its siblings; 0 means 1
	UserWeights map[string]int64 // of submitters relative to each other, under fair and weighted-fair; 1 for all others; nil: the parent's
	Billing     *Billing         // weights for the shares of fair and weighted-fair; nil: the parent's, which has none by default: dominant shares
	Guarantee   *Amount          // what the queue can reclaim from borrowers; nil: nothing; components may be 0
	Limit       *Amount          // the most that the queue may hold, AmountNoLimit where there is none; nil: no limit
	Borrow      *Amount          `since:"2"` // the most that the queue may hold beyond its guarantee; AmountNoLimit where there is no limit; nil: no limit
	Lend        *Amount          `since:"2"` // the most of its guarantee that work of other queues may hold that is not preemptible; AmountNoLimit for all of it; nil: all
	UserLimit   *Amount          `since:"2"` // the most that each submitter may hold in the queue and those below it, AmountNoLimit where there is none; nil: no limit
	SoftLimit   *Amount          // beyond it the queue is served only if no other queue below its own soft limit asks; nil: none

	// Limits of the GPUs of a model, by model. Each holds in addition to the amount of the same name.
	LimitModels     []ModelAmount `since:"2"`
	UserLimitModels []ModelAmount `since:"2"`
	SoftLimitModels []ModelAmount `since:"2"`

	Order           Order         // order of its own workloads and children; default: the cluster's (SchedulerConfig.Order)
	Preempt         string        // how its workloads may preempt; default: order, which affects only preemptible work
	Backfill        string        // how later workloads may pass blocked ones; default: the cluster's
	ReserveDepth    int64         // blocked workloads with a reservation under conservative; default 10
	MaxWait         time.Duration // starvation bound: work that has waited longer gets a reservation under any Backfill; default 24 h; MaxWaitOff: none
	Ends            string        `since:"2"` // which ends of its work reservations and backfilling count on; default: predicted
	PriorityMax     int64         `since:"2"` // of its jobs; 0: that of the queue above
	PriorityDefault int64         `since:"2"` // of its jobs without a priority; 0: that of the queue above, else the namespace's

	// Priorities by submitter, in place of PriorityMax and PriorityDefault of the same queue. See PriorityMaxOf.
	UserPriorityMax     map[string]int64 `since:"2"`
	UserPriorityDefault map[string]int64 `since:"2"`

	HalfLife time.Duration // of usage, for fair; default HalfLifeDefault
	Aging    time.Duration // waiting time that raises priority by one under the order priority; default 10 min
	AgingMax int64         // the most that waiting adds to a priority under the order priority; 0: no limit
	// BackfillWindow is how far ahead capacity is reserved for blocked workloads: one that could start only later gets
	// no reservation until it has waited for MaxWait. 0: no limit.
	BackfillWindow time.Duration
	// BackfillMaxJobs is how many jobs of the queue a pass tries behind the first blocked one. The others wait for the
	// next pass, with a reason that says so. 0: all.
	BackfillMaxJobs int64

	// Limits; 0 means none.
	RunningMax         int64 // jobs of the queue with an allocation that holds
	SubmittedMax       int64 // jobs of the queue that are not dead; more are refused at submission
	RunningUserMax     int64 // the same for each submitter
	SubmittedUserMax   int64
	GPUMinutesMax      int64 // GPU-minutes that the running jobs of the queue may still use, by their limits
	GPUMinutesUserMax  int64
	GPUHoursMax        int64         `since:"2"` // budget: GPU hours that the queue may use in a period; no job starts beyond it
	GPUHoursUserMax    int64         `since:"2"` // the same for each submitter
	GPUHoursPeriod     string        `since:"2"` // PeriodDay, PeriodWeek or PeriodMonth; default month
	PreemptGrace       time.Duration // limit of the time that work of this queue gets for saving its state; default: what it asks for
	PreemptMinRuntime  time.Duration // work that has run for less since its tasks started (before that: since it was placed) is not preempted; default 1 min
	PreemptMax         int64         // preemptions of one job, after which it is no longer preempted; default 10
	PreemptRate        int64         // preemptions an hour on behalf of this queue; 0: no limit
	PreemptAfter       time.Duration // its work preempts others only after it has waited this long; 0: at once
	PreemptDelta       int64         // by how much a priority must exceed a victim's, under PreemptPriority; default 1, and 10 where only the operator's switch allows it
	AllowedUsers       []string      // submitters who may use the queue; empty: all
	Meta               map[string]string
	CreateIndex, Epoch Index // Epoch is the last change: plans decided by older settings are refused (D6)
	ModifyIndex        Index
}

// MaxWaitOff is the Queue.MaxWait of a queue in which work may wait for ever.
const MaxWaitOff time.Duration = math.MaxInt64

// QueueUsage is what a queue has used, in the closed form of D11: at time t the decayed usage is
// Used*2^-((t-At)/half-life) plus what Rate accumulates meanwhile. It changes only when an allocation starts or stops
// holding.
type QueueUsage struct {
	Path        QueuePath
	User        string // "" for the queue as a whole, else of one submitter in it
	Held        Amount // what its allocations hold now, over the whole subtree; see Charge
	Jobs        int64  // jobs of the subtree with an allocation that holds
	Allocs      int64
	Used        Amount // amount-seconds, decayed to At
	Total       Amount // amount-seconds in total, without decay, up to At
	At          LogTime
	ModifyIndex Index
	Ending      int64         // of Held: thousandths of GPUs of allocations that have a wall-clock limit
	Ends        int64         // sum over those of thousandths times the second (Unix) at which they reach it
	PeriodAt    LogTime       `since:"2"` // since when PeriodUse counts; 0: the queue has no budget
	PeriodBase  int64         `since:"2"` // Total.GPUMilli at PeriodAt
	ByModel     bool          `since:"2"` // of the root: Models is kept in every row, because some limit is by model
	Models      []ModelAmount `since:"2"` // GPUs of Held by the model that was granted, by model
	Draw        Index         `since:"2"` // of the root: the last entry in which an allocation began to hold, which seeds the draws of lotteries; 0: not kept
	Credit      Amount        // amount-seconds that count as used under weighted-fair: a queue that asked for nothing does not accumulate credit
}

// Reservation is capacity reserved in time: for a blocked workload by a pass (D20), or by an operator.
type Reservation struct {
	ID          string   // "job/NAMESPACE/ID" of a blocked workload's, else the operator's name
	Domain      PoolName // node pool
	Namespace   string   // of the blocked workload
	JobID       string   // of the blocked workload; "" for an operator's
	Start       LogTime
	End         LogTime            // 0: open end
	Basis       string             // ReserveLimit, ReservePredicted or ReserveGuessed: the source of the end times of running work; "" for an operator's
	Places      []ReservationPlace // nodes with what will be held on each
	Nodes       []NodeID           // operator's: whole nodes
	Amount      *Amount            // operator's: an amount anywhere in the domain; nil for nodes
	Users       []string           // operator's: who may use it
	Queues      []QueuePath        // operator's: queues whose work may use it, subtrees included; a blocked workload's: its own
	Maintenance bool               // operator's: no work may use it; the nodes drain at Start
	Description string
	CreateIndex Index
	ModifyIndex Index
}

// ReservationPlace is what one allocation of a blocked workload will hold.
type ReservationPlace struct {
	Node   NodeID
	Group  GroupName
	Need   Vector
	Grants []Grant
}

// Sources of the end times behind a reservation (Reservation.Basis).
const (
	ReserveLimit     = "limit"
	ReservePredicted = "predicted"
	ReserveGuessed   = "guessed" // some of the work has no known end: it is assumed to run for as long again as it has run
)

// ReservationID returns the id of a blocked workload's reservation.
func ReservationID(k JobKey) string { return "job/" + k.Namespace + "/" + k.ID }
