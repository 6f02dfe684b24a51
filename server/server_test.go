package server

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// testingKnobs spare servers in virtual time what costs much processor time and changes nothing there.
var testingKnobs = TestingKnobs{NoSigningKey: true, Replica: replica.TestingKnobs{NoStalls: true}}

// testServer runs one server until the test ends.
func testServer(t *testing.T, edit func(*Config)) *Server {
	t.Helper()
	s := freshServer(t, edit)
	waitFor(t, 10*time.Second, "leadership", func() bool { return s.IsLeader() && s.Published().Snapshot.ClusterMeta() != nil })
	return s
}

// freshServer starts the server of testServer and does not wait for it to lead.
func freshServer(t *testing.T, edit func(*Config)) *Server {
	t.Helper()
	n := memnet.New()
	h := n.Host("one")
	l, err := h.Listen(4647)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "one", InMemory: true, Dev: true, Listeners: []net.Listener{l}, Dial: h.Dial, Logger: testLogger(t), Testing: testingKnobs}
	cfg.Gossip.Disabled = true
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	startServer(t, s)
	return s
}

func testLogger(t *testing.T) hclog.Logger {
	if !testing.Verbose() {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug})
}

func startServer(t *testing.T, s *Server) {
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// waitFor waits until ok reports true. It asks every 5 ms, and after a long wait every thousandth of the time waited, at least
// every 100 ms.
func waitFor(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(min(max(5*time.Millisecond, time.Since(began)/1000), 100*time.Millisecond)) {
		if ok() {
			return
		}
		if time.Since(began) > d {
			t.Fatalf("no %s within %s", what, d)
		}
	}
}

func call[Req, Resp any](t *testing.T, s *Server, m rpc.Method[Req, Resp], h rpc.Header, req *Req) *Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := rpc.Invoke(ctx, s.Caller(rpc.Peer{}), m, h, req)
	if err != nil {
		t.Fatalf("%s: %v", m.Name, err)
	}
	return resp
}

func testNode(i int) *structs.Node {
	n := &structs.Node{Name: fmt.Sprintf("node-%d", i), Datacenter: "dc1", Pool: "default", Status: structs.NodeReady,
		Attributes: map[string]string{"kernel.name": "linux", structs.BundlesAttribute: "1"},
		Resources:  structs.NodeResources{CPU: 4000, Cores: 4, MHzPerCore: 1000, MemoryMiB: 8192, DiskMiB: 100000, DynamicPortMin: 20000, DynamicPortMax: 32000},
		Drivers:    map[string]*structs.DriverInfo{"fake": {Detected: true, Healthy: true}},
	}
	n.ID = structs.DeriveID[structs.NodeID](structs.Seed{1}, "node", "", uint64(i))
	n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", "", uint64(i))
	return n
}

func TestSingleServerRegistersNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		n := testNode(1)
		resp := call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n})
		if resp.Cluster.IsZero() || len(resp.Servers) != 1 {
			t.Fatalf("registration answered %+v", resp)
		}
		got := s.Published().Snapshot.NodeByID(n.ID)
		if got == nil || got.Status != structs.NodeReady {
			t.Fatalf("node in state: %+v", got)
		}
		if s.Published().View.Len() != 1 {
			t.Fatalf("view has %d nodes, want 1", s.Published().View.Len())
		}
		// Registering the same node again writes nothing.
		again := call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n})
		if s.Published().Index != resp.Index {
			t.Fatalf("registering twice moved the index from %d to %d (answered %d)", resp.Index, s.Published().Index, again.Index)
		}
	})
}
