package nodes

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Heartbeats are timers in the leader's memory; nothing is written while nodes are healthy (I8). A node that misses its
// deadline, including the grace, becomes down, or disconnected if a group there allows for that.
//
//	beat --ttl + grace without one, and no answer (answer.go)--> down
//	                                                         \--> disconnected --longest lost_after there--> down
//
// While the leader is overloaded, it gives nodes a longer interval, which makes their heartbeats fewer and their deadlines
// later. After an election every node gets the longest interval that the leader before may have given it, because the old
// deadlines are lost, until its first heartbeat. A dead node is then noticed after the election, that interval and the
// grace, and a question to the servers: about 28 s in a fleet of up to 10,000 nodes. Probes move the deadline of
// a node that gossips: to now if nothing answers at its machine, and later if only its agent has ended (probe.go).
const (
	beatTTL     = 10 * time.Second // interval given to nodes of a small fleet
	beatGrace   = 5 * time.Second  // how late a beat may be
	beatRateMax = 1000             // heartbeats a second from the whole fleet; a larger fleet gets a longer interval
	beatStretch = 2                // how many times longer an interval is while the server is overloaded
	beatJitter  = 10               // an interval is lengthened by up to 1/beatJitter, so that beats spread out
	beatStall   = time.Second      // if the service ran later than this, every node gets that much more time, at most beatTTL
	downsMax    = 256              // status writes in flight at once
)

// beatTable holds the timers as a plain structure: a heap by deadline. Times come from the caller's clock, and only their
// differences count.
type beatTable struct {
	nodes    map[structs.NodeID]*beat
	heap     []*beat
	stressed func() bool // whether intervals are stretched now; nil: never
}

type beat struct {
	id          structs.NodeID
	deadline    time.Time
	ttl         time.Duration // given with the last heartbeat
	count       uint32        // heartbeats seen; makes the jitter differ each time
	pos         int
	contender   structs.StartID // the newest agent that wanted to take the node over, or zero
	contendedAt uint32          // count when it first asked
	asking      bool            // the servers are asked whether the agent answers
	doubt                       // what probes have found since the last heartbeat
}

// ttl returns the interval to give to a node.
func (t *beatTable) ttl(id structs.NodeID, count uint32) time.Duration {
	base := max(beatTTL, time.Duration(len(t.nodes))*time.Second/beatRateMax)
	if t.stressed != nil && t.stressed() {
		base *= beatStretch
	}
	h := fnv.New32a()
	h.Write(id[:])
	h.Write([]byte{byte(count), byte(count >> 8)})
	spread := base / beatJitter
	return base + time.Duration(int64(h.Sum32())%int64(spread))
}

// beat records a heartbeat and returns the time within which the next one is due.
func (t *beatTable) beat(id structs.NodeID, now time.Time) time.Duration {
	b := t.nodes[id]
	if b == nil {
		b = &beat{id: id, pos: -1}
		t.nodes[id] = b
	}
	b.count++
	b.doubt = doubt{heard: now}
	b.ttl = t.ttl(id, b.count)
	t.set(b, now.Add(b.ttl+beatGrace))
	return b.ttl
}

// heard records another call of a node whose deadline runs. It proves as much as a heartbeat, which may be late behind it.
func (t *beatTable) heard(id structs.NodeID, now time.Time) {
	b := t.nodes[id]
	if b == nil || b.pos < 0 {
		return
	}
	b.doubt = doubt{heard: now}
	if d := now.Add(b.ttl + beatGrace); d.After(b.deadline) {
		t.set(b, d)
	}
}

// arm sets a deadline that does not follow from a heartbeat.
func (t *beatTable) arm(id structs.NodeID, deadline time.Time) {
	b := t.nodes[id]
	if b == nil {
		b = &beat{id: id, pos: -1}
		t.nodes[id] = b
	}
	t.set(b, deadline)
}

func (t *beatTable) set(b *beat, deadline time.Time) {
	b.deadline = deadline
	if b.pos < 0 {
		b.pos = len(t.heap)
		t.heap = append(t.heap, b)
	}
	t.fix(b.pos)
}

// remove forgets a node.
func (t *beatTable) remove(id structs.NodeID) {
	b := t.nodes[id]
	if b == nil {
		return
	}
	delete(t.nodes, id)
	t.unheap(b)
}

func (t *beatTable) unheap(b *beat) {
	i, last := b.pos, len(t.heap)-1
	if i < 0 {
		return
	}
	t.swap(i, last)
	t.heap = t.heap[:last]
	b.pos = -1
	if i < last {
		t.fix(i)
	}
}

// expired returns at most max nodes whose deadline has passed, earliest first. They stay in the table without a timer.
func (t *beatTable) expired(now time.Time, max int) []structs.NodeID {
	var ids []structs.NodeID
	for len(t.heap) > 0 && len(ids) < max && !t.heap[0].deadline.After(now) {
		b := t.heap[0]
		t.unheap(b)
		ids = append(ids, b.id)
	}
	return ids
}

// next returns the earliest deadline.
func (t *beatTable) next() (time.Time, bool) {
	if len(t.heap) == 0 {
		return time.Time{}, false
	}
	return t.heap[0].deadline, true
}

// floor moves every earlier deadline to d.
func (t *beatTable) floor(d time.Time) {
	for i := len(t.heap) - 1; i >= 0; i-- { // bottom up, which keeps the heap order
		if t.heap[i].deadline.Before(d) {
			t.heap[i].deadline = d
		}
		t.sink(i)
	}
}

// delay moves every deadline by d, which keeps the heap order.
func (t *beatTable) delay(d time.Duration) {
	for _, b := range t.heap {
		b.deadline = b.deadline.Add(d)
	}
}

func (t *beatTable) less(i, k int) bool {
	a, b := t.heap[i], t.heap[k]
	if !a.deadline.Equal(b.deadline) {
		return a.deadline.Before(b.deadline)
	}
	return string(a.id[:]) < string(b.id[:])
}

func (t *beatTable) swap(i, k int) {
	t.heap[i], t.heap[k] = t.heap[k], t.heap[i]
	t.heap[i].pos, t.heap[k].pos = i, k
}

func (t *beatTable) fix(i int) {
	for i > 0 && t.less(i, (i-1)/2) {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	t.sink(i)
}

func (t *beatTable) sink(i int) {
	for {
		c := 2*i + 1
		if c >= len(t.heap) {
			return
		}
		if c+1 < len(t.heap) && t.less(c+1, c) {
			c++
		}
		if !t.less(c, i) {
			return
		}
		t.swap(i, c)
		i = c
	}
}

// Environment is what Heartbeats needs from the server.
type Environment struct {
	Log     hclog.Logger
	Now     func() time.Time // a monotonic clock: a jump of the wall clock must not look like silence
	Replica *replica.Replica
	// Stressed reports whether the server is overloaded, so that nodes should send fewer heartbeats.
	Stressed func() bool
	Apply    func(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error)
	Grace    time.Duration // see Heartbeats.Ended
	// Answers reports which agents answer on their sessions to any server, and whether a server was late to say so.
	Answers func(ctx context.Context, ids []structs.NodeID) (answering map[structs.NodeID]bool, late bool)
}

// Heartbeats guards the table for endpoints and for Run. The table is nil while this server does not lead.
type Heartbeats struct {
	env Environment

	mu    sync.Mutex
	table *beatTable
	kick  chan struct{}

	counts HeartbeatMetrics // guarded by mu
}

// NewHeartbeats returns Heartbeats. They are enforced while Run runs.
func NewHeartbeats(env Environment) *Heartbeats {
	return &Heartbeats{env: env, kick: make(chan struct{}, 1)}
}

// Beat records a heartbeat of a node and returns the time within which the next one is due.
func (h *Heartbeats) Beat(id structs.NodeID) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.Beats++
	if h.table == nil {
		return beatTTL
	}
	first := len(h.table.heap) == 0
	ttl := h.table.beat(id, h.env.Now())
	if first {
		h.wake()
	}
	return ttl
}

// Heard records that a call of a node came which is not a heartbeat. Whether the call succeeds does not matter.
func (h *Heartbeats) Heard(id structs.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table != nil {
		h.table.heard(id, h.env.Now())
	}
}

// Claim is the result of an agent's wish to speak for a node for which another agent has registered.
type Claim int

// The other agent is silent, so the node is free; or it was heard before the wish, so that it may live or have just
// ended; or it was heard after the wish, so that it lives.
const (
	ClaimFree Claim = iota
	ClaimOpen
	ClaimTaken
)

// Claim decides whether an agent may take a node over. It is asked again until the answer is not ClaimOpen, which takes
// until the next heartbeat of the other agent, or until that has missed it.
func (h *Heartbeats) Claim(id structs.NodeID, by structs.StartID) Claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table == nil {
		return ClaimOpen
	}
	b := h.table.nodes[id]
	if b == nil || b.pos < 0 && !b.asking {
		return ClaimFree
	}
	if b.contender != by {
		b.contender, b.contendedAt = by, b.count
	}
	if b.count == b.contendedAt {
		return ClaimOpen
	}
	return ClaimTaken
}

// Left removes a node that announced its shutdown.
func (h *Heartbeats) Left(id structs.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table != nil {
		h.table.remove(id)
	}
}

// Stalled gives every node more time, because this process handled no heartbeats for d: it did not run, or what came waited
// for its turn.
func (h *Heartbeats) Stalled(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table != nil {
		h.table.delay(d)
	}
}

func (h *Heartbeats) wake() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// HeartbeatMetrics count heartbeats, nodes that missed theirs, late heartbeats of agents that answered, and times when this
// server was too late to judge.
type HeartbeatMetrics struct{ Beats, Missed, Spared, Stalls int64 }

// Metrics returns the counts since the server started.
func (h *Heartbeats) Metrics() HeartbeatMetrics {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// Run enforces heartbeats while this server leads.
func (h *Heartbeats) Run(ctx context.Context, term uint64) error {
	sub := h.env.Replica.Subscribe("heartbeats", 256)
	defer h.env.Replica.Unsubscribe(sub)
	h.load(h.env.Replica.Published(), h.env.Now())
	defer func() {
		h.mu.Lock()
		h.table = nil
		h.mu.Unlock()
	}()
	slots, questions := make(chan struct{}, downsMax), make(chan struct{}, questionsMax)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := h.env.Now()
		h.mu.Lock()
		at, ok := h.table.next()
		h.mu.Unlock()
		wait := time.Hour
		if ok {
			wait = max(at.Sub(now), time.Millisecond)
		}
		timer.Reset(wait)
		due := false
		select {
		case <-ctx.Done():
			return nil
		case <-h.kick:
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				h.feed(&a, h.env.Now())
			}
		case <-timer.C:
			due = true
		}
		// A process that was paused or starved has not handled the heartbeats that arrived meanwhile, so nodes get more
		// time. That counts whichever of the three was noticed first.
		if late := h.env.Now().Sub(now) - wait; late > beatStall {
			h.env.Log.Warn("heartbeat timers were late; every node gets more time", "late", late)
			h.mu.Lock()
			h.counts.Stalls++
			h.table.floor(h.env.Now().Add(min(late, beatTTL)))
			h.mu.Unlock()
			continue
		}
		if !due {
			continue
		}
		h.mu.Lock()
		ids := h.table.expired(h.env.Now(), downsMax)
		h.mu.Unlock()
		if len(ids) == 0 {
			continue
		}
		// A deposed leader that does not know it receives no heartbeats, and would move every job: confirm leadership
		// first.
		if err := h.env.Replica.VerifyLeader(); err != nil {
			h.env.Log.Warn("nodes missed heartbeats, but this server may no longer lead", "nodes", len(ids), "error", err)
			h.rearm(ids, h.env.Now())
			if err == raft.ErrNotLeader || err == raft.ErrLeadershipLost {
				return nil // the leadership loop ends the term
			}
			continue
		}
		select {
		case questions <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		go func() { // ends with ctx
			missed := h.missed(ctx, ids)
			<-questions
			for _, id := range missed {
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
				go func() {
					defer func() { <-slots }()
					h.writeMissed(ctx, id)
				}()
			}
		}()
	}
}

// load gives every node that is not down one full interval; a disconnected node gets the rest of its lost_after.
func (h *Heartbeats) load(p *replica.Published, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	stretched := func() bool { return true } // the leader before may have been overloaded
	t := &beatTable{nodes: make(map[structs.NodeID]*beat, p.Snapshot.NodeCount()), stressed: stretched}
	for n := range p.Snapshot.Nodes() {
		if n.Status != structs.NodeDown {
			t.nodes[n.ID] = &beat{id: n.ID, pos: -1}
		}
	}
	for n := range p.Snapshot.Nodes() {
		switch n.Status {
		case structs.NodeDown:
		case structs.NodeDisconnected:
			t.arm(n.ID, now.Add(max(lostAfter(p, n.ID)-p.Time.Sub(n.StatusAt), beatTTL)+beatGrace))
		default:
			t.beat(n.ID, now)
		}
	}
	t.stressed = h.env.Stressed
	h.table = t
}

// feed follows nodes that come and go. A node that registered through another server, or by a replayed command, gets a
// timer before its first heartbeat here.
func (h *Heartbeats) feed(a *replica.Applied, now time.Time) {
	if a.Lost || a.Delta.Restored {
		h.load(a.Published, now)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range a.Delta.Nodes {
		switch c := &a.Delta.Nodes[i]; {
		case c.After == nil && c.Before != nil:
			h.table.remove(c.Before.ID)
		case c.After != nil && c.After.Status == structs.NodeDown:
			h.table.remove(c.After.ID)
		case c.After != nil && h.table.nodes[c.After.ID] == nil:
			h.table.beat(c.After.ID, now)
		}
	}
}

func (h *Heartbeats) rearm(ids []structs.NodeID, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		if b := h.table.nodes[id]; b != nil && b.pos < 0 {
			h.table.arm(id, now.Add(beatGrace))
		}
	}
}

// writeMissed records that a node missed its heartbeat.
func (h *Heartbeats) writeMissed(ctx context.Context, id structs.NodeID) {
	p := h.env.Replica.Published()
	n := p.Snapshot.NodeByID(id)
	if n == nil || n.Status == structs.NodeDown {
		return
	}
	cmd := &structs.NodeStatusCommand{ID: id, Status: structs.NodeDown, Desc: "heartbeat missed", Silent: true,
		Event: &structs.NodeEvent{Subsystem: "Cluster", Message: "Node heartbeat missed"}}
	longest := time.Duration(0)
	if n.Status != structs.NodeDisconnected {
		if longest = lostAfter(p, id); longest > 0 {
			cmd.Status = structs.NodeDisconnected
		}
	}
	h.mu.Lock()
	b := (*beat)(nil)
	if h.table != nil {
		b = h.table.nodes[id]
	}
	beaten := b != nil && b.pos >= 0
	if b != nil {
		cmd.Event.Message += b.why()
	}
	if !beaten {
		h.counts.Missed++
	}
	h.mu.Unlock()
	if beaten {
		return // a heartbeat came while leadership was confirmed
	}
	if _, err := h.env.Apply(ctx, replica.LanePriority, structs.Command{By: structs.Submitter{Name: "heartbeats"}, Body: cmd}); err != nil {
		if ctx.Err() == nil && structs.CodeOf(err) != structs.CodeNotFound {
			h.env.Log.Warn("could not write a missed heartbeat; trying again", "node", id, "error", err)
			h.mu.Lock()
			if h.table != nil && h.table.nodes[id] != nil && h.table.nodes[id].pos < 0 {
				h.table.arm(id, h.env.Now().Add(time.Second))
			}
			h.mu.Unlock()
			h.wake()
		}
		return
	}
	h.env.Log.Info("node missed its heartbeat", "node", id, "name", n.Name, "status", cmd.Status)
	if cmd.Status == structs.NodeDisconnected {
		h.mu.Lock()
		if h.table != nil {
			h.table.arm(id, h.env.Now().Add(longest))
		}
		h.mu.Unlock()
		h.wake()
	}
}

// lostAfter returns the longest time for which a group with an allocation on the node may be out of touch; 0 if none
// may.
func lostAfter(p *replica.Published, id structs.NodeID) time.Duration {
	var longest time.Duration
	for _, a := range p.Snapshot.AllocsByNode(id) {
		if !structs.Holds(a) || a.Desired != structs.DesiredRun || a.Job == nil {
			continue
		}
		if g := a.Job.Group(a.Group); g != nil {
			if g.Disconnect != nil {
				longest = max(longest, g.Disconnect.LostAfter)
			}
			if g.MaxClientDisc != nil {
				longest = max(longest, *g.MaxClientDisc)
			}
		}
	}
	return longest
}
