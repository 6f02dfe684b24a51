// Package driver defines how tasks run on a node: the description of a task, the operations on a running task, and how
// a driver reports whether it works here. The drivers themselves are subpackages; the agent collects those it offers in
// a Set, by explicit call.
//
// A task must outlive the agent. The caller therefore picks TaskConfig.TaskID before it calls Start and persists it,
// persists Task.State after it, and after a restart calls Recover with that state; if it died in between, it calls
// Start again with the same TaskID, which is idempotent.
package driver

import (
	"context"
	"errors"
	"io"
	"time"
)

// Driver runs tasks of one kind.
type Driver interface {
	// Name returns the driver's name in task.driver of a job file.
	Name() string
	// Fingerprint reports whether the driver works on this node now, and its attributes. It is cheap enough for every
	// 15 s.
	Fingerprint(ctx context.Context) Fingerprint
	// ConfigSchema lists the keys of a task's config block.
	ConfigSchema() Schema
	// Start runs the task and returns when its command has been executed (not: forked), or with an error that says why
	// it cannot run. A second Start with the same TaskID returns the task that the first one started. Errors that
	// another attempt cannot cure satisfy errors.Is(err, ErrPermanent).
	Start(ctx context.Context, cfg *TaskConfig) (Task, error)
	// Recover finds a running task again from Task.State. It fails with ErrLost if this node does not know the task. A
	// task that ended meanwhile is recovered, and its Wait returns at once with its exit code.
	Recover(ctx context.Context, state []byte) (Task, error)
}

// Task is one started task. Its methods may be called concurrently and remain legal after the task ended.
type Task interface {
	// Status describes the task without blocking. The caller persists State.
	Status() TaskStatus
	// Wait returns when the task has ended, its logs are complete and its exit is on disk. An error means that the
	// wait failed (ctx ended, supervisor unreachable), not that the task did. It may be called many times.
	Wait(ctx context.Context) (ExitResult, error)
	// Signal sends a signal by name ("SIGHUP", "HUP") to the task's main process.
	Signal(ctx context.Context, sig string) error
	// Stop sends sig ("" means TaskConfig.KillSignal), kills everything the task started after timeout (0 means
	// TaskConfig.KillTimeout, negative means at once), and returns when nothing is left running. Stopping an ended task succeeds.
	Stop(ctx context.Context, sig string, timeout time.Duration) error
	// Exec runs a command inside the task's namespaces and limits and returns its exit code.
	Exec(ctx context.Context, req ExecRequest) (int, error)
	// Stats measures the task now.
	Stats(ctx context.Context) (Stats, error)
	// Destroy kills what is left of the task and forgets it, exit record included; logs and directories stay. The
	// caller calls it once it has persisted the task's end. Destroying twice succeeds.
	Destroy(ctx context.Context) error
}

// Errors that callers distinguish.
var (
	// ErrLost means that this node no longer knows the task: it must be treated as gone.
	ErrLost = errors.New("task is not known on this node")
	// ErrLapsed means that a task with StopOnClientAfter may not start: contact with the servers was lost for that long.
	ErrLapsed = errors.New("the time without contact to the servers is over")
	// ErrNotRunning answers Signal and Exec on a task that has ended.
	ErrNotRunning = errors.New("task is not running")
	// ErrPermanent marks a start error that another attempt cannot cure (bad config, missing command, unknown user).
	ErrPermanent = errors.New("cannot be cured by another attempt")
)

type permanent struct{ error }

func (p permanent) Unwrap() error        { return p.error }
func (p permanent) Is(target error) bool { return target == ErrPermanent }

// Permanent marks err as one that another attempt cannot cure; the text is unchanged.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// Health is how well a driver works.
type Health string

// Health values, as Nomad's clients show them.
const (
	Undetected Health = "undetected" // cannot run tasks here; Detail says why
	Unhealthy  Health = "unhealthy"  // present, but failing now
	Healthy    Health = "healthy"
)

// Fingerprint is a driver's report about itself on this node.
type Fingerprint struct {
	Detected   bool
	Health     Health
	Detail     string            // one sentence: "Healthy", or what is missing and what would cure it
	Attributes map[string]string // "driver.exec" = "1", ...; empty when undetected
}

// TaskConfig is everything a driver needs to run one task.
type TaskConfig struct {
	// TaskID identifies this run of the task: unique on the node for every start, the same when a start is repeated
	// because its outcome is unknown. [A-Za-z0-9._-], at most 128 bytes, for example "<alloc id>.<task>.<restarts>".
	TaskID  string
	AllocID string
	Name    string // of the task, from the job

	// Env returns the complete environment, the same map at each call; drivers add only PATH when it is missing. It is made at the
	// first call, which no other may overlap.
	Env  func() map[string]string
	User string // user name or uid; "" means the driver's default (exec as root: nobody; raw_exec: the agent's own)
	// UserGroups gives the task the other groups of User. The runner sets it for the job's submitter alone: the groups of
	// an account say what its owner may do, not what everyone may who may run as it.
	UserGroups bool
	Config     map[string]any // the job's config block, decoded; checked against ConfigSchema

	Dirs      Dirs
	Resources Resources
	Logs      LogConfig

	Network string  // mode of the group's network: "" for the driver's default, "host", "none" or "bridge"
	NetNS   string  // file at which the allocation's network namespace is mounted; "" where it has none. Only for a NetworkJoiner
	Ports   []Port  // of the allocation
	Mounts  []Mount // what the task sees in addition to its own directories

	// Hostname and Etc are for drivers that isolate: the host name that the task sees ("" for the node's), and files
	// below Dirs.AllocRoot that it sees at Target, an absolute path, and cannot change.
	Hostname string
	Etc      []Mount

	// Muster is the agent's own program, which a ProgramMounter shows the task at Target; the zero value shows nothing.
	Muster Mount

	KillSignal  string        // default for Stop; "" means SIGTERM
	KillTimeout time.Duration // default for Stop; 0 means 5 s

	// StopOnClientAfter ends the task when contact with the servers has been lost for that long, also if the agent is
	// stopped or dead; 0: never. Drivers that cannot do so refuse such a task.
	StopOnClientAfter time.Duration

	// Launcher, when set, is a host program that runs in the task's place, in its namespaces and with its limits, as
	// "muster ranks -- <file> <argument 0> <argument>...": it starts the ranks of the task (package ranks). Drivers
	// that cannot do so refuse such a task.
	Launcher string

	// LauncherArgs are options of Launcher, before its "--".
	LauncherArgs []string

	WorkDir string            // absolute; entered with the rights of the task's user; "" means the driver's default
	Umask   *uint32           // nil means 022
	Ulimits map[string]string // limits by name, in the form of structs.ParseUlimit

	NoFile uint64 // soft and hard RLIMIT_NOFILE; 0 leaves the agent's
}

// Vars returns a TaskConfig.Env of variables that are known already.
func Vars(vars map[string]string) func() map[string]string {
	return func() map[string]string { return vars }
}

// Port is a port of the allocation. Drivers whose tasks use the host's network may ignore it.
type Port struct {
	Label  string
	HostIP string // "" for every address
	Host   int
	To     int // inside the task's own network; 0 means the same
}

// Mount shows a directory or file of the host to a task at another path.
type Mount struct {
	Source      string // absolute, on the host; it exists
	Target      string // path inside the task; relative to the task's directory unless absolute
	ReadOnly    bool
	Propagation string // "private" (or ""), "host-to-task" or "bidirectional"
}

// DirsElsewhere is implemented by drivers whose tasks have their own root: they see the directories of Dirs, and no
// other of the host, at these paths.
type DirsElsewhere interface {
	TaskDirs() (alloc, local, secrets string)
}

// ProgramMounter is implemented by drivers whose tasks need not see the agent's program where it is installed. They show
// it where TaskConfig.Muster says.
type ProgramMounter interface {
	MountsProgram() bool
}

// VolumeMounter is implemented by drivers that support TaskConfig.Mounts.
type VolumeMounter interface {
	MountsVolumes() bool
}

// NetworkJoiner is implemented by drivers whose tasks can join a network namespace (TaskConfig.NetNS). structs.JoinsNetwork
// names them, for the servers.
type NetworkJoiner interface {
	JoinsNetwork() bool
}

// Preparer is implemented by drivers with slow work before a start, such as fetching an image. Start relies on Prepare
// having been called with the same configuration.
type Preparer interface {
	// Prepare takes as long as it needs within ctx. It calls notify with human-readable progress.
	Prepare(ctx context.Context, cfg *TaskConfig, notify func(message string)) error
}

// Discarder is implemented by drivers whose tasks outlive the agent.
type Discarder interface {
	// Discard ends the task with that ID as Task.Stop does, if this node has it, and forgets it. It is for a start whose outcome is unknown
	// and which is not repeated.
	Discard(ctx context.Context, taskID, sig string, timeout time.Duration) error
}

// Notifier is implemented by tasks that another program supervises, which may be absent for a while.
type Notifier interface {
	// SetNotify registers f to receive human-readable progress while Wait blocks. f returns soon.
	SetNotify(f func(message string))
}

// Ender is implemented by tasks whose end can be awaited without a goroutine in Wait.
type Ender interface {
	// OnEnd calls f once Wait would return at once. It does so itself if the task has ended, and another goroutine does so
	// later if not; f may also be called too early. f returns soon. A later call replaces f.
	OnEnd(f func())
}

// Suspender is implemented by tasks that can be frozen: their processes keep their memory and get no processor time. A driver
// with such tasks has the attribute structs.SuspendAttribute.
type Suspender interface {
	// Suspend returns once the whole task is frozen. Suspending it again succeeds. If the task has ended it returns
	// ErrNotRunning and thaws what is left, so that Wait returns.
	Suspend(ctx context.Context) error
	// Resume thaws the task. It succeeds for a task that is not frozen or has ended.
	Resume(ctx context.Context) error
}

// Dirs are absolute host paths. They exist before Start; the driver creates nothing but TaskDir/tmp.
type Dirs struct {
	AllocDir   string // shared by the tasks of the allocation (NOMAD_ALLOC_DIR)
	TaskDir    string // root of the task's own directory; commands are looked up here first
	LocalDir   string // working directory of the task (NOMAD_TASK_DIR); "" means TaskDir/local if present, else TaskDir
	SecretsDir string // NOMAD_SECRETS_DIR
	// HideDir is covered by an empty file system in the task's view, except for AllocRoot below it: normally the
	// agent's data directory. "" hides nothing. Only drivers that isolate support it.
	HideDir string
	// AllocRoot remains visible below HideDir: the directory that holds AllocDir and TaskDir.
	AllocRoot string
}

// Resources are the task's limits. Zero means: no such limit.
type Resources struct {
	CPUMHz       int64        // share of the processor relative to other tasks
	CPUQuota     int64        // ceiling in thousandths of a core (1500 = one and a half cores)
	Cores        []int        // cores the task is pinned to
	Mems         []int        // NUMA nodes that its memory must come from; none: any
	MemoryMiB    int64        // limit, or the reservation when MemoryMaxMiB is set
	MemoryMaxMiB int64        // limit when larger than MemoryMiB
	PidsMax      int64        // limit on processes and threads
	ShmMiB       int64        // size of the private /dev/shm of isolating drivers; 0 means 64
	GPUs         []string     // UUIDs of the granted GPUs and MIG instances
	RDMA         []DeviceFile // of the node's RDMA adapters, for a task that asked for them
	Devices      []DeviceNode // devices that drivers that isolate let the task use in addition to null, random, terminals and the like
}

// DeviceFile is a device node and its path on the host.
type DeviceFile struct {
	Path string
	DeviceNode
}

// DeviceNode is a character device of the host, by number: its file may have any path.
type DeviceNode struct{ Major, Minor int64 }

// LogConfig says where output goes. Files are Base+".0", Base+".1", ... and only the newest MaxFiles remain.
type LogConfig struct {
	StdoutBase  string // "<dir>/<task>.stdout"; "" discards
	StderrBase  string
	MaxFiles    int   // 0 means 10
	MaxFileSize int64 // bytes, 0 means 10 MiB
}

// TaskStatus describes a started task.
type TaskStatus struct {
	TaskID    string
	State     []byte    // opaque to the caller; for Recover
	PID       int       // of the task's main process as the host sees it, 0 if it has none
	StartedAt time.Time // not changed by recovery
	Running   bool      // false once the end has been seen
}

// ExitResult says how a task ended.
type ExitResult struct {
	ExitCode  int // 0-255; 128+Signal when a signal ended it
	Signal    int // number of the signal that ended the task, or 0
	OOMKilled bool
	// LostStatus means that the task has ended in an unknown way; Err says why. ExitCode is then -1.
	LostStatus bool
	Err        string // a sentence, or ""
	EndedAt    time.Time
}

// Successful reports whether the task is known to have exited with code 0.
func (r ExitResult) Successful() bool {
	return r.ExitCode == 0 && r.Signal == 0 && !r.LostStatus && r.Err == "" && !r.OOMKilled
}

// TermSize is the size of a terminal in characters.
type TermSize struct{ Height, Width int }

// ExecRequest is a command to run inside a task.
type ExecRequest struct {
	Command []string
	TTY     bool
	Stdin   io.Reader // nil means empty
	Stdout  io.Writer // nil discards
	Stderr  io.Writer // nil discards; unused with TTY
	Resize  <-chan TermSize
	User    string // "" means the task's
	Rank    *int   // the command gets RANK and LOCAL_RANK of this rank; nil for none
	Whole   bool   // if ctx ends first, also end what the command has started, where the driver supports it
}

// Stats is one measurement of a task, the sum of its processes.
type Stats struct {
	Time         time.Time
	CPUTotalNS   uint64  // since start
	CPUUserNS    uint64  // since start
	CPUSystemNS  uint64  // since start
	CPUPercent   float64 // of one core, since the previous measurement of this Task value (0 at the first)
	ThrottledNS  uint64
	RSSBytes     uint64
	CacheBytes   uint64
	UsageBytes   uint64 // as charged to the limit
	MaxUsage     uint64 // 0 if the kernel does not report it
	SwapBytes    uint64
	PidsCount    uint64
	MemoryLimit  uint64            // 0 means none
	MeasuredKeys []string          // which of the memory values were measured: "RSS", "Cache", "Usage", "Max Usage", "Swap"
	PerProcess   map[int]ProcStats // by host pid; nil when the task has too many processes (over 256)
}

// ProcStats is the use of one process of a task.
type ProcStats struct {
	CPUTotalNS uint64
	RSSBytes   uint64
}

// Set is the drivers an agent offers, by name.
type Set map[string]Driver

// NewSet makes a Set; the last of two drivers with the same name wins.
func NewSet(drivers ...Driver) Set {
	s := make(Set, len(drivers))
	for _, d := range drivers {
		s[d.Name()] = d
	}
	return s
}
