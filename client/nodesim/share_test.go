package nodesim

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// One complaint of one node does not take the session from the others; many soon after each other do.
func TestManyComplaintsTakeASession(t *testing.T) {
	at := time.Unix(1000, 0)
	g := &grief{few: 3}
	for i, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {time.Second, false}, {time.Minute, false}, {0, false}, {0, true}, {0, false}, {0, false}, {0, true}} {
		at = at.Add(c.after)
		if got := g.enough(at); got != c.want {
			t.Errorf("complaint %d: %t, want %t", i, got, c.want)
		}
	}
	if g := (&grief{few: 1}); !g.enough(at) {
		t.Error("the only node complains in vain")
	}
}

// answering is a connection whose servers answer every call at once.
type answering struct{ client.Conn }

func (answering) Invoke(context.Context, rpc.Header, any, any) error { return nil }

// The answers to many polls that come at once are acted on one after the other, with room for other work between them; a
// heartbeat does not wait for them.
func TestNodesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const polls = 100
		f := &Fleet{turn: make(chan struct{})}
		conn := sharedConn{answering{}, nil, f.turn}
		call := func(ctx context.Context, method string) error {
			return conn.Invoke(ctx, rpc.Header{Method: method}, nil, nil)
		}
		var acted atomic.Int32
		var wg sync.WaitGroup
		for range polls {
			wg.Go(func() {
				if err := call(t.Context(), methods.NodePoll.Name); err != nil {
					t.Error(err)
				}
				acted.Add(1)
			})
		}
		synctest.Wait()
		if n := acted.Load(); n != 0 {
			t.Errorf("%d nodes acted on their polls out of turn", n)
		}
		if err := call(t.Context(), methods.NodeHeartbeat.Name); err != nil {
			t.Error("heartbeat:", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := call(ended, methods.NodePoll.Name); !errors.Is(err, context.Canceled) {
			t.Errorf("a poll of a node that ends: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		turns := sync.WaitGroup{}
		turns.Go(func() { f.turns(ctx) })
		wg.Wait()
		if n := acted.Load(); n != polls {
			t.Errorf("%d of %d nodes acted", n, polls)
		}
		cancel()
		turns.Wait()
	})
}

func TestJobsAreShared(t *testing.T) {
	var s jobs
	job := func(id string, version uint64, spec structs.Index) *structs.Job {
		return &structs.Job{Namespace: "default", ID: id, Version: version, SpecIndex: spec}
	}
	a := s.share(job("a", 0, 5))
	if s.share(job("a", 0, 5)) != a {
		t.Error("the same version is kept twice")
	}
	if s.share(job("a", 1, 9)) == a || s.share(job("a", 0, 12)) == a {
		t.Error("another version, or one registered anew, is taken for the first")
	}
	for i := range structs.Index(jobsKept) {
		s.share(job("b", 0, i))
		if s.share(job("a", 0, 5)) != a {
			t.Fatal("forgotten although it was asked for")
		}
	}
	for i := range structs.Index(3 * jobsKept) {
		s.share(job("c", 0, i))
	}
	if n := len(s.new) + len(s.old); n > 2*jobsKept {
		t.Errorf("%d jobs are kept, want at most %d", n, 2*jobsKept)
	}
}
