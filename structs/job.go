package structs

import (
	"fmt"
	"slices"
	"time"
)

// JobType says how long a job's allocations are kept running.
type JobType string

// The four kinds of job.
const (
	JobService  JobType = "service"  // runs until stopped
	JobBatch    JobType = "batch"    // runs until its tasks have succeeded
	JobSystem   JobType = "system"   // one allocation on every feasible node, until stopped
	JobSysBatch JobType = "sysbatch" // one allocation on every feasible node, until it has succeeded there
)

// JobStatus is the state of a job as Nomad's clients know it.
type JobStatus string

// A job is pending until its first allocation runs, and dead when none of its work runs or will run.
const (
	JobPending JobStatus = "pending"
	JobRunning JobStatus = "running"
	JobDead    JobStatus = "dead"
)

// Limits on a job, checked at submission.
const (
	JobPriorityMin              = 1
	JobPriorityMax              = 100
	JobPriorityDefault          = 50
	NamespaceDefault            = "default"
	NodePoolDefault    PoolName = "default"
	NodePoolAll        PoolName = "all"
	RegionDefault               = "global"
	DatacenterDefault           = "dc1"
	JobVersionsKept             = 6       // versions retained in addition to those that allocations refer to
	JobSizeMax                  = 1 << 20 // bytes of a job in canonical msgpack
	GroupCountMax               = 100_000 // allocations a group may ask for
	JobCountMax                 = 100_000 // allocations a job may ask for over all groups
	GroupsMax                   = 1_000   // groups a job may have
	AllocRateDefault            = 1_000   // allocations a second that a token without management rights may ask for; JobCountMax at once
	TasksMax                    = 1_000   // tasks a job may have over all groups
)

// JobKey identifies a job within a region.
type JobKey struct {
	Namespace string
	ID        string
}

// String returns "namespace/id".
func (k JobKey) String() string { return k.Namespace + "/" + k.ID }

// Less orders keys by namespace, then id.
func (k JobKey) Less(o JobKey) bool {
	if k.Namespace != o.Namespace {
		return k.Namespace < o.Namespace
	}
	return k.ID < o.ID
}

// Submitter is the sender of a command. The server sets it from the authenticated caller.
type Submitter struct {
	Name     string     // token name, user name, or certificate name
	UID, GID int64      // of a peer-credential login; -1 elsewhere
	Accessor AccessorID // the token used; zero when anonymous
}

// Job is what a user submits. A Job in the store is immutable.
type Job struct {
	Namespace string
	ID        string
	Name      string
	ParentID  string // of a dispatched or periodic child: the parent's ID
	Region    string
	Type      JobType
	Priority  int // 1..100, higher first
	AllAtOnce bool

	Datacenters []string // shell-style wildcards; never empty after defaults
	NodePool    PoolName

	Constraints []Constraint
	Affinities  []Affinity
	Spreads     []Spread
	Groups      []*Group // order of the job file
	Update      *Update  // default of the groups; nil for none

	Periodic                 *Periodic      // nil when not periodic
	Parameterized            *Parameterized // nil when not parameterized
	Dispatched               bool           // a child made by dispatch
	DispatchIdempotencyToken string
	Payload                  []byte // of a dispatched child; at most 16 KiB

	Meta  map[string]string
	Queue QueuePath // path in the queue tree, "" for the default queue
	UI    *JobUI

	Placement   string       // placement policy; "" for the pool's
	Preemptible bool         // others may preempt it; also true of a job whose groups declare a checkpoint
	Runtime     Runtime      // expected run time and limit
	Deadline    LogTime      // 0 for none
	Begin       LogTime      // not placed before; 0 for now
	Hold        bool         // submitted on hold: not placed until released
	Requeue     *Requeue     // nil: only the reschedule policy applies
	Depends     []Dependency // jobs to wait for
	Tolerations []Toleration
	Array       *Array       // nil: not an array
	Near        []Peer       // other jobs that its allocations should be near
	Away        []Peer       // other jobs that they should keep away from
	Datasets    []string     // data that it reads: nodes that hold it score higher
	Weights     ScoreWeights // of the terms of a node's score; they override the pool's and the cluster's

	ConsulToken, VaultToken string // accepted and dropped before the log; always empty in the store

	// Set by the server at registration.
	Stop        bool
	Stable      bool
	Version     uint64 // 0 for the first registration
	VersionTag  *JobVersionTag
	SubmitTime  LogTime
	Submitter   Submitter
	Status      JobStatus // written only by Apply
	StatusDesc  string
	CreateIndex Index
	ModifyIndex Index // last change of any field, status included
	SpecIndex   Index // last change of the specification ("JobModifyIndex"); also the job's epoch (D6)

	UpdateFailed string `since:"2"` // why the rolling update to this version stopped; "": it did not. Written only by Apply.
}

// Key returns the job's key.
func (j *Job) Key() JobKey { return JobKey{Namespace: j.Namespace, ID: j.ID} }

// ScalingPolicyID returns the id of a group's scaling policy. It is the same for all versions of the job.
func (j *Job) ScalingPolicyID(g *Group) string {
	return DeriveID[EvalID](Seed{}, "scaling", j.Key().String()+"/"+string(g.Name), 0).String()
}

// RollingUpdate returns the update rules of a group; nil if its allocations are replaced all at once.
func (j *Job) RollingUpdate(g *Group) *Update {
	u := g.Update
	if u == nil {
		u = j.Update
	}
	if u == nil || u.MaxParallel <= 0 || j.Type == JobBatch || j.Type == JobSysBatch {
		return nil
	}
	return u
}

// Rolls reports whether a job has groups that are updated a few allocations at a time.
func (j *Job) Rolls() bool {
	return slices.ContainsFunc(j.Groups, func(g *Group) bool { return j.RollingUpdate(g) != nil && !g.IsGang() })
}

// Deploys reports whether the rollout of this version is shown as a deployment: it is of a service that is updated a few allocations
// at a time.
func (j *Job) Deploys() bool {
	return j.Type == JobService && j.Placeable() && j.Array == nil && j.Rolls()
}

// DeploymentID returns the id of the deployment of this version, the same on every server and for as long as the version exists; zero
// if it has none.
func (j *Job) DeploymentID() DeploymentID {
	if !j.Deploys() {
		return DeploymentID{}
	}
	return DeriveID[DeploymentID](Seed{}, "deployment", fmt.Sprintf("%s/%d", j.Key(), j.CreateIndex), j.Version)
}

// Group returns the group with a name, or nil.
func (j *Job) Group(name GroupName) *Group {
	for _, g := range j.Groups {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// MayPreempt reports whether the job's allocations may be preempted (D19): the job says so, or it can save its state.
func (j *Job) MayPreempt() bool { return j.Preemptible || j.Saves() }

// Saves reports whether work of the job saves its state, so that it continues from there after a preemption.
func (j *Job) Saves() bool {
	return slices.ContainsFunc(j.Groups, func(g *Group) bool { return g.Checkpoint != nil })
}

// QueueName returns the queue that the job belongs to.
func (j *Job) QueueName() QueuePath {
	if j.Queue == "" {
		return QueueDefault
	}
	return j.Queue
}

// RunLimit returns the wall-clock limit of a group's allocations: the group's own, or the job's; 0 for none.
func (j *Job) RunLimit(g *Group) time.Duration {
	switch {
	case g.MaxRunDuration > 0 && j.Runtime.Limit > 0:
		return min(g.MaxRunDuration, j.Runtime.Limit)
	case g.MaxRunDuration > 0:
		return g.MaxRunDuration
	}
	return j.Runtime.Limit
}

// IsPeriodic reports whether the job is a template that launches children on a schedule.
func (j *Job) IsPeriodic() bool { return j.Periodic != nil }

// IsParameterized reports whether the job is a template for dispatch.
func (j *Job) IsParameterized() bool { return j.Parameterized != nil && !j.Dispatched }

// Placeable reports whether the scheduler may place allocations of this job: it is neither a template nor stopped.
func (j *Job) Placeable() bool {
	return !j.Stop && !j.IsPeriodic() && !j.IsParameterized()
}

// JobUI is a description and links that a user interface shows with the job.
type JobUI struct {
	Description string
	Links       []JobLink
}

// JobLink is one labelled URL.
type JobLink struct{ Label, URL string }

// JobVersionTag marks a version so that it is kept and can be named.
type JobVersionTag struct {
	Name, Description string
	TaggedTime        LogTime
}

// JobSubmission is the source text a version was registered from.
type JobSubmission struct {
	Source        string // at most 1 MiB; dropped beyond, with a warning
	Format        string // "hcl2" or "json"
	VariableFlags map[string]string
	Variables     string
}

// GroupName is the name of a task group: unique in its job, and part of the IDs of the group's allocations.
type GroupName string

// Group is a set of tasks placed together on one node.
type Group struct {
	Name             GroupName
	Count            int
	Constraints      []Constraint
	Affinities       []Affinity
	Spreads          []Spread
	Tasks            []*Task
	Networks         []Network // at most one today
	Restart          Restart
	Reschedule       Reschedule
	Update           *Update // nil: destructive updates all at once
	Migrate          *Migrate
	Disconnect       *Disconnect
	Scaling          *Scaling
	Disk             EphemeralDisk
	Services         []Service
	Volumes          []VolumeRequest
	Meta             map[string]string
	ShutdownDelay    time.Duration
	MaxRunDuration   time.Duration // wall-clock limit; 0 for none
	MaxClientDisc    *time.Duration
	StopAfterDisc    *time.Duration
	PreventLostResch bool
	Gang             *Gang       // nil: every allocation is independent
	Elastic          *Elastic    // nil: Count is fixed
	Topology         *Topology   // nil: anywhere
	Launch           *Launch     // nil: as Nomad starts tasks
	Checkpoint       *Checkpoint // nil: nothing is saved
	Near             []Peer      // in addition to those of the job
	Away             []Peer
	Joint            bool `since:"2"` // it starts, stops and starts again with the other joint groups of its job; see Job.Join
}

// KillTimeoutDefault is the kill_timeout of a task that sets none.
const KillTimeoutDefault = 5 * time.Second

const (
	// StopOnClientMin is the shortest stop_on_client_after. Agents renew the lease of such work every third of that time,
	// but at most once a second.
	StopOnClientMin = 3 * time.Second
	// stopOnClientMargin is how much longer than the tasks can run the servers wait before they replace them.
	stopOnClientMargin = 5 * time.Second
)

// StopOnClient returns for how long an agent that lost contact with the servers lets the group's tasks run. ok is false
// if it lets them run for ever.
func (g *Group) StopOnClient() (limit time.Duration, ok bool) {
	p := g.StopAfterDisc
	if g.Disconnect != nil && g.Disconnect.StopOnClientAfter != nil {
		p = g.Disconnect.StopOnClientAfter
	}
	if p == nil {
		return 0, false
	}
	return *p, true
}

// RunsSilent returns the longest time for which tasks of the group may run on a node that the servers have lost contact
// with: stop_on_client_after, the longest kill_timeout of its tasks, and a margin. ok is false if there is no limit.
func (g *Group) RunsSilent() (longest time.Duration, ok bool) {
	limit, ok := g.StopOnClient()
	if !ok {
		return 0, false
	}
	kill := time.Duration(0)
	for _, t := range g.Tasks {
		if t.KillTimeout > 0 {
			kill = max(kill, t.KillTimeout)
		} else {
			kill = max(kill, KillTimeoutDefault)
		}
	}
	return limit + kill + stopOnClientMargin, true
}

// Task returns the task with a name, or nil.
func (g *Group) Task(name string) *Task {
	for _, t := range g.Tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Task is one process or container.
type Task struct {
	Name            string
	Driver          string
	User            string
	WorkDir         string    // working directory, entered with the user's rights; "": the driver's default
	Umask           string    // octal; "" is 022
	LogPath         string    // additional file for its output, with placeholders (ExpandPath); "": none
	LogErrorPath    string    // the same for its standard error; "": LogPath
	Config          RawConfig // the driver's own block
	Env             map[string]string
	Meta            map[string]string
	Constraints     []Constraint
	Affinities      []Affinity
	Resources       Resources
	Lifecycle       *Lifecycle // nil: a main task
	Restart         *Restart   // nil: the group's
	Logs            LogConfig
	Leader          bool
	KillTimeout     time.Duration
	KillSignal      string
	ShutdownDelay   time.Duration
	Kind            string
	DispatchPayload string // file below the task's local directory that receives the payload, or ""
	Services        []Service
	Templates       []Template
	Artifacts       []Artifact
	VolumeMounts    []VolumeMount
	Identities      []Identity
	Actions         []Action
	ScalingPolicies []Scaling
}

// RawConfig is a block that another component interprets (a driver, an autoscaler), as canonical JSON: keys sorted, no
// white space. Empty means no block.
type RawConfig []byte

// Resources is what one task asks for.
type Resources struct {
	CPU          int64 // MHz; ignored when Cores > 0
	Cores        int64 // whole cores reserved for the task
	MemoryMiB    int64
	MemoryMaxMiB int64 // 0: no oversubscription; -1: no limit
	DiskMiB      int64 // deprecated spelling; added to the group's disk
	ShmMiB       int64 // size of /dev/shm; part of MemoryMiB; 0: the driver's default
	Devices      []DeviceRequest
	GPU          []GPURequest // alternatives; the first that is available is taken
	Networks     []Network    // deprecated task networks; merged into the group's
	NUMA         *NUMA
	SecretsMiB   int64
	RDMA         bool              // gives access to the node's RDMA adapters, and lifts the limit on locked memory
	Ulimits      map[string]string // limits by name (ParseUlimit)
}

// DeviceRequest asks for whole devices.
type DeviceRequest struct {
	Name        string // "gpu", "nvidia/gpu" or "nvidia/gpu/H100": type, vendor/type, vendor/type/model
	Count       int64
	Constraints []Constraint
	Affinities  []Affinity
}

// NUMA is the affinity of a task to NUMA nodes.
type NUMA struct {
	Affinity string // none, prefer, require
	Devices  []string
}

// EphemeralDisk is the scratch space shared by a group's tasks.
type EphemeralDisk struct {
	SizeMiB int64
	Sticky  bool
	Migrate bool
}

// Network is the network configuration of a group.
type Network struct {
	Mode         string // "", "host", "none" or "bridge"; cni/* is refused
	Hostname     string
	DNS          *DNS
	StaticPorts  []Port
	DynamicPorts []Port
	MBits        int64 // deprecated, ignored
}

// DNS overrides the resolver of a group.
type DNS struct{ Servers, Searches, Options []string }

// Port is a named port; Value is 0 for a dynamic one.
type Port struct {
	Label           string
	Value           int
	To              int
	HostNetwork     string
	IgnoreCollision bool
}

// LogConfig limits the log files of a task.
type LogConfig struct {
	MaxFiles      int
	MaxFileSizeMB int
	Disabled      bool
}

// Lifecycle makes a task run around the main tasks.
type Lifecycle struct {
	Hook    string // prestart, poststart, poststop
	Sidecar bool
}

// Restart is the local restart policy: Attempts within Interval, then Mode.
type Restart struct {
	Attempts        int
	Interval        time.Duration
	Delay           time.Duration
	Mode            string // fail or delay
	RenderTemplates bool
}

// DelayFunction is how the delay before a reschedule grows from attempt to attempt.
type DelayFunction string

const (
	DelayConstant    DelayFunction = "constant"
	DelayExponential DelayFunction = "exponential" // doubles
	DelayFibonacci   DelayFunction = "fibonacci"   // is the sum of the last two
)

// Reschedule is the policy for moving a failed allocation to another node.
type Reschedule struct {
	Attempts      int
	Interval      time.Duration
	Delay         time.Duration
	DelayFunction DelayFunction // "": DelayConstant
	MaxDelay      time.Duration
	Unlimited     bool
}

// Update says how a new version of a job replaces the old one.
type Update struct {
	Stagger          time.Duration
	MaxParallel      int // 0: all at once
	HealthCheck      string
	MinHealthyTime   time.Duration
	HealthyDeadline  time.Duration // within it an allocation is to be healthy after its placement; 0: no limit
	ProgressDeadline time.Duration // within it another allocation is to become healthy; 0: the first that is late stops the update
	AutoRevert       bool          // an update that stopped goes back to the newest stable version
	AutoPromote      bool
	Canary           int
}

// Migrate says how a drain moves the allocations of a group.
type Migrate struct {
	MaxParallel     int           // how many allocations a drain may take from the group's count at once
	HealthCheck     string        // HealthByChecks, or by the states of tasks: decides when a replacement is healthy
	MinHealthyTime  time.Duration // how long it must be healthy before it counts
	HealthyDeadline time.Duration // after this time it counts even if it is not healthy; 0: never
}

// Disconnect says what happens to a group's allocations while their node is disconnected.
type Disconnect struct {
	LostAfter         time.Duration
	StopOnClientAfter *time.Duration
	Replace           *bool
	Reconcile         string
}

// Scaling limits a group's count and carries an autoscaler's policy.
type Scaling struct {
	Type    string
	Min     int64
	Max     int64
	Enabled bool
	Policy  RawConfig
}

// Constraint must hold on a node (or device).
type Constraint struct {
	LTarget string // usually "${attr.kernel.name}"
	RTarget string
	Operand string // see the Operand constants
}

// The operators of constraints and affinities.
const (
	OperandEqual            = "="
	OperandNotEqual         = "!="
	OperandLess             = "<"
	OperandLessEqual        = "<="
	OperandGreater          = ">"
	OperandGreaterEqual     = ">="
	OperandRegexp           = "regexp"
	OperandVersion          = "version"
	OperandSemver           = "semver"
	OperandSetContains      = "set_contains"
	OperandSetContainsAll   = "set_contains_all"
	OperandSetContainsAny   = "set_contains_any"
	OperandIsSet            = "is_set"
	OperandIsNotSet         = "is_not_set"
	OperandDistinctHosts    = "distinct_hosts"
	OperandDistinctProperty = "distinct_property"
)

// Affinity is a preference: matching nodes score higher, or lower for a negative weight.
type Affinity struct {
	LTarget string
	RTarget string
	Operand string
	Weight  int64 // -100..100, not 0
}

// Spread distributes a group over the values of an attribute.
type Spread struct {
	Attribute string
	Weight    int64 // 0..100
	Targets   []SpreadTarget
}

// SpreadTarget is the desired share of one value.
type SpreadTarget struct {
	Value   string
	Percent int64
}

// Periodic launches a child job on a schedule.
type Periodic struct {
	Enabled         bool
	Specs           []string // cron expressions
	ProhibitOverlap bool
	TimeZone        string // IANA name, "UTC" by default
}

// Parameterized makes a job a template for dispatch.
type Parameterized struct {
	Payload      string // optional, required, forbidden
	MetaRequired []string
	MetaOptional []string
}

// Template, Artifact, VolumeRequest, VolumeMount and Identity are stored as the canonical JSON of Nomad's wire shape.
// Clients interpret them.
type (
	// Service is offered by a task or group under a name; the agent registers it (ServiceRegistration) while it runs.
	Service struct {
		Name      string
		PortLabel string
		Raw       RawConfig
		Checked   bool // its checks decide whether an allocation is healthy
	}
	// Template is a file rendered for a task.
	Template struct{ Raw RawConfig }
	// Artifact is a file fetched for a task.
	Artifact struct{ Raw RawConfig }
	// VolumeRequest is a volume that a group asks for.
	VolumeRequest struct {
		Name string
		Raw  RawConfig
	}
	// VolumeMount mounts a volume in a task.
	VolumeMount struct{ Raw RawConfig }
	// Identity is a workload identity of a task. Package internal/identity reads it.
	Identity struct{ Raw RawConfig }
	// Action is a command that an operator may run in a task.
	Action struct {
		Name    string
		Command string
		Args    []string
	}
)
