// Package watch answers queries, including blocking ones, which wait until their objects change.
package watch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/admit"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Key names what a query can wait for: one object, everything that belongs to one object, or a table.
type Key struct {
	kind byte
	id   [16]byte
	text string
}

// Kinds of Key.
const (
	keyNode      = 'n' // the node itself
	keyNodeAlloc = 'N' // allocations on the node
	keyNodePoll  = 'P' // what servers want from the node: its allocations, without what the node itself reports about them
	keyAlloc     = 'a'
	keyEval      = 'e'
	keyEvalAlloc = 'E' // allocations of the evaluation
	keyJob       = 'j' // the job itself
	keyJobAlloc  = 'J' // allocations and evaluations of the job
	keyTable     = 't' // any object of the table
	keyVariable  = 'v'
	keyService   = 's' // registrations of a service
)

func OnNode(id structs.NodeID) Key       { return Key{kind: keyNode, id: id} }
func OnNodeAllocs(id structs.NodeID) Key { return Key{kind: keyNodeAlloc, id: id} }
func OnNodePoll(id structs.NodeID) Key   { return Key{kind: keyNodePoll, id: id} }
func OnAlloc(id structs.AllocID) Key     { return Key{kind: keyAlloc, id: id} }
func OnEval(id structs.EvalID) Key       { return Key{kind: keyEval, id: id} }
func OnEvalAllocs(id structs.EvalID) Key { return Key{kind: keyEvalAlloc, id: id} }
func OnJob(k structs.JobKey) Key         { return Key{kind: keyJob, text: k.Namespace + "\x00" + k.ID} }
func OnJobAllocs(k structs.JobKey) Key {
	return Key{kind: keyJobAlloc, text: k.Namespace + "\x00" + k.ID}
}
func OnVariable(k structs.VariableKey) Key {
	return Key{kind: keyVariable, text: k.Namespace + "\x00" + k.Path}
}
func OnService(namespace, service string) Key {
	return Key{kind: keyService, text: namespace + "\x00" + service}
}
func OnTable(t state.AnyTable) Key { return Key{kind: keyTable, text: t.Name()} }

// Hub wakes the queries that wait for an object when it changes, and no others (D13).
type Hub struct {
	published func() *replica.Published
	still     func(*auth.Identity, *state.Snapshot) bool // the caller of a query has the same rights in a later state
	closing   <-chan struct{}                            // closed when the server stops
	Reads     atomic.Int64                               // queries since the server started
	Watches   atomic.Int64                               // blocking queries in progress

	mu      sync.Mutex
	waiting map[Key]map[*waiter]struct{}
	woken   int64
	byToken map[structs.AccessorID]int // blocking queries in progress, by token
}

type waiter struct {
	ch   chan struct{}
	keys []Key
}

// NewHub returns a hub that reads the published state. When closing is closed, blocking queries fail.
func NewHub(published func() *replica.Published, still func(*auth.Identity, *state.Snapshot) bool, closing <-chan struct{}) *Hub {
	return &Hub{published: published, still: still, closing: closing, waiting: map[Key]map[*waiter]struct{}{}, byToken: map[structs.AccessorID]int{}}
}

// enter counts a blocking query of a token. It returns false if the token has too many.
func (h *Hub) enter(id structs.AccessorID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken[id] >= watchesToken {
		return false
	}
	h.byToken[id]++
	return true
}

func (h *Hub) leave(id structs.AccessorID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken[id]--; h.byToken[id] <= 0 {
		delete(h.byToken, id)
	}
}

func (h *Hub) watch(keys ...Key) *waiter {
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

func (h *Hub) release(w *waiter) {
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

func (h *Hub) wakeLocked(k Key) {
	for w := range h.waiting[k] {
		select {
		case w.ch <- struct{}{}:
			h.woken++
		default:
		}
	}
}

// Feed wakes the queries that wait for anything a batch changed.
func (h *Hub) Feed(a replica.Applied) {
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
		h.wakeLocked(OnNode(c.Either().ID))
	}
	for _, c := range d.Jobs {
		h.wakeLocked(OnJob(c.Either().Key()))
	}
	for _, c := range d.Allocs {
		x := c.Either()
		h.wakeLocked(OnAlloc(x.ID))
		h.wakeLocked(OnNodeAllocs(x.NodeID))
		if c.Before == nil || c.After == nil || c.Before.AllocIndex != c.After.AllocIndex {
			h.wakeLocked(OnNodePoll(x.NodeID))
		}
		h.wakeLocked(OnEvalAllocs(x.EvalID))
		h.wakeLocked(OnJobAllocs(x.JobKey()))
	}
	for _, c := range d.Rosters {
		if c.After == nil {
			continue
		}
		for i := range c.After.Members {
			h.wakeLocked(OnNodePoll(c.After.Members[i].Node))
		}
		h.wakeLocked(OnJobAllocs(c.After.Key().Job))
	}
	for _, c := range d.Evals {
		x := c.Either()
		h.wakeLocked(OnEval(x.ID))
		h.wakeLocked(OnJobAllocs(x.JobKey()))
	}
	for _, c := range d.Workloads {
		x := c.Either()
		h.wakeLocked(OnJobAllocs(structs.JobKey{Namespace: x.Namespace, ID: x.JobID}))
	}
	for _, c := range d.Scaling {
		x := c.Either()
		h.wakeLocked(OnJobAllocs(structs.JobKey{Namespace: x.Namespace, ID: x.JobID}))
	}
	for _, c := range d.Variables {
		h.wakeLocked(OnVariable(c.Either().Key()))
	}
	for _, c := range d.Services {
		x := c.Either()
		h.wakeLocked(OnService(x.Namespace, x.Service))
		h.wakeLocked(OnService("*", x.Service))
	}
	for _, t := range state.Tables() {
		if t.Changed(d) {
			h.wakeLocked(OnTable(t))
		}
	}
	if d.Config {
		h.wakeLocked(OnTable(state.SigningKeys))
	}
}

// Bounds of a blocking query.
const (
	blockDefault = 5 * time.Minute
	blockMax     = 10 * time.Minute
	watchesMax   = 20_000 // blocking queries in progress on one server; beyond it they fail with CodeBusy
	watchesToken = 1000   // blocking queries in progress of one token without management rights
)

// ErrRightsChanged ends a query whose caller may have lost rights since it was authenticated. The caller is authenticated
// again, and the query repeated. An answer is so never from a state in which the caller may not have it.
var ErrRightsChanged = errors.New("rights have changed since the caller was authenticated")

type sinceKey struct{}

// Since adds to the context of a call when it came, so that a query that is repeated does not wait for longer.
func Since(ctx context.Context, came time.Time) context.Context {
	return context.WithValue(ctx, sinceKey{}, came)
}

// Read answers a query from the newest state. look writes the answer from p alone and returns its index. With MinIndex,
// Read waits for one of keys to change until that index exceeds MinIndex. It returns the unchanged answer when MaxWait
// is over, and an error when ctx ends or the server stops.
func (h *Hub) Read(ctx context.Context, q *methods.Query, m *methods.Meta, keys []Key, look func(p *replica.Published) (structs.Index, error)) error {
	h.Reads.Add(1)
	id := auth.Who(ctx)
	if q.MinIndex == 0 {
		p := h.published()
		if !h.still(id, p.Snapshot) {
			return ErrRightsChanged
		}
		idx, err := look(p)
		m.Index = idx
		return err
	}
	if h.Watches.Add(1) > watchesMax {
		h.Watches.Add(-1)
		return structs.Errorf(structs.CodeBusy, "%d blocking queries are waiting on this server; retry later, or ask another server with stale", watchesMax)
	}
	defer h.Watches.Add(-1)
	if id.Token != nil && !id.ACL.IsManagement() {
		if !h.enter(id.Token.Accessor) {
			return structs.Errorf(structs.CodeBusy, "this token has %d blocking queries waiting on this server; retry later", watchesToken)
		}
		defer h.leave(id.Token.Accessor)
	}
	wait := q.MaxWait
	if wait <= 0 {
		wait = blockDefault
	}
	wait = min(wait, blockMax)
	if came, ok := ctx.Value(sinceKey{}).(time.Time); ok {
		wait -= time.Since(came)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	w := h.watch(keys...)
	defer h.release(w)
	for {
		p := h.published()
		if !h.still(id, p.Snapshot) {
			return ErrRightsChanged
		}
		idx, err := look(p)
		m.Index = idx
		if err != nil || idx > q.MinIndex {
			return err
		}
		admit.Release(ctx)
		select {
		case <-w.ch:
		case <-timer.C:
			if !h.still(id, h.published().Snapshot) {
				return ErrRightsChanged
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-h.closing:
			return structs.Errorf(structs.CodeUnavailable, "the server is shutting down")
		}
	}
}

// Woken returns how many times blocking queries were woken.
func (h *Hub) Woken() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.woken
}
