package rpc

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/structs"
)

// counter is a raft FSM that counts.
type counter struct{ n int }

func (c *counter) Apply(*raft.Log) any                 { c.n++; return c.n }
func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("not needed here") }
func (c *counter) Restore(r io.ReadCloser) error       { return fmt.Errorf("not needed here") }

type member struct {
	name string
	srv  *Server
	pool *Pool
	raft *raft.Raft
	tr   *raft.NetworkTransport
}

// startCluster runs three servers, each with raft and calls on one port of an in-memory network, with production
// timings.
func startCluster(t *testing.T, n *memnet.Network) []*member {
	var ms []*member
	var conf raft.Configuration
	for i := range 3 {
		name := fmt.Sprintf("s%d", i)
		h := n.Host(name)
		l, err := h.Listen(4647)
		if err != nil {
			t.Fatal(err)
		}
		reg, _ := testRegistry()
		m := &member{name: name}
		m.srv = NewServer(ServerConfig{Registry: reg, Dial: h.Dial, Advertise: l.Addr()})
		go m.srv.Serve(l)
		m.pool = NewPool(PoolConfig{Dial: h.Dial})
		m.tr = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: m.srv.RaftConns(), MaxPool: 3, Timeout: 2 * time.Second, Logger: hclog.NewNullLogger()})
		conf.Servers = append(conf.Servers, raft.Server{ID: raft.ServerID(name), Address: m.tr.LocalAddr()})
		ms = append(ms, m)
	}
	for _, m := range ms {
		c := raft.DefaultConfig()
		c.LocalID = raft.ServerID(m.name)
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 300*time.Millisecond, 300*time.Millisecond, 200*time.Millisecond
		c.CommitTimeout = 5 * time.Millisecond
		c.Logger = hclog.NewNullLogger()
		store, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		if err := raft.BootstrapCluster(c, store, store, snaps, m.tr, conf); err != nil {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(c, &counter{}, store, store, snaps, m.tr)
		if err != nil {
			t.Fatal(err)
		}
		m.raft = r
	}
	return ms
}

func stopCluster(ms []*member) {
	for _, m := range ms {
		m.raft.Shutdown().Error()
		m.tr.Close()
		m.pool.Close()
		m.srv.Close()
	}
}

// leader waits, in virtual time, for one leader among ms.
func leader(t *testing.T, ms []*member) *member {
	t.Helper()
	for range 1000 {
		var found []*member
		for _, m := range ms {
			if m.raft.State() == raft.Leader {
				found = append(found, m)
			}
		}
		if len(found) == 1 {
			return found[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no single leader within 10 s")
	return nil
}

// The same bubble twice: state that leaks from one to the next is fatal in synctest, as yamux's timers were.
func TestClusterInVirtualTime(t *testing.T) {
	for round := range 2 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New()
				n.SetDelay(time.Millisecond)
				ms := startCluster(t, n)
				defer stopCluster(ms)
				old := leader(t, ms)
				if err := old.raft.Apply([]byte("x"), time.Second).Error(); err != nil {
					t.Fatal(err)
				}
				// Calls and raft share the port.
				for _, m := range ms {
					if _, err := Invoke(t.Context(), old.pool.To(m.name+":4647"), mEcho, Header{}, &echoReq{Text: "x"}); err != nil {
						t.Fatal(err)
					}
				}
				n.Isolate(old.name)
				var rest []*member
				for _, m := range ms {
					if m != old {
						rest = append(rest, m)
					}
				}
				cut := time.Now()
				next := leader(t, rest)
				if took := time.Since(cut); took > 5*time.Second {
					t.Errorf("a new leader took %s", took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				_, err := Invoke(ctx, old.pool.To(next.name+":4647"), mEcho, Header{}, &echoReq{})
				cancel()
				if structs.CodeOf(err) != structs.CodeTimeout {
					t.Errorf("call across a partition: %v", err)
				}
				if err := next.raft.Apply([]byte("y"), time.Second).Error(); err != nil {
					t.Fatal(err)
				}
				if err := old.raft.Apply([]byte("z"), time.Second).Error(); err == nil {
					t.Error("the isolated leader committed")
				}
				n.Heal()
				time.Sleep(20 * time.Second)
				l := leader(t, ms)
				if err := l.raft.Barrier(5 * time.Second).Error(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				for _, m := range ms {
					if m.raft.AppliedIndex() != l.raft.AppliedIndex() {
						t.Errorf("%s applied %d, leader %d", m.name, m.raft.AppliedIndex(), l.raft.AppliedIndex())
					}
				}
				if _, err := Invoke(t.Context(), old.pool.To(next.name+":4647"), mEcho, Header{}, &echoReq{}); err != nil {
					t.Errorf("after the partition: %v", err)
				}
			})
		})
	}
}

// A peer that lost power is detected by its silence, and calls to it end.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b := n.Host("a"), n.Host("b")
		l, _ := b.Listen(4647)
		reg, _ := testRegistry()
		srv := NewServer(ServerConfig{Registry: reg})
		go srv.Serve(l)
		defer srv.Close()
		p := NewPool(PoolConfig{Dial: a.Dial})
		defer p.Close()
		if _, err := Invoke(t.Context(), p.To("b:4647"), mEcho, Header{}, &echoReq{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute) // idle sessions stay open
		s, err := p.Session(t.Context(), "b:4647")
		if err != nil || s.Err() != nil {
			t.Fatal(err, s.Err())
		}
		got := make(chan error, 1)
		go func() {
			_, err := Invoke(t.Context(), p.To("b:4647"), mWait, Header{}, &echoReq{})
			got <- err
		}()
		synctest.Wait()
		start := time.Now()
		n.PowerOff("b")
		if err := <-got; structs.CodeOf(err) != structs.CodeUnknown {
			t.Errorf("call to a dead peer: %v", err)
		}
		if took := time.Since(start); took > 90*time.Second {
			t.Errorf("noticed after %s", took)
		}
		start = time.Now()
		if _, err := Invoke(t.Context(), p.To("b:4647"), mEcho, Header{}, &echoReq{}); structs.CodeOf(err) != structs.CodeUnavailable {
			t.Errorf("dial to a dead host: %v", err)
		}
		if took := time.Since(start); took != HandshakeTimeout {
			t.Errorf("the dial gave up after %s", took)
		}
	})
}

// A connection that does not send its kind is closed after the handshake's time limit, not earlier.
func TestHandshakeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b := n.Host("a"), n.Host("b")
		l, _ := b.Listen(4647)
		reg, _ := testRegistry()
		srv := NewServer(ServerConfig{Registry: reg})
		go srv.Serve(l)
		defer srv.Close()
		var c net.Conn
		c, err := a.Dial(t.Context(), "b:4647")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the server said something")
		}
		if took := time.Since(start); took != HandshakeTimeout {
			t.Errorf("closed after %s", took)
		}
		c.Close()
	})
}
