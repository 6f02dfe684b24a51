package server

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Published is the state of the cluster at one index, as store and as columns. Nothing reads one without the other
// (D2). It is immutable.
type Published struct {
	Index    structs.Index
	Time     structs.LogTime // of the last entry
	Snapshot *state.Snapshot
	View     *model.View
}

// Published is the newest state that this server has applied. It never goes backwards, except when an operator restores
// a snapshot (the cluster's RestoreEpoch rises then).
func (s *Server) Published() *Published { return s.pub.Load() }

// Applied is one applied batch as subscribers see it.
type Applied struct {
	*Published
	Delta structs.Delta
	Lost  bool // batches before this one were dropped because the subscriber was slow: rebuild from Published
}

// Subscription receives every applied batch in order. At its limit the waiting batches are dropped and the next one
// says Lost.
type Subscription struct {
	name  string
	limit int
	wake  chan struct{}

	mu    sync.Mutex
	queue []Applied
	ended bool
}

// Subscribe follows the applied batches from now on. limit is how many may wait; name is for the log.
func (s *Server) Subscribe(name string, limit int) *Subscription {
	sub := &Subscription{name: name, limit: max(limit, 1), wake: make(chan struct{}, 1)}
	s.subs.mu.Lock()
	s.subs.list = append(s.subs.list, sub)
	s.subs.mu.Unlock()
	return sub
}

// Unsubscribe ends a subscription.
func (s *Server) Unsubscribe(sub *Subscription) {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	for i, x := range s.subs.list {
		if x == sub {
			s.subs.list = append(s.subs.list[:i:i], s.subs.list[i+1:]...)
			break
		}
	}
	sub.mu.Lock()
	sub.ended, sub.queue = true, nil
	sub.mu.Unlock()
}

// Wake is signalled when something waits; use it with TryNext in a select.
func (u *Subscription) Wake() <-chan struct{} { return u.wake }

// TryNext is the next batch if one waits.
func (u *Subscription) TryNext() (Applied, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.queue) == 0 {
		return Applied{}, false
	}
	a := u.queue[0]
	u.queue[0] = Applied{}
	u.queue = u.queue[1:]
	if len(u.queue) > 0 {
		u.signal()
	}
	return a, true
}

// Next waits for the next batch.
func (u *Subscription) Next(ctx context.Context) (Applied, error) {
	for {
		if a, ok := u.TryNext(); ok {
			return a, nil
		}
		select {
		case <-u.wake:
		case <-ctx.Done():
			return Applied{}, ctx.Err()
		}
	}
}

func (u *Subscription) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *Subscription) push(a Applied) (dropped bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return false
	}
	if len(u.queue) >= u.limit || a.Delta.Restored {
		dropped = !a.Delta.Restored
		u.queue = u.queue[:0]
		a.Lost = true
	}
	u.queue = append(u.queue, a)
	u.signal()
	return dropped
}

// machine adapts the pure state machine to raft: one transaction a batch, then one atomic publication.
type machine struct {
	s   *Server
	fsm *fsm.FSM

	last     structs.Index // of the last entry applied; used by raft's goroutine only
	logBytes atomic.Int64  // of entries applied since the last snapshot
	running  atomic.Int64  // allocations that the agents say are running

	mu    sync.Mutex
	marks []hashMark // newest last, at most hashMarksKept (D8)
}

var (
	_ raft.FSM         = (*machine)(nil)
	_ raft.BatchingFSM = (*machine)(nil)
)

// Apply implements raft.FSM.
func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. It is called by one goroutine of raft.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	entries := make([]fsm.Entry, 0, len(logs))
	where := make([]int, 0, len(logs))
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		m.logBytes.Add(int64(len(l.Data)))
		entries = append(entries, fsm.Entry{Index: structs.Index(l.Index), Data: l.Data})
		where = append(where, i)
	}
	if len(entries) == 0 {
		return out
	}
	if before := m.s.cfg.Testing.BeforeApply; before != nil {
		before()
	}
	// The state hash is taken at fixed places of the log, so that servers can compare it whatever their batches (D8).
	for len(entries) > 0 {
		n := 0
		for n < len(entries) && entries[n].Index/hashEvery == m.last/hashEvery {
			n++
		}
		if n == 0 {
			m.mark(entries[0].Index / hashEvery * hashEvery)
			m.last = entries[0].Index
			continue
		}
		began := time.Now()
		results, delta := m.fsm.ApplyBatch(entries[:n])
		for i, r := range results {
			out[where[i]] = r
		}
		m.last = entries[n-1].Index
		m.publish(delta)
		m.s.metrics.applied(n, time.Since(began))
		entries, where = entries[n:], where[n:]
	}
	return out
}

// publish makes a batch visible: state and view in one pointer, then the subscribers.
func (m *machine) publish(delta structs.Delta) {
	s := m.s
	snap := m.fsm.Snapshot()
	old := s.pub.Load()
	p := &Published{Index: snap.Index(), Time: delta.Time, Snapshot: snap}
	if delta.Restored || old == nil {
		p.View = viewOf(snap)
	} else {
		p.View = old.View.Advance(delta)
		p.Time = max(p.Time, old.Time)
	}
	if p.Time > 0 {
		s.lastTime.Store(int64(p.Time))
	}
	m.countRunning(&delta, snap)
	s.pub.Store(p)
	s.deltas.push(Applied{Published: p, Delta: delta})
}

// countRunning keeps the count of running allocations, for the figures.
func (m *machine) countRunning(d *structs.Delta, snap *state.Snapshot) {
	n := int64(0)
	running := func(a *structs.Allocation) bool { return a != nil && a.Client == structs.ClientRunning }
	if d.Restored {
		for a := range snap.Allocs() {
			if running(a) {
				n++
			}
		}
		m.running.Store(n)
		return
	}
	for i := range d.Allocs {
		if running(d.Allocs[i].Before) {
			n--
		}
		if running(d.Allocs[i].After) {
			n++
		}
	}
	m.running.Add(n)
}

// viewOf builds the columns from nothing.
func viewOf(snap *state.Snapshot) *model.View {
	var nodes []*structs.Node
	for n := range snap.Nodes() {
		nodes = append(nodes, n)
	}
	var allocs []*structs.Allocation
	for a := range snap.Allocs() {
		if structs.Holds(a) {
			allocs = append(allocs, a)
		}
	}
	return model.NewView(snap.Index(), nodes, allocs, slices.Collect(snap.Pools()))
}

// runFanOut takes applied batches from the state machine to hub, event ring and subscribers, in order. The queue before
// it is bounded; at the limit everybody rebuilds.
func (s *Server) runFanOut(ctx context.Context) {
	for {
		a, err := s.deltas.Next(ctx)
		if err != nil {
			return
		}
		s.hub.feed(a)
		s.ring.feed(a)
		s.subs.mu.Lock()
		list := s.subs.list
		s.subs.mu.Unlock()
		for _, sub := range list {
			if sub.push(a) {
				s.log.Warn("subscriber is slow; it rebuilds from state", "subscriber", sub.name, "limit", sub.limit)
			}
		}
	}
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	return &machineSnapshot{snap: m.fsm.Snapshot(), s: m.s}, nil
}

// Restore implements raft.FSM: the state is built aside and swapped, then published.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	delta, err := m.fsm.Restore(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	delta.Restored = true
	m.mu.Lock()
	m.marks = nil
	m.mu.Unlock()
	m.last = m.fsm.Snapshot().Index()
	m.publish(delta)
	return nil
}

type machineSnapshot struct {
	snap *state.Snapshot
	s    *Server
}

func (p *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	began := time.Now()
	if err := fsm.WriteSnapshot(sink, p.snap); err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot %s: %w", sink.ID(), err)
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("close snapshot %s: %w", sink.ID(), err)
	}
	p.s.machine.logBytes.Store(0)
	p.s.metrics.snapshots.Add(1)
	p.s.log.Debug("snapshot written", "id", sink.ID(), "index", p.snap.Index(), "took", time.Since(began))
	return nil
}

func (p *machineSnapshot) Release() {}

// scratchApply applies an entry while a configuration is being recovered; nothing is published.
func (m *machine) scratchApply(l *raft.Log) any {
	if l.Type != raft.LogCommand {
		return nil
	}
	results, _ := m.fsm.ApplyBatch([]fsm.Entry{{Index: structs.Index(l.Index), Data: l.Data}})
	return results[0]
}

// scratchSnapshot writes a state that was never published.
type scratchSnapshot struct{ snap *state.Snapshot }

func (p scratchSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := fsm.WriteSnapshot(sink, p.snap); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (scratchSnapshot) Release() {}
