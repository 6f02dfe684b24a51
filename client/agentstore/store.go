// Package agentstore stores what an agent must remember across restarts: its allocations and their jobs, the progress of
// each task, the handles that find running tasks again, and the newest state of the servers that the agent has followed.
//
// Disk is a write-ahead log in front of a bbolt file. Its single writer makes many changes durable with one sync. A write
// that has returned is on disk. Memory stores nothing; simulated nodes use it.
package agentstore

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Store holds an agent's state. All methods may be called concurrently; writes return when they are durable, but for
// PutTaskSoon.
type Store interface {
	// Load returns everything that is stored. It is called once, before the first write.
	Load() (*Saved, error)
	// PutAlloc stores allocations with the jobs they run: all or none of them. An allocation is written before anything
	// of it is started, and again whenever the servers changed it.
	PutAlloc(list ...*structs.Allocation) error
	// PutTask stores how far a task is.
	PutTask(id structs.AllocID, task string, r *TaskRecord) error
	// PutTaskSoon is PutTask without waiting: the record is durable no later than any write that begins after it.
	// failed is called with an error.
	PutTaskSoon(id structs.AllocID, task string, r *TaskRecord, failed func(error))
	// PutFinal stores how an allocation ended. It is written before the end is reported.
	PutFinal(id structs.AllocID, f *Final) error
	// DeleteAlloc forgets an allocation and its tasks.
	DeleteAlloc(id structs.AllocID) error
	// PutHistory stores how much of the servers' history was obeyed.
	PutHistory(h History) error
	// PutMeta stores the node's dynamic metadata; a nil value hides a static key.
	PutMeta(meta map[string]*string) error
	// PutGPUUses stores what tasks have used of GPUs, all of it.
	PutGPUUses(u *GPUUses) error
	// PutSwept stores that every task running on the node is known to this store: from now on it remembers them all.
	PutSwept() error
	// Close ends the store after the writes in progress.
	Close() error
}

// Saved is everything in a store.
type Saved struct {
	Allocs  []*AllocRecord // by id
	History History
	Meta    map[string]*string
	Swept   bool // see PutSwept
	GPU     *GPUUses
}

// AllocRecord is one allocation as stored.
type AllocRecord struct {
	Alloc *structs.Allocation // its Job is set
	Tasks map[string]*TaskRecord
	Final *Final // nil while it has not ended
}

// TaskRecord is how far a task is. Attempt numbers the runs of the task: the driver's task id is made from it, so a
// start whose outcome is unknown can be repeated without starting twice.
type TaskRecord struct {
	Attempt  int64
	Handle   []byte // of the run Attempt, for driver.Recover; nil before it was started
	Old      []byte // handle of an ended run that may not have been destroyed yet, or nil
	State    *structs.TaskState
	Phase    Phase
	Recent   []structs.LogTime // restarts that count against the restart policy, oldest first
	ResumeAt structs.LogTime   // when a task that waits for its restart shall start; 0 otherwise
	BootID   string            // of the kernel under which Handle was made
	Forced   bool              // the next start was asked for by a person and counts against nothing
	Saved    *structs.Saved    // the newest checkpoint that was seen, of any run; nil for none
	Epoch    uint64            // of the gang's roster that the run was started with; 0: none yet
	Frozen   structs.LogTime   // since when the run is frozen, or being frozen; 0: it is not
}

// Phase is where in its life a task is, for a restart of the agent.
type Phase uint8

// The phases of a task.
const (
	PhaseNew      Phase = iota // never started
	PhaseStarting              // start asked of the driver; outcome unknown unless Handle is set
	PhaseBackoff               // ended, will be started again at ResumeAt
	PhaseDead                  // ended for good
)

// GPUUses is what the tasks of allocations that have not ended had used of GPUs when it was written.
type GPUUses struct {
	BootID string // of the kernel under which it was measured
	List   []GPUUse
}

// GPUUse is what one task had used of one GPU.
type GPUUse struct {
	Alloc                structs.AllocID
	Task, GPU            string
	Since, Measured      structs.LogTime // first and last look
	UsedBytes, PeakBytes int64
	MiBMillis            int64 // MiB times milliseconds
	SMMillis, EnergyMJ   int64
	Denied               int64
	ActiveMillis         int64 // mean activity of the multiprocessors is this, of KnownMillis
	KnownMillis          int64
	Counter              int64 // of the GPU's energy at the last look; -1: not known
}

// Final is how an allocation ended.
type Final struct {
	Observed structs.AllocObserved
	Acked    bool // the servers have it
	EndedAt  structs.LogTime
}

// History is a point in the servers' past (D14). Histories of one cluster are ordered by epoch, then index.
type History struct {
	Cluster structs.ClusterID
	Epoch   uint64 // how often the cluster was restored from a backup
	Index   structs.Index
}

// Older reports whether h lies before o in the same cluster.
func (h History) Older(o History) bool {
	return h.Epoch < o.Epoch || h.Epoch == o.Epoch && h.Index < o.Index
}

// Age returns how long ago an allocation ended.
func (f *Final) Age(now time.Time) time.Duration { return now.Sub(f.EndedAt.Time()) }
