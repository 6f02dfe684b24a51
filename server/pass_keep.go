package server

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// decisions is what the deciding services of a server share with its endpoints. It outlives terms.
type decisions struct {
	predictor predictor     // run times, learned while this server leads
	history   nodeHistory   // how work went on nodes, as it follows from state
	passTerm  atomic.Uint64 // last term in which passes ran
	decider   atomic.Pointer[decider]
	metrics   atomic.Pointer[PassMetrics]
	reports   reportStore
	inputs    inputStore
	totals    totals
	duties    dutyMetrics
	collect   collector
	advising  atomic.Int64 // searches for advice in progress
	dry       turnstile    // of dry runs
}

// installDecisions sets the hooks behind which the services are. Called from New, before anything runs.
func (s *Server) installDecisions() {
	s.decide.dry = make(turnstile, dryMax)
	s.decide.collect.force = make(chan chan error)
	s.Hooks.Collect = s.collectNow
	s.Hooks.ForcePeriodic = s.forcePeriodic
	s.Hooks.NextLaunch = duty.NextLaunch
	s.Hooks.Reports = s.decide.reports.of
	s.Hooks.Queue = s.passQueue
}

// passQueue is the jobs that are ready, in flight or blocked, in the order of the queue, all domains one after the
// other; nil when this server does not decide.
func (s *Server) passQueue() []structs.JobKey {
	p := s.decide.decider.Load()
	if p == nil {
		return nil
	}
	answer := make(chan []structs.JobKey, 1)
	ask := func() {
		keys := []structs.JobKey{}
		for _, name := range p.broker.Domains() {
			for _, w := range p.broker.Queue(name, 0) {
				keys = append(keys, structs.JobKey{Namespace: w.Namespace, ID: w.JobID})
			}
		}
		answer <- keys
	}
	select {
	case p.asks <- ask:
	default:
		return nil // the owner is far behind; the caller falls back to its own order
	}
	select {
	case keys := <-answer:
		return keys
	case <-p.ended:
		return nil
	}
}

// reportsMax bounds the jobs whose reports are kept.
const reportsMax = 10_000

// reportStore keeps the newest reports of jobs that wait, in memory of the leader only (D23). When it is full the one
// kept longest goes.
type reportStore struct {
	mu   sync.Mutex
	jobs map[structs.JobKey][]*structs.GroupReport
	age  []structs.JobKey // oldest first; may name jobs that are gone from the map
}

func (r *reportStore) keep(rep *scheduler.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs == nil {
		r.jobs = map[structs.JobKey][]*structs.GroupReport{}
	}
	for i := range rep.Workloads {
		w := &rep.Workloads[i]
		if !w.Failed {
			delete(r.jobs, w.Key)
			continue
		}
		if _, have := r.jobs[w.Key]; !have {
			r.age = append(r.age, w.Key)
		}
		r.jobs[w.Key] = w.Groups
	}
	for len(r.jobs) > reportsMax && len(r.age) > 0 {
		delete(r.jobs, r.age[0])
		r.age = r.age[1:]
	}
	if len(r.age) > 2*reportsMax {
		r.age = slices.DeleteFunc(r.age, func(k structs.JobKey) bool { _, have := r.jobs[k]; return !have })
	}
}

// prune forgets jobs that stopped waiting otherwise: purged, or their queue entry ended.
func (r *reportStore) prune(d *structs.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range d.Workloads {
		if c := &d.Workloads[i]; c.After == nil && c.Before != nil {
			delete(r.jobs, structs.JobKey{Namespace: c.Before.Namespace, ID: c.Before.JobID})
		}
	}
}

// of is the newest reports of a job's groups, or nil.
func (r *reportStore) of(key structs.JobKey) []*structs.GroupReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobs[key]
}

// inputStore keeps the input of the newest pass of each domain, so that an operator can fetch and replay it. The
// columns in it are shared with the published views, so it costs little more than a pointer.
type inputStore struct {
	mu     sync.Mutex
	newest map[structs.PoolName]*scheduler.Input
}

func (s *inputStore) keep(domain structs.PoolName, in *scheduler.Input) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		s.newest = map[structs.PoolName]*scheduler.Input{}
	}
	s.newest[domain] = in
}

func (s *inputStore) of(domain structs.PoolName) *scheduler.Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest[domain]
}

// registerDecisions serves what the deciding services offer as methods.
func (s *Server) registerDecisions() { handle(s, methods.SchedulerInput, s.schedulerInput) }

// schedulerInput gives the input of the newest pass of a node pool, to be read back by scheduler.Load and decided again
// anywhere.
func (s *Server) schedulerInput(_ context.Context, _ *rpc.Call, req *methods.NameRequest) (*methods.SchedulerInputResponse, error) {
	name := structs.PoolName(req.Name)
	if name == "" {
		name = structs.NodePoolDefault
	}
	in := s.decide.inputs.of(name)
	if in == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "no pass of node pool %q has run on this server; name a pool that jobs run in, or %q", name, structs.NodePoolAll)
	}
	pol := policy.For(in.View.Pool(name), in.Config).Name()
	data, err := scheduler.Dump(*in, pol)
	if err != nil {
		return nil, err
	}
	return &methods.SchedulerInputResponse{Index: in.View.Index(), Pool: string(name), Policy: pol, Input: data}, nil
}
