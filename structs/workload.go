package structs

import (
	"strconv"
	"strings"
	"time"
)

// Runtime is how long a job's allocations are expected to run, and how long they may run.
type Runtime struct {
	Expected time.Duration // the submitter's estimate; 0: unknown
	Limit    time.Duration // wall-clock limit of each allocation; 0: none
}

// IsExtensionKey reports whether a key of a meta block spells one of Muster's settings, for clients that know only
// Nomad's: "muster.queue" or "muster_queue". The setting is also in its own field.
func IsExtensionKey(k string) bool {
	return strings.HasPrefix(k, "muster.") || strings.HasPrefix(k, "muster_")
}

// Requeue says after which ends a batch job's work returns to the queue.
type Requeue struct {
	On               []string // "preempt", "limit", "node_lost", "gpu_error", "failure", "exit:N"
	Max              int      // how often one piece of work returns, over all reasons in On, before it fails; 0: never
	AvoidFailedNodes bool
}

// The ends after which work may return to the queue (Requeue.On), in addition to "exit:N".
const (
	RequeuePreempt  = "preempt"   // it was preempted
	RequeueLimit    = "limit"     // its wall-clock limit has passed
	RequeueNodeLost = "node_lost" // its node was lost
	RequeueGPUError = "gpu_error" // its GPU failed
	RequeueFailure  = "failure"   // a task failed, with any exit code
	RequeueExit     = "exit:"     // prefix; the exit code of a failed task follows
)

// RequeueReasons lists the values of Requeue.On without "exit:N".
var RequeueReasons = []string{RequeuePreempt, RequeueLimit, RequeueNodeLost, RequeueGPUError, RequeueFailure}

// RequeueCounts counts how often work of a job has returned to the queue, by reason.
type RequeueCounts struct {
	Preempt  int64
	Limit    int64
	NodeLost int64
	GPUError int64
	Failure  int64 // "exit:N" included
	ByHand   int64 // a user requeued it
}

// RequeueByHand is the reason of work that a user returned to the queue.
const RequeueByHand = "requeue"

// Add counts one return.
func (c *RequeueCounts) Add(reason string) {
	switch reason {
	case RequeuePreempt:
		c.Preempt++
	case RequeueLimit:
		c.Limit++
	case RequeueNodeLost:
		c.NodeLost++
	case RequeueGPUError:
		c.GPUError++
	case RequeueByHand:
		c.ByHand++
	default:
		c.Failure++
	}
}

// By lists the nonzero counts, in the order of the constants: "preempt 3, node_lost 1"; "" for none.
func (c *RequeueCounts) By() string {
	var b strings.Builder
	for _, x := range []struct {
		name string
		n    int64
	}{{RequeuePreempt, c.Preempt}, {RequeueLimit, c.Limit}, {RequeueNodeLost, c.NodeLost}, {RequeueGPUError, c.GPUError}, {RequeueFailure, c.Failure}, {"by hand", c.ByHand}} {
		if x.n == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(x.name + " " + strconv.FormatInt(x.n, 10))
	}
	return b.String()
}

// Dependency makes a job wait for another.
type Dependency struct {
	Name      string        // label of the block: the job's id unless JobID says otherwise
	JobID     string        // "" means Name
	Namespace string        // of that job; "" for the job's own
	When      string        // a When... constant; "" means success
	Timeout   time.Duration // from submission; then OnTimeout applies; 0: waits for ever
	OnTimeout OnTimeout     // "": OnTimeoutFail
	Group     string        // dependencies of one group are alternatives: AtLeast of them must be met; "" is independent
	AtLeast   int           // of a group, k of n; 0: all. The same in each member of the group
}

// OnTimeout is what happens at a dependency's timeout.
type OnTimeout string

const (
	OnTimeoutFail OnTimeout = "fail" // the job is stopped with a reason
	OnTimeoutRun  OnTimeout = "run"  // the job no longer waits for the dependency
)

// On returns the key of the job that the dependency waits for.
func (d *Dependency) On(of *Job) JobKey {
	k := JobKey{Namespace: d.Namespace, ID: d.JobID}
	if k.Namespace == "" {
		k.Namespace = of.Namespace
	}
	if k.ID == "" {
		k.ID = d.Name
	}
	return k
}

// Conditions of a dependency (Dependency.When).
const (
	WhenStarted      = "started"
	WhenCompleted    = "completed" // ended, successfully or not
	WhenSuccess      = "success"
	WhenFailed       = "failed"
	WhenCheckpointed = "checkpointed"
)

// Array makes one job of many similar tasks (D22): one record, indices 0..Count-1, at most Concurrency at a time.
type Array struct {
	Count       int                 // 1 to 100,000
	Concurrency int                 // 0: no limit
	Params      map[string][]string // by name: Count values, passed to the tasks as MUSTER_PARAM_NAME
}

// ArrayCountMax is the maximum number of indices of an array.
const ArrayCountMax = 100_000

// Effects of a taint.
const (
	TaintNoSchedule       = "no-schedule"
	TaintPreferNoSchedule = "prefer-no-schedule"
	TaintNoExecute        = "no-execute" // as no-schedule, and running work that does not tolerate it is moved
)

// Toleration lets a job be placed on nodes with a taint, and stay there (see Taint).
type Toleration struct {
	Key    string // "" tolerates everything
	Value  string // "" tolerates every value
	Effect string // "" tolerates every effect
	// For is how long running work may stay after a taint of effect no-execute was set; with it, nothing new is placed.
	// 0: for ever.
	For time.Duration
}

// AcctRecord records the outcome of an ended job (or of one run of it): kept with retention by time and count, shown by
// `muster acct`, replayed by the simulator, used by the predictor of run times.
type AcctRecord struct {
	ID          string // AcctID; filled in for readers, not stored
	Namespace   string
	JobID       string
	Name        string
	User        string // Submitter.Name
	Queue       QueuePath
	Domain      PoolName
	Priority    int
	Type        JobType
	Submit      LogTime
	Start       LogTime // first allocation started; 0: never
	End         LogTime
	Allocs      int64         // placed during its life
	Asked       Amount        // all its groups at full count
	GPUSeconds  int64         // held; a part of a GPU counts as in AmountOf
	CPUSeconds  int64         // MHz-seconds held / 1000
	GPUUse      GPUUse        // measured, of all its allocations; zero if it was not measured
	Longest     time.Duration // the longest run of one allocation: predictions of run times are compared with it
	Limit       time.Duration
	Expected    time.Duration
	Predicted   time.Duration
	Preemptions int64
	Requeues    int64
	Returned    RequeueCounts // Requeues by reason
	Deadline    LogTime       // 0: none
	Missed      bool          // it ended after its deadline
	Exit        string        // "success", "failed", "stopped", "preempted", "limit", "deadline", "lost"
	ExitCode    int64
	CreateIndex Index // of the log entry in which the job ended

	AllocTime time.Duration `since:"2"` // that its allocations ran, in sum
	Lost      int64         `since:"2"` // allocations that were lost with their node
}

// Retention of accounting records: older ones are deleted, and the oldest beyond the count.
const (
	AcctAge  = 30 * 24 * time.Hour
	AcctKept = 100_000
)

// How a job ended (AcctRecord.Exit).
const (
	ExitSuccess   = "success"
	ExitFailed    = "failed"
	ExitStopped   = "stopped"
	ExitPreempted = "preempted"
	ExitLimit     = "limit"
	ExitDeadline  = "deadline"
	ExitLost      = "lost"
)

// Key returns the key of the job that ended.
func (r *AcctRecord) Key() JobKey { return JobKey{Namespace: r.Namespace, ID: r.JobID} }

// AcctID returns the id of a record, derived from its job and the index of the log entry in which the job ended.
func AcctID(r *AcctRecord) string {
	return DeriveID[AllocID](Seed{}, "acct", r.Key().String(), uint64(r.CreateIndex)).String()
}

// Ran returns the time from the first start to the end; 0 for a job that never started.
func (r *AcctRecord) Ran() time.Duration {
	if r.Start == 0 {
		return 0
	}
	return r.End.Sub(r.Start)
}

// Waited returns the time from the submission to the first start, or to the end of a job that never started.
func (r *AcctRecord) Waited() time.Duration {
	if r.Start == 0 {
		return r.End.Sub(r.Submit)
	}
	return r.Start.Sub(r.Submit)
}

// DecisionsKept is how many rows the decision log keeps.
const DecisionsKept = 65_536

// Kinds of a DecisionRow.
const (
	DecidedPlace   = "place"
	DecidedStop    = "stop"
	DecidedUpdate  = "update"
	DecidedPreempt = "preempt"
	DecidedGang    = "gang"
	DecidedRequeue = "requeue"
	DecidedReserve = "reserve"
	DecidedSuspend = "suspend" // a user froze running work: Stops allocations
	DecidedResume  = "resume"  // a user let it continue: Places allocations
	DecidedResize  = "resize"  // an elastic gang continued with other members: Places more, or Stops fewer
)

// DecisionRow is one accepted (or preempting) part in the decision log: a ring in replicated state (D23).
type DecisionRow struct {
	Seq       uint64 // position in the log, counted from its beginning; the ring keeps the last ones
	Index     Index
	Time      LogTime
	Namespace string
	JobID     string
	EvalID    EvalID
	Kind      string // a Decided... constant
	Places    int64
	Stops     int64
	Nodes     int64  // distinct
	Node      NodeID // the first
	Queue     QueuePath
	Wait      time.Duration // since submission
	Score     int64         // of the first placement, millionths; 0 when unknown
	// Policy is the settings in force for the job, as ORDER/BACKFILL/PREEMPT/PLACEMENT: those of its queue, and its own
	// placement policy or that of its pool. "" in rows of format 1, as the following.
	Policy  string
	Reason  Trigger          // of the evaluation; "": it was collected. Of a suspension it is what the user gave, "" for nothing
	Actor   string           // who caused it: the user who asked for it, as a stop, a drain, a hold or a priority; else who submitted the job's version. A name, "uid N", or a token's accessor; "": anonymous
	Victims []DecisionVictim // the other jobs whose work the part preempts
}

// DecisionVictim is a job whose work a part preempts.
type DecisionVictim struct {
	Row       int64 // of the part, counted from the first of its plan
	Namespace string
	JobID     string
	Allocs    int64
	First     AllocID // one of them
	Why       string  // what they are shown, with figures
	Saving    int64   `since:"2"` // of Allocs, those that may save their state first, because their checkpoint block says how or sets a grace
	Lost      int64   `since:"2"` // GPU-seconds that they did since their newest checkpoints, or since they started
}
