package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/server/replica"
)

// Service is a service of the leader. Run starts after a Barrier of the term, so that everything that earlier leaders
// acknowledged has been applied. It must return when ctx ends. It writes by apply or Replica.Propose, which fail once
// the term is over. If Run returns an error early, it is started again after a pause that grows to 5 s.
type Service struct {
	Name string
	Run  func(ctx context.Context, term uint64) error
}

// leadership is the state of this server's leadership.
type leadership struct {
	term  atomic.Uint64 // current term while leading; 0: not leading
	ready atomic.Uint64 // term that is established; 0: none
	since atomic.Int64  // when leadership was last gained, in Unix nanoseconds
	gains atomic.Int64
	ended atomic.Int64 // nanoseconds that the services took to end when leadership was last lost
}

// IsLeader reports whether this server leads a cluster that has its identity, and has applied everything before its term.
func (s *Server) IsLeader() bool {
	term := s.lead.term.Load()
	return term != 0 && s.lead.ready.Load() == term && s.replica.IsRaftLeader()
}

// runLeadership follows raft's leadership. The services of a term share one context and start and stop together.
func (s *Server) runLeadership(ctx context.Context) {
	var stop func()
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	ch := s.replica.LeaderCh()
	for {
		select {
		case <-ctx.Done():
			return
		case lead := <-ch:
			// The channel keeps only the newest value. A second true without a false in between means that leadership
			// was lost and won again, so the services of the old term must end first.
			if stop != nil {
				stop()
				stop = nil
			}
			if lead {
				stop = s.startLeading(ctx)
			}
		}
	}
}

// startLeading runs the barrier and starts the services. It returns a function that ends them and waits for them.
func (s *Server) startLeading(parent context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(parent)
	term := s.replica.Term()
	s.lead.term.Store(term)
	s.lead.since.Store(time.Now().UnixNano())
	s.lead.gains.Add(1)
	s.log.Info("leading", "term", term)
	var wg sync.WaitGroup
	var lost atomic.Int64 // when leadership ended, in Unix nanoseconds, or 0
	late := func(what string) {
		if at := lost.Load(); at != 0 && time.Since(time.Unix(0, at)) >= replica.StallMin {
			s.log.Warn("a leader service ended late", "service", what, "term", term, "after", time.Since(time.Unix(0, at)))
		}
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		defer late("establish")
		if why := s.replica.Quarantined(); why != "" {
			s.log.Error("elected while in quarantine; handing leadership over", "why", why)
			if err := s.replica.TransferLeadership(); err != nil {
				s.log.Error("handing leadership over failed", "error", err)
			}
			return
		}
		if !s.establish(ctx, term) {
			return
		}
		for _, svc := range s.leaderServices() {
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer late(svc.Name)
				s.runService(ctx, term, svc)
			}()
		}
	}()
	return func() {
		s.lead.ready.Store(0)
		s.lead.term.Store(0)
		began := time.Now()
		lost.Store(began.UnixNano())
		cancel()
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for waited := time.Duration(0); ; waited += 5 * time.Second {
			select {
			case <-done:
				took := time.Since(began)
				s.lead.ended.Store(int64(took))
				if took >= replica.StallMin {
					s.metrics.stalled(replica.StallServices, took)
				}
				s.log.Info("no longer leading", "term", term, "services_ended_in", took)
				return
			case <-time.After(5 * time.Second):
				s.log.Error("leader services have not ended", "term", term, "after", waited+5*time.Second)
			}
		}
	}
}

// establish waits until every entry before this term has been applied, creates what a cluster must have, and then lets this
// server answer as the leader: without a format, all but the oldest commands and fields would be refused or left out.
func (s *Server) establish(ctx context.Context, term uint64) bool {
	for ctx.Err() == nil {
		err := s.replica.Barrier()
		if err == nil {
			break
		}
		if errors.Is(err, raft.ErrLeadershipLost) || errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrRaftShutdown) {
			return false // runLeadership will end the term
		}
		s.log.Warn("barrier after election failed; trying again", "term", term, "error", err)
		if !pause(ctx, 100*time.Millisecond) {
			return false
		}
	}
	for ctx.Err() == nil {
		err := s.members.InitCluster(ctx)
		if err == nil {
			s.lead.ready.Store(term)
			return true
		}
		s.log.Warn("could not initialize the cluster; trying again", "error", err)
		if !pause(ctx, 200*time.Millisecond) {
			return false
		}
	}
	return false
}

// runService keeps one service running until ctx ends.
func (s *Server) runService(ctx context.Context, term uint64, svc Service) {
	backoff := 50 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		err := s.guard(svc, ctx, term)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			return // nothing more to do in this term
		}
		if time.Since(began) > time.Minute {
			backoff = 50 * time.Millisecond
		}
		s.log.Error("leader service ended; starting it again", "service", svc.Name, "error", err, "in", backoff)
		if !pause(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, 5*time.Second)
	}
}

// guard returns a panic of a service as an error, so that it does not end the server.
func (s *Server) guard(svc Service, ctx context.Context, term uint64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(svc.Name, p)
		}
	}()
	return svc.Run(ctx, term)
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
