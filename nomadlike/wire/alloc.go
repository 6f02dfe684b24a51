package wire

import (
	"sort"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Allocation is one instance of a group on a node.
type Allocation struct {
	ID                    string
	Namespace             string
	EvalID                string
	Name                  string
	NodeID                string
	NodeName              string
	JobID                 string
	Job                   *Job
	TaskGroup             string
	Resources             *Resources
	TaskResources         map[string]*Resources
	AllocatedResources    *AllocatedResources
	Services              map[string]string
	Metrics               *AllocationMetric
	DesiredStatus         string
	DesiredDescription    string
	DesiredTransition     DesiredTransition
	ClientStatus          string
	ClientDescription     string
	TaskStates            map[string]*TaskState
	DeploymentID          string
	DeploymentStatus      *AllocDeploymentStatus
	FollowupEvalID        string
	PreviousAllocation    string
	NextAllocation        string
	RescheduleTracker     *RescheduleTracker
	NetworkStatus         *AllocNetworkStatus
	PreemptedAllocations  []string
	PreemptedByAllocation string
	CreateIndex           uint64
	ModifyIndex           uint64
	AllocModifyIndex      uint64
	CreateTime            int64
	ModifyTime            int64

	JobVersion uint64    // Muster's own
	WaitsOn    []string  `json:",omitempty"` // Muster's own: allocations whose end this one waits for
	GPUUse     []*GPUUse `json:",omitempty"` // Muster's own: its tasks' use of GPUs, up to the last report

	Checkpoint *SavedCheckpoint `json:",omitempty"` // Muster's own: the newest complete checkpoint
	ResumeFrom *SavedCheckpoint `json:",omitempty"` // Muster's own: the checkpoint that it was given to resume from
	Suspension *Suspension      `json:",omitempty"` // Muster's own: set if it is or was suspended

	Topology     string `json:",omitempty"` // Muster's own: where its node is, from near to far, as "rack r3, leaf l2"
	GangTopology string `json:",omitempty"` // Muster's own: how near the members of its gang are to each other, as "all 8 in leaf l2, 2 racks"
}

// SavedCheckpoint is a complete checkpoint.
type SavedCheckpoint struct {
	Time  int64 // nanoseconds
	Bytes int64
	Path  string
}

// SavedFrom converts a checkpoint; nil gives nil.
func SavedFrom(s *structs.Saved) *SavedCheckpoint {
	if s == nil {
		return nil
	}
	return &SavedCheckpoint{Time: int64(s.Time), Bytes: s.Bytes, Path: s.Path}
}

// AllocationListStub is an allocation in a list.
type AllocationListStub struct {
	ID                    string
	EvalID                string
	Name                  string
	Namespace             string
	NodeID                string
	NodeName              string
	JobID                 string
	JobType               string
	JobVersion            uint64
	TaskGroup             string
	AllocatedResources    *AllocatedResources `json:",omitempty"`
	DesiredStatus         string
	DesiredDescription    string
	ClientStatus          string
	ClientDescription     string
	DesiredTransition     DesiredTransition
	TaskStates            map[string]*TaskState
	DeploymentStatus      *AllocDeploymentStatus
	FollowupEvalID        string
	NextAllocation        string
	RescheduleTracker     *RescheduleTracker
	PreemptedAllocations  []string
	PreemptedByAllocation string
	CreateIndex           uint64
	ModifyIndex           uint64
	CreateTime            int64
	ModifyTime            int64
	Suspension            *Suspension      `json:",omitempty"` // Muster's own: set if it is or was suspended
	ResumeFrom            *SavedCheckpoint `json:",omitempty"` // Muster's own: the checkpoint that it was given to resume from
}

// AllocatedResources is what an allocation was granted.
type AllocatedResources struct {
	Tasks  map[string]*AllocatedTaskResources
	Shared AllocatedSharedResources
}

// AllocatedTaskResources is what a task was granted.
type AllocatedTaskResources struct {
	Cpu      AllocatedCpuResources
	Memory   AllocatedMemoryResources
	Networks []*NetworkResource
	Devices  []*AllocatedDeviceResource
}

// AllocatedSharedResources is what the tasks of an allocation share.
type AllocatedSharedResources struct {
	DiskMB   int64
	Networks []*NetworkResource
	Ports    []PortMapping
}

// PortMapping is a host port given to an allocation.
type PortMapping struct {
	Label  string
	Value  int
	To     int
	HostIP string
}

// AllocatedCpuResources is a share of the processor, or reserved cores.
type AllocatedCpuResources struct {
	CpuShares     int64
	ReservedCores []uint16 `json:",omitempty"`
}

// AllocatedMemoryResources is an amount of memory.
type AllocatedMemoryResources struct {
	MemoryMB    int64
	MemoryMaxMB int64
}

// AllocatedDeviceResource is a set of devices granted to a task.
type AllocatedDeviceResource struct {
	Vendor    string
	Type      string
	Name      string
	DeviceIDs []string
	Shares    []DeviceShare `json:",omitempty"` // Muster's own: one per shared device
}

// DeviceShare is a part of a device.
type DeviceShare struct {
	DeviceID string
	MemoryMB int64
	Compute  int64
	Backend  string
}

// AllocDeploymentStatus is an allocation's health in a deployment.
type AllocDeploymentStatus struct {
	Healthy     *bool
	Timestamp   time.Time
	Canary      bool
	ModifyIndex uint64
}

// AllocNetworkStatus is the address of an allocation.
type AllocNetworkStatus struct {
	InterfaceName string
	Address       string
	AddressIPv6   string
	DNS           *DNSConfig
}

// RescheduleTracker lists where an allocation's work ran before.
type RescheduleTracker struct {
	Events         []*RescheduleEvent
	LastReschedule string
}

// RescheduleEvent is one move.
type RescheduleEvent struct {
	RescheduleTime int64
	PrevAllocID    string
	PrevNodeID     string
	Delay          time.Duration
}

// DesiredTransition is what was requested of an allocation.
type DesiredTransition struct {
	Migrate                 *bool
	Reschedule              *bool
	ForceReschedule         *bool
	NoShutdownDelay         *bool
	MigrateDisablePlacement *bool
}

// AllocStopResponse answers a stop.
type AllocStopResponse struct {
	EvalID string
	Index  uint64
}

// AllocationRestartRequest restarts tasks.
type AllocationRestartRequest struct {
	TaskName string
	AllTasks bool
}

// AllocSignalRequest signals a task.
type AllocSignalRequest struct {
	Task   string
	Signal string
}

// GenericResponse is an answer without content.
type GenericResponse struct {
	Index uint64
}

// TaskState is the state of a task.
type TaskState struct {
	State       string
	Failed      bool
	Restarts    uint64
	LastRestart time.Time
	StartedAt   time.Time
	FinishedAt  time.Time
	Events      []*TaskEvent
}

// TaskEvent is one event of a task.
type TaskEvent struct {
	Type           string
	Time           int64
	DisplayMessage string
	Details        map[string]string
	Message        string

	// Deprecated in favour of Details, but still read.
	FailsTask        bool
	RestartReason    string
	SetupError       string
	DriverError      string
	DriverMessage    string
	ExitCode         int
	Signal           int
	KillReason       string
	KillTimeout      time.Duration
	KillError        string
	StartDelay       int64
	DownloadError    string
	ValidationError  string
	DiskLimit        int64
	DiskSize         int64
	FailedSibling    string
	VaultError       string
	TaskSignalReason string
	TaskSignal       string
	GenericSource    string
}

// AllocationMetric says why a group was placed as it was, or not.
type AllocationMetric struct {
	NodesEvaluated     int
	NodesFiltered      int
	NodesInPool        int
	NodePool           string
	NodesAvailable     map[string]int
	ClassFiltered      map[string]int
	ConstraintFiltered map[string]int
	NodesExhausted     int
	ClassExhausted     map[string]int
	DimensionExhausted map[string]int
	QuotaExhausted     []string
	ResourcesExhausted map[string]*Resources
	Scores             map[string]float64
	AllocationTime     time.Duration
	CoalescedFailures  int
	ScoreMetaData      []*NodeScoreMeta

	Reason   string    `json:",omitempty"` // Muster's own: the reason code
	Refusals []Refusal `json:",omitempty"` // Muster's own: by how much, and which event would cure it
}

// Refusal is a structs.Refusal: the value for programs, and its sentence.
type Refusal struct {
	Code       structs.ReasonCode
	Text       string             // in words
	Dimension  structs.Dimension  // by name: "gpu-memory"
	HolderKind structs.HolderKind `json:",omitempty"`
	Holder     string             `json:",omitempty"`
	Subject    string             `json:",omitempty"`
	Detail     string             `json:",omitempty"`
	Count      int64              `json:",omitempty"`
	Of         int64              `json:",omitempty"`
	Nodes      int64
	Short      int64
	Unit       structs.Unit
	Largest    int64 `json:",omitempty"` // free on one GPU
	CuredBy    structs.EventKind
}

// RefusalFromStructs converts a refusal.
func RefusalFromStructs(r structs.Refusal) Refusal {
	return Refusal{Code: r.Code, Text: r.Text(), Dimension: r.Dimension, HolderKind: r.Holder.Kind, Holder: r.Holder.Name, Subject: r.Subject, Detail: r.Detail,
		Count: r.Count, Of: r.Of, Nodes: r.Nodes, Short: r.Short, Unit: r.Unit, Largest: r.Largest, CuredBy: r.CuredBy}
}

// ToStructs returns the value that RefusalFromStructs was given.
func (r *Refusal) ToStructs() structs.Refusal {
	return structs.Refusal{Code: r.Code, Nodes: r.Nodes, Short: r.Short, Unit: r.Unit, Largest: r.Largest, CuredBy: r.CuredBy, Obstacle: structs.Obstacle{
		Dimension: r.Dimension, Holder: structs.Holder{Kind: r.HolderKind, Name: r.Holder}, Subject: r.Subject, Detail: r.Detail, Count: r.Count, Of: r.Of}}
}

// NodeScoreMeta is the score of one node.
type NodeScoreMeta struct {
	NodeID    string
	Scores    map[string]float64
	NormScore float64
}

// MetricFromStructs converts a group's report; nil gives nil.
func MetricFromStructs(r *structs.GroupReport, pool structs.PoolName) *AllocationMetric {
	if r == nil {
		return nil
	}
	m := &AllocationMetric{
		NodesEvaluated: int(r.Considered), NodesFiltered: int(r.Filtered), NodesInPool: int(r.InPool), NodePool: string(pool),
		NodesAvailable: ints(r.Available), ClassFiltered: ints(r.ClassFilt), NodesExhausted: int(r.Exhausted),
		ClassExhausted: ints(r.ClassExh), AllocationTime: r.Duration, CoalescedFailures: int(r.Coalesced),
		Reason: string(r.Code),
	}
	for _, f := range r.Refusals {
		m.Refusals = append(m.Refusals, RefusalFromStructs(f))
		switch f.Code {
		case structs.ReasonQuota:
			m.QuotaExhausted = append(m.QuotaExhausted, f.Text())
		case structs.ReasonDependency, structs.ReasonBeginTime, structs.ReasonPriority, structs.ReasonRateLimit, structs.ReasonPreemptionPending:
			// These reasons are not about nodes. Nomad has no field for them; Muster's are Reason and Refusals.
		case structs.ReasonConstraint, structs.ReasonDriver, structs.ReasonNodeIneligible:
			add(&m.ConstraintFiltered, f.Text(), int(f.Nodes))
		default:
			add(&m.DimensionExhausted, f.Text(), int(f.Nodes))
		}
	}
	for _, s := range r.Scores {
		n := &NodeScoreMeta{NodeID: s.NodeID.String(), Scores: map[string]float64{}, NormScore: float64(s.Micro) / 1e6}
		for _, t := range s.Terms {
			n.Scores[t.Name] = float64(t.Micro) / 1e6
		}
		m.ScoreMetaData = append(m.ScoreMetaData, n)
	}
	return m
}

func ints(m map[string]int64) map[string]int {
	if m == nil {
		return nil
	}
	out := make(map[string]int, len(m))
	for k, v := range m {
		out[k] = int(v)
	}
	return out
}

func add(m *map[string]int, k string, n int) {
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[k] += n
}

// AllocFromStructs converts an allocation with its job. report is its group's, from the evaluation that placed it, or
// nil if that was collected.
func AllocFromStructs(a *structs.Allocation, report *structs.GroupReport) *Allocation {
	out := &Allocation{
		ID: a.ID.String(), Namespace: a.Namespace, EvalID: a.EvalID.String(), Name: a.Name(), NodeID: a.NodeID.String(),
		NodeName: a.NodeName, JobID: a.JobID, TaskGroup: string(a.Group), JobVersion: a.JobVersion,
		AllocatedResources: allocatedResources(a),
		DesiredStatus:      string(a.Desired), DesiredDescription: a.DesiredDesc, DesiredTransition: transition(a.Transition),
		ClientStatus: string(a.Client), ClientDescription: a.ClientDesc, TaskStates: taskStates(a.TaskStates.Expand()),
		FollowupEvalID:     a.Lineage().FollowupEval.String(),
		PreviousAllocation: a.Lineage().Previous.String(), NextAllocation: a.Lineage().Next.String(), RescheduleTracker: tracker(a.Lineage().Reschedules),
		PreemptedByAllocation: a.Lineage().PreemptedBy.String(), CreateIndex: uint64(a.CreateIndex), ModifyIndex: uint64(a.ModifyIndex),
		AllocModifyIndex: uint64(a.AllocIndex), CreateTime: int64(a.CreateTime), ModifyTime: int64(a.ModifyTime),
	}
	out.Checkpoint, out.ResumeFrom, out.Suspension = SavedFrom(a.Saved), SavedFrom(a.Lineage().Resume), suspensionFrom(a)
	for _, id := range a.WaitsOn {
		out.WaitsOn = append(out.WaitsOn, id.String())
	}
	for _, u := range a.GPUUse {
		out.GPUUse = append(out.GPUUse, GPUUseOf(u))
	}
	var pool structs.PoolName
	if a.Job != nil {
		pool, out.DeploymentID = a.Job.NodePool, a.Job.DeploymentID().String()
		out.Job = JobFromStructs(a.Job)
		if g := a.Job.Group(a.Group); g != nil {
			out.TaskResources = map[string]*Resources{}
			for _, t := range g.Tasks {
				out.TaskResources[t.Name] = resourcesFrom(t.Resources)
			}
		}
	}
	out.Resources = &Resources{
		CPU: ptr(int(a.Resources.CPU)), Cores: ptr(int(a.Resources.Cores)), MemoryMB: ptr(int(a.Resources.MemoryMiB)),
		MemoryMaxMB: ptr(0), DiskMB: ptr(int(a.Resources.DiskMiB)), Networks: out.AllocatedResources.Shared.Networks,
	}
	out.Metrics = MetricFromStructs(report, pool)
	if out.Metrics == nil {
		out.Metrics = &AllocationMetric{NodePool: string(pool)}
	}
	if a.NetworkIP != "" {
		out.NetworkStatus = &AllocNetworkStatus{Address: a.NetworkIP}
	}
	return out
}

// AllocStubFromStructs converts an allocation for a list. Resources and task states, the largest parts of a stub, are
// optional.
func AllocStubFromStructs(a *structs.Allocation, resources, states bool) *AllocationListStub {
	out := &AllocationListStub{
		ID: a.ID.String(), EvalID: a.EvalID.String(), Name: a.Name(), Namespace: a.Namespace, NodeID: a.NodeID.String(),
		NodeName: a.NodeName, JobID: a.JobID, JobVersion: a.JobVersion, TaskGroup: string(a.Group),
		DesiredStatus: string(a.Desired), DesiredDescription: a.DesiredDesc, ClientStatus: string(a.Client),
		ClientDescription: a.ClientDesc, DesiredTransition: transition(a.Transition), FollowupEvalID: a.Lineage().FollowupEval.String(),
		NextAllocation: a.Lineage().Next.String(), RescheduleTracker: tracker(a.Lineage().Reschedules), PreemptedByAllocation: a.Lineage().PreemptedBy.String(),
		CreateIndex: uint64(a.CreateIndex), ModifyIndex: uint64(a.ModifyIndex), CreateTime: int64(a.CreateTime), ModifyTime: int64(a.ModifyTime),
	}
	out.Suspension, out.ResumeFrom = suspensionFrom(a), SavedFrom(a.Lineage().Resume)
	if a.Job != nil {
		out.JobType = string(a.Job.Type)
	}
	if resources {
		out.AllocatedResources = allocatedResources(a)
	}
	if states {
		out.TaskStates = taskStates(a.TaskStates.Expand())
	}
	return out
}

func transition(t structs.Transition) DesiredTransition {
	b := func(v bool) *bool {
		if !v {
			return nil
		}
		return &v
	}
	return DesiredTransition{Migrate: b(t.Migrate), Reschedule: b(t.Reschedule), ForceReschedule: b(t.ForceReschedule), NoShutdownDelay: b(t.NoShutdownDelay)}
}

func tracker(events []structs.RescheduleEvent) *RescheduleTracker {
	if len(events) == 0 {
		return nil
	}
	t := &RescheduleTracker{}
	for _, e := range events {
		t.Events = append(t.Events, &RescheduleEvent{int64(e.Time), e.PrevAlloc.String(), e.PrevNode.String(), e.Delay})
	}
	return t
}

func taskStates(in map[string]*structs.TaskState) map[string]*TaskState {
	if in == nil {
		return nil
	}
	out := make(map[string]*TaskState, len(in))
	for name, s := range in {
		t := &TaskState{
			State: s.State, Failed: s.Failed, Restarts: uint64(s.Restarts), LastRestart: s.LastRestart.Time(),
			StartedAt: s.StartedAt.Time(), FinishedAt: s.FinishedAt.Time(), Events: make([]*TaskEvent, 0, len(s.Events)),
		}
		for _, e := range s.Events {
			details := e.Details
			if details == nil {
				details = map[string]string{}
			}
			t.Events = append(t.Events, &TaskEvent{
				Type: e.Type, Time: int64(e.Time), DisplayMessage: e.Message, Message: e.Message, Details: details,
				FailsTask: e.Fails, ExitCode: int(e.ExitCode), Signal: int(e.Signal),
			})
		}
		out[name] = t
	}
	return out
}

func allocatedResources(a *structs.Allocation) *AllocatedResources {
	out := &AllocatedResources{Tasks: map[string]*AllocatedTaskResources{}, Shared: AllocatedSharedResources{DiskMB: a.Resources.DiskMiB}}
	var group *structs.Group
	if a.Job != nil {
		group = a.Job.Group(a.Group)
	}
	static := map[string]bool{}
	if group != nil {
		for _, t := range group.Tasks {
			r := &AllocatedTaskResources{
				Cpu:    AllocatedCpuResources{CpuShares: t.Resources.CPU},
				Memory: AllocatedMemoryResources{MemoryMB: t.Resources.MemoryMiB, MemoryMaxMB: t.Resources.MemoryMaxMiB},
			}
			for _, c := range a.TaskCores(t.Name) {
				r.Cpu.ReservedCores = append(r.Cpu.ReservedCores, uint16(c))
			}
			out.Tasks[t.Name] = r
		}
		for _, n := range group.Networks {
			for _, p := range n.StaticPorts {
				static[p.Label] = true
			}
		}
	}
	for _, g := range a.Grants {
		t := out.Tasks[g.Task]
		if t == nil {
			t = &AllocatedTaskResources{}
			out.Tasks[g.Task] = t
		}
		vendor, typ, name := splitDevice(g.Device)
		var d *AllocatedDeviceResource
		for _, x := range t.Devices {
			if x.Vendor == vendor && x.Type == typ && x.Name == name {
				d = x
			}
		}
		if d == nil {
			d = &AllocatedDeviceResource{Vendor: vendor, Type: typ, Name: name}
			t.Devices = append(t.Devices, d)
		}
		d.DeviceIDs = append(d.DeviceIDs, g.Instance)
		if g.MemoryMiB != 0 || g.Compute != 0 {
			d.Shares = append(d.Shares, DeviceShare{g.Instance, g.MemoryMiB, g.Compute, g.Backend})
		} else if g.Backend == structs.BackendMIG {
			d.Shares = append(d.Shares, DeviceShare{g.Instance, g.SizeMiB, g.Compute, g.Backend})
		}
	}
	if len(a.Ports) > 0 {
		n := &NetworkResource{Mode: "host", IP: a.Ports[0].HostIP}
		if n.IP == "" {
			n.IP = a.NetworkIP
		}
		for _, p := range a.Ports {
			out.Shared.Ports = append(out.Shared.Ports, PortMapping{p.Label, p.Value, p.To, p.HostIP})
			w := Port{Label: p.Label, Value: p.Value, To: p.To}
			if static[p.Label] {
				n.ReservedPorts = append(n.ReservedPorts, w)
			} else {
				n.DynamicPorts = append(n.DynamicPorts, w)
			}
		}
		out.Shared.Networks = []*NetworkResource{n}
	}
	return out
}

// splitDevice splits "vendor/type/model"; the model may hold slashes.
func splitDevice(id string) (vendor, typ, name string) {
	parts := [3]string{}
	rest := id
	for i := range 2 {
		before, after, ok := cut(rest)
		if !ok {
			break
		}
		parts[i], rest = before, after
	}
	parts[2] = rest
	return parts[0], parts[1], parts[2]
}

func cut(s string) (before, after string, ok bool) {
	for i := range len(s) {
		if s[i] == '/' {
			return s[:i], s[i+1:], true
		}
	}
	return "", s, false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func ptr[T any](v T) *T { return &v }

func val[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
