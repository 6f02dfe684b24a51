package member

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
)

// peer is the caller of a server that gossip names: it answers for it, or never.
type peer struct {
	rpc.Caller
	answer *methods.ServerInfoResponse // nil: it never answers
}

func (p peer) Invoke(ctx context.Context, _ rpc.Header, _, resp any) error {
	if p.answer == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	*resp.(*methods.ServerInfoResponse) = *p.answer
	return nil
}

// TestFoundersAreAskedEachInItsTime: members of gossip that do not answer, more than are asked at once, do not use up the time
// of a server that does; and each has its own limit, so the others do not wait for longer.
func TestFoundersAreAskedEachInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var named []gossip.Member
		answers := map[string]*methods.ServerInfoResponse{}
		for i := range foundAsked + 10 {
			x := gossip.Member{Name: fmt.Sprint("s", i), Addr: fmt.Sprintf("10.0.0.%d:4648", i)}
			x.ID, x.Region, x.RPC = fmt.Sprint("id", i), "global", fmt.Sprintf("10.0.0.%d:4647", i)
			named = append(named, x)
		}
		last := named[len(named)-1]
		answers[last.RaftAddr()] = &methods.ServerInfoResponse{ID: last.ID, Raft: last.RaftAddr(), Region: last.Region}
		m := &Members{env: Environment{To: func(addr string) rpc.Caller { return peer{answer: answers[addr]} }}}
		start := time.Now()
		out := m.ask(context.Background(), named)
		if took := time.Since(start); took != 2*foundTimeout {
			t.Errorf("asking took %v, want %v: two rounds of %d at once", took, 2*foundTimeout, foundAsked)
		}
		for i, info := range out {
			if (info != nil) != (i == len(out)-1) {
				t.Errorf("server %d of %d: answer %v", i, len(out), info)
			}
		}
	})
}
