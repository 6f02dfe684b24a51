package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/gpuwatch"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Supervisor lists the tasks that run on this machine, by the ids that the drivers gave them. It keeps this list even
// if the agent's own state is lost.
type Supervisor interface {
	// TaskIDs lists the tasks.
	TaskIDs(ctx context.Context) ([]string, error)
	// Destroy kills a task and forgets it.
	Destroy(ctx context.Context, taskID string) error
}

// Networks creates the networks of allocations.
type Networks interface {
	fingerprint.Networks
	runner.Networks
	// Sweep removes every network for which keep returns false, and repairs the others.
	Sweep(keep func(alloc string) bool) error
}

// Client is the agent on a node.
type Client struct {
	cfg   Config
	log   hclog.Logger
	id    identity
	store agentstore.Store
	conn  Conn
	run   *runner.Config

	ledger   *runner.Ledger
	node     *nodeState
	observed *observer
	gpus     *gpuwatch.Watch

	variableWaits chan struct{} // a slot for each request that waits for a change of a variable

	forwards forwards // connections to ports of allocations

	reregister chan struct{} // 1 deep: the node changed, or the servers do not know it
	beatNow    chan struct{} // 1 deep: a task waits for the next heartbeat
	limited    atomic.Bool   // an allocation with stop_on_client_after has been here; see noteLimit
	renewal    chan struct{} // 1 deep: a heartbeat was answered
	connected  *contact
	refused    refusal
	bundles    *bundles // nil with Ephemeral storage
	clock      serversClock
	obeyed     chan struct{} // closed once an answer was obeyed that is not older than the registration

	mu       sync.Mutex
	allocs   map[structs.AllocID]*runner.Runner
	history  agentstore.History
	usedGPUs *agentstore.GPUUses           // restored from the store, for Run
	gone     map[structs.AllocID]time.Time // allocations unknown to restored servers, and since when
	recent   map[structs.AllocID]bool      // collected on this node while the servers still list them
	lostDB   bool                          // the state was unreadable or absent: unknown tasks may run
	ended    atomic.Int64                  // allocations that have ended and are kept
	joined   chan struct{}                 // closed at the first registration
	launched chan struct{}                 // closed when the stored allocations were started
	yielded  error                         // why this agent gave the node up, or nil

	registered structs.Index // of the state that had the last registration
	healthy    chan struct{} // closed at the first success of the operator's health command
	leaving    bool

	ctx     context.Context // from Run
	threads threads
	started bool
	closed  bool
	stop    context.CancelFunc
	stopped chan struct{}
}

// New opens the agent's state and prepares its connection. Nothing is started and no server is called before Run.
func New(cfg Config) (*Client, error) {
	cfg, err := cfg.prepare()
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, log: cfg.Log.Named("client"),
		ledger:     runner.NewLedger(),
		reregister: make(chan struct{}, 1),
		beatNow:    make(chan struct{}, 1),
		renewal:    make(chan struct{}, 1),
		obeyed:     make(chan struct{}),
		connected:  newContact(),
		allocs:     map[structs.AllocID]*runner.Runner{},
		gone:       map[structs.AllocID]time.Time{},
		recent:     map[structs.AllocID]bool{},
		joined:     make(chan struct{}),
		launched:   make(chan struct{}),
		healthy:    make(chan struct{}),
		stopped:    make(chan struct{}),
	}
	if cfg.Storage.Ephemeral {
		c.id = newIdentity()
	} else {
		// Tasks run as other users and must reach their own directories.
		for _, d := range []struct {
			path string
			mode os.FileMode
		}{{cfg.Storage.DataDir, 0o711}, {cfg.Storage.AllocsDir, 0o711}} {
			if err := os.MkdirAll(d.path, d.mode); err != nil {
				return nil, fmt.Errorf("client: %w", err)
			}
		}
		if dir := allocdir.Barred(cfg.Storage.AllocsDir); dir != "" && os.Geteuid() == 0 {
			c.log.Warn("tasks that run as other users than root cannot reach their own files", "data_dir", cfg.Storage.DataDir, "why", dir+" may be entered by its owner only",
				"hint", "chmod o+x "+dir+", or another data_dir")
		}
		allocdir.Scatter(cfg.Storage.AllocsDir)
		if c.id, err = loadIdentity(cfg.Storage.DataDir); err != nil {
			return nil, err
		}
	}
	if cfg.OnNode != nil {
		cfg.OnNode(c.id.id)
	}
	var damage string
	if c.store, damage, err = cfg.openStore(); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if damage != "" {
		c.log.Error("the agent's state was damaged", "damage", damage)
	}
	if err := c.open(); err != nil {
		c.store.Close()
		return nil, err
	}
	return c, nil
}

// open restores the stored state and builds the components of the agent.
func (c *Client) open() error {
	saved, err := c.store.Load()
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	c.history = saved.History
	c.node = newNodeState(&c.cfg, c.id, saved.Meta)
	c.observed = newObserver(c)
	rules := c.cfg.Tasks.Egress
	local, err := egress.New(egress.Rules{Allow: rules.Allow, Deny: rules.Deny, Loopback: true})
	if err != nil {
		return fmt.Errorf("client: egress: %w", err)
	}
	c.cfg.GPU.Pressure.Egress = local
	c.gpus = gpuwatch.New(c.cfg.GPU, watchNode{c}, c.log)
	c.usedGPUs = saved.GPU
	if !c.cfg.Storage.Ephemeral {
		if c.bundles, err = openBundles(c); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	c.run = c.runnerConfig()
	c.run.Policy.Egress, c.run.Policy.Local = rules, local
	for _, rec := range saved.Allocs {
		c.noteLimit(rec.Alloc)
		c.allocs[rec.Alloc.ID] = runner.New(c.run, rec.Alloc, rec)
	}
	c.lostDB = !saved.Swept // a fresh node, or its state was lost
	reg := rpc.NewRegistry(c.log, nil)
	Serve(reg, Only(c))
	if c.conn, err = c.cfg.Connect(reg); err != nil {
		return err
	}
	return nil
}

// runnerConfig returns the configuration that all runners share.
func (c *Client) runnerConfig() *runner.Config {
	cfg := &c.cfg
	out := &runner.Config{
		Log: c.log,
		Host: runner.Host{
			Store: c.store, Drivers: cfg.Host.Drivers, Ledger: c.ledger, Node: c.node.current, GPUs: runnerGPUs{c.gpus},
			DeviceNodes: cfg.Host.DeviceNodes, HideDir: cfg.Storage.DataDir, Starts: runner.NewStarts(),
		},
		Agent: runner.Agent{
			Go: c.threads.start, Ended: func(*runner.Runner) { c.ended.Add(1) }, Await: c.await, Fault: func(reason string) { c.fault(reason) },
			Contact: c.inContact, Lapsed: c.lapsed,
		},
		Servers: runner.Servers{Region: cfg.Node.Region, Report: c.observed.add, SaveTurn: c.saveTurn},
		Policy: runner.Policy{
			SecretsInMemory: !cfg.Storage.SecretsOnDisk, EnforceDisk: !cfg.Tasks.NoDiskLimit, Oversubscribe: !cfg.Tasks.NoOversubscribe,
			MaxKillTimeout: cfg.Tasks.MaxKillTimeout, PidsMax: cfg.Tasks.PidsMax, Inherit: cfg.Tasks.Inherit, Fabric: cfg.Host.Fabric.vars(),
			DefaultUsers: cfg.Tasks.DefaultUsers, RunAs: cfg.Tasks.RunAs, ClaimPatience: cfg.Tasks.ClaimPatience,
			CheckpointPoll: cfg.Tasks.CheckpointPoll, CheckpointSettle: cfg.Tasks.CheckpointSettle,
			Prolog: cfg.Hooks.Prolog, Epilog: cfg.Hooks.Epilog,
		},
	}
	if cfg.Hooks.Health != nil {
		out.Agent.Healthy = c.healthy
	}
	if cfg.Host.Networks != nil {
		out.Host.Networks = cfg.Host.Networks
	}
	if cfg.Storage.Ephemeral {
		return out
	}
	out.Host.Ports = runner.NewPorts(cfg.Node.DynamicPortMin, cfg.Node.DynamicPortMax)
	out.Host.Launcher = fmt.Sprintf("/proc/%d/exe", os.Getpid())
	out.Host.AllocsDir = cfg.Storage.AllocsDir
	out.Host.RDMAFiles = func() ([]driver.DeviceFile, error) { return fingerprint.RDMAFiles(cfg.Host.Fabric.RDMADir) }
	out.Agent.ServeTask = cfg.Tasks.ServeTask
	c.variableWaits = make(chan struct{}, variableWaits)
	out.Servers.Variables = variables{c}
	out.Servers.Bundles = c.bundles
	out.Servers.Identity = c.signIdentity
	return out
}

// ID returns the node's id.
func (c *Client) ID() structs.NodeID { return c.id.id }

// Node returns the node as it is, or will be, registered. It must not be changed.
func (c *Client) Node() *structs.Node { return c.node.current() }

// Servers returns the agent's connection to the servers.
func (c *Client) Servers() rpc.Caller { return c.conn }

// Joined returns a channel that is closed when the servers have accepted the node's first registration.
func (c *Client) Joined() <-chan struct{} { return c.joined }

// Alloc returns the runner of an allocation, or nil.
func (c *Client) Alloc(id structs.AllocID) *runner.Runner {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.allocs[id]
}

// Allocs lists all runners, unordered. Some may have ended.
func (c *Client) Allocs() []*runner.Runner {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*runner.Runner, 0, len(c.allocs))
	for _, r := range c.allocs {
		out = append(out, r)
	}
	return out
}

// Run runs the agent until ctx ends or Close is called, or another agent speaks for the node, which is an error. The
// tasks keep running, except in the last case. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.started {
		c.mu.Unlock()
		return errors.New("client: Run was called twice")
	}
	c.started, c.stop, c.ctx = true, stop, ctx
	c.mu.Unlock()
	defer close(c.stopped)

	c.node.look(ctx, c.log) // before anything is restored or placed: the devices must be known
	c.run.Host.BootID = c.node.current().BootID
	c.gpus.Restore(c.usedGPUs, c.run.Host.BootID)
	c.sweepNetworks()
	if c.id.moved {
		c.threads.start(func() { c.launchAccepted(ctx) })
	} else {
		c.launchStored()
	}
	for _, loop := range []func(context.Context){c.fingerprintLoop, c.heartbeatLoop, c.leaseLoop, c.pollLoop, c.observed.loop, c.collectLoop, c.gpus.Run, c.healthLoop} {
		c.threads.start(func() { loop(ctx) })
	}
	<-ctx.Done()
	c.conn.Close()
	c.threads.wait()
	return errors.Join(c.yielded, c.store.Close(), c.bundles.close())
}

// launchAccepted starts the stored allocations when the servers have accepted this agent. The data directory comes from
// another place, where an agent may live and run them.
func (c *Client) launchAccepted(ctx context.Context) {
	select {
	case <-c.joined:
		c.launchStored()
	case <-ctx.Done():
	}
}

// launchStored starts the stored allocations.
func (c *Client) launchStored() {
	for _, r := range c.Allocs() {
		c.launch(r)
	}
	close(c.launched)
}

// launch starts a runner for the rest of the agent's life.
func (c *Client) launch(r *runner.Runner) { r.Start(c.ctx) }

// threads counts the agent's goroutines, so that it can wait for them when it stops.
type threads struct {
	mu      sync.Mutex
	n       int
	closing bool
	idle    chan struct{} // closed when no goroutine is left and none can start
}

// start runs fn in a goroutine, unless the agent is stopping.
func (t *threads) start(fn func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return false
	}
	t.n++
	go func() {
		defer t.end()
		fn()
	}()
	return true
}

func (t *threads) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.closing && t.n == 0 {
		close(t.idle)
	}
}

// wait refuses new goroutines and waits for those that run.
func (t *threads) wait() {
	t.mu.Lock()
	t.closing = true
	t.idle = make(chan struct{})
	if t.n == 0 {
		close(t.idle)
	}
	t.mu.Unlock()
	<-t.idle
}

// Close stops the agent and waits until it has stopped. The tasks keep running.
func (c *Client) Close() error {
	c.mu.Lock()
	started, stop, again := c.started, c.stop, c.closed
	c.closed = true
	c.mu.Unlock()
	switch {
	case started:
		stop()
		<-c.stopped
	case !again:
		return errors.Join(c.conn.Close(), c.store.Close(), c.bundles.close())
	}
	return nil
}

// header returns the RPC header of the node's own calls.
func (c *Client) header() rpc.Header { return rpc.Header{Region: c.cfg.Node.Region} }

// await waits until none of the named allocations runs on this node.
func (c *Client) await(ctx context.Context, ids []structs.AllocID) error {
	for _, id := range ids {
		r := c.Alloc(id)
		if r == nil {
			continue
		}
		select {
		case <-r.Done():
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
