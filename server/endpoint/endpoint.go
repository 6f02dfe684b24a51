// Package endpoint answers the methods of the table internal/methods, after the wrapper has authenticated the caller,
// forwarded the call if necessary, and authorised it. It has a file for each noun.
package endpoint

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/bundles"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/events"
	"github.com/muster-sched/muster/server/keystore"
	"github.com/muster-sched/muster/server/member"
	"github.com/muster-sched/muster/server/nodes"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// Settings is the part of a server's configuration that endpoints need.
type Settings struct {
	Name, ID, Region, Version string
	Advertise                 string // RPC address
	DataDir                   string // "": everything is in memory
	ACL                       bool   // access control is on
	Logins                    LoginNodes
	Issuer                    string // of identities; "" for none
	Priorities                Priorities
	Now                       func() time.Time
	// Filter compiles a filter expression for a kind of object. nil: filters are refused.
	Filter func(kind, expr string) (func(object any) (bool, error), error)
}

// Environment is everything that endpoints need from their server.
type Environment struct {
	Settings
	Log      hclog.Logger
	Registry *rpc.Registry // serves the methods

	Replica *replica.Replica
	Apply   func(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error)
	// Allowance charges a caller for a write that asks for allocations. giveBack is for one that was refused later.
	Allowance func(caller string, allocs int) (giveBack func(), err error)

	// RightsBehind reports whether the leader has newer tokens, policies or roles than this server. The error says that no
	// leader could be asked for too long.
	RightsBehind func(ctx context.Context) (bool, error)

	Hub     *watch.Hub   // answers queries
	Events  *events.Ring // feeds event streams
	Guard   *auth.Guard
	Decide  *decide.Service
	Keys    *keystore.Keystore
	Members *member.Members
	Bundles *bundles.Keeper

	Nodes nodes.Nodes

	IsLeader    func() bool
	LastContact func() time.Duration            // time since this server heard from a leader
	Collect     func(ctx context.Context) error // collects garbage now
	Denied      func()                          // counts a refused call
	Closing     <-chan struct{}                 // closed when the server stops
}

// Set is the endpoints of one server.
type Set struct {
	env     Environment
	lines   checkpointLines
	streams atomic.Int64 // open event streams
	levels  levelWatch
}

// New returns the endpoints of a server. Register registers them.
func New(env Environment) *Set { return &Set{env: env} }

// Streams returns the number of open event streams.
func (s *Set) Streams() int64 { return s.streams.Load() }

// handler is an endpoint. The wrapper has authenticated the caller, forwarded the call if necessary, and authorised it.
type handler[Req, Resp any] func(ctx context.Context, c *rpc.Call, req *Req) (*Resp, error)

func handle[Req, Resp any](s *Set, m rpc.Method[Req, Resp], h handler[Req, Resp]) {
	rpc.Handle(s.env.Registry, m, h)
}

// published returns the newest state that this server has applied.
func (s *Set) published() *replica.Published { return s.env.Replica.Published() }

// apply writes a user's command and waits for its result.
func (s *Set) apply(ctx context.Context, cmd structs.Command) (structs.Result, error) {
	return s.applyIn(ctx, replica.LaneUser, cmd)
}

func (s *Set) applyIn(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error) {
	giveBack, err := s.charge(ctx, cmd.Body)
	if err != nil {
		return structs.Result{}, err
	}
	res, err := s.env.Apply(ctx, lane, cmd)
	if res.Err != nil || structs.CodeOf(err) == structs.CodeBusy {
		giveBack()
	}
	return res, err
}

// write applies a user's command and returns its index.
func (s *Set) write(ctx context.Context, body structs.CommandBody) (*methods.WriteResponse, error) {
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: body})
	if err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: res.Index}, nil
}

// checkpointLines caches the newest line, because every agent with work in it asks for turns.
type checkpointLines struct {
	mu   sync.Mutex
	snap *state.Snapshot
	at   time.Time
	line *checkpoint.Line

	dueAt time.Time
	due   checkpoint.Periodic
}

// newest returns the line and its state.
func (c *checkpointLines) newest(snap *state.Snapshot, now time.Time) (*state.Snapshot, *checkpoint.Line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refresh(snap, now)
}

// periodic returns the line of saves at intervals. It depends on the time, too.
func (c *checkpointLines) periodic(snap *state.Snapshot, now time.Time, at structs.LogTime) checkpoint.Periodic {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due == nil || now.Sub(c.dueAt) >= lineAge {
		snap, line := c.refresh(snap, now)
		c.due, c.dueAt = checkpoint.NewPeriodic(snap, line, at), now
	}
	return c.due
}

func (c *checkpointLines) refresh(snap *state.Snapshot, now time.Time) (*state.Snapshot, *checkpoint.Line) {
	if c.line == nil || c.snap != snap && now.Sub(c.at) >= lineAge {
		c.snap, c.at, c.line = snap, now, checkpoint.NewLine(snap)
	}
	return c.snap, c.line
}

// lineAge bounds how long a line is used after the state has changed. An old line is safe.
const lineAge = 200 * time.Millisecond

func registered(res structs.Result, warnings []string) *methods.JobRegisterResponse {
	r := &methods.JobRegisterResponse{Index: res.Index, EvalID: res.EvalID, JobModifyIndex: res.SpecIndex, Version: res.Version, Warnings: strings.Join(warnings, "\n")}
	if !res.EvalID.IsZero() {
		r.EvalIndex = res.Index
	}
	return r
}
