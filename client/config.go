package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/gpuwatch"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Config is what an agent needs to know. The zero value of a field means what its comment says.
type Config struct {
	// Name of the node; "" is the host's name.
	Name       string
	Region     string // "" is structs.RegionDefault
	Datacenter string // "" is structs.DatacenterDefault
	Pool       string // "" is structs.NodePoolDefault
	Class      string
	Version    string // of this program
	HTTPAddr   string // where the agent's HTTP API can be reached, "" for nowhere
	TLSEnabled bool   // whether it speaks TLS there

	// DataDir is where the agent keeps its identity, its state and its allocations; required unless Ephemeral.
	DataDir string
	// AllocsDir is where the allocations' directories are; "" is DataDir/allocs.
	AllocsDir string
	// Ephemeral keeps nothing on disk: neither identity, nor state, nor directories. For simulated nodes.
	Ephemeral bool

	Meta        map[string]string
	Options     map[string]string // free keys, shown to nobody
	HostVolumes map[string]structs.HostVolume
	Reserved    structs.NodeReserved

	DynamicPortMin, DynamicPortMax int // 0 are structs.DynamicPortMin and Max

	Drivers driver.Set
	// Fingerprinters look at the machine, in order; nil is fingerprint.List of Fingerprint.
	Fingerprinters []fingerprint.Fingerprinter
	Fingerprint    fingerprint.Options // DataDir, Version and Drivers are filled in

	// Connect makes the way to the servers; required. See Dial and InProcess.
	Connect Connector

	// Networks makes networks of allocations' own. nil: there are none here.
	Networks Networks

	// Supervisor knows which tasks run here whatever the agent remembers; nil when there is none.
	Supervisor Supervisor

	GC              GCConfig
	Drain           *DrainConfig  // what Leave does before it ends the tasks; nil: nothing
	MaxKillTimeout  time.Duration // bounds kill_timeout; 0 is 30 s
	PidsMax         int64         // processes of one task; 0 is 4,096, negative is no limit
	NoDiskLimit     bool          // do not kill allocations that use more than their ephemeral_disk
	SecretsOnDisk   bool          // keep secrets in a plain directory even where memory could be mounted
	NoOversubscribe bool          // ignore memory_max
	Inherit         []string      // variables of the agent's environment that tasks get; nil for taskenv.InheritDefault
	UnknownGrace    time.Duration // after the servers were restored from a backup: how long what they forgot goes on; 0 is 5 min

	// Hooks are the operator's commands.
	Hooks Hooks
	// GPU says what the node can do with its GPUs, and when to notify of their use.
	GPU gpuwatch.Config

	// DeviceNodes are the device files of granted devices; see runner.Config. nil: grants have none.
	DeviceNodes func(grants []structs.Grant) ([]driver.DeviceNode, error)
	// ReleaseGPUs lets the driver go for so long. nil: there is none.
	ReleaseGPUs func(ctx context.Context, d time.Duration) error
	// DeviceStats is what the devices do now, as last measured; it must not block. nil: nothing is measured.
	DeviceStats func() []methods.DeviceStats

	// DefaultUsers is whom tasks without a user run as, by driver, when the agent is root: it must say what the drivers
	// do. nil is nobody for exec.
	DefaultUsers map[string]string
	// ServeTask answers the agent's API on the socket of a task of that allocation until it is closed. nil: tasks get none.
	ServeTask func(alloc structs.AllocID, task string, l net.Listener) io.Closer
	// RunAs says whom tasks may run as that name a user; nil: everybody that the drivers take.
	RunAs *runner.RunAs
	// Fabric is the network between the nodes, as training programs are told of it.
	Fabric Fabric
	// ClaimPatience is how long an allocation waits for devices, cores and ports that are not there or not free before
	// it fails; 0 is 30 s.
	ClaimPatience time.Duration
	// CheckpointPoll is how often checkpoints of running tasks are looked for, whatever their groups say, and CheckpointSettle
	// how long one must not change to be complete; 0 for what groups say, and for 3 s.
	CheckpointPoll, CheckpointSettle time.Duration

	// ObserveEvery is how long reports are gathered before they are sent; 0 is 50 ms. The first after a pause is sent
	// at once.
	ObserveEvery time.Duration
	// ShareJob gives a copy to keep of a job that the servers sent; nil keeps the one that was sent. Jobs are only read.
	ShareJob func(*structs.Job) *structs.Job

	Log     hclog.Logger            // nil discards
	Monitor hclog.InterceptLogger   // whose lines Client.Monitor follows; nil: Monitor is refused
	OnNode  func(id structs.NodeID) // told of the node's id once it is known; nil tells nobody
}

// Fabric is the network that the nodes' programs talk over. The zero value says nothing.
type Fabric struct {
	Interfaces []string          // network interfaces, the best first; nil: programs choose
	HCAs       []string          // RDMA adapters, as "mlx5_0" or with a port, "mlx5_0:1"; nil: programs choose
	Leaf       string            // switch that the node hangs on: its meta key "leaf", unless that is set; "": not known
	SL, TC     int               // InfiniBand service level and RoCE traffic class of RDMA traffic; 0: programs choose
	RDMADir    string            // where the device files of the adapters are; "" is /dev/infiniband
	Env        map[string]string // further variables for tasks
}

// vars are the variables that tell NCCL, Gloo and PyTorch. "=" makes NCCL take names as they are and not as beginnings.
func (f Fabric) vars() map[string]string {
	out := map[string]string{}
	if len(f.Interfaces) > 0 {
		list := strings.Join(f.Interfaces, ",")
		out["NCCL_SOCKET_IFNAME"], out["GLOO_SOCKET_IFNAME"], out["TP_SOCKET_IFNAME"] = "="+list, list, f.Interfaces[0]
	}
	if len(f.HCAs) > 0 {
		out["NCCL_IB_HCA"] = "=" + strings.Join(f.HCAs, ",")
	}
	if f.SL > 0 {
		out["NCCL_IB_SL"], out["UCX_IB_SL"] = strconv.Itoa(f.SL), strconv.Itoa(f.SL)
	}
	if f.TC > 0 {
		out["NCCL_IB_TC"], out["UCX_IB_TRAFFIC_CLASS"] = strconv.Itoa(f.TC), strconv.Itoa(f.TC)
	}
	maps.Copy(out, f.Env)
	return out
}

// leafMeta is the key of a node's meta that names its leaf switch; topology { across = "leaf" } goes by it.
const leafMeta = "leaf"

// GCConfig bounds what allocations that have ended leave on disk. They are removed when any bound is passed, oldest
// first, and only after the servers know how they ended.
type GCConfig struct {
	Interval     time.Duration // how often to look; 0 is 1 min
	MaxAllocs    int           // allocations kept after their end; 0 is 50
	MaxAge       time.Duration // how long they are kept; 0 is for ever (until another bound)
	DiskPercent  int           // of the disk of the allocations in use; 0 is 80
	InodePercent int           // of its inodes in use; 0 is 70
	Parallel     int           // removals at a time; 0 is 2
}

// DrainConfig is what happens when the node leaves on purpose.
type DrainConfig struct {
	Deadline         time.Duration // how long allocations may take to move; 0 is 1 min
	Force            bool          // do not wait
	IgnoreSystemJobs bool
}

// Hooks are commands of the operator, run as the agent's user; nil for none. One that fails drains the node.
type Hooks struct {
	Prolog, Epilog *runner.Command // of each allocation
	// Health is run when the agent starts, before anything is started, and then every HealthEvery (0 is 1 min).
	Health      *runner.Command
	HealthEvery time.Duration
}

// Defaults of Config.
const (
	maxKillTimeoutDefault = 30 * time.Second
	pidsMaxDefault        = 4096
	observeEveryDefault   = 50 * time.Millisecond
	unknownGraceDefault   = 5 * time.Minute
)

// prepare checks a configuration and fills in its defaults.
func (c Config) prepare() (Config, error) {
	if c.Connect == nil {
		return c, errors.New("client: no way to the servers was configured")
	}
	if c.DataDir == "" && !c.Ephemeral {
		return c, errors.New("client: data_dir is required: the node's identity and its tasks are kept there")
	}
	if c.DataDir != "" {
		abs, err := filepath.Abs(c.DataDir)
		if err != nil {
			return c, fmt.Errorf("client: data_dir %q: %w", c.DataDir, err)
		}
		c.DataDir = abs
	}
	if c.AllocsDir == "" && !c.Ephemeral {
		c.AllocsDir = filepath.Join(c.DataDir, "allocs")
	}
	def(&c.Region, structs.RegionDefault)
	def(&c.Datacenter, structs.DatacenterDefault)
	def(&c.Pool, structs.NodePoolDefault)
	def(&c.DynamicPortMin, structs.DynamicPortMin)
	def(&c.DynamicPortMax, structs.DynamicPortMax)
	if c.DynamicPortMin < 1 || c.DynamicPortMax > 65535 || c.DynamicPortMin > c.DynamicPortMax {
		return c, fmt.Errorf("client: dynamic ports %d to %d are not a range within 1 to 65535", c.DynamicPortMin, c.DynamicPortMax)
	}
	def(&c.MaxKillTimeout, maxKillTimeoutDefault)
	def(&c.PidsMax, pidsMaxDefault)
	if c.PidsMax < 0 {
		c.PidsMax = 0
	}
	def(&c.ObserveEvery, observeEveryDefault)
	def(&c.UnknownGrace, unknownGraceDefault)
	def(&c.Hooks.HealthEvery, time.Minute)
	def(&c.GC.Interval, time.Minute)
	def(&c.GC.MaxAllocs, 50)
	def(&c.GC.DiskPercent, 80)
	def(&c.GC.InodePercent, 70)
	def(&c.GC.Parallel, 2)
	if c.DefaultUsers == nil {
		c.DefaultUsers = map[string]string{"exec": "nobody"}
	}
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Drivers == nil {
		c.Drivers = driver.Set{}
	}
	c.Fingerprint.RDMADir = c.Fabric.RDMADir
	if c.Fabric.Leaf != "" && c.Meta[leafMeta] == "" {
		c.Meta = maps.Clone(c.Meta)
		if c.Meta == nil {
			c.Meta = map[string]string{}
		}
		c.Meta[leafMeta] = c.Fabric.Leaf
	}
	c.Fingerprint.DataDir = c.DataDir
	if c.Fingerprint.DataDir == "" {
		c.Fingerprint.DataDir = "/"
	}
	c.Fingerprint.Version = c.Version
	c.Fingerprint.Drivers = c.Drivers
	if c.Networks != nil {
		c.Fingerprint.Networks = c.Networks
	}
	if c.Fingerprinters == nil {
		c.Fingerprinters = fingerprint.List(c.Fingerprint)
	}
	return c, nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// openStore opens the state of the agent.
func (c *Config) openStore() (agentstore.Store, string, error) {
	if c.Ephemeral {
		return agentstore.Memory{}, "", nil
	}
	s, moved, err := agentstore.Open(c.DataDir)
	if err != nil {
		return nil, moved, err
	}
	return s, moved, nil
}
