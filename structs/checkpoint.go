package structs

import "time"

// Checkpoint says how work is told to save its state, and how it is seen that it did.
type Checkpoint struct {
	Signal   string        // sent at the notice; "" for none
	Command  []string      // run in the main task at the notice; nil for none
	URL      string        // POSTed at the notice; "" for none
	To       string        // "launcher" (also "") or "ranks"
	On       []string      // "preempt", "limit", "drain"; empty: all of them
	Before   time.Duration // notice before a limit
	Grace    time.Duration // how long it may take; then kill
	Dir      string        // where checkpoints are, as the task sees it
	Path     string        // the file, directory or pattern that a checkpoint is, below Dir unless absolute; "": what is in Dir
	Poll     time.Duration // how often it is looked for; 0: CheckpointPollDefault
	Interval time.Duration // notice when the last one is as old; 0: never
	Cost     time.Duration // what one checkpoint and restart cost; 0: unknown, Grace is assumed
}

// How often checkpoints are looked for.
const (
	CheckpointPollDefault = 5 * time.Second
	CheckpointPollLeast   = time.Second
)

// Notified reports whether the work is told to save its state, rather than saving it when it likes.
func (c *Checkpoint) Notified() bool { return c.Signal != "" || len(c.Command) > 0 || c.URL != "" }

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
