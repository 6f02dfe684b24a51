package nodes

import (
	"context"
	"time"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// doubt is what the leader knows about a node besides its heartbeats. A heartbeat clears it.
type doubt struct {
	heard time.Time // the last heartbeat or other call; before the first one, when the node's time began
	gone  bool      // a probe found that nothing answers at its machine
	ended time.Time // when a probe first found that its agent has ended; zero: none did
}

// why returns what probes have found, for the event of a node that goes down.
func (d *doubt) why() string {
	switch {
	case d.gone:
		return ": its machine does not answer"
	case !d.ended.IsZero():
		return ": its agent ended and did not return"
	}
	return ""
}

// RestartGraceDefault is how long after its last heartbeat a node keeps its work when only its agent has ended.
const RestartGraceDefault = 60 * time.Second

// endedMark is how long an agent that has ended may take to return before its node gets no new work.
const endedMark = 5 * time.Second

// markAgain is the time between attempts to write that.
const markAgain = time.Second

// endedProbe is the time between probes of a machine whose agent has ended.
const endedProbe = 5 * time.Second

// Gone ends the time of a node whose machine answers no server, unless it sent a heartbeat after the probe began. The
// node goes down, or becomes disconnected, as if its time had passed.
func (h *Heartbeats) Gone(id structs.NodeID, began time.Time) bool {
	n := h.env.Replica.Published().Snapshot.NodeByID(id)
	if n == nil || n.Status == structs.NodeDisconnected {
		return false // the time of a disconnected node is its work's lost_after
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.waiting(id)
	if b == nil || b.gone || !b.heard.Before(began) {
		return false
	}
	b.gone = true
	h.table.arm(id, h.env.Now())
	h.wake()
	return true
}

// Ended gives a node whose agent has ended time to return: Grace after its last heartbeat. Its tasks run on without the
// agent, so nothing is replaced meanwhile. After endedMark the node is initializing and gets no new work.
func (h *Heartbeats) Ended(ctx context.Context, id structs.NodeID, began time.Time) bool {
	p := h.env.Replica.Published()
	n := p.Snapshot.NodeByID(id)
	if n == nil || n.Status == structs.NodeDisconnected {
		return false
	}
	grace := h.grace(p, id)
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.waiting(id)
	if b == nil || b.gone || !b.heard.Before(began) {
		return false
	}
	if until := b.heard.Add(grace); until.After(b.deadline) {
		h.table.arm(id, until)
		h.wake()
	}
	if !b.ended.IsZero() {
		return false
	}
	b.ended = h.env.Now()
	go h.markEnded(ctx, id, b.count) // ends with ctx
	return true
}

// grace returns how long after its last heartbeat a node keeps its work while there are signs that it lives.
func (h *Heartbeats) grace(p *replica.Published, id structs.NodeID) time.Duration {
	if s := shortestSilence(p, id); s > 0 {
		return min(h.env.Grace, s) // the supervisor ends that work then
	}
	return h.env.Grace
}

// waiting returns the entry of a node whose deadline runs, or nil. The caller holds mu.
func (h *Heartbeats) waiting(id structs.NodeID) *beat {
	if h.table == nil {
		return nil
	}
	if b := h.table.nodes[id]; b != nil && b.pos >= 0 {
		return b
	}
	return nil
}

// markEnded writes that a node has no agent, if that is still so after endedMark. A heartbeat that comes while it writes
// is followed by one that makes the node ready again.
func (h *Heartbeats) markEnded(ctx context.Context, id structs.NodeID, count uint32) {
	for wait := endedMark; ; wait = markAgain {
		sleep(ctx, wait)
		if ctx.Err() != nil || h.mark(ctx, id, count) {
			return
		}
	}
}

// mark is an attempt of markEnded, and reports whether there is nothing more to do.
func (h *Heartbeats) mark(ctx context.Context, id structs.NodeID, count uint32) bool {
	h.mu.Lock()
	b := h.waiting(id)
	still := b != nil && b.count == count && !b.ended.IsZero() && !b.gone
	h.mu.Unlock()
	n := h.env.Replica.Published().Snapshot.NodeByID(id)
	if !still || n == nil || n.Status != structs.NodeReady {
		return true
	}
	cmd := &structs.NodeStatusCommand{ID: id, Status: structs.NodeInit, Desc: "the agent has ended; its tasks run on",
		Event: &structs.NodeEvent{Subsystem: "Cluster", Message: "Node's agent has ended; no new work until it returns"}}
	_, err := h.env.Apply(ctx, replica.LanePriority, structs.Command{By: structs.Submitter{Name: "heartbeats"}, Body: cmd})
	if err != nil && ctx.Err() == nil {
		h.env.Log.Warn("could not write that an agent has ended; trying again", "node", id, "error", err, "in", markAgain)
	}
	return err == nil
}

// overdue returns nodes that should be probed although nothing else raised doubt: those that have missed an interval,
// and every endedProbe those whose agent has ended, because their machine may be lost as well.
func (h *Heartbeats) overdue(now time.Time) (ids []structs.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table == nil {
		return nil
	}
	for _, b := range h.table.due(now.Add(beatGrace)) {
		if b.ended.IsZero() && !b.gone {
			ids = append(ids, b.id)
		}
	}
	for id, b := range h.table.nodes {
		if !b.ended.IsZero() && !b.gone && now.Sub(b.ended)%endedProbe < lookEvery {
			ids = append(ids, id)
		}
	}
	return ids
}

// due returns the entries whose deadline is not after a time, unordered.
func (t *beatTable) due(at time.Time) (out []*beat) {
	var walk func(i int)
	walk = func(i int) {
		if i < len(t.heap) && !t.heap[i].deadline.After(at) {
			out = append(out, t.heap[i])
			walk(2*i + 1)
			walk(2*i + 2)
		}
	}
	walk(0)
	return out
}

// shortestSilence returns the shortest stop_on_client_after of the work on a node; 0 for none.
func shortestSilence(p *replica.Published, id structs.NodeID) (shortest time.Duration) {
	for _, a := range p.Snapshot.AllocsByNode(id) {
		if a.Terminal() || a.Job == nil {
			continue
		}
		if g := a.Job.Group(a.Group); g != nil {
			if limit, ok := g.StopOnClient(); ok && (shortest == 0 || limit < shortest) {
				shortest = limit
			}
		}
	}
	return shortest
}
