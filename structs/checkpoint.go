package structs

import (
	"slices"
	"time"
)

// Checkpoint says how work is told to save its state, and how it is seen that it did.
type Checkpoint struct {
	Signal   string        // sent at the notice; "" for none
	Command  []string      // run in the main task at the notice; nil for none
	URL      string        // POSTed at the notice; "" for none
	To       string        // "launcher" (also "") or "ranks"
	On       []string      // "preempt", "limit", "drain", "resize"; empty: all of them
	Before   time.Duration // notice before a limit
	Grace    time.Duration // how long it may take; then kill
	Dir      string        // where checkpoints are, as the task sees it
	Path     string        // the file, directory or pattern that a checkpoint is, below Dir unless absolute; "": what is in Dir
	Poll     time.Duration // how often it is looked for; 0: CheckpointPollDefault
	Interval time.Duration // notice when the last one is as old; 0: never
	Storage  string        // where it writes to, by the name that limits go by (SchedulerConfig.CheckpointStorage); "" for none
	Cost     time.Duration // what one checkpoint and restart cost; 0: unknown, Grace is assumed
}

// How often checkpoints are looked for.
const (
	CheckpointPollDefault = 5 * time.Second
	CheckpointPollLeast   = time.Second
)

// CheckpointStorageMax is how long the name of a storage may be, in bytes.
const CheckpointStorageMax = 128

// Notified reports whether the work is told to save its state, rather than saving it when it likes.
func (c *Checkpoint) Notified() bool { return c.Signal != "" || len(c.Command) > 0 || c.URL != "" }

// Why work that is ended is told to save its state: the values of Checkpoint.On of which servers know.
const (
	CausePreempt = "preempt"
	CauseDrain   = "drain"
)

// Heeds reports whether saving its state is waited for when work is ended for a cause of Checkpoint.On.
func (c *Checkpoint) Heeds(cause string) bool {
	return cause != "" && (len(c.On) == 0 || slices.Contains(c.On, cause)) && (c.Notified() || c.Grace > 0)
}

// EndCause is why servers end an allocation, as far as checkpoints care; "" for any other reason and while it is to run.
func (a *Allocation) EndCause() string {
	switch {
	case a.Desired == DesiredEvict, a.ServerTerminal() && a.Transition.Yield:
		return CausePreempt
	case a.ServerTerminal() && a.Transition.Migrate:
		return CauseDrain
	}
	return ""
}

// EndsFor notes that the allocation, which is told to end, does so for CauseDrain or CausePreempt, though it neither is on a node
// that drains nor is evicted: its gang moves or gives way.
func (a *Allocation) EndsFor(cause string) {
	switch cause {
	case CauseDrain:
		a.Transition.Migrate = true
	case CausePreempt:
		a.Transition.Yield = true
	}
}

// CheckpointWaitMax is how long work that is to end waits for its turn to save its state. After that it saves whoever else does.
const CheckpointWaitMax = 30 * time.Minute

// Saved is a checkpoint that an agent has seen complete.
type Saved struct {
	Time  LogTime // when it was written; never after it was seen
	Bytes int64
	Path  string // as the task sees it, with the task's own directories by their variables; "" when not known
}

// Newer gives the later one of two checkpoints, either of which may be nil.
func (s *Saved) Newer(o *Saved) *Saved {
	if s == nil || o != nil && (o.Time > s.Time || o.Time == s.Time && o.Path > s.Path) {
		return o
	}
	return s
}

// CheckpointGrace is how long saving may take when the group does not say.
const CheckpointGrace = 30 * time.Second

// GraceOrDefault is how long saving may take: nothing for a group that is neither told to save its state nor names a time.
func (c *Checkpoint) GraceOrDefault() time.Duration {
	if c.Grace <= 0 && c.Notified() {
		return CheckpointGrace
	}
	return max(c.Grace, 0)
}
