package structs

import (
	"slices"
	"time"
)

// Checkpoint says how work is notified to save its state, and how a finished checkpoint is detected.
type Checkpoint struct {
	Signal   string        // sent as the notice; "" for none
	Command  []string      // run in the main task as the notice; nil for none
	URL      string        // POSTed as the notice; "" for none
	To       string        // "launcher" (also "") or "ranks"
	On       []string      // "preempt", "limit", "drain", "resize"; empty: all of them
	Before   time.Duration // how long before a limit the notice is sent
	Grace    time.Duration // how long a save may take before the kill
	Dir      string        // directory of the checkpoints, as the task sees it
	Path     string        // file, directory or pattern of a checkpoint, below Dir unless absolute; "": the content of Dir
	Poll     time.Duration // interval of the search for it; 0: CheckpointPollDefault
	Interval time.Duration // notice when the last checkpoint is this old; 0: never
	Storage  string        // where it writes to, by the name that limits use (SchedulerConfig.CheckpointStorage); "" for none
	Cost     time.Duration // cost of one checkpoint and restart; 0: unknown, Grace is assumed
	// Members is how many members of a gang write the parts of one checkpoint; 0: all, or the only one that is seen to write any.
	Members int `since:"2"`
}

// Intervals of the search for checkpoints.
const (
	CheckpointPollDefault = 5 * time.Second
	CheckpointPollLeast   = time.Second
)

// CheckpointStorageMax is the maximum length of a storage name, in bytes.
const CheckpointStorageMax = 128

// Notified reports whether the work is notified to save its state. Otherwise it saves by itself.
func (c *Checkpoint) Notified() bool { return c.Signal != "" || len(c.Command) > 0 || c.URL != "" }

// Causes of a notice that servers know: values of Checkpoint.On.
const (
	CausePreempt = "preempt"
	CauseDrain   = "drain"
	CauseResize  = "resize"
)

// Heeds reports whether work that is stopped for a cause of Checkpoint.On gets time to save its state.
func (c *Checkpoint) Heeds(cause string) bool {
	return cause != "" && (len(c.On) == 0 || slices.Contains(c.On, cause)) && (c.Notified() || c.Grace > 0)
}

// EndCause returns why servers stop an allocation, if that is a cause for a checkpoint; "" for any other reason and
// while it should run.
func (a *Allocation) EndCause() string {
	switch {
	case a.Desired == DesiredEvict, a.ServerTerminal() && a.Transition.Yield:
		return CausePreempt
	case a.ServerTerminal() && a.Transition.Migrate:
		return CauseDrain
	}
	return ""
}

// EndsFor records CauseDrain or CausePreempt as the reason why an allocation is stopped, although its own node does not
// drain and it is not evicted: its gang moves or gives way.
func (a *Allocation) EndsFor(cause string) {
	switch cause {
	case CauseDrain:
		a.Transition.Migrate = true
	case CausePreempt:
		a.Transition.Yield = true
	}
}

// CheckpointWaitMax limits how long work that must end waits for its turn to save its state. After that it saves in any
// case.
const CheckpointWaitMax = 30 * time.Minute

// Saved is a complete checkpoint that an agent has seen.
type Saved struct {
	Time  LogTime // when it was written; never after it was seen
	Bytes int64
	Path  string // as the task sees it, with variables for the task's own directories; "" when unknown
	// Took is how long it took from the notice until it was written; 0: the task saved by itself, or it is unknown.
	Took time.Duration `since:"2"`
}

// Newer returns the later of two checkpoints. Either may be nil.
func (s *Saved) Newer(o *Saved) *Saved {
	if s == nil || o != nil && (o.Time > s.Time || o.Time == s.Time && o.Path > s.Path) {
		return o
	}
	return s
}

// CheckpointGrace is how long a save may take if the group does not say.
const CheckpointGrace = 30 * time.Second

// GraceOrDefault returns how long a save may take: 0 for a group that is not notified and sets no grace.
func (c *Checkpoint) GraceOrDefault() time.Duration {
	if c.Grace <= 0 && c.Notified() {
		return CheckpointGrace
	}
	return max(c.Grace, 0)
}

// JobRisk is what interruptions are expected to cost a job, by the accounting records of the jobs that ended in the last
// 30 days.
type JobRisk struct {
	AllocTime time.Duration // that allocations ran, in sum
	Lost      int64         // of these allocations: lost with their node
	JobTime   time.Duration // that jobs of its queue, of at most its priority, ran
	Preempted int64         // preemptions of these jobs
	Groups    []GroupRisk   // those with GPUs
}

// GroupRisk is what interruptions are expected to cost a group before it ends.
type GroupRisk struct {
	Group          GroupName
	Run            time.Duration // expected run time without interruptions
	NodeLosses     int64         // expected, in millionths, of the nodes of all that runs as one with an allocation of the group
	Preemptions    int64         // expected, in millionths
	LostGPUSeconds int64         // expected: work that is done again, and checkpoints that are loaded
	Interval       time.Duration // between checkpoints, as the job says; 0: it does not
	Best           time.Duration // the interval with the least loss; 0: no checkpoints, or nothing is expected to be lost
	Worst          *NodeRisk     // of the nodes on which it would run, the one expected to be lost first; nil: it has no place, or no loss was seen
}
