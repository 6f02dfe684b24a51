package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/gpuwatch"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Config configures an agent. The zero value of a field means what its comment says.
type Config struct {
	Node    NodeConfig
	Storage StorageConfig
	Host    HostConfig
	Tasks   TaskConfig
	GPU     gpuwatch.Config // the GPU functions of the node, and when to send notices of their use
	Hooks   Hooks           // the operator's commands
	GC      GCConfig
	Drain   *DrainConfig // what Leave does before it ends the tasks; nil: nothing

	// Connect connects to the servers; required. See Dial and InProcess.
	Connect Connector
	// UnknownGrace is how long allocations continue that the servers lost in a restore from a backup; 0 is 5 min.
	UnknownGrace time.Duration
	// ObserveEvery is how long reports are collected before they are sent; 0 is 50 ms. The first report after a pause
	// is sent at once.
	ObserveEvery time.Duration
	// ShareJob returns the instance to keep of a job that the servers sent, so that several clients may share one; nil
	// keeps the one that was sent. Jobs are only read.
	ShareJob func(*structs.Job) *structs.Job

	Log     hclog.Logger            // nil discards
	Exit    func(why string)        // ends the process when its state cannot be trusted; nil: log a line and os.Exit(1)
	Monitor hclog.InterceptLogger   // source of Client.Monitor; nil: Monitor is refused
	OnNode  func(id structs.NodeID) // called with the node's id once it is known; or nil
	// OnGossip is called with the servers' advice in each answer to a heartbeat; it does not block. nil: this agent does
	// not gossip.
	OnGossip func(methods.GossipAdvice)
}

// NodeConfig describes the node to the servers.
type NodeConfig struct {
	Name                           string           // "" is the host's name
	Region                         string           // "" is structs.RegionDefault
	Datacenter                     string           // "" is structs.DatacenterDefault
	Pool                           structs.PoolName // "" is structs.NodePoolDefault
	Class                          string
	IntroToken                     string // for the first registration; "" for none
	Version                        string // of this program
	HTTPAddr                       string // of the agent's HTTP API, "" for none
	TLSEnabled                     bool   // the HTTP API uses TLS
	Meta                           map[string]string
	Options                        map[string]string // free-form keys, not shown
	HostVolumes                    map[string]structs.HostVolume
	Reserved                       structs.NodeReserved
	DynamicPortMin, DynamicPortMax int // 0 are structs.DynamicPortMin and Max
}

// exit ends the process, because it would be wrong to continue. Tasks of drivers with a supervisor go on.
func (c *Config) exit(why string) {
	c.Log.Error("ending the process", "why", why)
	if c.Exit != nil {
		c.Exit(why)
		return
	}
	os.Exit(1)
}

// StorageConfig says where the agent keeps its files.
type StorageConfig struct {
	DataDir       string // for identity, state and allocations; required unless Ephemeral
	AllocsDir     string // for the allocations' directories; "" is DataDir/allocs
	Ephemeral     bool   // keep nothing on disk: no identity, no state, no directories; for simulated nodes
	SecretsOnDisk bool   // keep secrets in a plain directory even where memory could be mounted
}

// HostConfig is what the machine provides.
type HostConfig struct {
	Drivers        driver.Set
	Fingerprinters []fingerprint.Fingerprinter // run in this order; nil is fingerprint.List of Fingerprint
	Fingerprint    fingerprint.Options         // DataDir, Version and Drivers are filled in
	Fabric         Fabric                      // the network between nodes, for training programs
	Networks       Networks                    // creates the networks of allocations; nil: there are none
	Supervisor     Supervisor                  // lists the running tasks, including those that the agent does not know; or nil
	Leases         Leases                      // ends tasks when contact with the servers is lost, without the agent; nil: the agent ends them
	// DeviceNodes returns the device files of granted devices; see runner.Host. nil: grants have none.
	DeviceNodes func(grants []structs.Grant) ([]driver.DeviceNode, error)
	// DeviceStats returns the last measurement of the devices; it does not block. nil: nothing is measured.
	DeviceStats func() []methods.DeviceStats
	// ReleaseGPUs closes the GPU driver for that long; nil: there is none.
	ReleaseGPUs func(ctx context.Context, d time.Duration) error
}

// TaskConfig sets the limits and the environment of tasks.
type TaskConfig struct {
	MaxKillTimeout  time.Duration // upper limit of kill_timeout; 0 is 30 s
	PidsMax         int64         // limit on the processes of one task; 0 is 4,096, negative is no limit
	NoDiskLimit     bool          // do not kill allocations that exceed their ephemeral_disk
	NoOversubscribe bool          // ignore memory_max
	Inherit         []string      // variables of the agent's environment that tasks inherit; nil for taskenv.InheritDefault
	Egress          egress.Rules  // addresses that the agent connects to for URLs of jobs; Loopback is not read
	RunAs           *runner.RunAs // users that tasks may name; nil: those of DefaultRunAs
	// DefaultUsers is the user of tasks that name none, by driver, when the agent is root. It must match what the
	// drivers do; nil: the default of each driver.
	DefaultUsers  map[string]string
	ClaimPatience time.Duration // how long an allocation waits for devices, cores and ports that are taken or absent; 0 is 30 s
	// ServeTask serves the agent's API on the socket of a task until it is closed. nil: tasks get no socket.
	ServeTask func(alloc structs.AllocID, task string, l net.Listener) io.Closer
	// CheckpointPoll is the interval at which checkpoints of running tasks are looked for; 0: their group's.
	// CheckpointSettle is how long a checkpoint must remain unchanged to count as complete; 0 is 3 s.
	CheckpointPoll, CheckpointSettle time.Duration
}

// Fabric is the network between the nodes, for training programs. The zero value sets nothing.
type Fabric struct {
	Interfaces []string          // network interfaces, the best first; nil: programs choose
	HCAs       []string          // RDMA adapters, as "mlx5_0" or with a port, "mlx5_0:1"; nil: programs choose
	Leaf       string            // the switch of the node: the default of its meta key "leaf"; "": unknown
	SL, TC     int               // InfiniBand service level and RoCE traffic class of RDMA traffic; 0: programs choose
	RDMADir    string            // directory with the device files of the adapters; "" is /dev/infiniband
	Env        map[string]string // further variables for tasks
}

// vars returns the variables for NCCL, Gloo and PyTorch. A leading "=" makes NCCL match names exactly instead of by
// prefix.
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

// leafMeta is the meta key that names a node's leaf switch, for topology { across = "leaf" }.
const leafMeta = "leaf"

// GCConfig limits what ended allocations leave on disk. While a limit is exceeded, the oldest are removed, but only
// after the servers know how they ended.
type GCConfig struct {
	Interval     time.Duration // between two checks; 0 is 1 min
	MaxAllocs    int           // allocations kept after their end; 0 is 50
	MaxAge       time.Duration // how long they are kept; 0: until another limit is exceeded
	DiskPercent  int           // of the disk of the allocations in use; 0 is 80
	InodePercent int           // of its inodes in use; 0 is 70
	Parallel     int           // removals at a time; 0 is 2
}

// DrainConfig says how the node drains itself when the agent leaves.
type DrainConfig struct {
	Deadline         time.Duration // how long allocations may take to move; 0 is 1 min
	Force            bool          // do not wait
	IgnoreSystemJobs bool
}

// Hooks are the operator's commands, run as the agent's user; nil for none. A failed command drains the node.
type Hooks struct {
	Prolog, Epilog *runner.Command // before and after each allocation
	// Health runs before any task starts, and then every HealthEvery (0 is 1 min).
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

// prepare validates a configuration and sets its defaults.
func (c Config) prepare() (Config, error) {
	if c.Connect == nil {
		return c, errors.New("client: no connection to the servers is configured")
	}
	if c.Storage.DataDir == "" && !c.Storage.Ephemeral {
		return c, errors.New("client: data_dir is required: the node's identity and its tasks are kept there")
	}
	if c.Storage.DataDir != "" {
		abs, err := filepath.Abs(c.Storage.DataDir)
		if err != nil {
			return c, fmt.Errorf("client: data_dir %q: %w", c.Storage.DataDir, err)
		}
		c.Storage.DataDir = abs
	}
	if c.Storage.AllocsDir == "" && !c.Storage.Ephemeral {
		c.Storage.AllocsDir = filepath.Join(c.Storage.DataDir, "allocs")
	}
	def(&c.Node.Region, structs.RegionDefault)
	def(&c.Node.Datacenter, structs.DatacenterDefault)
	def(&c.Node.Pool, structs.NodePoolDefault)
	def(&c.Node.DynamicPortMin, structs.DynamicPortMin)
	def(&c.Node.DynamicPortMax, structs.DynamicPortMax)
	if c.Node.DynamicPortMin < 1 || c.Node.DynamicPortMax > 65535 || c.Node.DynamicPortMin > c.Node.DynamicPortMax {
		return c, fmt.Errorf("client: dynamic ports %d to %d are not a range within 1 to 65535", c.Node.DynamicPortMin, c.Node.DynamicPortMax)
	}
	def(&c.Tasks.MaxKillTimeout, maxKillTimeoutDefault)
	def(&c.Tasks.PidsMax, pidsMaxDefault)
	if c.Tasks.PidsMax < 0 {
		c.Tasks.PidsMax = 0
	}
	def(&c.ObserveEvery, observeEveryDefault)
	def(&c.UnknownGrace, unknownGraceDefault)
	def(&c.Hooks.HealthEvery, time.Minute)
	def(&c.GC.Interval, time.Minute)
	def(&c.GC.MaxAllocs, 50)
	def(&c.GC.DiskPercent, 80)
	def(&c.GC.InodePercent, 70)
	def(&c.GC.Parallel, 2)
	if c.Tasks.DefaultUsers == nil {
		c.Tasks.DefaultUsers = map[string]string{"exec": "nobody"}
	}
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Host.Drivers == nil {
		c.Host.Drivers = driver.Set{}
	}
	c.Host.Fingerprint.RDMADir = c.Host.Fabric.RDMADir
	if c.Host.Fabric.Leaf != "" && c.Node.Meta[leafMeta] == "" {
		c.Node.Meta = maps.Clone(c.Node.Meta)
		if c.Node.Meta == nil {
			c.Node.Meta = map[string]string{}
		}
		c.Node.Meta[leafMeta] = c.Host.Fabric.Leaf
	}
	c.Host.Fingerprint.DataDir = c.Storage.DataDir
	if c.Host.Fingerprint.DataDir == "" {
		c.Host.Fingerprint.DataDir = "/"
	}
	c.Host.Fingerprint.Version = c.Node.Version
	c.Host.Fingerprint.Drivers = c.Host.Drivers
	if c.Host.Networks != nil {
		c.Host.Fingerprint.Networks = c.Host.Networks
	}
	if c.Host.Fingerprinters == nil {
		c.Host.Fingerprinters = fingerprint.List(c.Host.Fingerprint)
	}
	return c, nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// openStore opens the agent's state. damage is a sentence about what was unreadable, or "".
func (c *Config) openStore() (store agentstore.Store, damage string, err error) {
	if c.Storage.Ephemeral {
		return agentstore.Memory{}, "", nil
	}
	disk, damage, err := agentstore.Open(c.Storage.DataDir)
	if disk != nil {
		disk.OnFailedSync = func(err error) {
			c.exit(fmt.Sprintf("the agent's state could not be synced to disk, so nobody knows what its disk holds until it is read again: %v", err))
		}
	}
	if err != nil {
		return nil, damage, err
	}
	return disk, damage, nil
}
