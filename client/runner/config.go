package runner

import (
	"context"
	"io"
	"net"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Config is what a Runner needs of the agent around it. Runners share one Config.
type Config struct {
	Host    Host
	Agent   Agent
	Servers Servers
	Policy  Policy
	Log     hclog.Logger
}

// Host is what the node has: where allocations are stored and what they are given.
type Host struct {
	BootID  string               // boot id of the running kernel
	Node    func() *structs.Node // the node as it is registered now
	Store   agentstore.Store
	Drivers driver.Set

	Ledger   *Ledger
	Ports    *Ports   // reserves the rendezvous ports of gangs whose first member is on this node; nil on simulated nodes, which bind no port
	Networks Networks // makes networks for allocations; nil: there are none
	GPUs     GPUs     // limits and measures tasks on GPUs
	// DeviceNodes returns the device files of granted devices, with those that all devices of a kind share. It fails while
	// those of a grant are not known. nil: grants have none.
	DeviceNodes func(grants []structs.Grant) ([]driver.DeviceNode, error)
	// RDMAFiles returns the device files of the node's RDMA adapters; nil, on simulated nodes: there are none.
	RDMAFiles func() ([]driver.DeviceFile, error)

	AllocsDir string // directory of the allocations' directories; "" makes none, for drivers that need none
	HideDir   string // directory that isolated tasks must not see: the agent's data directory
	Launcher  string // program that starts the ranks of a task (package ranks), as a path on the host; "" for none
	Starts    Starts
}

// Agent is what runners need from the agent's process.
type Agent struct {
	// Go runs fn in a goroutine that the agent waits for when it stops. Once the agent is stopping, Go does not run fn
	// and returns false.
	Go func(fn func()) bool
	// Ended is called for each allocation whose end has been recorded.
	Ended func(r *Runner)
	// Await returns when none of the named allocations runs on this node.
	Await func(ctx context.Context, ids []structs.AllocID) error
	// Fault drains the node for this reason. It does not block.
	Fault func(reason string)
	// Contact waits until the servers have answered recently enough for a task that may run for limit without them, and
	// until the agent knows what they wanted of this node then; nil: tasks do not wait.
	Contact func(ctx context.Context, limit time.Duration) error
	// Lapsed reports whether the node ended an allocation without the agent, because contact with the servers was lost for
	// longer than stop_on_client_after; nil: it never does.
	Lapsed func(ctx context.Context, id structs.AllocID) bool
	// Healthy is closed once the node is known to be healthy; no task starts before. nil: tasks start at once.
	Healthy <-chan struct{}
	// ServeTask serves the agent's API on the socket of a task until it is closed; nil: tasks get no socket.
	ServeTask func(alloc structs.AllocID, task string, l net.Listener) io.Closer
}

// Servers is what runners ask of the servers and send to them.
type Servers struct {
	Region string
	// Report is called at every change that the servers should know of. It does not block. o is not changed any more.
	Report func(o *structs.AllocObserved)
	// SaveTurn asks whether an allocation may save its state now, before it is stopped or (periodic) while it runs; nil: it
	// always may.
	SaveTurn func(ctx context.Context, id structs.AllocID, periodic bool) (*methods.SaveTurn, error)
	// Variables reads the cluster's variables and services for templates; nil: there are none.
	Variables Variables
	// Bundles fetches directories that users sent along with their jobs; nil: there are none.
	Bundles Bundles
	// Identity gets a token of a task's identity; nil: tasks get none.
	Identity Identity
}

// Policy is what the operator decided about tasks. The zero value of a field means what its comment says.
type Policy struct {
	SecretsInMemory bool              // keep secrets on a memory file system where the agent may mount one
	MaxKillTimeout  time.Duration     // upper limit of kill_timeout; 0: no limit
	EnforceDisk     bool              // kill an allocation that uses more disk than it asked for
	PidsMax         int64             // limit on the processes of a task; 0: no limit
	Oversubscribe   bool              // a task may use up to MemoryMaxMiB
	DefaultUsers    map[string]string // by driver: the user of tasks that name none, when the agent is root
	RunAs           *RunAs            // users that tasks may name; nil: those of DefaultRunAs
	Egress          egress.Rules      // addresses that artifacts are fetched from
	Local           *egress.Filter    // addresses that checks and checkpoint requests go to, loopback included; nil: see egress.Filter.Local
	Inherit         []string          // variables of the agent's environment that tasks inherit; nil: the default list
	Fabric          map[string]string // variables that all tasks get, unless the job sets them
	ClaimPatience   time.Duration     // how long an allocation waits for devices, cores and ports that are taken or absent; 0 is 30 s
	// CheckpointPoll is the interval at which checkpoints are looked for; 0: the group's. CheckpointSettle is how long
	// a checkpoint must remain unchanged to count as complete; 0: 3 s.
	CheckpointPoll, CheckpointSettle time.Duration
	Prolog, Epilog                   *Command // the operator's commands before and after an allocation's tasks, or nil
}

// GPUs limits tasks on GPUs and measures what they use.
type GPUs interface {
	// AwaitFree waits until nothing that has ended holds memory of the GPUs, and calls note while something does.
	AwaitFree(ctx context.Context, gpus []string, note func(sentence string)) error
	// LimitMemory makes the GPU driver enforce the shares (backend "dmem") of a task that is about to start under taskID.
	LimitMemory(ctx context.Context, taskID string, grants []structs.Grant) error
	// LimitPower sets the power limit of a GPU until the allocation has ended.
	LimitPower(ctx context.Context, uuid string, watts int64) error
	// Settle takes the last measurement of an allocation whose tasks have ended.
	Settle(r *Runner)
	// Use returns what an allocation's tasks have used of its GPUs. It does not block.
	Use(a *structs.Allocation) []structs.GPUUse
}

// Starts limits the concurrent task starts that wait only for the node itself. More of them at once would not finish
// sooner, and the kernel copies each mount of one into all others.
type Starts chan struct{}

// NewStarts sizes the limit for this machine.
func NewStarts() Starts { return make(Starts, min(24, 4+2*runtime.NumCPU())) }

// acquire waits for a slot to start a task, which release returns.
func (s Starts) acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tryAcquire is acquire without waiting.
func (s Starts) tryAcquire() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s Starts) release() { <-s }
