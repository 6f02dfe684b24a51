package server

import (
	"context"
	"sync"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// hubKey is something that can be waited for: one object, everything of one object, or a table.
type hubKey struct {
	kind byte
	id   [16]byte
	text string
}

// Kinds of hubKey.
const (
	keyNode      = 'n' // the node itself
	keyNodeAlloc = 'N' // allocations on the node
	keyNodePoll  = 'P' // what servers want of the node: allocations on it, but not what it reports of them
	keyAlloc     = 'a'
	keyEval      = 'e'
	keyEvalAlloc = 'E' // allocations of the evaluation
	keyJob       = 'j' // the job itself
	keyJobAlloc  = 'J' // allocations and evaluations of the job
	keyTable     = 't' // any object of the table
	keyVariable  = 'v'
	keyService   = 's' // registrations of a service
)

func onNode(id structs.NodeID) hubKey       { return hubKey{kind: keyNode, id: id} }
func onNodeAllocs(id structs.NodeID) hubKey { return hubKey{kind: keyNodeAlloc, id: id} }
func onNodePoll(id structs.NodeID) hubKey   { return hubKey{kind: keyNodePoll, id: id} }
func onAlloc(id structs.AllocID) hubKey     { return hubKey{kind: keyAlloc, id: id} }
func onEval(id structs.EvalID) hubKey       { return hubKey{kind: keyEval, id: id} }
func onEvalAllocs(id structs.EvalID) hubKey { return hubKey{kind: keyEvalAlloc, id: id} }
func onJob(k structs.JobKey) hubKey         { return hubKey{kind: keyJob, text: k.Namespace + "\x00" + k.ID} }
func onJobAllocs(k structs.JobKey) hubKey {
	return hubKey{kind: keyJobAlloc, text: k.Namespace + "\x00" + k.ID}
}
func onVariable(k structs.VariableKey) hubKey {
	return hubKey{kind: keyVariable, text: k.Namespace + "\x00" + k.Path}
}
func onService(namespace, service string) hubKey {
	return hubKey{kind: keyService, text: namespace + "\x00" + service}
}
func onTable(t state.AnyTable) hubKey { return hubKey{kind: keyTable, text: t.Name()} }

// hub wakes those who wait for an object when that object changed, and nobody else (D13).
type hub struct {
	mu      sync.Mutex
	waiting map[hubKey]map[*waiter]struct{}
	woken   int64
	byToken map[structs.AccessorID]int // blocking queries in progress
}

type waiter struct {
	ch   chan struct{}
	keys []hubKey
}

func newHub() *hub {
	return &hub{waiting: map[hubKey]map[*waiter]struct{}{}, byToken: map[structs.AccessorID]int{}}
}

// enter counts a blocking query of a token, unless it has too many.
func (h *hub) enter(id structs.AccessorID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken[id] >= watchesToken {
		return false
	}
	h.byToken[id]++
	return true
}

func (h *hub) leave(id structs.AccessorID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken[id]--; h.byToken[id] <= 0 {
		delete(h.byToken, id)
	}
}

func (h *hub) watch(keys ...hubKey) *waiter {
	w := &waiter{ch: make(chan struct{}, 1), keys: keys}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		set := h.waiting[k]
		if set == nil {
			set = map[*waiter]struct{}{}
			h.waiting[k] = set
		}
		set[w] = struct{}{}
	}
	return w
}

func (h *hub) release(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range w.keys {
		if set := h.waiting[k]; set != nil {
			delete(set, w)
			if len(set) == 0 {
				delete(h.waiting, k)
			}
		}
	}
}

func (h *hub) wakeLocked(k hubKey) {
	for w := range h.waiting[k] {
		select {
		case w.ch <- struct{}{}:
			h.woken++
		default:
		}
	}
}

// feed wakes the waiters of everything a batch changed.
func (h *hub) feed(a replica.Applied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) == 0 {
		return
	}
	if a.Lost || a.Delta.Restored {
		for k := range h.waiting {
			h.wakeLocked(k)
		}
		return
	}
	d := &a.Delta
	for _, c := range d.Nodes {
		h.wakeLocked(onNode(either(c).ID))
	}
	for _, c := range d.Jobs {
		h.wakeLocked(onJob(either(c).Key()))
	}
	for _, c := range d.Allocs {
		x := either(c)
		h.wakeLocked(onAlloc(x.ID))
		h.wakeLocked(onNodeAllocs(x.NodeID))
		if c.Before == nil || c.After == nil || c.Before.AllocIndex != c.After.AllocIndex {
			h.wakeLocked(onNodePoll(x.NodeID))
		}
		h.wakeLocked(onEvalAllocs(x.EvalID))
		h.wakeLocked(onJobAllocs(x.JobKey()))
	}
	for _, c := range d.Rosters {
		if c.After == nil {
			continue
		}
		for i := range c.After.Members {
			h.wakeLocked(onNodePoll(c.After.Members[i].Node))
		}
		h.wakeLocked(onJobAllocs(c.After.Key().Job))
	}
	for _, c := range d.Evals {
		x := either(c)
		h.wakeLocked(onEval(x.ID))
		h.wakeLocked(onJobAllocs(x.JobKey()))
	}
	for _, c := range d.Workloads {
		x := either(c)
		h.wakeLocked(onJobAllocs(structs.JobKey{Namespace: x.Namespace, ID: x.JobID}))
	}
	for _, c := range d.Scaling {
		x := either(c)
		h.wakeLocked(onJobAllocs(structs.JobKey{Namespace: x.Namespace, ID: x.JobID}))
	}
	for _, c := range d.Variables {
		h.wakeLocked(onVariable(either(c).Key()))
	}
	for _, c := range d.Services {
		x := either(c)
		h.wakeLocked(onService(x.Namespace, x.Service))
		h.wakeLocked(onService("*", x.Service))
	}
	for _, t := range state.Tables() {
		if t.Changed(d) {
			h.wakeLocked(onTable(t))
		}
	}
	if d.Config {
		h.wakeLocked(onTable(state.SigningKeys))
	}
}

// either is what an object is after a change, or was when it is gone.
func either[T any](c structs.Changed[T]) *T {
	if c.After != nil {
		return c.After
	}
	return c.Before
}

// Bounds of a blocking query.
const (
	blockDefault = 5 * time.Minute
	blockMax     = 10 * time.Minute
	watchesMax   = 20_000 // blocking queries in progress on one server; further ones are CodeBusy
	watchesToken = 1000   // of them by one token that is not management
)

// read answers a query from the newest state. With MinIndex it waits, without a timer loop, until read gives an index
// past it, MaxWait is over (the answer is then the unchanged one), or the caller is gone. look must only depend on p.
func (s *Server) read(ctx context.Context, q *methods.Query, m *methods.Meta, keys []hubKey, look func(p *replica.Published) (structs.Index, error)) error {
	s.metrics.reads.Add(1)
	if q.MinIndex == 0 {
		p := s.Published()
		idx, err := look(p)
		m.Index = idx
		return err
	}
	if s.metrics.watches.Add(1) > watchesMax {
		s.metrics.watches.Add(-1)
		return structs.Errorf(structs.CodeBusy, "%d blocking queries wait here already; retry later, or ask another server with stale", watchesMax)
	}
	defer s.metrics.watches.Add(-1)
	if id := who(ctx); id.token != nil && !id.acl.IsManagement() {
		if !s.hub.enter(id.token.Accessor) {
			return structs.Errorf(structs.CodeBusy, "this token has %d blocking queries waiting here already; retry later", watchesToken)
		}
		defer s.hub.leave(id.token.Accessor)
	}
	wait := q.MaxWait
	if wait <= 0 {
		wait = blockDefault
	}
	timer := time.NewTimer(min(wait, blockMax))
	defer timer.Stop()
	w := s.hub.watch(keys...)
	defer s.hub.release(w)
	for {
		p := s.Published()
		idx, err := look(p)
		m.Index = idx
		if err != nil || idx > q.MinIndex {
			return err
		}
		select {
		case <-w.ch:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return structs.Errorf(structs.CodeUnavailable, "the server is shutting down")
		}
	}
}
