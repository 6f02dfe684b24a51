package wire

import "time"

// AgentSelf describes an agent.
type AgentSelf struct {
	Config map[string]any               `json:"config"`
	Member AgentMember                  `json:"member"`
	Stats  map[string]map[string]string `json:"stats"`
}

// AgentMember is one member of the gossip pool.
type AgentMember struct {
	Name        string
	Addr        string
	Port        uint16
	Tags        map[string]string
	Status      string
	ProtocolMin uint8
	ProtocolMax uint8
	ProtocolCur uint8
	DelegateMin uint8
	DelegateMax uint8
	DelegateCur uint8
}

// ServerMembers lists the members.
type ServerMembers struct {
	ServerName   string
	ServerRegion string
	ServerDC     string
	Members      []*AgentMember
}

// JoinResponse answers a join.
type JoinResponse struct {
	NumJoined int    `json:"num_joined"`
	Error     string `json:"error"`
	Warning   string `json:"warning"`
}

// AgentHealthResponse is the health of an agent's roles.
type AgentHealthResponse struct {
	Client *AgentHealth `json:"client,omitempty"`
	Server *AgentHealth `json:"server,omitempty"`
}

// AgentHealth is the health of one role.
type AgentHealth struct {
	Ok      bool   `json:"ok"`
	Message string `json:"message"`
}

// KeyringRequest names a gossip key.
type KeyringRequest struct{ Key string }

// KeyringResponse lists gossip keys.
type KeyringResponse struct {
	Messages map[string]string
	Keys     map[string]int // servers that have the key
	NumNodes int
	// PrimaryKeys is not in Nomad's answer: how many servers encrypt with the key.
	PrimaryKeys map[string]int `json:",omitempty"`
}

// HostData are facts about an agent's host.
type HostData struct {
	OS          string
	Network     []map[string]string
	ResolvConf  string
	Hosts       string
	Environment map[string]string
	Disk        map[string]DiskUsage
}

// DiskUsage is the usage of one file system.
type DiskUsage struct {
	DiskMB int64
	UsedMB int64
}

// AgentSchedulerWorkersInfo lists the workers of a server.
type AgentSchedulerWorkersInfo struct {
	ServerID   string                     `json:"server_id"`
	Schedulers []AgentSchedulerWorkerInfo `json:"schedulers"`
}

// AgentSchedulerWorkerInfo is one worker.
type AgentSchedulerWorkerInfo struct {
	ID                string   `json:"id"`
	EnabledSchedulers []string `json:"enabled_schedulers"`
	Started           string   `json:"started"`
	Status            string   `json:"status"`
	WorkloadStatus    string   `json:"workload_status"`
}

// AgentSchedulerWorkerConfig is the number and kinds of workers.
type AgentSchedulerWorkerConfig struct {
	ServerID          string   `json:"server_id"`
	NumSchedulers     int      `json:"num_schedulers"`
	EnabledSchedulers []string `json:"enabled_schedulers"`
}

// SearchRequest looks for a prefix in a context ("jobs", "evals", "allocs", "nodes", ..., "all").
type SearchRequest struct {
	Prefix  string
	Context string
}

// SearchResponse lists matches by context, at most 20 each.
type SearchResponse struct {
	Matches     map[string][]string
	Truncations map[string]bool
	QueryMeta
}

// FuzzySearchRequest looks for a text within names.
type FuzzySearchRequest struct {
	Text    string
	Context string
}

// FuzzySearchResponse lists matches by context.
type FuzzySearchResponse struct {
	Matches     map[string][]FuzzyMatch
	Truncations map[string]bool
	QueryMeta
}

// FuzzyMatch is one match with the ids of its parents.
type FuzzyMatch struct {
	ID    string
	Scope []string `json:",omitempty"`
}

// Events is one frame of the event stream; a heartbeat is an empty object.
type Events struct {
	Index  uint64  `json:",omitempty"`
	Events []Event `json:",omitempty"`
}

// Event is one change. Payload holds the object under the name of its topic ("Job", "Allocation", ...).
type Event struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
	By         *EventActor `json:",omitempty"` // ours
}

// EventActor is who caused an event.
type EventActor struct {
	Name       string // of the token or user, or of the part of the server that acted
	AccessorID string `json:",omitempty"`
	UID        *int64 `json:",omitempty"` // of a user who logged in at an agent's unix socket
}

// The topics of the event stream.
const (
	TopicDeployment = "Deployment"
	TopicEvaluation = "Evaluation"
	TopicAllocation = "Allocation"
	TopicJob        = "Job"
	TopicNode       = "Node"
	TopicNodePool   = "NodePool"
	TopicService    = "Service"
	TopicOperator   = "Operator"
	TopicACLToken   = "ACLToken"
	TopicACLPolicy  = "ACLPolicy"
	TopicACLRole    = "ACLRole"
	TopicAll        = "*"
)

// AllocFileInfo is one file of an allocation.
type AllocFileInfo struct {
	Name        string
	IsDir       bool
	Size        int64
	FileMode    string
	ModTime     time.Time
	ContentType string `json:",omitempty"`
}

// StreamFrame is one piece of a streamed file; an empty one is a heartbeat.
type StreamFrame struct {
	Offset    int64  `json:",omitempty"`
	Data      []byte `json:",omitempty"`
	File      string `json:",omitempty"`
	FileEvent string `json:",omitempty"`
	Time      int64  `json:",omitempty"` // of a log that was asked for with its times: when Data was written, in Unix nanoseconds
}

// The frames of exec over a websocket.
type (
	// ExecStreamingInput goes to the task.
	ExecStreamingInput struct {
		Stdin   *ExecStreamingIO `json:"stdin,omitempty"`
		TTYSize *TerminalSize    `json:"tty_size,omitempty"`
	}
	// ExecStreamingOutput comes from the task.
	ExecStreamingOutput struct {
		Stdout *ExecStreamingIO         `json:"stdout,omitempty"`
		Stderr *ExecStreamingIO         `json:"stderr,omitempty"`
		Exited bool                     `json:"exited,omitempty"`
		Result *ExecStreamingExitResult `json:"result,omitempty"`
	}
	// ExecStreamingIO is bytes of one stream, or its end.
	ExecStreamingIO struct {
		Data  []byte `json:"data,omitempty"`
		Close bool   `json:"close,omitempty"`
	}
	// TerminalSize is in characters.
	TerminalSize struct {
		Height int `json:"height,omitempty"`
		Width  int `json:"width,omitempty"`
	}
	// ExecStreamingExitResult is how the command ended.
	ExecStreamingExitResult struct {
		ExitCode int `json:"exit_code"`
	}
)

// AllocResourceUsage is an allocation's use of resources.
type AllocResourceUsage struct {
	ResourceUsage *ResourceUsage
	Tasks         map[string]*TaskResourceUsage
	Timestamp     int64
}

// TaskResourceUsage is a task's use of resources.
type TaskResourceUsage struct {
	ResourceUsage *ResourceUsage
	Timestamp     int64
	Pids          map[string]*ResourceUsage
}

// ResourceUsage is processor, memory and devices in use.
type ResourceUsage struct {
	MemoryStats *MemoryStats
	CpuStats    *CpuStats
	DeviceStats []*DeviceGroupStats
}

// MemoryStats is memory in use, in bytes. Measured names the fields that were measured.
type MemoryStats struct {
	RSS            uint64
	Cache          uint64
	Swap           uint64
	Usage          uint64
	MaxUsage       uint64
	KernelUsage    uint64
	KernelMaxUsage uint64
	Measured       []string
}

// CpuStats is processor time in use, in percent of one core and in ticks (MHz).
type CpuStats struct {
	SystemMode       float64
	UserMode         float64
	TotalTicks       float64
	ThrottledPeriods uint64
	ThrottledTime    uint64
	Percent          float64
	Measured         []string
}

// HostStats is a node's use of resources.
type HostStats struct {
	Memory           *HostMemoryStats
	CPU              []*HostCPUStats
	DiskStats        []*HostDiskStats
	AllocDirStats    *HostDiskStats
	DeviceStats      []*DeviceGroupStats
	Uptime           uint64
	CPUTicksConsumed float64
	Timestamp        int64
}

// HostMemoryStats is the memory of a node, in bytes.
type HostMemoryStats struct {
	Total     uint64
	Available uint64
	Used      uint64
	Free      uint64
}

// HostCPUStats is the use of one core, in percent.
type HostCPUStats struct {
	CPU          string
	User         float64
	System       float64
	Idle         float64
	TotalPercent float64
}

// HostDiskStats is the use of one file system.
type HostDiskStats struct {
	Device            string
	Mountpoint        string
	Size              uint64
	Used              uint64
	Available         uint64
	UsedPercent       float64
	InodesUsedPercent float64
}

// DeviceGroupStats are measurements of equal devices.
type DeviceGroupStats struct {
	Vendor        string
	Type          string
	Name          string
	InstanceStats map[string]*DeviceStats
}

// DeviceStats are measurements of one device.
type DeviceStats struct {
	Summary   *StatValue
	Stats     *StatObject
	Timestamp time.Time
}

// StatObject is a tree of measurements.
type StatObject struct {
	Nested     map[string]*StatObject
	Attributes map[string]*StatValue
}

// StatValue is one measurement.
type StatValue struct {
	FloatNumeratorVal   *float64 `json:",omitempty"`
	FloatDenominatorVal *float64 `json:",omitempty"`
	IntNumeratorVal     *int64   `json:",omitempty"`
	IntDenominatorVal   *int64   `json:",omitempty"`
	StringVal           *string  `json:",omitempty"`
	BoolVal             *bool    `json:",omitempty"`
	Unit                string   `json:",omitempty"`
	Desc                string   `json:",omitempty"`
}
