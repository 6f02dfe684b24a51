package replica

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// alone returns a replica that leads a cluster of one until the test ends.
func alone(t *testing.T) *Replica {
	t.Helper()
	h := memnet.New().Host("one")
	l, err := h.Listen(4647)
	if err != nil {
		t.Fatal(err)
	}
	conns := rpc.NewServer(rpc.ServerConfig{Registry: rpc.NewRegistry(nil, nil), Dial: h.Dial, Advertise: l.Addr()})
	r := New(Config{ID: "one", InMemory: true, Bootstrap: true, Logger: hclog.NewNullLogger(), Now: time.Now})
	if err := r.Start(conns.RaftConns()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.Run(ctx, wg.Go)
	t.Cleanup(func() {
		cancel()
		r.Stop()
		conns.Close()
		l.Close()
		wg.Wait()
		r.Close()
	})
	for !r.IsRaftLeader() {
		time.Sleep(10 * time.Millisecond)
	}
	return r
}

func TestAdmissionRefusesOldQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone(t)
		old := &Proposal{at: time.Now().Add(-2 * queueAgeMax), done: make(chan struct{})}
		r.props.mu.Lock()
		r.props.user = []*Proposal{old}
		r.props.mu.Unlock()
		cmd := structs.Command{Body: &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "x"}}}}
		p := r.Propose(LaneUser, cmd)
		if _, err := p.Result(); structs.CodeOf(err) != structs.CodeBusy {
			t.Errorf("a write behind one that waits for %s: %v", 2*queueAgeMax, err)
		}
		r.props.mu.Lock()
		r.props.user = nil
		r.props.mu.Unlock()
		// The priority lane is not refused, and the user lane works again.
		for _, lane := range []Lane{LanePriority, LaneUser} {
			p := r.Propose(lane, cmd)
			<-p.Done()
			if _, err := p.Result(); err != nil {
				t.Errorf("lane %d: %v", lane, err)
			}
		}
	})
}
