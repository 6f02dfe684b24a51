// Package nodesim runs many simulated nodes in one process. A simulated node is a client.Client with a fake driver, fake
// fingerprints and no disk. The rest is the real agent, so servers get the traffic of real nodes. Nodes share sessions,
// nodesPerConn to each.
package nodesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// CountMax limits the nodes of one process.
const CountMax = 100_000

// nodesPerConn is how many nodes share one session. Each always has a poll in progress, and sometimes a heartbeat and a
// report; together they stay below a server's limit for one session.
const nodesPerConn = 250

// Config configures the simulation. Field comments say what zero does.
type Config struct {
	Count   int      // nodes; 1 to CountMax
	Servers []string // RPC addresses
	Dial    rpc.Dialer
	// Connect makes a shared connection to the servers, in place of Servers and Dial.
	Connect client.Connector

	Name       string // prefix of the nodes' names; "" is "sim"
	Region     string
	Datacenter string
	Pool       structs.PoolName
	Class      string
	Meta       map[string]string
	Version    string

	CPU       int64  // MHz; 0 is 64,000
	Cores     int64  // 0 is 32
	MemoryMiB int64  // 0 is 262,144
	DiskMiB   int64  // 0 is 1,000,000
	GPUs      string // "8xH100"; "" is none

	// JoinOver spreads the registrations over this time; 0 is 1 s for every 1,000 nodes.
	JoinOver time.Duration
	// ObserveEvery is how long reports are collected; 0 is the agent's default.
	ObserveEvery time.Duration

	Log hclog.Logger // nil discards
	// OnJoin is called with the number of registered nodes, one call at a time; or nil
	OnJoin func(joined int)
}

// Fleet is a number of simulated nodes.
type Fleet struct {
	cfg   Config
	conns []client.Conn
	grief []*grief // of each
	jobs  jobs
	late  atomic.Int64 // nanoseconds, since Late
	turn  chan struct{}

	mu     sync.Mutex
	nodes  map[structs.NodeID]*client.Client
	joined int
}

// New checks the configuration and makes the connections to the servers. Run creates the nodes.
func New(cfg Config) (*Fleet, error) {
	if cfg.Count < 1 || cfg.Count > CountMax {
		return nil, fmt.Errorf("sim: %d nodes: want 1 to %d", cfg.Count, CountMax)
	}
	if cfg.Connect == nil {
		if len(cfg.Servers) == 0 {
			return nil, errors.New("sim: no server address; give at least one")
		}
		cfg.Connect = client.Dial(client.DialConfig{Servers: cfg.Servers, Dial: cfg.Dial, Log: cfg.Log})
	}
	def(&cfg.Name, "sim")
	def(&cfg.CPU, 64_000)
	def(&cfg.Cores, 32)
	def(&cfg.MemoryMiB, 256<<10)
	def(&cfg.DiskMiB, 1_000_000)
	def(&cfg.JoinOver, time.Duration(cfg.Count)*time.Millisecond)
	def(&cfg.Version, "0.0.0")
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.GPUs != "" {
		if _, err := fingerprint.ParseGPUs(cfg.GPUs, structs.Seed{}); err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
	}
	f := &Fleet{cfg: cfg, turn: make(chan struct{}), nodes: make(map[structs.NodeID]*client.Client, cfg.Count)}
	for range (cfg.Count + nodesPerConn - 1) / nodesPerConn {
		reg := rpc.NewRegistry(cfg.Log, nil)
		client.Serve(reg, f.find)
		conn, err := cfg.Connect(reg)
		if err != nil {
			f.close()
			return nil, err
		}
		f.conns = append(f.conns, conn)
		f.grief = append(f.grief, &grief{few: max(1, min(griefMany, cfg.Count/4))})
	}
	return f, nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (f *Fleet) close() {
	for _, c := range f.conns {
		c.Close()
	}
}

// Run runs the nodes until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	defer f.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range f.cfg.Count {
		c, err := f.node(i)
		if err != nil {
			return err
		}
		wg.Add(2)
		go func() {
			defer wg.Done()
			select { // not all at once
			case <-time.After(time.Duration(rand.Int64N(int64(f.cfg.JoinOver) + 1))):
				if err := c.Run(ctx); err != nil {
					f.cfg.Log.Error("simulated node failed", "node", c.ID(), "error", err)
				}
			case <-ctx.Done():
				c.Close()
			}
		}()
		go func() {
			defer wg.Done()
			select {
			case <-c.Joined():
				f.countJoin()
			case <-ctx.Done():
			}
		}()
	}
	wg.Go(func() { f.turns(ctx) })
	f.watch(ctx)
	return nil
}

// turns lets one node after the other act on the answer to its poll, until ctx ends. Between two of them everything that
// is ready to run in this process has its turn: thousands of starts at once would make the heartbeats of all nodes late,
// which on machines of their own only their own starts could.
func (f *Fleet) turns(ctx context.Context) {
	for {
		select {
		case f.turn <- struct{}{}:
			runtime.Gosched()
		case <-ctx.Done():
			return
		}
	}
}

// lateLook is the time between two looks at whether nodes get their turn.
const lateLook = 50 * time.Millisecond

// watch notices how long goroutines wait for their turn, until ctx ends.
func (f *Fleet) watch(ctx context.Context) {
	t := time.NewTimer(lateLook)
	defer t.Stop()
	for due := time.Now().Add(lateLook); ; due = time.Now().Add(lateLook) {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		runtime.Gosched() // a timer fires before others that are ready
		late := int64(time.Since(due))
		for old := f.late.Load(); late > old && !f.late.CompareAndSwap(old, late); old = f.late.Load() {
		}
		t.Reset(lateLook)
	}
}

// Late returns the longest time for which a node that was ready waited for its turn, since the last call. A machine that
// is late by seconds loses nodes that servers would have kept.
func (f *Fleet) Late() time.Duration { return time.Duration(f.late.Swap(0)) }

func (f *Fleet) countJoin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joined++
	if f.cfg.OnJoin != nil {
		f.cfg.OnJoin(f.joined)
	}
}

// node makes the i-th node.
func (f *Fleet) node(i int) (*client.Client, error) {
	cfg := f.cfg
	drivers := driver.NewSet(fake.New()) // not shared: most starts would wait for its lock
	var id structs.NodeID
	c, err := client.New(client.Config{
		Node: client.NodeConfig{
			Name: cfg.Name + "-" + strconv.Itoa(i), Region: cfg.Region, Datacenter: cfg.Datacenter, Pool: cfg.Pool, Class: cfg.Class,
			Version: cfg.Version, Meta: cfg.Meta,
		},
		Storage:      client.StorageConfig{Ephemeral: true},
		Host:         client.HostConfig{Drivers: drivers, Fingerprinters: f.machine(i, drivers)},
		Connect:      f.shared(i),
		GC:           client.GCConfig{Interval: 5 * time.Minute, MaxAllocs: 8},
		ObserveEvery: cfg.ObserveEvery,
		Log:          cfg.Log,
		OnNode:       func(n structs.NodeID) { id = n },
		ShareJob:     f.jobs.share,
	})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.nodes[id] = c
	f.mu.Unlock()
	return c, nil
}

// shared returns the i-th node's share of a session.
func (f *Fleet) shared(i int) client.Connector {
	return func(*rpc.Registry) (client.Conn, error) {
		at := i % len(f.conns)
		return sharedConn{f.conns[at], f.grief[at], f.turn}, nil
	}
}

// sharedConn belongs to several nodes: the end of one does not close it.
type sharedConn struct {
	client.Conn
	grief *grief
	turn  <-chan struct{}
}

// Invoke implements rpc.Caller. The answer to a poll waits for its turn (see turns).
func (c sharedConn) Invoke(ctx context.Context, h rpc.Header, req, resp any) error {
	err := c.Conn.Invoke(ctx, h, req, resp)
	if err == nil && h.Method == methods.NodePoll.Name {
		select {
		case <-c.turn:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return err
}

// Close implements client.Conn.
func (sharedConn) Close() error { return nil }

// Failed implements client.Conn. The failed call of one node does not move all other nodes of the session. If many nodes
// report a failure, the server is at fault. A broken connection is replaced without any report.
func (c sharedConn) Failed(err error) {
	if c.grief.enough(time.Now()) {
		c.Conn.Failed(err)
	}
}

// How many reports, within how long, move the nodes of a shared session.
const (
	griefMany = nodesPerConn / 4
	griefFor  = 5 * time.Second
)

type grief struct {
	few int // sufficient number of reports if there are fewer nodes

	mu    sync.Mutex
	since time.Time
	count int
}

func (g *grief) enough(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.since) > griefFor {
		g.since, g.count = now, 0
	}
	g.count++
	if g.count < g.few {
		return false
	}
	g.count = 0
	return true
}

// find returns the node that a server addresses.
func (f *Fleet) find(alloc structs.AllocID, node structs.NodeID) (*client.Client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !node.IsZero() {
		if c := f.nodes[node]; c != nil {
			return c, nil
		}
		return nil, structs.Errorf(structs.CodeNotFound, "node %s is not one of the %d simulated here", node.Short(), len(f.nodes))
	}
	for _, c := range f.nodes {
		if c.Alloc(alloc) != nil {
			return c, nil
		}
	}
	return nil, structs.Errorf(structs.CodeNotFound, "Unknown allocation %q: it is on none of the %d nodes simulated here", alloc, len(f.nodes))
}

// jobs holds each specification once: every node is sent its own copy, and ten thousand nodes of one job would keep ten
// thousand.
type jobs struct {
	mu  sync.Mutex
	new map[jobID]*structs.Job
	old map[jobID]*structs.Job
}

type jobID struct {
	key     structs.JobKey
	version uint64
	spec    structs.Index // distinguishes a job that was purged and registered again
}

// jobsKept is how many recently used specifications are kept, and as many older ones.
const jobsKept = 2000

// share returns the shared instance.
func (s *jobs) share(j *structs.Job) *structs.Job {
	id := jobID{j.Key(), j.Version, j.SpecIndex}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.new[id]
	if have != nil {
		return have
	}
	if have = s.old[id]; have == nil {
		have = j
	}
	if s.new == nil || len(s.new) >= jobsKept {
		s.new, s.old = map[jobID]*structs.Job{}, s.new
	}
	s.new[id] = have
	return have
}

// Nodes returns the nodes, unordered.
func (f *Fleet) Nodes() []*client.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*client.Client, 0, len(f.nodes))
	for _, c := range f.nodes {
		out = append(out, c)
	}
	return out
}

// Joined returns how many nodes have registered.
func (f *Fleet) Joined() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.joined
}

// machine returns the fingerprint of the i-th node.
func (f *Fleet) machine(i int, drivers driver.Set) []fingerprint.Fingerprinter {
	cfg := f.cfg
	o := fingerprint.Options{Version: cfg.Version, Drivers: drivers}
	return []fingerprint.Fingerprinter{{Name: "simulated", Look: func(ctx context.Context, facts *fingerprint.Facts) error {
		name := cfg.Name + "-" + strconv.Itoa(i)
		for k, v := range map[string]string{
			"cpu.arch": "amd64", "cpu.modelname": "simulated", "kernel.name": "linux", "kernel.version": "6.1.0", "os.name": "debian", "os.version": "12",
			"muster.simulated": "true", "unique.hostname": name, "muster.version": o.Version, "nomad.version": fingerprint.NomadVersion, structs.BundlesAttribute: "1",
			"cpu.numcores": strconv.FormatInt(cfg.Cores, 10), "cpu.totalcompute": strconv.FormatInt(cfg.CPU, 10),
			"memory.totalbytes": strconv.FormatInt(cfg.MemoryMiB<<20, 10),
		} {
			facts.Attributes[k] = v
		}
		// One address of 10.0.0.0/8 per node: ports on different nodes are different ports.
		ip := fmt.Sprintf("10.%d.%d.%d", (i+1)>>16&0xff, (i+1)>>8&0xff, (i+1)&0xff)
		facts.Attributes["unique.network.ip-address"] = ip
		facts.BootID = "simulated"
		facts.Resources = structs.NodeResources{
			CPU: cfg.CPU, Cores: cfg.Cores, MHzPerCore: cfg.CPU / cfg.Cores, MemoryMiB: cfg.MemoryMiB, DiskMiB: cfg.DiskMiB,
			Networks: []structs.NodeNetwork{{Device: "eth0", IP: ip, CIDR: ip + "/32", Alias: "default", MBits: 10_000}},
		}
		if cfg.GPUs != "" {
			groups, err := fingerprint.ParseGPUs(cfg.GPUs, structs.Seed{byte(i >> 16), byte(i >> 8), byte(i), 's'})
			if err != nil {
				return err
			}
			facts.Resources.Devices = groups
		}
		return fingerprint.Drivers(ctx, o, facts)
	}}}
}
