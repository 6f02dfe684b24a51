package server

import (
	"context"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// Times of what a follower answers by itself.
const (
	rightsAge      = time.Second            // how long an answer of the leader about the newest rights counts
	rightsPatience = 250 * time.Millisecond // how long a call waits for them to come here
)

// leaderRights is what a follower knows of the rights that the leader has. A follower answers stale reads and follows
// events from its own state, which may be old: it would let a token in that was revoked. So it asks the leader for the
// version of the rights, at most once in rightsAge, and leaves a call to the leader while its own are older.
type leaderRights struct {
	turn  chan struct{} // held by who asks, and guards the rest
	asked time.Time     // when the leader was asked last
	known bool          // it answered
	is    auth.Rights
}

// oldRights reports whether a call that this server could answer has to be left to the leader, because this server may not
// know who lost which rights.
func (s *Server) oldRights(ctx context.Context, row *methods.Row) (bool, error) {
	if n := row.Need; n.Anonymous || n.NodeSecret || n.ServerCert {
		return false, nil
	}
	return s.rightsBehind(ctx)
}

// rightsBehind reports whether the leader has newer rights than this server's state. When no leader can be asked, what is
// here is shown, so that operators can look at a cluster that has lost its majority.
func (s *Server) rightsBehind(ctx context.Context) (bool, error) {
	if !s.cfg.ACL || s.IsLeader() {
		return false, nil
	}
	is, known, err := s.newestRights(ctx)
	if err != nil || !known {
		return false, err
	}
	behind := func() bool { return auth.RightsIn(s.Published().Snapshot).Before(is) }
	for until := time.Now().Add(rightsPatience); behind(); { // a follower hears a moment later what is committed
		if time.Now().After(until) {
			return true, nil
		}
		if !pause(ctx, leaderLook) {
			return false, ctx.Err()
		}
	}
	return false, nil
}

// newestRights returns the version of the rights that the leader had at most rightsAge ago; known is false while no leader
// answers. Calls that come meanwhile wait for one question.
func (s *Server) newestRights(ctx context.Context) (is auth.Rights, known bool, err error) {
	r := &s.rights
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return is, false, ctx.Err()
	}
	if now := time.Now(); r.asked.IsZero() || now.Sub(r.asked) >= rightsAge {
		r.asked = now
		is, err := s.askRights(ctx)
		if r.known = err == nil; r.known {
			r.is = is
		} else {
			r.asked = time.Now() // so that those who wait do not ask a frozen leader one after the other
		}
	}
	return r.is, r.known, nil
}

// askRights asks the leader for the version of the rights.
func (s *Server) askRights(ctx context.Context) (auth.Rights, error) {
	addr, id := s.Leader()
	if addr == "" || id == s.cfg.ID {
		return auth.Rights{}, structs.ErrNoLeader
	}
	resp, err := askLeader(context.WithoutCancel(ctx), s, addr, methods.ServerAuthenticate, &methods.ServerAuthenticateRequest{Rights: true})
	if err != nil {
		return auth.Rights{}, err
	}
	return auth.Rights{Epoch: resp.Epoch, Index: resp.Index}, nil
}
