package structs

import (
	"strings"
	"time"
)

// NodeStatus is the state of a node, as servers see it.
type NodeStatus string

// A node is initializing until its first heartbeat, ready while heartbeats arrive, down when they stopped, and
// disconnected when they stopped but some of its allocations may outlive that.
const (
	NodeInit         NodeStatus = "initializing"
	NodeReady        NodeStatus = "ready"
	NodeDown         NodeStatus = "down"
	NodeDisconnected NodeStatus = "disconnected"
)

// Eligibility says whether new allocations may be placed on a node.
type Eligibility string

// The two eligibilities.
const (
	NodeEligible   Eligibility = "eligible"
	NodeIneligible Eligibility = "ineligible"
)

// Defaults of the dynamic port range, and limits of a node's history.
const (
	DynamicPortMin = 20000
	DynamicPortMax = 32000
	NodeEventsKept = 10
)

// Node is one machine that runs allocations. A Node in the store is immutable.
type Node struct {
	ID         NodeID
	SecretID   SecretID // authenticates the node in every RPC; never leaves the servers
	Start      StartID  // of the agent that speaks for the node; calls of another start are refused
	Place      string   // of that agent: machine and data directory, "" if unknown. A restarted agent has the same
	Name       string
	Datacenter string
	Pool       PoolName
	Class      string // operator's class, "" for none
	HTTPAddr   string // host:port of the agent's HTTP API, "" when it has none
	TLSEnabled bool
	Version    string // of the agent

	Attributes  map[string]string
	Meta        map[string]string
	Resources   NodeResources
	Reserved    NodeReserved
	Drivers     map[string]*DriverInfo // values are never nil; pointers because the wire's codec lets struct values of a map share their maps
	HostVolumes map[string]HostVolume
	BootID      string // of the kernel; changes with every reboot

	Overcommit Overcommit // of its pool; written only by the server
	// PowerBudgetW limits the power of all GPUs in use in the whole pool, in watts; 0: no limit. Copied from the pool;
	// written only by the server.
	PowerBudgetW int64
	Status       NodeStatus  // written only by the server
	StatusDesc   string      // written only by the server
	Eligibility  Eligibility // written only by the server
	Drain        *DrainStrategy
	Tainted      []Taint // by operators, sorted by key and effect; written only by the server. See Taints
	LastDrain    *DrainRecord
	Events       []NodeEvent // oldest first, at most NodeEventsKept
	StatusAt     LogTime     // when Status last changed
	// SilentAt is when the servers lost contact with the node; 0 while they have it, and after the agent left. Tasks may
	// run on there unobserved. Written only by the server.
	SilentAt LogTime
	// Periods are the newest times during which it was ready and that have ended, oldest first, at most ReadyPeriodsKept.
	// Written only by the server.
	Periods []ReadyPeriod `since:"2"`
	// GPUFaults are the newest times at which a GPU of the node failed while the node took new work, oldest first, at most
	// GPUFaultsKept. Written only by the server.
	GPUFaults []LogTime `since:"2"`

	ComputedClass uint64 // equal for nodes that constraints cannot distinguish; set by Apply (see ComputeClass)
	Epoch         Index  // last change that a plan's verification depends on (D6)
	CreateIndex   Index
	ModifyIndex   Index
}

// Introduction permits one node to register where agents do not prove by a certificate that they belong to the cluster.
// The token itself is only with the operator who asked for it, and with the new agent.
type Introduction struct {
	Hash        string   // of the token, SHA-256 in hex
	NodeName    string   // of the node that may use it; "": any
	Pool        PoolName // of that node; "": any
	ExpiresAt   LogTime
	CreateIndex Index
}

// ErrIntroductionUnknown refuses the registration of a new node.
var ErrIntroductionUnknown = Errorf(CodeNotFound, "the introduction token was used, has expired, or never existed; `muster node intro create` makes another one")

// Admits returns an error unless the node may register by the introduction now.
func (i *Introduction) Admits(n *Node, now LogTime) *Error {
	pool := n.Pool
	if pool == "" {
		pool = NodePoolDefault
	}
	switch {
	case now >= i.ExpiresAt:
		return Errorf(CodeDenied, "the introduction token has expired; make another one with `muster node intro create`")
	case i.NodeName != "" && i.NodeName != n.Name:
		return Errorf(CodeDenied, "the introduction token is for node %q, and this one is %q", i.NodeName, n.Name)
	case i.Pool != "" && i.Pool != pool:
		return Errorf(CodeDenied, "the introduction token is for node pool %q, and this node is in %q", i.Pool, pool)
	}
	return nil
}

// WithoutSecret returns the node as others than itself may see it. A nil node stays nil.
func (n *Node) WithoutSecret() *Node {
	if n == nil || n.SecretID.IsZero() {
		return n
	}
	c := *n
	c.SecretID = SecretID{}
	return &c
}

// Ready reports whether new allocations may be placed on the node.
func (n *Node) Ready() bool {
	return n.Status == NodeReady && n.Eligibility == NodeEligible && n.Drain == nil
}

// InTouch reports whether the servers hear of the node, which may be nil: one that is gone.
func (n *Node) InTouch() bool {
	return n != nil && n.Status != NodeDown && n.Status != NodeDisconnected
}

// NodeResources is the capacity of a node.
type NodeResources struct {
	CPU            int64 // MHz over all cores
	Cores          int64 // logical cores that tasks can be pinned to; 0 where none can be
	MHzPerCore     int64
	MemoryMiB      int64
	DiskMiB        int64
	Networks       []NodeNetwork
	DynamicPortMin int
	DynamicPortMax int
	Devices        []DeviceGroup // sorted by ID()
	ReservableCPUs []int64       // core ids that tasks may reserve; nil for all
	MIG            []MIGGeometry // of the GPUs in MIG mode, by PCIBusID
}

// NodeNetwork is an address that allocations may bind.
type NodeNetwork struct {
	Device string // "eth0"
	IP     string
	CIDR   string
	Alias  string // host_network name, "default" for the first
	MBits  int64
}

// NodeReserved is the capacity that allocations cannot use.
type NodeReserved struct {
	CPU       int64
	MemoryMiB int64
	DiskMiB   int64
	Cores     []int64
	Ports     []int // sorted host ports
}

// DeviceGroup is a set of equal devices of a node.
type DeviceGroup struct {
	Vendor     string
	Type       string
	Name       string // model
	Instances  []DeviceInstance
	Attributes map[string]Attribute
}

// ID returns "vendor/type/name".
func (g *DeviceGroup) ID() string { return g.Vendor + "/" + g.Type + "/" + g.Name }

// HasID reports whether an id is the group's, without building it.
func (g *DeviceGroup) HasID(id string) bool {
	v, t := len(g.Vendor), len(g.Type)
	return len(id) == v+t+len(g.Name)+2 && id[:v] == g.Vendor && id[v] == '/' && id[v+1:v+1+t] == g.Type && id[v+1+t] == '/' && id[v+t+2:] == g.Name
}

// MIGProfile returns the profile ("1g.18gb") of a group of MIG instances, "" for whole devices.
func (g *DeviceGroup) MIGProfile() string { return g.Attributes["mig_profile"].Str }

// DeviceInstance is one device. For a GPU, ID is the UUID.
type DeviceInstance struct {
	ID         string
	Healthy    bool
	HealthDesc string
	PCIBusID   string
	NUMANode   int64  // -1: unknown
	Island     string // devices with the same non-empty island share a fast link
	MemoryMiB  int64  // 0: a device without memory
	Parent     string // of a MIG instance: the UUID of its GPU
	SlotStart  int64  // of a MIG instance: its first memory slot on the GPU
	SlotCount  int64  // and the number of its slots; 0: unknown

	// Adapters names the RDMA adapters that reach the memory of a GPU through PCIe switches alone, the nearest first,
	// separated by commas, as "mlx5_0,mlx5_1"; "": none, or unknown.
	Adapters string `since:"2"`
	// Failed says that an unhealthy GPU itself failed, so that work on it ends: it fell off the bus, or its memory or its
	// firmware did. It is not set for what a program may have caused, nor where only its driver does not answer.
	Failed bool `since:"2"`
}

// DegradedPrefix begins the HealthDesc of a device that takes work, although something is wrong with it.
const DegradedPrefix = "degraded: "

// NodeMetaKeysMax is how many keys the dynamic metadata of a node may have.
const NodeMetaKeysMax = 1_000

// Degraded reports whether a device takes work, although something is wrong with it: a GPU that is slowed down by heat,
// for example. Sound devices are preferred.
func (d *DeviceInstance) Degraded() bool {
	return d.Healthy && strings.HasPrefix(d.HealthDesc, DegradedPrefix)
}

// MIGGeometry says how a GPU in MIG mode can be divided. Existing instances are devices (DeviceInstance.Parent); this
// is where others could be created.
type MIGGeometry struct {
	GPU      string // UUID
	PCIBusID string
	Profiles []MIGProfile // by NVML's number of the profile
}

// MIGProfile is a kind of MIG instance.
type MIGProfile struct {
	Name      string // "1g.10gb"
	ID        int64  // the driver's number of the profile
	Slices    int64  // of compute, of which a GPU has 7
	Slots     int64  // of memory, of which it has 8
	MemoryMiB int64
	Max       int64   // instances of it at a time
	Starts    []int64 // slots at which an instance may begin
}

// Attribute is a typed value with an optional unit, as device plugins report them. Kind says which field has the value.
// Fractions are kept in millionths, because state holds no floating point (D10).
type Attribute struct {
	Kind string // "int", "micro", "string", "bool"
	Int  int64  // also the millionths of kind "micro"
	Str  string
	Bool bool
	Unit string // "MiB", "GHz", ...; "" for none
}

// DriverInfo is the health of one task driver on a node.
type DriverInfo struct {
	Detected   bool
	Healthy    bool
	HealthDesc string
	Attributes map[string]string
	UpdatedAt  LogTime
}

// HostVolume is a directory of a node that groups may ask for by name.
type HostVolume struct {
	Path     string
	ReadOnly bool
}

// DrainStrategy says how a node is drained.
type DrainStrategy struct {
	Deadline         time.Duration // 0: none; negative: force now
	IgnoreSystemJobs bool
	ForceAt          LogTime // 0: no deadline; set by Apply
	StartedAt        LogTime // set by Apply
	Meta             map[string]string
}

// DrainRecord is the outcome of the last drain.
type DrainRecord struct {
	StartedAt, UpdatedAt LogTime
	Status               string // draining, complete, canceled
	Accessor             AccessorID
	Meta                 map[string]string
	By                   string `since:"2"` // who asked for it, or changed it last; "": anonymous
}

// NodeEvent is one event of a node.
type NodeEvent struct {
	Message     string
	Subsystem   string // Cluster, Drain, Driver, Heartbeat, Storage
	Details     map[string]string
	Time        LogTime
	CreateIndex Index
}

// Overcommit is how much of a node's capacity may be allocated, in percent of its capacity without what is reserved.
// More than 100 counts on allocations not using all that they ask for at the same time. 0 means 100. GPU memory is
// never overcommitted.
type Overcommit struct {
	CPU    int64
	Memory int64
}

// The limits of an overcommit ratio, in percent.
const (
	OvercommitMin = 10
	OvercommitMax = 1000
)

// Of returns how much of a capacity may be allocated.
func (o Overcommit) Of(v Vector) Vector {
	if o.CPU > 0 {
		v.CPU = v.CPU * o.CPU / 100
	}
	if o.Memory > 0 {
		v.MemoryMiB = v.MemoryMiB * o.Memory / 100
	}
	return v
}

// PoolName is the name of a node pool.
type PoolName string

// NodePool is a named set of nodes: a scheduling domain (D3).
type NodePool struct {
	Name        PoolName
	Description string
	Meta        map[string]string
	Algorithm   string // placement policy of the pool, "" for the cluster's
	Overcommit  Overcommit
	// PowerBudgetW limits the power of all GPUs in use on its nodes, in watts; 0: no limit.
	PowerBudgetW int64
	Weights      ScoreWeights // override the cluster's
	// MaxCheckpoints limits how many allocations on its nodes that must end save their state at a time; 0: no limit.
	MaxCheckpoints int64
	CreateIndex    Index
	ModifyIndex    Index
}
