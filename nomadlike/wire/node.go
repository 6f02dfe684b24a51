package wire

import (
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Node is one machine that runs allocations.
type Node struct {
	ID                    string
	SecretID              string // always "": the node's secret stays with the node
	Datacenter            string
	Name                  string
	HTTPAddr              string
	TLSEnabled            bool
	Attributes            map[string]string
	Resources             *Resources // deprecated by NodeResources
	Reserved              *Resources // deprecated by ReservedResources
	NodeResources         *NodeResources
	ReservedResources     *NodeReservedResources
	Links                 map[string]string
	Meta                  map[string]string
	NodeClass             string
	NodePool              string
	CgroupParent          string
	ComputedClass         string
	Drain                 bool
	DrainStrategy         *DrainStrategy
	SchedulingEligibility string
	Status                string
	StatusDescription     string
	StatusUpdatedAt       int64 // Unix seconds
	Events                []*NodeEvent
	Drivers               map[string]*DriverInfo
	HostVolumes           map[string]*HostVolumeInfo
	GCVolumesOnNodeGC     bool
	HostNetworks          map[string]*HostNetworkInfo
	CSIControllerPlugins  map[string]any
	CSINodePlugins        map[string]any
	LastDrain             *DrainMetadata
	Taints                []Taint          `json:",omitempty"` // set by operators, or in Meta
	Topology              string           `json:",omitempty"` // Muster's own: where it is, from near to far, as "rack r3, leaf l2"
	Reliability           *NodeReliability `json:",omitempty"` // Muster's own
	CreateIndex           uint64
	ModifyIndex           uint64
	NodeMaxAllocs         int
}

// NodeReliability is how often a node was lost in the last 30 days, as far as that is remembered. Times are nanoseconds.
type NodeReliability struct {
	ReadyTime    int64 // for how long it was ready
	Lost         int64 // how often the servers lost it
	GPUFaults    int64 `json:",omitempty"` // how often a GPU of it failed; each counts as a loss
	ExpectedLoss int64 // mean time until it is lost; 0: no loss was seen, of it or in the cluster
	TypicalLoss  int64 // the same of a node of which nothing is known
}

// NodeReliabilityOf converts what is known of a node; nil stays nil.
func NodeReliabilityOf(r *structs.NodeRisk) *NodeReliability {
	if r == nil {
		return nil
	}
	return &NodeReliability{ReadyTime: int64(r.Ready), Lost: r.Lost, GPUFaults: r.Faults, ExpectedLoss: int64(r.Expected), TypicalLoss: int64(r.Typical)}
}

// NodeListStub is a node in a list.
type NodeListStub struct {
	Address               string
	ID                    string
	Attributes            map[string]string `json:",omitempty"`
	Datacenter            string
	Name                  string
	NodeClass             string
	NodePool              string
	Version               string
	Drain                 bool
	SchedulingEligibility string
	Status                string
	StatusDescription     string
	Drivers               map[string]*DriverInfo
	HostVolumes           map[string]*HostVolumeInfo
	NodeResources         *NodeResources         `json:",omitempty"`
	ReservedResources     *NodeReservedResources `json:",omitempty"`
	LastDrain             *DrainMetadata
	Taints                []Taint `json:",omitempty"`
	CreateIndex           uint64
	ModifyIndex           uint64
}

// Taint keeps jobs off a node that do not tolerate it.
type Taint struct {
	Key    string
	Value  string
	Effect string
	Since  *time.Time `json:",omitempty"` // not set for one in Meta
}

func taints(n *structs.Node) (out []Taint) {
	for _, t := range n.Taints() {
		w := Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
		if t.Since > 0 {
			w.Since = ptr(t.Since.Time())
		}
		out = append(out, w)
	}
	return out
}

// NodeResources is the capacity of a node.
type NodeResources struct {
	Cpu            NodeCpuResources
	Memory         NodeMemoryResources
	Disk           NodeDiskResources
	Networks       []*NetworkResource
	NodeNetworks   []*NodeNetworkResource
	Devices        []*NodeDeviceResource
	MIG            []*NodeMIG `json:",omitempty"` // Muster's own: of the GPUs in MIG mode
	MinDynamicPort int
	MaxDynamicPort int
}

// NodeNetworkResource is a network interface with its addresses.
type NodeNetworkResource struct {
	Mode       string
	Device     string
	MacAddress string
	Speed      int
	Addresses  []NodeNetworkAddress
}

// NodeNetworkAddress is one address of a node.
type NodeNetworkAddress struct {
	Family        string
	Alias         string
	Address       string
	ReservedPorts string
	Gateway       string
}

// The parts of a node's resources.
type (
	// NodeCpuResources is the processor of a node.
	NodeCpuResources struct {
		CpuShares          int64
		TotalCpuCores      uint16
		ReservableCpuCores []uint16
	}
	// NodeMemoryResources is the memory of a node.
	NodeMemoryResources struct{ MemoryMB int64 }
	// NodeDiskResources is the disk of a node.
	NodeDiskResources struct{ DiskMB int64 }
	// NodeReservedResources is the capacity that allocations cannot use.
	NodeReservedResources struct {
		Cpu      NodeReservedCpuResources
		Memory   NodeReservedMemoryResources
		Disk     NodeReservedDiskResources
		Networks NodeReservedNetworkResources
	}
	// NodeReservedCpuResources is the reserved processor capacity.
	NodeReservedCpuResources struct {
		CpuShares        uint64
		ReservedCpuCores []uint16 `json:",omitempty"`
	}
	// NodeReservedMemoryResources is the reserved memory.
	NodeReservedMemoryResources struct{ MemoryMB uint64 }
	// NodeReservedDiskResources is the reserved disk.
	NodeReservedDiskResources struct{ DiskMB uint64 }
	// NodeReservedNetworkResources are the reserved ports ("22,80,8000-8010").
	NodeReservedNetworkResources struct{ ReservedHostPorts string }
)

// NodeDeviceResource is a set of equal devices.
type NodeDeviceResource struct {
	Vendor     string
	Type       string
	Name       string
	Instances  []*NodeDevice
	Attributes map[string]*Attribute
}

// NodeDevice is one device.
type NodeDevice struct {
	ID                string
	Healthy           bool
	HealthDescription string
	Locality          *NodeDeviceLocality

	MemoryMB  int64  `json:",omitempty"` // Muster's own
	ReserveMB int64  `json:",omitempty"` // Muster's own: not available to shares
	Island    string `json:",omitempty"` // Muster's own
	NUMANode  *int64 `json:",omitempty"` // Muster's own
	Adapters  string `json:",omitempty"` // Muster's own: RDMA adapters near the GPU, the nearest first, as "mlx5_0,mlx5_1"

	MIG *NodeDeviceMIG `json:",omitempty"` // Muster's own: of a MIG instance
}

// NodeDeviceMIG is the position of a MIG instance on its GPU: memory slots, of which there are 8.
type NodeDeviceMIG struct {
	GPU   string // UUID
	Start int64
	Size  int64
}

// NodeMIG describes how a GPU in MIG mode can be divided.
type NodeMIG struct {
	GPU      string
	PciBusID string
	Profiles []NodeMIGProfile
}

// NodeMIGProfile is a kind of instance: its slices, memory slots, maximum number, and slots at which one may begin.
type NodeMIGProfile struct {
	Name                            string
	ID, Slices, Size, MemoryMB, Max int64
	Starts                          []int64
}

// NodeDeviceLocality is the bus address of a device.
type NodeDeviceLocality struct{ PciBusID string }

// Attribute is a typed value with a unit.
type Attribute struct {
	FloatVal  *float64 `json:"Float,omitempty"`
	IntVal    *int64   `json:"Int,omitempty"`
	StringVal *string  `json:"String,omitempty"`
	BoolVal   *bool    `json:"Bool,omitempty"`
	Unit      string
}

// DriverInfo is the health of a driver.
type DriverInfo struct {
	Attributes        map[string]string
	Detected          bool
	Healthy           bool
	HealthDescription string
	UpdateTime        time.Time
}

// HostVolumeInfo is a directory that a node offers.
type HostVolumeInfo struct {
	Path     string
	ReadOnly bool
	ID       string
}

// HostNetworkInfo is a named network of a node.
type HostNetworkInfo struct {
	Name          string
	CIDR          string
	Interface     string
	ReservedPorts string
}

// DrainSpec says how to drain.
type DrainSpec struct {
	Deadline         time.Duration
	IgnoreSystemJobs bool
}

// DrainStrategy is how a node is being drained.
type DrainStrategy struct {
	DrainSpec
	ForceDeadline time.Time
	StartedAt     time.Time
}

// DrainMetadata is the outcome of the last drain.
type DrainMetadata struct {
	StartedAt  time.Time
	UpdatedAt  time.Time
	Status     string
	AccessorID string
	Meta       map[string]string
}

// NodeEvent is one event of a node.
type NodeEvent struct {
	Message     string
	Subsystem   string
	Details     map[string]string
	Timestamp   time.Time
	CreateIndex uint64
}

// The bodies of the node endpoints.
type (
	// NodeUpdateDrainRequest sets or (nil DrainSpec) clears a drain.
	NodeUpdateDrainRequest struct {
		NodeID       string
		DrainSpec    *DrainSpec
		MarkEligible bool
		Meta         map[string]string
	}
	// NodeUpdateEligibilityRequest switches placement on or off.
	NodeUpdateEligibilityRequest struct {
		NodeID      string
		Eligibility string
	}
	// NodeUpdateResponse answers both, and the evaluation of a node.
	NodeUpdateResponse struct {
		NodeModifyIndex uint64
		EvalIDs         []string
		EvalCreateIndex uint64
		Index           uint64
	}
	// NodePurgeResponse answers a purge.
	NodePurgeResponse struct {
		EvalIDs         []string
		EvalCreateIndex uint64
		NodeModifyIndex uint64
		Index           uint64
	}
	// NodeMetaApplyRequest changes the dynamic metadata of a node.
	NodeMetaApplyRequest struct {
		NodeID string
		Meta   map[string]*string
	}
	// NodeMetaResponse is the metadata of a node.
	NodeMetaResponse struct {
		Meta    map[string]string
		Dynamic map[string]*string
		Static  map[string]string
	}
)

// NodeFromStructs converts a node. Its secret is not part of the wire shape.
func NodeFromStructs(n *structs.Node) *Node {
	out := &Node{
		ID: n.ID.String(), Datacenter: n.Datacenter, Name: n.Name, HTTPAddr: n.HTTPAddr, TLSEnabled: n.TLSEnabled,
		Attributes: n.Attributes, NodeResources: nodeResources(n), ReservedResources: nodeReserved(n), Links: map[string]string{},
		Meta: n.Meta, NodeClass: n.Class, NodePool: string(n.Pool), ComputedClass: "v1:" + strconv.FormatUint(n.ComputedClass, 10),
		Drain: n.Drain != nil, SchedulingEligibility: string(n.Eligibility), Status: string(n.Status), StatusDescription: n.StatusDesc,
		StatusUpdatedAt: int64(n.StatusAt) / int64(time.Second), Events: []*NodeEvent{}, Drivers: drivers(n), HostVolumes: hostVolumes(n),
		HostNetworks: map[string]*HostNetworkInfo{}, CSIControllerPlugins: map[string]any{}, CSINodePlugins: map[string]any{},
		LastDrain: lastDrain(n), Taints: taints(n), CreateIndex: uint64(n.CreateIndex), ModifyIndex: uint64(n.ModifyIndex),
	}
	out.Resources = &Resources{CPU: ptr(int(n.Resources.CPU)), MemoryMB: ptr(int(n.Resources.MemoryMiB)), DiskMB: ptr(int(n.Resources.DiskMiB)), Networks: out.NodeResources.Networks}
	out.Reserved = &Resources{CPU: ptr(int(n.Reserved.CPU)), MemoryMB: ptr(int(n.Reserved.MemoryMiB)), DiskMB: ptr(int(n.Reserved.DiskMiB))}
	if d := n.Drain; d != nil {
		out.DrainStrategy = &DrainStrategy{DrainSpec: DrainSpec{Deadline: d.Deadline, IgnoreSystemJobs: d.IgnoreSystemJobs}, ForceDeadline: d.ForceAt.Time(), StartedAt: d.StartedAt.Time()}
	}
	for _, e := range n.Events {
		out.Events = append(out.Events, &NodeEvent{Message: e.Message, Subsystem: e.Subsystem, Details: e.Details, Timestamp: e.Time.Time(), CreateIndex: uint64(e.CreateIndex)})
	}
	for _, w := range n.Resources.Networks {
		if w.Alias != "" {
			out.HostNetworks[w.Alias] = &HostNetworkInfo{Name: w.Alias, CIDR: w.CIDR, Interface: w.Device}
		}
	}
	return out
}

// NodeStubFromStructs converts a node for a list. os includes the attribute os.name, resources the amounts.
func NodeStubFromStructs(n *structs.Node, os, resources bool) *NodeListStub {
	address, _, _ := strings.Cut(n.HTTPAddr, ":")
	if i := strings.LastIndexByte(n.HTTPAddr, ':'); i > 0 {
		address = strings.Trim(n.HTTPAddr[:i], "[]")
	}
	out := &NodeListStub{
		Address: address, ID: n.ID.String(), Datacenter: n.Datacenter, Name: n.Name, NodeClass: n.Class, NodePool: string(n.Pool),
		Version: n.Version, Drain: n.Drain != nil, SchedulingEligibility: string(n.Eligibility), Status: string(n.Status),
		StatusDescription: n.StatusDesc, Drivers: drivers(n), HostVolumes: hostVolumes(n), LastDrain: lastDrain(n), Taints: taints(n),
		CreateIndex: uint64(n.CreateIndex), ModifyIndex: uint64(n.ModifyIndex),
	}
	if os {
		out.Attributes = map[string]string{"os.name": n.Attributes["os.name"]}
	}
	if resources {
		out.NodeResources, out.ReservedResources = nodeResources(n), nodeReserved(n)
	}
	return out
}

func nodeResources(n *structs.Node) *NodeResources {
	r := n.Resources
	out := &NodeResources{
		Cpu:    NodeCpuResources{CpuShares: r.CPU, TotalCpuCores: uint16(r.Cores), ReservableCpuCores: cores(r.ReservableCPUs)},
		Memory: NodeMemoryResources{MemoryMB: r.MemoryMiB}, Disk: NodeDiskResources{DiskMB: r.DiskMiB},
		MinDynamicPort: r.DynamicPortMin, MaxDynamicPort: r.DynamicPortMax,
	}
	if out.MinDynamicPort == 0 {
		out.MinDynamicPort = structs.DynamicPortMin
	}
	if out.MaxDynamicPort == 0 {
		out.MaxDynamicPort = structs.DynamicPortMax
	}
	for _, w := range r.Networks {
		out.Networks = append(out.Networks, &NetworkResource{Mode: "host", Device: w.Device, CIDR: w.CIDR, IP: w.IP, MBits: ptr(int(w.MBits))})
		family := "ipv4"
		if strings.Contains(w.IP, ":") {
			family = "ipv6"
		}
		out.NodeNetworks = append(out.NodeNetworks, &NodeNetworkResource{Mode: "host", Device: w.Device, Speed: int(w.MBits),
			Addresses: []NodeNetworkAddress{{Family: family, Alias: w.Alias, Address: w.IP}}})
	}
	for i := range r.Devices {
		g := &r.Devices[i]
		d := &NodeDeviceResource{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: map[string]*Attribute{}}
		for _, in := range g.Instances {
			w := &NodeDevice{ID: in.ID, Healthy: in.Healthy, HealthDescription: in.HealthDesc, MemoryMB: in.MemoryMiB, Island: in.Island}
			if in.MemoryMiB > 0 {
				w.ReserveMB = n.GPUReserveMiB()
			}
			w.Adapters = in.Adapters
			if in.NUMANode >= 0 {
				w.NUMANode = ptr(in.NUMANode)
			}
			if in.SlotCount > 0 {
				w.MIG = &NodeDeviceMIG{in.Parent, in.SlotStart, in.SlotCount}
			}
			if in.PCIBusID != "" {
				w.Locality = &NodeDeviceLocality{PciBusID: in.PCIBusID}
			}
			d.Instances = append(d.Instances, w)
		}
		for k, a := range g.Attributes {
			d.Attributes[k] = attribute(a)
		}
		out.Devices = append(out.Devices, d)
	}
	for _, g := range r.MIG {
		x := &NodeMIG{GPU: g.GPU, PciBusID: g.PCIBusID, Profiles: []NodeMIGProfile{}}
		for _, p := range g.Profiles {
			x.Profiles = append(x.Profiles, NodeMIGProfile{p.Name, p.ID, p.Slices, p.Slots, p.MemoryMiB, p.Max, p.Starts})
		}
		out.MIG = append(out.MIG, x)
	}
	return out
}

func attribute(a structs.Attribute) *Attribute {
	out := &Attribute{Unit: a.Unit}
	switch a.Kind {
	case "int":
		out.IntVal = ptr(a.Int)
	case "micro":
		out.FloatVal = ptr(float64(a.Int) / 1e6)
	case "bool":
		out.BoolVal = ptr(a.Bool)
	default:
		out.StringVal = ptr(a.Str)
	}
	return out
}

func nodeReserved(n *structs.Node) *NodeReservedResources {
	r := n.Reserved
	return &NodeReservedResources{
		Cpu:    NodeReservedCpuResources{CpuShares: uint64(r.CPU), ReservedCpuCores: cores(r.Cores)},
		Memory: NodeReservedMemoryResources{MemoryMB: uint64(r.MemoryMiB)}, Disk: NodeReservedDiskResources{DiskMB: uint64(r.DiskMiB)},
		Networks: NodeReservedNetworkResources{ReservedHostPorts: PortRanges(r.Ports)},
	}
}

// PortRanges writes ports as "22,80,8000-8010".
func PortRanges(ports []int) string {
	p := append([]int(nil), ports...)
	sort.Ints(p)
	var b strings.Builder
	for i := 0; i < len(p); {
		j := i
		for j+1 < len(p) && p[j+1] <= p[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(p[i]))
		if p[j] > p[i] {
			b.WriteString("-" + strconv.Itoa(p[j]))
		}
		i = j + 1
	}
	return b.String()
}

func cores(in []int64) []uint16 {
	var out []uint16
	for _, c := range in {
		out = append(out, uint16(c))
	}
	return out
}

func drivers(n *structs.Node) map[string]*DriverInfo {
	out := make(map[string]*DriverInfo, len(n.Drivers))
	for name, d := range n.Drivers {
		out[name] = &DriverInfo{Attributes: d.Attributes, Detected: d.Detected, Healthy: d.Healthy, HealthDescription: d.HealthDesc, UpdateTime: d.UpdatedAt.Time()}
	}
	return out
}

func hostVolumes(n *structs.Node) map[string]*HostVolumeInfo {
	out := make(map[string]*HostVolumeInfo, len(n.HostVolumes))
	for name, v := range n.HostVolumes {
		out[name] = &HostVolumeInfo{Path: v.Path, ReadOnly: v.ReadOnly}
	}
	return out
}

func lastDrain(n *structs.Node) *DrainMetadata {
	d := n.LastDrain
	if d == nil {
		return nil
	}
	return &DrainMetadata{StartedAt: d.StartedAt.Time(), UpdatedAt: d.UpdatedAt.Time(), Status: d.Status, AccessorID: d.Accessor.String(), Meta: d.Meta}
}
