package structs

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// DesiredStatus is the state that the server wants an allocation to have.
type DesiredStatus string

// The server wants an allocation to run, to stop, or (preempted) to be evicted.
const (
	DesiredRun   DesiredStatus = "run"
	DesiredStop  DesiredStatus = "stop"
	DesiredEvict DesiredStatus = "evict"
)

// ClientStatus is the state of an allocation as its agent reports it.
type ClientStatus string

// pending -> running -> complete | failed
//
//	\---------\-----> lost (node gone and fenced) | unknown (node out of touch) -> running ...
const (
	ClientPending  ClientStatus = "pending"
	ClientRunning  ClientStatus = "running"
	ClientComplete ClientStatus = "complete"
	ClientFailed   ClientStatus = "failed"
	ClientLost     ClientStatus = "lost"
	ClientUnknown  ClientStatus = "unknown"
)

// Vector is an amount of the resources that every node has. Decisions compare these integers only (D10).
type Vector struct {
	CPU       int64 // MHz
	Cores     int64 // whole cores reserved
	MemoryMiB int64
	DiskMiB   int64
}

// Add returns a + b.
func (a Vector) Add(b Vector) Vector {
	return Vector{a.CPU + b.CPU, a.Cores + b.Cores, a.MemoryMiB + b.MemoryMiB, a.DiskMiB + b.DiskMiB}
}

// Sub returns a - b.
func (a Vector) Sub(b Vector) Vector {
	return Vector{a.CPU - b.CPU, a.Cores - b.Cores, a.MemoryMiB - b.MemoryMiB, a.DiskMiB - b.DiskMiB}
}

// Fits reports whether a <= b in every dimension.
func (a Vector) Fits(b Vector) bool {
	return a.CPU <= b.CPU && a.Cores <= b.Cores && a.MemoryMiB <= b.MemoryMiB && a.DiskMiB <= b.DiskMiB
}

// Grant is a device given to an allocation: how much of it, and which backend enforces that.
type Grant struct {
	Task      string // the task that requested it
	Device    string // device group id, "nvidia/gpu/H100"
	Instance  string // instance id; a GPU's UUID
	MemoryMiB int64  // 0: the whole device, exclusively
	Compute   int64  // percent; 0 for no share
	Backend   string // enforcement backend, "" for none
	SizeMiB   int64  // all memory of a GPU, so that a whole one can be counted; 0 when unknown
}

// IsGPU reports whether the device is a GPU: the type in "vendor/type/model".
func (g *Grant) IsGPU() bool {
	_, rest, _ := strings.Cut(g.Device, "/")
	typ, _, _ := strings.Cut(rest, "/")
	return typ == "gpu"
}

// PortGrant is a host port assigned to an allocation.
type PortGrant struct {
	Label  string
	Value  int
	To     int
	HostIP string
}

// Allocation is one instance of a group on a node. An Allocation in the store is immutable.
// Fields above the line are written only by the server, those below only by the agent; Apply enforces it.
type Allocation struct {
	ID         AllocID
	EvalID     EvalID
	Namespace  string
	JobID      string
	JobVersion uint64
	Job        *Job `codec:"-"` // the version above; linked by the store, never encoded with the allocation
	Group      GroupName
	NameIndex  int // i of "job.group[i]"
	NodeID     NodeID
	NodeName   string

	Resources Vector // of all tasks and the disk, as charged to the node
	Grants    []Grant
	Ports     []PortGrant
	Cores     []int64 // core ids reserved, ascending

	Desired     DesiredStatus
	DesiredDesc string
	Transition  Transition
	WaitsOn     []AllocID // starts only when these are client-terminal, and owns what they free on its node (D19)
	CreateTime  LogTime
	CreateIndex Index
	AllocIndex  Index // last change by the server: what agents wait for ("AllocModifyIndex")
	ModifyIndex Index
	ModifyTime  LogTime
	Expect      time.Duration // predicted run time when it was placed; 0: none
	Suspension  *Suspension   // whether it must be frozen; nil: it never was
	Line        *Lineage      `codec:",inline"` // read it by Lineage and change it by OwnLineage; nil for most

	// ------------------------------------------------ agent
	Client       ClientStatus
	ClientDesc   string
	TaskStates   TaskStates
	StartedAt    LogTime // first task running; 0 before
	FinishedAt   LogTime // client-terminal; 0 before
	NetworkIP    string
	GPUUse       []GPUUse // of its tasks, in the order of Grants; measured up to the last report
	Saved        *Saved   // the newest complete checkpoint; nil for none
	HealthySince LogTime  // since when all checks of its services pass; 0: they do not, or there are none
	Frozen       LogTime  // since when its tasks are frozen; 0: they are not
	ClientIndex  Index    // last change by the agent
}

// Lineage has the fields of an allocation that are zero unless it replaces another, was replaced, moved or preempted. They
// are apart because servers keep every allocation in memory, and few have them. Written only by the server. A Lineage is
// immutable: versions of an allocation share it.
type Lineage struct {
	Previous       AllocID // the allocation that this one replaces
	Next           AllocID // the allocation that replaced this one
	FollowupEval   EvalID  // delayed evaluation that will reschedule this one
	Reschedules    []RescheduleEvent
	PreemptedBy    AllocID
	DeploymentID   DeploymentID
	DisconnectedAt LogTime
	Restarts       int64   // earlier allocations that did this work
	Requeues       int64   // times that the work returned to the queue by the job's requeue block
	RestartReason  string  // why the previous one ended; "" for the first
	Asked          LogTime // when it was asked to end; its turn to save its state depends on it
	Preempted      int64   // how often its job had been preempted when it was placed
	Resume         *Saved  // the newest checkpoint of earlier allocations of this work, passed to its tasks; nil for none
}

var noLineage Lineage

// Lineage returns the allocation's lineage for reading; it is never nil.
func (a *Allocation) Lineage() *Lineage {
	if a.Line == nil {
		return &noLineage
	}
	return a.Line
}

// SetLineage replaces the allocation's lineage.
func (a *Allocation) SetLineage(l Lineage) {
	a.Line = nil
	if !l.IsZero() {
		a.Line = &l
	}
}

// IsZero reports whether no field is set.
func (l *Lineage) IsZero() bool {
	return l.Previous.IsZero() && l.Next.IsZero() && l.FollowupEval.IsZero() && l.Reschedules == nil && l.PreemptedBy.IsZero() && l.DeploymentID.IsZero() &&
		l.DisconnectedAt == 0 && l.Restarts == 0 && l.Requeues == 0 && l.RestartReason == "" && l.Asked == 0 && l.Preempted == 0 && l.Resume == nil
}

// OwnLineage replaces the allocation's lineage by a copy that no other version shares, and returns it for changes.
func (a *Allocation) OwnLineage() *Lineage {
	own := *a.Lineage()
	a.Line = &own
	return &own
}

// Name returns "job.group[index]".
func (a *Allocation) Name() string {
	return a.JobID + "." + string(a.Group) + "[" + strconv.Itoa(a.NameIndex) + "]"
}

// JobType returns the type of the allocation's job.
func (a *Allocation) JobType() JobType {
	if a.Job == nil {
		return JobService
	}
	return a.Job.Type
}

// SilentUntil returns when the tasks of an allocation on a silent node must have ended (Group.RunsSilent); 0 if the node
// is not silent, if they have ended, and if they may run for ever. It goes by the job version of the allocation, as its
// agent does.
func (a *Allocation) SilentUntil(n *Node) LogTime {
	if n.SilentAt == 0 || a.ClientTerminal() || a.IsStandby() || a.Job == nil {
		return 0
	}
	g := a.Job.Group(a.Group)
	if g == nil {
		return 0
	}
	longest, ok := g.RunsSilent()
	if !ok {
		return 0
	}
	return n.SilentAt.Add(longest)
}

// JobKey returns the key of the allocation's job.
func (a *Allocation) JobKey() JobKey { return JobKey{Namespace: a.Namespace, ID: a.JobID} }

// ClientTerminal reports whether the agent (or a fenced loss) has ended the allocation.
func (a *Allocation) ClientTerminal() bool {
	return a.Client == ClientComplete || a.Client == ClientFailed || a.Client == ClientLost
}

// DescMaxRun is the description of an allocation that servers stop at its time limit.
const DescMaxRun = "alloc exceeded its max_run_duration"

// Types of task events that servers evaluate.
const (
	TaskEventCheckpoint = "Checkpoint" // about a checkpoint; Details["saved"] is "true" once it is written
	TaskEventGPUError   = "GPU Error"  // the task was ended because of its GPU
)

// Checkpointed reports whether a task of the allocation has saved its state.
func (a *Allocation) Checkpointed() bool {
	if a.Saved != nil {
		return true
	}
	for _, s := range a.TaskStates.All() {
		for i := range s.Events {
			if s.Events[i].Type == TaskEventCheckpoint && s.Events[i].Details["saved"] == "true" {
				return true
			}
		}
	}
	return false
}

// SteadySince returns since when all tasks of a running allocation run without a restart: the newest start of any of them. It
// is 0 before the first start, while a main task has not started or waits for its restart, and after a task has failed. Agents
// that report no task states are believed.
func (a *Allocation) SteadySince() LogTime {
	since := a.StartedAt
	for name, t := range a.TaskStates.All() {
		switch {
		case t == nil:
		case t.State == "running":
			since = max(since, t.StartedAt)
		case t.State == "dead" && t.Failed, t.State == "pending" && (t.Restarts > 0 || a.isMain(name)):
			return 0
		}
	}
	return since
}

// isMain reports whether a task runs for as long as the allocation does: it has no lifecycle hook.
func (a *Allocation) isMain(task string) bool {
	if a.Job == nil {
		return false
	}
	g := a.Job.Group(a.Group)
	return g != nil && slices.ContainsFunc(g.Tasks, func(t *Task) bool { return t.Name == task && t.Lifecycle == nil })
}

// LastFailure returns how often the tasks of an allocation were restarted, when the last time, and their newest exit code that
// is not 0; 0 if their last events have none.
func (a *Allocation) LastFailure() (restarts int64, last LogTime, code int64) {
	at := LogTime(0)
	for _, t := range a.TaskStates.All() {
		if t == nil {
			continue
		}
		restarts, last = restarts+t.Restarts, max(last, t.LastRestart)
		for i := range t.Events {
			if e := &t.Events[i]; e.ExitCode != 0 && e.Time >= at {
				at, code = e.Time, e.ExitCode
			}
		}
	}
	return restarts, last, code
}

// ServerTerminal reports whether the server wants the allocation to end.
func (a *Allocation) ServerTerminal() bool {
	return a.Desired == DesiredStop || a.Desired == DesiredEvict
}

// Terminal reports whether the allocation has ended or must end.
func (a *Allocation) Terminal() bool { return a.ServerTerminal() || a.ClientTerminal() }

// Transition is what a drain, a stop request or a failure asks the scheduler to do with an allocation.
type Transition struct {
	Migrate         bool
	Reschedule      bool
	ForceReschedule bool
	NoShutdownDelay bool
	Expire          bool // it reached its wall-clock limit (Job.RunLimit): stop it and do not replace it
	Requeue         bool // stop it now and return its work to the queue
	Leave           bool // with Migrate: even if its work has no place elsewhere
	Yield           bool // an elastic gang gives it back to make room for others
}

// RescheduleEvent records one move of an allocation's work to another node.
type RescheduleEvent struct {
	Time      LogTime
	PrevAlloc AllocID
	PrevNode  NodeID
	Delay     time.Duration
}

// TaskState is the state of one task, as its agent reported it.
type TaskState struct {
	State       string // pending, running, dead
	Failed      bool
	Restarts    int64
	LastRestart LogTime
	StartedAt   LogTime
	FinishedAt  LogTime
	Events      []TaskEvent // oldest first, at most TaskEventsKept
}

// TaskEventsKept is how many events of a task an agent keeps.
const TaskEventsKept = 10

// TaskEvent is one event of a task.
type TaskEvent struct {
	Type     string // "Received", "Started", "Terminated", ... as Nomad names them
	Time     LogTime
	Message  string // human-readable
	Details  map[string]string
	ExitCode int64
	Signal   int64
	Fails    bool // this event fails the task
}

// Holds is the only definition of what occupies resources (D7): an allocation, from the plan until client-terminal. A
// node that is down and fenced makes its allocations lost, which is client-terminal.
func Holds(a *Allocation) bool { return !a.ClientTerminal() }

// Usage returns what allocations of one node occupy together. An allocation that waits on others owns what they free,
// so it is charged only for what it asks beyond those of them that still hold.
func Usage(allocs []*Allocation) Vector {
	var sum Vector
	var byID map[AllocID]*Allocation
	for _, a := range allocs {
		if !Holds(a) {
			continue
		}
		if len(a.WaitsOn) == 0 {
			sum = sum.Add(a.Resources)
			continue
		}
		if byID == nil {
			byID = make(map[AllocID]*Allocation, len(allocs))
			for _, b := range allocs {
				byID[b.ID] = b
			}
		}
		freed := Vector{}
		for _, id := range a.WaitsOn {
			if v := byID[id]; v != nil && Holds(v) {
				freed = freed.Add(v.Resources)
			}
		}
		extra := a.Resources.Sub(freed)
		sum = sum.Add(Vector{max(extra.CPU, 0), max(extra.Cores, 0), max(extra.MemoryMiB, 0), max(extra.DiskMiB, 0)})
	}
	return sum
}

// GroupVector returns what one allocation of a group is charged: the tasks that may run together, and the disk.
// Prestart tasks (not sidecars) and poststop tasks never run together with the main tasks, so the largest phase counts.
func GroupVector(g *Group) Vector {
	var pre, main, post Vector
	disk := g.Disk.SizeMiB
	for _, t := range g.Tasks {
		r := Vector{CPU: t.Resources.CPU, Cores: t.Resources.Cores, MemoryMiB: t.Resources.MemoryMiB}
		disk += t.Resources.DiskMiB
		switch {
		case t.Lifecycle == nil || t.Lifecycle.Hook == "poststart":
			main = main.Add(r)
		case t.Lifecycle.Sidecar:
			pre, main = pre.Add(r), main.Add(r)
		case t.Lifecycle.Hook == "poststop":
			post = post.Add(r)
		default:
			pre = pre.Add(r)
		}
	}
	return Vector{
		CPU:       max(pre.CPU, main.CPU, post.CPU),
		Cores:     max(pre.Cores, main.Cores, post.Cores),
		MemoryMiB: max(pre.MemoryMiB, main.MemoryMiB, post.MemoryMiB),
		DiskMiB:   disk,
	}
}
