package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/admit"
)

// TestBlockingQueriesHoldNoPlace: a blocking query takes a place to look, as every read does, and holds none while it
// waits: a thousand of them keep no other read out.
func TestBlockingQueriesHoldNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		s := c.servers[c.leader()]
		const waiting = 1000
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		before := s.gate.Counts(admit.Read).Admitted
		for range waiting {
			go func() {
				req := &methods.ListRequest{Query: methods.Query{MinIndex: 1 << 40, MaxWait: time.Hour}}
				_, _ = rpc.Invoke(ctx, s.Caller(rpc.Peer{}), methods.JobList, rpc.Header{}, req)
			}()
		}
		time.Sleep(time.Second)
		if got := s.gate.Counts(admit.Read).Admitted - before; got != waiting || s.hub.Watches.Load() != waiting {
			t.Errorf("%d of %d queries took a place, %d wait", got, waiting, s.hub.Watches.Load())
		}
		if _, err := rpc.Invoke(ctx, s.Caller(rpc.Peer{}), methods.JobList, rpc.Header{}, &methods.ListRequest{}); err != nil {
			t.Errorf("a read beside them: %v", err)
		}
		cancel()
		time.Sleep(time.Second)
	})
}
