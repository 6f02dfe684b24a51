package replica

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// machine adapts the pure state machine to raft: one transaction a batch, then one atomic publication.
type machine struct {
	r   *Replica
	fsm *fsm.FSM

	last     structs.Index // last applied entry; used by raft's goroutine only
	format   formatNote    // as noted in formatFile; used by raft's goroutine only
	stopped  bool          // an entry or a snapshot could not be applied; used by raft's goroutine only
	logBytes atomic.Int64  // bytes of entries applied since the last snapshot
	running  atomic.Int64  // allocations that agents report as running

	mu    sync.Mutex
	marks []Mark // newest last, at most hashMarksKept (D8)
}

var (
	_ raft.FSM         = (*machine)(nil)
	_ raft.BatchingFSM = (*machine)(nil)
)

// applySliceMax is how many bytes of entries are applied before they are published: about 10 ms of work. The next entry
// is applied whole.
const applySliceMax = 64 << 10

// Apply implements raft.FSM.
func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. Raft calls it from one goroutine.
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
	if m.stopped {
		for _, i := range where {
			out[i] = structs.Result{Err: structs.Errorf(structs.CodeUnavailable, "this server has stopped: %s", m.r.Quarantined())}
		}
		return out
	}
	if before := m.r.cfg.Testing.BeforeApply; before != nil {
		before()
	}
	// The state hash is taken at fixed indexes, so that servers can compare it although their batches differ (D8).
	for len(entries) > 0 {
		n := 0
		for size := 0; n < len(entries) && entries[n].Index/hashEvery == m.last/hashEvery && size < applySliceMax; n++ {
			size += len(entries[n].Data)
		}
		if n == 0 {
			m.mark(entries[0].Index / hashEvery * hashEvery)
			m.last = entries[0].Index
			continue
		}
		began := time.Now()
		results, delta, err := m.fsm.ApplyBatch(entries[:n])
		m.r.stalled(StallApply, began)
		for i, r := range results {
			out[where[i]] = r
		}
		if err != nil {
			m.stop(err)
			return out
		}
		m.last = entries[n-1].Index
		m.keepFormat()
		publishing := time.Now()
		m.publish(delta, nil)
		m.r.stalled(StallPublish, publishing)
		m.r.applied.entries.Add(int64(n))
		if f := m.r.cfg.Applied; f != nil {
			f(time.Since(began))
		}
		entries, where = entries[n:], where[n:]
	}
	return out
}

// publish makes a batch visible: it stores state and view in one pointer, then queues the batch for the subscribers. view
// is that of a restored state, or nil.
func (m *machine) publish(delta structs.Delta, view *model.View) {
	r := m.r
	snap := m.fsm.Snapshot()
	old := r.pub.Load()
	p := &Published{Index: snap.Index(), Time: delta.Time, Snapshot: snap, View: view}
	if view == nil {
		p.View = old.View.Advance(delta)
		p.Time = max(p.Time, old.Time)
	}
	if p.Time > 0 {
		r.lastTime.Store(int64(p.Time))
	}
	m.countRunning(&delta)
	r.pub.Store(p)
	r.deltas.push(Applied{Published: p, Delta: delta})
}

// stop ends this server, because it cannot apply what its peers have applied. Should the process not end, it neither
// leads nor answers.
func (m *machine) stop(err error) {
	m.stopped = true
	m.r.end(err)
}

// end ends this server, because it cannot follow the cluster.
func (r *Replica) end(err error) {
	why := err.Error()
	r.quarantine.Store(&why)
	r.log.Error("cannot follow the cluster: " + why)
	r.cfg.Exit(why)
}

func isRunning(a *structs.Allocation) bool { return a != nil && a.Client == structs.ClientRunning }

// countRunning updates the count of running allocations, a metric.
func (m *machine) countRunning(d *structs.Delta) {
	n := int64(0)
	for i := range d.Allocs {
		if isRunning(d.Allocs[i].Before) {
			n--
		}
		if isRunning(d.Allocs[i].After) {
			n++
		}
	}
	m.running.Add(n)
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	defer m.r.stalled(StallSnapshot, time.Now())
	return &machineSnapshot{snap: m.fsm.Snapshot(), r: m.r}, nil
}

// Restore implements raft.FSM. The new state is built separately, swapped in, and published. Raft answers no message
// meanwhile, so what another server sends has been decoded before (receive).
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	defer m.r.stalled(StallRestore, time.Now())
	st := decodedIn(r)
	if st == nil {
		var err error
		if st, err = ReadState(r); err != nil {
			var other *feature.UnreadableError
			if errors.As(err, &other) { // another server sent it, and would send it again for ever
				m.stop(err)
			}
			return err
		}
	}
	if s := m.r.stores; s != nil && s.files != nil {
		s.files.decoded.Store(nil)
	}
	delta := m.fsm.Replace(st.store)
	m.keepFormat()
	m.mu.Lock()
	m.marks = nil
	m.mu.Unlock()
	m.last = delta.Index
	m.running.Store(st.running)
	m.publish(delta, st.view)
	return nil
}

type machineSnapshot struct {
	snap *state.Snapshot
	r    *Replica
}

func (p *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	began := time.Now()
	if err := persist(sink, p.snap); err != nil {
		return err
	}
	p.r.machine.logBytes.Store(0)
	p.r.applied.snapshots.Add(1)
	p.r.log.Debug("snapshot written", "id", sink.ID(), "index", p.snap.Index(), "took", time.Since(began))
	return nil
}

func (p *machineSnapshot) Release() {}
