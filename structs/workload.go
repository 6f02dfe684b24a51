package structs

import (
	"strconv"
	"strings"
	"time"
)

// Runtime is how long a job's allocations are expected to run, and may.
type Runtime struct {
	Expected time.Duration // the submitter's estimate; 0: unknown
	Limit    time.Duration // wall-clock limit of each allocation; 0: none
}

// IsExtensionKey reports whether a key of a meta block is the spelling of one of our settings for clients that know
// only Nomad's: "muster.queue" or "muster_queue". The setting's value is in its own field as well.
func IsExtensionKey(k string) bool {
	return strings.HasPrefix(k, "muster.") || strings.HasPrefix(k, "muster_")
}

// Requeue says after which ends a batch job's work returns to the queue.
type Requeue struct {
	On               []string // "preempt", "limit", "node_lost", "gpu_error", "failure", "exit:N"
	Max              int      // times that one piece of work returns, over all reasons in On; then it has failed. 0: never
	AvoidFailedNodes bool
}

// The ends after which work may return to the queue (Requeue.On), beside "exit:N".
const (
	RequeuePreempt  = "preempt"   // others took its place
	RequeueLimit    = "limit"     // its wall-clock limit was over
	RequeueNodeLost = "node_lost" // its node went away
	RequeueGPUError = "gpu_error" // a GPU failed under it
	RequeueFailure  = "failure"   // a task failed, whatever its exit code
	RequeueExit     = "exit:"     // and the exit code of a failed task
)

// RequeueReasons lists the values of Requeue.On without "exit:N".
var RequeueReasons = []string{RequeuePreempt, RequeueLimit, RequeueNodeLost, RequeueGPUError, RequeueFailure}

// RequeueCounts is how often work of a job has returned to the queue, by reason.
type RequeueCounts struct {
	Preempt  int64
	Limit    int64
	NodeLost int64
	GPUError int64
	Failure  int64 // "exit:N" included
	ByHand   int64 // somebody said so
}

// RequeueByHand is the reason of work that returned to the queue because somebody said so.
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

// By lists the counts that are not 0, in the order of the constants: "preempt 3, node_lost 1"; "" for none.
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
	When      string        // When... constants; "" means success
	Timeout   time.Duration // from submission; then OnTimeout; 0: waits for ever
	// OnTimeout is "fail" (also "": the job is stopped with a reason) or "run".
	OnTimeout string
	Group     string // dependencies of one group are alternatives: AtLeast of them must be met; "" stands alone
	AtLeast   int    // of a group, k of n; 0: all. The same in each member of the group
}

// What happens when a dependency's timeout is over.
const (
	OnTimeoutFail = "fail"
	OnTimeoutRun  = "run"
)

// On is the job that the dependency of a job waits for.
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

// Conditions of a dependency.
const (
	WhenStarted      = "started"
	WhenCompleted    = "completed" // ended, however
	WhenSuccess      = "success"
	WhenFailed       = "failed"
	WhenCheckpointed = "checkpointed"
)

// Array makes one job of many like tasks (D22): one record, indices 0..Count-1, at most Concurrency at a time.
type Array struct {
	Count       int                 // 1 to 100,000
	Concurrency int                 // 0: no cap
	Params      map[string][]string // per name: Count values, given to the tasks as MUSTER_PARAM_NAME
}

// ArrayCountMax is the most indices an array may have.
const ArrayCountMax = 100_000

// Effects of a taint.
const (
	TaintNoSchedule       = "no-schedule"
	TaintPreferNoSchedule = "prefer-no-schedule"
	TaintNoExecute        = "no-execute" // as no-schedule, and what runs there and does not tolerate it is moved
)

// Toleration lets a job onto nodes with a taint, and stay there (see Taint).
type Toleration struct {
	Key    string // "" tolerates everything
	Value  string // "" tolerates every value
	Effect string // "" tolerates every effect
	// For is how long what runs on a node may stay after a taint of effect no-execute was set; such a toleration lets nothing
	// be placed there. 0: for good.
	For time.Duration
}

// AcctRecord tells what became of a job that ended (or of one run of it): kept with retention by time and count,
// shown by `muster acct`, replayed by the simulator, fed to the predictor of run times.
type AcctRecord struct {
	ID          string // AcctID; filled in for readers, not kept
	Namespace   string
	JobID       string
	Name        string
	User        string // Submitter.Name
	Queue       QueuePath
	Domain      string
	Priority    int
	Type        JobType
	Submit      LogTime
	Start       LogTime // first allocation started; 0: never
	End         LogTime
	Allocs      int64         // placed over its life
	Asked       Amount        // of all its groups at full count
	GPUSeconds  int64         // held; a part of a GPU counts as AmountOf says
	CPUSeconds  int64         // MHz-seconds held / 1000
	GPUUse      GPUUse        // measured, of all its allocations; a job that was not measured has none
	Longest     time.Duration // the longest run of one allocation: what a prediction of run times is measured against
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
}

// Retention of accounting records: what is older goes, and of more than that many the oldest.
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

// Key names the job that ended.
func (r *AcctRecord) Key() JobKey { return JobKey{Namespace: r.Namespace, ID: r.JobID} }

// AcctID is the id of a record: derived from its job and the index of the log entry in which the job ended.
func AcctID(r *AcctRecord) string {
	return DeriveID[AllocID](Seed{}, "acct", r.Key().String(), uint64(r.CreateIndex)).String()
}

// Ran is the time from the first start to the end; 0 for a job that never started.
func (r *AcctRecord) Ran() time.Duration {
	if r.Start == 0 {
		return 0
	}
	return r.End.Sub(r.Start)
}

// Waited is the time from the submission to the first start, or to the end of a job that never started.
func (r *AcctRecord) Waited() time.Duration {
	if r.Start == 0 {
		return r.End.Sub(r.Submit)
	}
	return r.Start.Sub(r.Submit)
}

// DecisionsKept is how many rows the ring of the decision log has.
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
)

// DecisionRow is one accepted (or preempting) part in the decision log: a ring in replicated state (D23).
type DecisionRow struct {
	Seq       uint64 // position in the log since ever; the ring keeps the last ones
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
	Score     int64         // of the first placement, millionths; 0 when not known
}
