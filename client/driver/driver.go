// Package driver says what it means to run a task on a node: how a task is described to the program that runs it,
// what a running task can be asked to do, and how a driver announces whether it works here. The drivers themselves
// are subpackages; the agent makes the map of those it offers with Set, by explicit call.
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
	// Name returns what a job file says in task.driver.
	Name() string
	// Fingerprint tells whether the driver works on this node now, and its attributes. It is cheap enough for every 15 s.
	Fingerprint(ctx context.Context) Fingerprint
	// ConfigSchema lists the keys of a task's config block.
	ConfigSchema() Schema
	// Start runs the task and returns when its command has been executed (not: forked), or with an error that says
	// why it cannot run. A second Start with the same TaskID returns the task that the first one started. Errors for
	// which another attempt is pointless satisfy errors.Is(err, ErrPermanent).
	Start(ctx context.Context, cfg *TaskConfig) (Task, error)
	// Recover takes up a task again from Task.State. It fails with ErrLost when this node has no memory of the task;
	// a task that ended meanwhile is recovered and its Wait returns at once with its exit code.
	Recover(ctx context.Context, state []byte) (Task, error)
}

// Task is one started task. Its methods may be called concurrently and remain legal after the task ended.
type Task interface {
	// Status describes the task without waiting. State is to be persisted by the caller.
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
	// Destroy kills what is left of the task and forgets it, exit record included; logs and directories stay. It is
	// to be called once the task's end has been persisted by the caller. Destroying twice succeeds.
	Destroy(ctx context.Context) error
}

// Errors that callers tell apart.
var (
	// ErrLost means that this node knows nothing of the task any more: it must be treated as gone.
	ErrLost = errors.New("task is not known on this node")
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

// Fingerprint is what a driver says about itself on this node.
type Fingerprint struct {
	Detected   bool
	Health     Health
	Detail     string            // one sentence: "Healthy", or what is missing and what would cure it
	Attributes map[string]string // "driver.exec" = "1", ...; empty when undetected
}

// TaskConfig is everything a driver needs to know to run one task.
type TaskConfig struct {
	// TaskID names this run of the task: unique on the node for every start, the same when a start is repeated
	// because its outcome is unknown. [A-Za-z0-9._-], at most 128 bytes. "<alloc id>.<task>.<restarts>" is a good one.
	TaskID  string
	AllocID string
	Name    string // of the task, as the job says

	Env    map[string]string // complete environment; drivers add only PATH when it is missing
	User   string            // user name or uid; "" means the driver's default (exec as root: nobody; raw_exec: the agent's own)
	Config map[string]any    // the job's config block, decoded; checked against ConfigSchema

	Dirs      Dirs
	Resources Resources
	Logs      LogConfig

	Network string  // mode of the group's network: "" for the driver's default, "host", "none" or "bridge"
	NetNS   string  // file at which the allocation's network namespace is mounted; "" where it has none. Only for a NetworkJoiner
	Ports   []Port  // of the allocation
	Mounts  []Mount // what the task sees beside its own directories

	// Hostname and Etc are for drivers that isolate: the name of the machine as the task sees it ("" for the node's), and files
	// below Dirs.AllocRoot that it sees at Target, an absolute path, and cannot change.
	Hostname string
	Etc      []Mount

	KillSignal  string        // default for Stop; "" means SIGTERM
	KillTimeout time.Duration // default for Stop; 0 means 5 s

	// Launcher, when set, is a program of the host that is run in the task's place, in its namespaces and with its limits,
	// as "muster ranks -- <file> <argument 0> <argument>...": it starts the ranks of the task (package ranks). Drivers that
	// cannot do so refuse such a task.
	Launcher string

	// LauncherArgs are options of Launcher, before its "--".
	LauncherArgs []string

	WorkDir string            // absolute; entered with the rights of the task's user; "" means where the driver says
	Umask   *uint32           // nil means 022
	Ulimits map[string]string // limits by name, as structs.ParseUlimit reads them

	NoFile uint64 // soft and hard RLIMIT_NOFILE; 0 leaves the agent's
}

// Port is a port of the allocation. Drivers whose tasks use the host's network need not heed it.
type Port struct {
	Label  string
	HostIP string // "" for every address
	Host   int
	To     int // inside the task's own network; 0 means the same
}

// Mount is a directory or file of the host that a task sees at a place of its own.
type Mount struct {
	Source      string // absolute, on the host; it exists
	Target      string // as the task sees it; relative to the task's directory unless absolute
	ReadOnly    bool
	Propagation string // "private" (or ""), "host-to-task" or "bidirectional"
}

// DirsElsewhere is implemented by drivers whose tasks have a root of their own: they see the directories of Dirs, and no
// other of the host, at these places.
type DirsElsewhere interface {
	TaskDirs() (alloc, local, secrets string)
}

// VolumeMounter is implemented by drivers that can show a task what TaskConfig.Mounts says.
type VolumeMounter interface {
	MountsVolumes() bool
}

// NetworkJoiner is implemented by drivers whose tasks can join a network namespace (TaskConfig.NetNS). structs.JoinsNetwork
// names them, for the servers.
type NetworkJoiner interface {
	JoinsNetwork() bool
}

// Preparer is implemented by drivers that have much to do before a task can start, such as fetching an image. Start
// relies on it having been called with the same configuration.
type Preparer interface {
	// Prepare takes as long as it needs, and as ctx allows. It calls notify with human-readable progress.
	Prepare(ctx context.Context, cfg *TaskConfig, notify func(message string)) error
}

// Notifier is implemented by tasks that another program watches, which may be away for a while.
type Notifier interface {
	// SetNotify registers f to receive human-readable progress while Wait blocks. f returns soon.
	SetNotify(f func(message string))
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
	// agent's data directory. "" hides nothing. Only drivers that isolate heed it.
	HideDir string
	// AllocRoot is what stays visible below HideDir: the directory that holds AllocDir and TaskDir.
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
	PidsMax      int64        // processes and threads
	ShmMiB       int64        // size of the private /dev/shm of isolating drivers; 0 means 64
	GPUs         []string     // UUIDs of the granted GPUs and MIG instances
	RDMA         []DeviceFile // of the node's RDMA adapters, for a task that asked for them
	Devices      []DeviceNode // what drivers that isolate let the task use beside null, random, terminals and the like
}

// DeviceFile is a device node with the file that names it on the host.
type DeviceFile struct {
	Path string
	DeviceNode
}

// DeviceNode is a character device of the host, by number: the file that names it may be anywhere.
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
	StartedAt time.Time // survives recovery unchanged
	Running   bool      // false once the end has been seen
}

// ExitResult tells how a task ended.
type ExitResult struct {
	ExitCode  int // 0-255; 128+Signal when a signal ended it
	Signal    int // number of the signal that ended the task, or 0
	OOMKilled bool
	// LostStatus means that the task has ended but nobody knows how; Err says why. ExitCode is then -1.
	LostStatus bool
	Err        string // a sentence, or ""
	EndedAt    time.Time
}

// Successful is true for an exit code of 0 that is known.
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
	Rank    *int   // whose RANK and LOCAL_RANK the command gets; nil for nobody's
	Whole   bool   // when the context ends first, what the command has started ends with it, where the driver can do that
}

// Stats is one measurement of a task, all its processes together.
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
	MaxUsage     uint64 // 0 when the kernel does not tell
	SwapBytes    uint64
	PidsCount    uint64
	MemoryLimit  uint64            // 0 means none
	MeasuredKeys []string          // which of the memory figures are real: "RSS", "Cache", "Usage", "Max Usage", "Swap"
	PerProcess   map[int]ProcStats // by host pid; nil when the task has too many processes (over 256)
}

// ProcStats is what one process of a task uses.
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
