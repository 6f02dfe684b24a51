package replica

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/server/raftlog"
	"github.com/muster-sched/muster/structs"
)

// Config configures a replica.
type Config struct {
	ID        string // of the raft server
	DataDir   string // parent directory of the raft log and the snapshots
	InMemory  bool   // keep everything in memory
	Bootstrap bool   // create a cluster of one server if there is no state yet

	Raft    RaftConfig
	Logger  hclog.Logger
	Now     func() time.Time                      // wall clock
	Exit    func(why string)                      // ends the process, for reasons such as a state that cannot be trusted
	Applied func(took time.Duration)              // receives the time that each batch of entries took; or nil
	Stalled func(cause Stall, took time.Duration) // receives stalls of at least StallMin; or nil
	Feeds   []func(Applied)                       // receive every applied batch before the subscribers; called by one goroutine, must not block
	Peers   Peers                                 // the other servers, to compare states with; nil: none

	Testing TestingKnobs
}

// TestingKnobs let tests interfere. The zero value is for production.
type TestingKnobs struct {
	BeforeApply func()               // called before committed entries are applied, or nil
	StoreLogs   func() error         // may make a write of the raft log fail, or nil
	AfterHash   func(hash *[32]byte) // may change a hash of the state, or nil
	NoStalls    bool                 // nothing watches whether this process runs: in virtual time it always does
}

// Default timing of elections (ADR 0026).
const (
	QuietDefault     = 300 * time.Millisecond
	HeartbeatDefault = time.Second
)

const trailingDefault = 10240 // entries kept before a snapshot for slow followers

// RaftConfig tunes raft. A zero field takes its default, which is for production.
type RaftConfig struct {
	Quiet     time.Duration // silence of the leader after which the servers agree on an election where nothing stalls; default QuietDefault
	Heartbeat time.Duration // silence after which each server stands by itself, and the leader's lease; default HeartbeatDefault
	Commit    time.Duration // default 5 ms

	SnapshotEntries uint64        // entries since the last snapshot that trigger one; 0: 16,384
	SnapshotBytes   int64         // bytes of log since the last snapshot that trigger one; 0: 256 MiB
	SnapshotEvery   time.Duration // shortest time between snapshots; 0: 30 s
	TrailingLogs    uint64        // entries kept before a snapshot for slow followers; 0: 10,240

	Log          raftlog.Options // backend of the raft log and its settings
	NoLogCache   bool            // read recent entries from the backend instead of memory
	StoreTimeout time.Duration   // a longer write means a hung disk and ends the process; 0: 5 s
}

func (c *RaftConfig) setDefaults() {
	duration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	duration(&c.Quiet, QuietDefault)
	duration(&c.Heartbeat, HeartbeatDefault)
	duration(&c.Commit, 5*time.Millisecond)
	duration(&c.SnapshotEvery, 30*time.Second)
	duration(&c.StoreTimeout, 5*time.Second)
	if c.SnapshotEntries == 0 {
		c.SnapshotEntries = 16384
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 256 << 20
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = trailingDefault
	}
}

// Replica is made by New. Start replays its log, and Run starts its goroutines. Stop and Close end it.
type Replica struct {
	cfg Config
	log hclog.Logger

	raft      *raft.Raft // nil before Start
	transport *transport
	stores    *stores
	disk      raftlog.Health
	machine   *machine
	verifier  *verifier
	silence   silenceWatch

	pub      atomic.Pointer[Published]
	lastTime atomic.Int64 // newest log time applied
	deltas   *Subscription
	subs     struct {
		sync.Mutex
		list []*Subscription // copied on change
	}

	props        *proposals
	clock        *Clock
	bootstrapped atomic.Bool            // raft has or had a configuration
	quarantine   atomic.Pointer[string] // why this server's state is not trusted, or nil
	applied      struct{ entries, snapshots atomic.Int64 }
}

func newFSM() *fsm.FSM { return fsm.New(fsm.Options{}) }

// fanOutMax bounds the applied batches that wait for the feeds and subscribers. Beyond it, all of them rebuild from the
// state.
const fanOutMax = 4096

// New returns a replica that publishes the empty state.
func New(cfg Config) *Replica {
	cfg.Raft.setDefaults()
	r := &Replica{cfg: cfg, log: cfg.Logger, props: newProposals(), clock: newClock(cfg.Now)}
	r.deltas = newSubscription("fan-out", fanOutMax)
	r.machine = &machine{r: r, fsm: newFSM()}
	r.silence.quiet, r.silence.lost = cfg.Raft.Quiet, cfg.Raft.Heartbeat
	r.machine.publish(structs.Delta{Restored: true}, viewOf(r.machine.fsm.Snapshot()))
	r.disk.Wrote = func(began time.Time) { r.stalled(StallDisk, began) }
	return r
}

// Run starts the replica's goroutines through start; they end with ctx.
func (r *Replica) Run(ctx context.Context, start func(func())) {
	start(func() { r.runFanOut(ctx) })
	start(func() { r.runProposer(ctx) })
	r.props.completing.Store(true)
	start(r.runCompleter)
	start(func() { r.runSnapshots(ctx) })
	if !r.cfg.Testing.NoStalls {
		start(func() { r.runStallWatch(ctx) })
	}
	start(func() { r.runSilence(ctx, r.cfg.Peers) })
	if r.cfg.Peers != nil {
		start(func() { r.runHashCheck(ctx, r.cfg.Peers) })
	}
}

// Stop shuts raft down after raft has answered every entry it was given. The context of Run must have ended.
func (r *Replica) Stop() {
	if r.raft != nil {
		r.props.settle()
		r.verifier.settle()
		if err := r.raft.Shutdown().Error(); err != nil {
			r.log.Error("raft shutdown", "error", err)
		}
	}
	if r.transport != nil {
		r.transport.stop()
	}
}

// Close closes the stores. The goroutines of Run must have ended.
func (r *Replica) Close() {
	if r.stores == nil {
		return
	}
	if err := r.stores.close(); err != nil {
		r.log.Error("close raft store", "error", err)
	}
}

// IsRaftLeader reports whether raft leads here. That can be true before all entries of earlier terms are applied.
func (r *Replica) IsRaftLeader() bool { return r.raft.State() == raft.Leader }

// Leader returns the address and ID of the leader, or "" if none is known.
func (r *Replica) Leader() (addr, id string) {
	a, i := r.raft.LeaderWithID()
	return string(a), string(i)
}

// Bootstrapped reports whether raft has or had a configuration.
func (r *Replica) Bootstrapped() bool { return r.bootstrapped.Load() }

// SetBootstrapped records that a cluster exists whose leader will add this server.
func (r *Replica) SetBootstrapped() { r.bootstrapped.Store(true) }

// Clock returns the clock of the log.
func (r *Replica) Clock() *Clock { return r.clock }

// Now returns the log time that a command proposed now would get: the time that most servers agree on.
func (r *Replica) Now() structs.LogTime { return r.clock.time(structs.LogTime(r.lastTime.Load())) }

// LogBackend returns the backend of the raft log.
func (r *Replica) LogBackend() string { return r.stores.backend }

// LogCached reports whether the newest entries are cached in memory.
func (r *Replica) LogCached() bool { return raftlog.Cached(r.stores.log) }

// Stats count since the process began.
type Stats struct {
	Entries           int64 // applied
	Snapshots         int64 // written
	Proposed, Refused int64 // proposals
	LogBytes          int64 // applied since the last snapshot
	Running           int64 // allocations that agents report as running
	Gap               uint64
}

// Stats returns the current counters.
func (r *Replica) Stats() Stats {
	a := &r.applied
	return Stats{
		Entries: a.entries.Load(), Snapshots: a.snapshots.Load(),
		Proposed: r.props.proposed.Load(), Refused: r.props.refused.Load(),
		LogBytes: r.machine.logBytes.Load(), Running: r.machine.running.Load(), Gap: r.applyGap(),
	}
}
